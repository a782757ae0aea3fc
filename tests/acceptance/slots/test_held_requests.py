"""Slots of requests are held until the response is closed, in every kind of view and for every
outcome of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest
import redis
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils import translation
from django.utils.decorators import async_only_middleware

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.engine.slots import held_slots
from django_ratelimit_lua.limits.rate import LimitError
from tests.acceptance.slots.cancellation import Interrupted
from tests.acceptance.slots.slot_urls import FACES, RULES, SLOTS, SlotsInUse

pytestmark = [
    pytest.mark.usefixtures("site"),
    pytest.mark.filterwarnings(
        "ignore:StreamingHttpResponse must consume synchronous iterators:Warning"
    ),
    # Before Django 6, its handler for ASGI leaves files open where it is interrupted.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
N = int(SLOTS)
LATER = 10.0
"""Seconds within which a slot of `SECONDS` has ended, on a busy machine."""
SECONDS = 0.8
MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]
PLACES = [
    *((face, MIDDLEWARE) for face in FACES),
    *((face, []) for face in FACES if "middleware" not in face),
]
"""Faces with our middleware around them, and without."""


@pytest.fixture
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.acceptance.slots.slot_urls"
    settings.MIDDLEWARE = MIDDLEWARE
    settings.RATELIMIT_RULES = RULES
    settings.DEBUG_PROPAGATE_EXCEPTIONS = False


@pytest.fixture
def slots(direct: redis.Redis, prefix: str) -> Iterator[SlotsInUse]:
    yield SlotsInUse(direct, prefix)
    for key in direct.scan_iter(f"running:{prefix}*"):
        direct.delete(key)


def begin(path: str) -> tuple[int, Any]:
    """Handle a request as a WSGI server does, and return its status and its open body."""
    environ = RequestFactory().get(path).environ
    environ["wsgi.input"] = BytesIO()
    said: list[str] = []
    body = WSGIHandler()(environ, lambda status, headers: said.append(status))
    return int(said[0].split()[0]), body


def end(body: Any) -> bytes:
    try:
        return b"".join(body)
    finally:
        body.close()


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("ending", ["plain", "stream", "file", "nothing", "raises"])
def test_a_slot_is_held_until_the_response_is_closed(
    slots: SlotsInUse, face: str, ending: str
) -> None:
    """It is held after the end of the body. If a view raises, it is released earlier."""
    status, body = begin(f"/{face}/{ending}/?who=ada")
    assert status == (500 if ending in ("nothing", "raises") else 200)
    is_over = ending == "raises" and not face.startswith("middleware")
    assert slots.held == (0 if is_over else 1)
    b"".join(body)
    assert slots.held == (0 if is_over else 1)
    body.close()
    assert slots.held == slots.running("ada") == 0


@pytest.mark.parametrize("face", FACES)
def test_a_client_is_refused_while_all_slots_are_held(slots: SlotsInUse, face: str) -> None:
    """In every kind of view, N responses may be open."""
    bodies = [begin(f"/{face}/plain/?who=ada") for _ in range(N)]
    assert [status for status, _ in bodies] == [200] * N
    refused, body = begin(f"/{face}/plain/?who=ada")
    assert refused == 429
    assert slots.held == N
    body.close()
    assert slots.held == N
    bodies.pop()[1].close()
    bodies.append(begin(f"/{face}/plain/?who=ada"))
    assert bodies[-1][0] == 200
    for _, each in bodies:
        each.close()
    assert slots.held == 0


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("ending", ["exits", "interrupted", "closed"])
def test_an_exception_that_stops_a_view_releases_its_slot(
    slots: SlotsInUse, face: str, ending: str
) -> None:
    """Django makes no response for `SystemExit`, `KeyboardInterrupt` and `GeneratorExit`."""
    with pytest.raises(BaseException) as stopped:  # noqa: PT011 - which of them depends on the ending
        begin(f"/{face}/{ending}/?who=ada")
    assert not isinstance(stopped.value, Exception)
    assert slots.held == slots.running("ada") == 0


@pytest.mark.parametrize("face", FACES)
def test_a_body_that_is_interrupted_releases_its_slot(slots: SlotsInUse, face: str) -> None:
    """A generator raises in the middle, or the client disconnects there."""
    _, body = begin(f"/{face}/stream/?who=ada&breaks")
    with pytest.raises(ValueError, match="in the middle"):
        end(body)
    assert slots.held == 0
    _, body = begin(f"/{face}/stream/?who=ada")
    iterator = iter(body)
    next(iterator)
    assert slots.held == slots.running("ada") == 1
    body.close()
    assert slots.held == slots.running("ada") == 0


Messages = list[dict[str, Any]]


async def asgi(
    path: str,
    *,
    until_sent: int = 10**6,
    until_true: Callable[[], bool] | None = None,
    gone: asyncio.Event | None = None,
) -> Messages:
    """Handle a request as an ASGI server does, and return the sent messages."""
    sent: Messages = []
    begun, gone = False, gone or asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while until_true is not None and not await asyncio.to_thread(until_true):
            await asyncio.sleep(0.01)
        if until_true is None:
            await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if len(sent) >= until_sent:
            gone.set()
            await asyncio.sleep(0.05)

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query.encode(),
        "headers": [],
        "server": ("testserver", 80),
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "http_version": "1.1",
    }
    await ASGIHandler()(scope, receive, send)
    return sent


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("ending", ["plain", "stream", "astream", "file", "nothing", "raises"])
def test_under_asgi_a_slot_is_released_with_the_response(
    slots: SlotsInUse, face: str, ending: str
) -> None:
    """This holds in every kind of view, for every kind of response."""
    sent = asyncio.run(asgi(f"/{face}/{ending}/?who=ada"))
    assert sent[0]["status"] == (500 if ending in ("nothing", "raises") else 200)
    assert slots.held == slots.running("ada") == 0


@pytest.mark.parametrize(("face", "middleware"), PLACES)
def test_under_asgi_a_client_that_leaves_holds_the_slot_until_the_view_ends(
    slots: SlotsInUse, face: str, middleware: list[str], settings: Any
) -> None:
    """A coroutine is cancelled, and a thread runs to its end."""
    settings.MIDDLEWARE = middleware
    running_unheld: list[int] = []

    def runs() -> bool:
        return slots.running("ada") == 1

    async def watched() -> None:
        request = asyncio.ensure_future(
            asgi(f"/{face}/plain/?who=ada&seconds=0.5", until_true=runs)
        )
        while not request.done():
            running = await asyncio.to_thread(slots.running, "ada")
            held = await asyncio.to_thread(lambda: slots.held)
            if running > held and await asyncio.to_thread(slots.running, "ada"):
                running_unheld.append(running)
            await asyncio.sleep(0.02)
        assert await request == []

    asyncio.run(watched())
    assert running_unheld == []
    slots.until_free()
    assert slots.running("ada") == 0


@pytest.mark.parametrize(("face", "middleware"), PLACES)
@pytest.mark.parametrize("ending", ["stream", "astream"])
def test_under_asgi_a_body_that_raises_releases_its_slot(
    slots: SlotsInUse, face: str, middleware: list[str], ending: str, settings: Any
) -> None:
    """Django's handler does not close a response whose body raises."""
    settings.MIDDLEWARE = middleware
    with pytest.raises(ValueError, match="in the middle"):
        asyncio.run(asgi(f"/{face}/{ending}/?who=ada&breaks"))
    slots.until_free()


class HangUp:
    """The number of the wait during which the client disconnects."""

    number = 0
    gone: asyncio.Event
    reached = False


@async_only_middleware
def hang_up(get_response: Any) -> Any:
    """A middleware before all others."""

    async def middleware(request: HttpRequest) -> Any:
        interrupted = Interrupted(
            get_response(request), HangUp.number, "cancelled", HangUp.gone.set
        )
        try:
            return await interrupted
        finally:
            HangUp.reached = interrupted.reached

    return middleware


@pytest.mark.parametrize(("face", "middleware"), PLACES)
@pytest.mark.parametrize("ending", ["plain", "astream"])
def test_under_asgi_a_client_that_leaves_at_any_moment_holds_no_slot(
    slots: SlotsInUse, face: str, middleware: list[str], ending: str, settings: Any
) -> None:
    """This includes the call to Redis for the slot."""
    settings.MIDDLEWARE = [f"{__name__}.hang_up", *middleware]
    settings.RATELIMIT_SLOT_SECONDS = SECONDS

    async def request(number: int) -> None:
        HangUp.number, HangUp.gone, HangUp.reached = number, asyncio.Event(), False
        await asgi(f"/{face}/{ending}/?who=ada", gone=HangUp.gone)

    for number in range(1, 100):
        asyncio.run(request(number))
        slots.until_free(LATER)
        if not HangUp.reached:
            break
    assert number > 1


def called(view: Any, who: str = "ada", **headers: str) -> tuple[HttpRequest, Any]:
    """Call a view, and return its open request and its response."""
    request = RequestFactory().get("/", {"who": who}, headers=headers)
    return request, view(request)


def test_a_request_holds_one_slot_of_a_limit_even_if_decided_twice(slots: SlotsInUse) -> None:
    """A view that calls another view with the same limit needs no second slot."""
    once = ratelimit("nested", "get:who", "1", algorithm="concurrency")

    @once
    def inner(request: HttpRequest) -> HttpResponse:
        return HttpResponse("inner")

    @once
    def outer(request: HttpRequest) -> HttpResponse:
        return inner(request)

    request, answered = called(outer)
    assert (answered.content, slots.held) == (b"inner", 1)
    assert called(inner)[1].status_code == 429
    request.close()
    request.close()
    assert slots.held == 0


def test_an_advisory_limit_lets_a_view_run_without_a_slot(slots: SlotsInUse) -> None:
    """With `block=False`, `request.limited` is true, and no slot is held."""

    @ratelimit("advice", "get:who", "1", algorithm="concurrency", block=False)
    def advised(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(request.limited))

    first, answered = called(advised)
    assert answered.content == b"False"
    second, answered = called(advised)
    assert (answered.content, slots.held) == (b"True", 1)
    second.close()
    assert slots.held == 1
    first.close()
    assert slots.held == 0


def test_the_option_count_if_refunds_rates_but_no_slots(slots: SlotsInUse) -> None:
    """The unit of the rate is refunded, but the slot is held until the response is closed."""

    @ratelimit(
        "counted",
        "get:who",
        ["1/h", "2"],
        count_if=lambda request, response: False,
        reset_if=lambda *_: False,
    )
    def counted(request: HttpRequest) -> HttpResponse:
        return HttpResponse("counted")

    requests = [called(counted) for _ in range(2)]
    assert [answered.status_code for _, answered in requests] == [200, 200]
    assert slots.held == 2
    for request, _ in requests:
        request.close()
    assert slots.held == 0
    with pytest.raises(LimitError, match="reset_if is only for rates"):
        ratelimit("slots", "ip", "2", algorithm="concurrency", reset_if=lambda *_: True)


ANSWERS = {
    "text/plain": "Too many requests at the same time. Try again in ",
    "application/json": "Too many requests at the same time. Try again in ",
    "text/html": "<h1>Too many requests at the same time</h1>",
}


@pytest.mark.parametrize("accept", ANSWERS)
def test_the_response_explains_that_all_slots_are_in_use(
    slots: SlotsInUse, accept: str, settings: Any
) -> None:
    """Each form of the response has the reason and an estimated retry time."""
    settings.RATELIMIT_HEADERS = "ietf"

    @ratelimit("told", "get:who", "1", algorithm="concurrency")
    def told(request: HttpRequest) -> HttpResponse:
        return HttpResponse("told")

    first, _ = called(told)
    _, refused = called(told, accept=accept)
    assert refused.status_code == 429
    assert ANSWERS[accept] in refused.content.decode()
    assert 1 <= int(refused["Retry-After"]) <= 11
    assert 'qu="concurrent-requests"' in refused["RateLimit-Policy"]
    with translation.override("de"):
        _, refused = called(told, accept="text/plain")
    assert refused.content.decode().startswith(
        "Zu viele Anfragen gleichzeitig. Versuchen Sie es in"
    )
    first.close()


def test_the_purpose_of_a_slot_is_the_method_and_the_path(slots: SlotsInUse) -> None:
    """The path is shortened, escaped and without its query, for the log."""
    _, body = begin(f"/sync/plain%0A{'x' * 1000}/?who=ada&secret=1")
    (held,) = held_slots.all()
    assert held.what.startswith("GET /sync/plain%0Axxx")
    assert len(held.what) <= 200
    assert "secret" not in held.what
    body.close()
