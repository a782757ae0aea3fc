"""`@ratelimit` on every kind of view, through Django's own handlers."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_ratelimit_lua import ALL, UNSAFE, LimitError, Ratelimited, ratelimit
from tests import urls as site
from tests.urls import aok, ok

SYNC = ["/plain", "/on-method", "/on-class", "/inherits", "/wrapped", "/also-wrapped"]
ASYNC = ["/coroutine", "/async-on-class", "/async-on-method"]


def statuses(view: Any, rf: RequestFactory, times: int = 3, **headers: str) -> list[int]:
    return [view(rf.get("/", headers=headers)).status_code for _ in range(times)]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("path", SYNC + ASYNC)
def test_the_third_request_at_two_per_minute_is_refused(path: str, kind: Any) -> None:
    """Functions, methods, classes and wrapped views are limited, under WSGI and ASGI."""
    get = kind().get if kind is Client else async_to_sync(kind().get)
    assert [get(path).status_code for _ in range(3)] == [200, 200, 429]


def test_different_views_never_share_a_count(client: Client) -> None:
    """A class and its subclasses, and two `as_view()`s of one module, have separate counts."""
    for path in SYNC + ASYNC:
        assert [client.get(path).status_code for _ in range(2)] == [200, 200], path


def test_views_with_the_same_group_share_a_count(rf: RequestFactory) -> None:
    """The group is the name of the count."""
    one, other = (ratelimit("both", "ip", "3/m")(view) for view in (ok, wrapped(ok)))
    assert statuses(one, rf, 2) == [200, 200]
    assert statuses(other, rf, 2) == [200, 429]


def test_stacked_limits_never_share_a_count(rf: RequestFactory) -> None:
    """A request that one of them refuses takes no unit of the other."""
    view = ratelimit(key="ip", rate="2/m")(ratelimit(key="ip", rate="100/h")(ok))
    assert statuses(view, rf, 4) == [200, 200, 429, 429]
    request = rf.get("/")
    view(request)
    assert [(state.limit, state.used) for state in request.ratelimit.limits] == [(2, 2), (100, 2)]


def test_the_same_limit_declared_twice_counts_separately(rf: RequestFactory) -> None:
    """No call contains the same key twice."""
    view = ratelimit(key="ip", rate=["2/m", "2/m"])(ratelimit(key="ip", rate="2/m")(ok))
    assert statuses(view, rf) == [200, 200, 429]


def test_decorators_with_another_in_between_decide_one_after_the_other(rf: RequestFactory) -> None:
    """A decorator in between that copies attributes is still called, and so is the view."""
    view = ratelimit(key="ip", rate="5/m")(wrapped(ratelimit(key="ip", rate="2/m")(ok)))
    request = rf.get("/")
    assert view(request).content == b"ok"
    assert request.is_wrapped
    assert [state.limit for state in request.ratelimit.limits] == [5, 2]


def test_different_sets_of_methods_have_separate_counts(client: Client) -> None:
    """A limit on unsafe methods lets GET pass and does not count it."""
    assert [client.get("/form").status_code for _ in range(3)] == [200, 200, 200]
    assert [client.post("/form").status_code for _ in range(3)] == [200, 200, 429]
    assert client.delete("/form").status_code == 429
    assert client.get("/form").json() == {"limited": False}


def test_without_block_the_view_decides(client: Client) -> None:
    """`block=False` sets `request.limited`; `request.ratelimit` carries the decision."""
    answers = [client.get("/advisory").json() for _ in range(3)]
    assert [answer["limited"] for answer in answers] == [False, False, True]
    assert [answer["remaining"] for answer in answers] == [1, 0, 0]


def test_an_advisory_limit_does_not_disable_a_blocking_one(rf: RequestFactory) -> None:
    """On one view, the blocking limit still counts when the `block=False` limit is used up."""
    view = ratelimit(key="ip", rate="1/m", block=False)(ratelimit(key="ip", rate="3/m")(ok))
    limited = []
    for _ in range(3):
        request = rf.get("/")
        assert view(request).status_code == 200
        limited.append(request.limited)
    assert limited == [False, True, True]
    assert view(rf.get("/")).status_code == 429


def test_a_view_that_raises_runs_once(client: Client) -> None:
    """An exception of the view is raised unchanged, and the view has run once."""
    site.runs.clear()
    with pytest.raises(site.BoomError):
        client.get("/broken")
    assert site.runs == ["broken"]


def test_a_list_of_rates_is_all_or_nothing(rf: RequestFactory) -> None:
    """The smallest rate refuses first. None in the list is no limit."""
    view = ratelimit(key="ip", rate=["2/s", "3/h", None])(ok)
    assert statuses(view, rf) == [200, 200, 429]


def test_rates_and_costs_may_be_functions(rf: RequestFactory) -> None:
    """They may be coroutine functions. A rate of None is no limit."""

    async def rate(group: str, request: HttpRequest) -> str | None:
        return request.GET.get("rate")

    def cost(group: str, request: HttpRequest) -> int:
        assert group == "called"
        return 3

    view = ratelimit("called", "ip", rate, cost=cost)(ok)
    assert [view(rf.get("/?rate=7/m")).status_code for _ in range(3)] == [200, 200, 429]
    assert view(rf.get("/")).status_code == 200
    with pytest.raises(LimitError, match="'ten/m'"):
        view(rf.get("/?rate=ten/m"))


def key_by_path(group: str, request: HttpRequest) -> str:
    return request.GET["who"]


def rate_by_path(group: str, request: HttpRequest) -> str:
    return "1/m"


def cost_by_path(group: str, request: HttpRequest) -> int:
    return 1


def test_dotted_paths_are_accepted(rf: RequestFactory) -> None:
    """Keys, rates and costs may be given by a dotted path."""
    names = {name: f"{__name__}.{name}_by_path" for name in ("key", "rate", "cost")}
    view = ratelimit(**names)(ok)
    assert [view(rf.get(f"/?who={who}")).status_code for who in "aba"] == [200, 200, 429]


def test_a_leaky_bucket_delays_requests_until_their_turn(rf: RequestFactory) -> None:
    """Sync and async views wait: the second request is admitted 50 ms after the first."""
    leaky = ratelimit(key="ip", rate="20/s", algorithm="leaky_bucket")
    for view in (leaky(ok), async_to_sync(leaky(aok))):
        started = time.monotonic()
        statuses(view, rf)
        assert time.monotonic() - started >= 0.1 - 0.002


def test_a_disabled_site_limits_no_view(rf: RequestFactory, settings: Any) -> None:
    """With `RATELIMIT_ENABLE = False`, no call is made. The request still has its attributes."""
    settings.RATELIMIT_ENABLE = False
    settings.RATELIMIT_USE_CACHE = "there is no such cache"
    view = ratelimit(key="ip", rate="1/m")(ok)
    request = rf.get("/")
    assert statuses(view, rf) == [200, 200, 200]
    view(request)
    assert (request.limited, request.ratelimit.allowed) == (False, True)


def test_the_default_algorithm_is_a_setting(rf: RequestFactory, settings: Any) -> None:
    """Limits without an algorithm use `RATELIMIT_ALGORITHM`."""
    settings.RATELIMIT_ALGORITHM = "gcra"
    request = rf.get("/")
    ratelimit(key="ip", rate="6/m")(ok)(request)
    assert request.ratelimit.reset_after == 10


def test_the_names_of_django_ratelimit_exist() -> None:
    """`ratelimit.ALL`, `ratelimit.UNSAFE`, and the order of the positional arguments."""
    assert (ratelimit.ALL, ratelimit.UNSAFE) == (ALL, UNSAFE)
    assert ratelimit("group", "ip", "5/m", ratelimit.UNSAFE, False)(ok)


def test_a_fallback_replaces_a_refused_request(rf: RequestFactory, settings: Any) -> None:
    """It gets the view's arguments, and its response gets the headers of the limit."""
    settings.RATELIMIT_EXCEPTION_CLASS = "django_ratelimit_lua.Ratelimited"
    settings.RATELIMIT_HEADERS = "x"

    def stored(request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(f"stored {number}, limited {request.limited}")

    async def astored(request: HttpRequest, number: int) -> HttpResponse:
        return stored(request, number)

    def page(request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse("fresh")

    async def apage(request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse("fresh")

    limit = ratelimit(group="pages", key="ip", rate="1/h", fallback=stored)
    other = ratelimit(group="pages", key="ip", rate="1/h", fallback=astored)

    @method_decorator(limit, name="dispatch")
    class Page(View):
        def get(self, request: HttpRequest, number: int) -> HttpResponse:
            return page(request, number)

    assert limit(page)(rf.get("/"), 7).content == b"fresh"
    ways = (limit(page), Page.as_view(), async_to_sync(limit(apage)), async_to_sync(other(apage)))
    for way in ways:
        response = way(rf.get("/"), 7)
        assert (response.status_code, response.content) == (200, b"stored 7, limited True")
        assert response["X-RateLimit-Remaining"] == "0"


def test_a_raised_ratelimited_is_a_403_in_django(client: Client, settings: Any) -> None:
    """Like the exception of django-ratelimit, it is a `PermissionDenied`."""
    settings.RATELIMIT_EXCEPTION_CLASS = Ratelimited
    assert [client.get("/plain").status_code for _ in range(3)] == [200, 200, 403]


def wrapped(view: Any) -> Any:
    """Return a function around the view, as another decorator would."""

    @functools.wraps(view)
    def around(request: Any) -> Any:
        request.is_wrapped = True
        return view(request)

    return around


two_per_hour = method_decorator(ratelimit(key="ip", rate="2/h"), name="dispatch")


@two_per_hour
class Parent(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


@method_decorator(ratelimit(key="ip", rate="2/h"), name="dispatch")
class Child(Parent):
    pass


@two_per_hour
class SameChild(Parent):
    pass


tree = method_decorator(ratelimit("tree", "ip", "2/h"), name="dispatch")


@tree
class NamedParent(View):
    pass


@tree
class NamedChild(NamedParent):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


@pytest.mark.parametrize(
    "view",
    [
        Child.as_view(),
        SameChild.as_view(),
        NamedChild.as_view(),
        ratelimit("apart", "ip", "2/h")(wrapped(ratelimit("apart", "ip", "2/h")(ok))),
    ],
    ids=["child", "same-decorator", "async-group", "function"],
)
def test_the_same_limit_at_two_places_of_a_view_counts_a_request_once(
    view: Any, rf: RequestFactory
) -> None:
    """The places are a class and its base class, or two decorators."""
    if iscoroutinefunction(view):
        view = async_to_sync(view)
    assert statuses(view, rf) == [200, 200, 429]


def test_limits_that_differ_in_cost_or_outcome_both_count(rf: RequestFactory) -> None:
    """Another cost, `count_if` or `block` is a limit of its own."""

    inner = wrapped(ratelimit("cost", "ip", "9/h", cost=2)(ok))
    assert statuses(ratelimit("cost", "ip", "9/h")(inner), rf, 4) == [200, 200, 200, 429]
    inner = wrapped(ratelimit("outcome", "ip", "2/h")(ok))
    free = ratelimit("outcome", "ip", "2/h", count_if=lambda *_: False)(inner)
    assert statuses(free, rf, 2) == [200, 429]
    inner = wrapped(ratelimit("informs", "ip", "2/h")(ok))
    assert statuses(ratelimit("informs", "ip", "2/h", block=False)(inner), rf) == [200, 200, 429]


def test_a_request_that_a_test_sends_twice_counts_twice(rf: RequestFactory) -> None:
    """A unit test may call a view several times with one request."""
    view = ratelimit(key="ip", rate="2/h")(ok)
    request = rf.get("/")
    assert [view(request).status_code for _ in range(3)] == [200, 200, 429]
