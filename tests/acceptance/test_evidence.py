"""The evidence of a ban: the last offences."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser
from django.core.handlers.wsgi import WSGIRequest
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.engine.evidence import (
    MAX_AGENT_BYTES,
    MAX_BYTES,
    MAX_OFFENCES,
    Offence,
    _Noted,
    evidence_key,
    evidence_notes,
    evidence_of,
)
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.ban import Ban
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.store import PATIENCE, Patience
from django_ratelimit_lua.testing import move_clock

OFFICE = "203.0.113.9"


def request(
    path: str = "/login", agent: str = "curl/8", user: Any = None, address: str = OFFICE
) -> HttpRequest:
    made = RequestFactory().post(path, headers={"user-agent": agent}, REMOTE_ADDR=address)
    made.user = user or AnonymousUser()
    return made


class User:
    """A signed-in user."""

    is_authenticated = True

    def __init__(self, pk: int) -> None:
        self.pk = pk


def login(**options: Any) -> Any:
    """Return a view that bans clients that are refused too often."""
    given = {
        "group": "login",
        "key": "ip",
        "rate": "2/h",
        "ban_after": 3,
        "ban_for": "10m",
        **options,
    }

    @ratelimit(**given)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("in")

    return view


def only_key(direct: redis.Redis, prefix: str) -> bytes:
    """Return the key of the only ban."""
    keys = list(direct.scan_iter(f"{prefix}*:ban"))
    assert len(keys) == 1
    return keys[0]


def written() -> None:
    assert evidence_notes.write(Patience(PATIENCE))


def test_the_last_offences_are_stored_with_the_ban(direct: redis.Redis, prefix: str) -> None:
    """Their paths and user agents are stored in order. Allowed requests, and refusals by the ban,
    are not stored.
    """
    view = login()
    for number in range(9):
        view(request(f"/login/{number}", f"agent {number}"))
    key = only_key(direct, prefix)
    (noted,) = evidence_of([(key, Ban())])
    assert [offence.path for offence in noted] == ["/login/2", "/login/3", "/login/4"]
    written()
    assert direct.exists(evidence_key(key))
    assert evidence_of([(key, Ban())]) == [noted]
    assert [offence.agent for offence in noted] == ["agent 2", "agent 3", "agent 4"]
    assert {offence.method for offence in noted} == {"POST"}
    assert sorted(offence.moment for offence in noted) == [offence.moment for offence in noted]
    assert abs(noted[-1].moment / 1e6 - time.time()) < 60


def test_evidence_ends_with_the_ban(direct: redis.Redis, prefix: str) -> None:
    """Before the ban, it is kept as long as an offence counts."""
    view = login(ban_window="1m")
    for _ in range(3):
        view(request())
    written()
    key = only_key(direct, prefix)
    assert 55_000 < direct.pttl(evidence_key(key)) <= 60_000
    for _ in range(2):
        view(request())
    written()
    assert 590_000 < direct.pttl(evidence_key(key)) <= 600_000


def test_refused_requests_that_are_not_offences_are_not_recorded_as_evidence(
    direct: redis.Redis, prefix: str
) -> None:
    """Only offences are recorded, also after the clock was set back."""
    limiter = RateLimiter("mail", "5/h", ban_after=3, ban_for="10m", ban_on="reported")
    with move_clock() as clock:
        limiter.offend("ada")
        clock.advance(-30)
        assert all(limiter.hit("ada") for _ in range(5))
        assert not limiter.hit("ada")
        limiter.peek("ada")
        assert len(evidence_of([(only_key(direct, prefix), Ban())])[0]) == 1
        limiter.offend("ada")
        (offences,) = evidence_of([(only_key(direct, prefix), Ban())])
        assert len(offences) == 2


def test_evidence_stays_in_order_when_the_clock_is_set_back(
    direct: redis.Redis, prefix: str
) -> None:
    """Later offences have later times, as in the ban, and the last ten are kept."""
    limiter = RateLimiter("mail", "0/s", ban_after=20, ban_for="2h")
    with move_clock() as clock:
        for _ in range(10):
            limiter.hit("ada")
            clock.advance(1)
        written()
        clock.advance(-3600)
        key, back_at = only_key(direct, prefix), clock.now_us
        for _ in range(3):
            clock.advance(1)
            last = limiter.hit("ada").limits[0].ban
        written()
    assert last is not None
    (offences,) = evidence_of([(key, last)])
    moments = [offence.moment for offence in offences]
    assert len(moments) == 10
    assert moments[-3:] == [back_at + seconds * 10**6 for seconds in (1, 2, 3)]
    assert last.first < moments[0] < moments[6] <= back_at + 10**6


def test_the_last_ten_offences_of_all_processes_are_kept(direct: redis.Redis, prefix: str) -> None:
    """The last ten are kept for any number of offences and any order of writes."""
    view = login(ban_after=100)
    for number in range(25):
        view(request(f"/{number}"))
        if number % 10 == 7:
            written()
    written()
    key = only_key(direct, prefix)
    (offences,) = evidence_of([(key, Ban())])
    assert [offence.path for offence in offences] == [f"/{number}" for number in range(15, 25)]
    assert direct.hlen(evidence_key(key)) == MAX_OFFENCES


def test_client_text_in_evidence_is_escaped_and_cut(direct: redis.Redis, prefix: str) -> None:
    """Text is cut and unprintable characters are escaped. A key of another type is ignored."""
    view = login(ban_after=50)
    for _ in range(2):
        view(request())
    view(request("/a\x1b[2J\u202e", "x" * 5000 + "\r\n"))
    view(request("/é", "\udcff\x00\r\n"))
    key = only_key(direct, prefix)
    direct.set(evidence_key(key), b"odd")
    written()
    (offences,) = evidence_of([(key, Ban())])
    assert all(
        letter.isprintable() for offence in offences for text in offence[1:] for letter in text
    )
    assert offences[0].path == "/a\\x1b[2J\\u202e"
    assert len(offences[0].agent) == MAX_AGENT_BYTES
    assert offences[1].path == "/é"
    assert offences[1].agent == "\\udcff\\x00\\r\\n"


@pytest.mark.parametrize(
    "letter", ["x", '"', "é", "\U0001f980", "\x00", "\u202e", "\udcff", "\U0010ffff"]
)
def test_evidence_of_a_ban_has_a_maximum_in_bytes(
    direct: redis.Redis, prefix: str, letter: str
) -> None:
    """The maximum includes names, texts and escapes. The latest offences that fit are kept."""
    view = login(ban_after=50, rate="0/s")
    for number in range(25):
        asked = request(agent=f"{number}{letter * 5000}")
        asked.path = f"/{number}{letter * 5000}"
        view(asked)
        if number % 7 == 0:
            written()
    key = only_key(direct, prefix)
    (noted,) = evidence_of([(key, Ban())])
    written()
    kept = direct.hgetall(evidence_key(key))
    assert sum(len(name) + len(text) for name, text in kept.items()) <= MAX_BYTES
    assert evidence_of([(key, Ban())]) == [noted]
    assert 3 <= len(noted) <= MAX_OFFENCES
    last = range(25 - len(noted), 25)
    assert [int("".join(re.findall(r"^/([0-9]+)", offence.path))) for offence in noted] == list(
        last
    )
    assert all(
        offence.agent.startswith(str(number)) for offence, number in zip(noted, last, strict=True)
    )
    assert all(each.isprintable() for offence in noted for text in offence[1:] for each in text)


class WrittenMeanwhile(WSGIRequest):
    """A request during which the background writes all evidence that was recorded so far."""

    @property
    def META(self) -> dict[str, Any]:
        written()
        return self.__dict__["META"]


def test_no_evidence_is_lost_while_other_evidence_is_written(
    quiet: None, direct: redis.Redis, prefix: str
) -> None:
    """An offence that is recorded during a write is in one of the two tables."""
    view = login(rate="0/s", ban_after=50)
    for number in range(3):
        asked = request(f"/{number}")
        asked.__class__ = WrittenMeanwhile
        view(asked)
    written()
    assert direct.hlen(evidence_key(only_key(direct, prefix))) == 3


def test_evidence_costs_the_decision_no_round_trip(quiet: None, direct: redis.Redis) -> None:
    """It is written in the background, in one call per second."""
    view = login(ban_after=50, rate="0/s")
    view(request())
    before = direct.info("stats")["total_commands_processed"]
    for number in range(20):
        view(request(f"/{number}"))
    asked = direct.info("stats")["total_commands_processed"] - before
    for number in range(20):
        view(request(f"/{number}"))
    again = direct.info("stats")["total_commands_processed"] - before - asked
    assert again - asked <= 1  # This question itself.


@pytest.mark.django_db
def test_the_command_shows_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    """It is printed with the list, as text and as JSON."""
    view = login()
    for number in range(5):
        view(request(f"/login/{number}", "sqlmap\x1b[2J", user=User(1)))
    written()
    call_command("ratelimit", "bans", "list", "--evidence")
    said = capsys.readouterr().out
    assert "POST /login/4 sqlmap\\x1b[2J" in said
    call_command("ratelimit", "bans", "list", "--evidence", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [offence["path"] for offence in found["last"]] == ["/login/2", "/login/3", "/login/4"]


def test_evidence_of_a_limiter_contains_only_the_time(direct: redis.Redis, prefix: str) -> None:
    """A limiter has no request, so the other fields are empty."""
    limiter = RateLimiter("mail", "0/s", ban_after=2, ban_for="1m")
    for _ in range(2):
        limiter.hit("ada")
    (offences,) = evidence_of([(only_key(direct, prefix), Ban())])
    assert [offence[1:] for offence in offences] == [("", "", "")] * 2
    assert isinstance(offences[0], Offence)


def test_evidence_waits_for_redis_and_is_bounded(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written later. Above the maximum number of identities, some are left out."""
    monkeypatch.setattr("django_ratelimit_lua.engine.evidence.MAX_NOTED", 3)
    limiter = RateLimiter("mail", "0/s", ban_after=2, ban_for="1m")
    for number in range(5):
        limiter.hit(number)
    keys = [
        Call(
            [Charge(Limit("mail", "0/s", ban_after=2, ban_for="1m"), digest(number))],
            "peek",
            settings.RATELIMIT_CACHE_PREFIX.encode(),
        ).ban_keys()[0]
        for number in range(5)
    ]
    assert not evidence_notes.write(Patience(0.0))
    assert [len(offences) for offences in evidence_of([(key, Ban()) for key in keys])] == [
        1,
        1,
        1,
        0,
        0,
    ]
    limiter.hit(0)
    written()
    assert [len(offences) for offences in evidence_of([(key, Ban()) for key in keys])] == [
        2,
        1,
        1,
        0,
        0,
    ]


def test_an_offence_during_a_write_is_kept() -> None:
    """A request records an offence while the background writes earlier ones."""
    noted, is_over = _Noted(b"key"), threading.Event()

    def offend() -> None:
        while not is_over.is_set():
            noted.offences.append(("1:1", Offence(1, "POST", "/login", "curl")))

    thread = threading.Thread(target=offend)
    thread.start()
    try:
        records = [noted.record(0.0) for _ in range(2000)]
    finally:
        is_over.set()
        thread.join()
    assert all(records)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_ban_signal_contains_the_evidence(told: list[dict[str, Any]], is_async: bool) -> None:
    """It has the offences of all processes, including the one that earned the ban."""
    view, expected = login(), [f"/{number}" for number in range(2, 5)]
    if is_async:

        @ratelimit(group="login", key="ip", rate="2/h", ban_after=3, ban_for="10m")
        async def aview(request: HttpRequest) -> HttpResponse:
            return HttpResponse("in")

        view = async_to_sync(aview)
    for number in range(7):
        if number == 4:
            written()
        view(request(f"/{number}", user=User(number)))
    (arguments,) = told
    evidence = arguments["evidence"]
    assert [offence.path for offence in evidence] == expected
    assert evidence[-1].moment == arguments["ban"].last


def test_a_lifted_ban_leaves_no_evidence(direct: redis.Redis, prefix: str) -> None:
    """The offences of the lifted ban do not count again."""
    limiter = RateLimiter("mail", "0/s", ban_after=2, ban_for="1m")
    for _ in range(2):
        limiter.hit("ada")
    written()
    key = only_key(direct, prefix)
    assert direct.exists(evidence_key(key))
    limiter.unban("ada")
    assert not direct.exists(evidence_key(key))
    limiter.hit("ada")
    written()
    assert len(evidence_of([(key, Ban())])[0]) == 1


def test_reported_offences_leave_evidence(direct: redis.Redis, prefix: str) -> None:
    """If the view decides which requests are offences, the evidence has these requests."""
    view = login(
        rate="100/h", ban_on="counted", count_if=lambda request, response: "wrong" in request.path
    )
    for path in ["/in", "/wrong/1", "/in", "/wrong/2"]:
        view(request(path))
    (offences,) = evidence_of([(only_key(direct, prefix), Ban())])
    assert [offence.path for offence in offences] == ["/wrong/1", "/wrong/2"]
