"""Bans as sites use them: views, throttles and limiters, what clients and colleagues are told, and
outages.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils import translation
from rest_framework.views import APIView

from django_ratelimit_lua import Decision, LimitError, RateLimiter, ratelimit
from django_ratelimit_lua.engine.bans import ban_log
from django_ratelimit_lua.engine.deny_cache import deny_cache
from django_ratelimit_lua.engine.logs import MAX_OF_LIMIT
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.ban import Ban
from django_ratelimit_lua.rules.provider import reset_rules
from django_ratelimit_lua.testing.server import Server
from django_ratelimit_lua.throttling import UserRateThrottle

CLIENT = {"REMOTE_ADDR": "203.0.113.9"}


def ban_of(decision: Decision) -> Ban:
    ban = decision.limits[0].ban
    assert ban is not None
    return ban


def length_of(decision: Decision) -> int:
    """Return the length of a new ban, in microseconds."""
    return ban_of(decision).until - decision.moment


def login(**options: Any) -> RateLimiter:
    return RateLimiter("login", "2/h", **{"ban_after": 3, "ban_for": "10m", **options})


@pytest.mark.usefixtures("quiet")
def test_each_refusal_is_an_offence_and_a_ban_is_cached() -> None:
    """Redis decides every offence. During the ban, the process refuses a flood by itself."""
    limiter = login()
    sources = [limiter.hit("ada").source for _ in range(8)]
    assert sources == ["redis"] * 5 + ["deny-cache"] * 3


def test_a_manual_ban_starts_and_ends() -> None:
    """The ban has a duration and a reason."""
    limiter = login(ban_for="10m,30m")
    for _ in range(5):
        limiter.hit("ada")
    assert not limiter.hit("ada")
    assert limiter.unban("ada").banned_until is None
    assert ban_of(limiter.peek("ada")).times == 1
    decision = limiter.ban("ada", "3h", why="scraper")
    assert length_of(decision) == 3 * 3600 * 10**6
    assert (ban_of(decision).offences, ban_of(decision).times) == (0, 1)
    assert limiter.peek("ada").retry_after > 3600
    assert length_of(limiter.ban("ada")) == 30 * 60 * 10**6
    limiter.unban("ada", forget=True)
    assert length_of(limiter.ban("ada", timedelta(minutes=1))) == 60 * 10**6
    for wrong in ("soon", "0s", timedelta(days=-1)):
        with pytest.raises(LimitError, match="write a number and a unit"):
            limiter.ban("ada", wrong)
    with pytest.raises(LimitError, match="'free' does not ban; set ban_after and ban_for"):
        RateLimiter("free", "5/m").ban("ada")


def test_a_reset_clears_the_count_the_ban_and_the_ban_history() -> None:
    """The next ban is as short as a first one."""
    limiter = login()
    for _ in range(5):
        limiter.hit("ada")
    limiter.reset("ada")
    assert limiter.hit("ada")
    assert ban_of(limiter.peek("ada")) == Ban()


def test_bans_have_the_same_methods_for_coroutines(told: list[Any]) -> None:
    """The name of each method begins with an `a`."""

    async def bans() -> None:
        limiter = login()
        assert await limiter.ahit("ada", 2)
        for _ in range(3):
            assert not await limiter.ahit("ada")
        assert (await limiter.aunban("ada", forget=True)).banned_until is None
        assert not await limiter.aban("ada", "1m", why="scraper")
        await limiter.areset("ada")
        assert await limiter.ahit("ada")

    asyncio.run(bans())
    assert len(told) == 1


def statuses(view: Any, rf: RequestFactory, times: int, **meta: str) -> list[int]:
    return [view(rf.get("/", **{**CLIENT, **meta})).status_code for _ in range(times)]


def test_the_signal_of_a_ban_is_sent_once(told: list[dict[str, Any]], caplog: Any) -> None:
    """A hundred threads are refused at once."""
    limiter = login(ban_after=10)
    with (
        caplog.at_level(logging.WARNING, "django_ratelimit_lua.banned"),
        ThreadPoolExecutor(100) as pool,
    ):
        list(pool.map(lambda _: limiter.hit("ada"), range(300)))
    (heard,) = told
    ban = heard["ban"]
    found = (heard["limit"], heard["rule"], heard["mode"], heard["request"])
    assert found == ("login", None, "enforce", None)
    assert (ban.offences, ban.times, length_of(heard["decision"])) == (10, 1, 600 * 10**6)
    assert heard["decision"].limits[0].ban == ban
    (record,) = [
        record for record in caplog.records if record.name == "django_ratelimit_lua.banned"
    ]
    assert record.identity == heard["identity"][:8]
    assert record.getMessage() == (
        "Banned by login (rule: None) for 600 s after 10 refusals: client ad… "
        f"({record.identity}), last path None, ban number 1; records dropped before: 0"
    )


@pytest.mark.parametrize(
    ("shows", "client"),
    [("plain", "ip=203.0.113.9"), ("masked", "ip=203.0.113.0/24"), ("off", "hidden")],
)
def test_the_log_record_names_the_client_as_the_setting_allows(
    rf: RequestFactory, settings: Any, caplog: Any, shows: str, client: str
) -> None:
    """It has the rule, the length, and the last path without its query, escaped."""
    settings.RATELIMIT_SHOW_IDENTITIES = shows

    @ratelimit(group="search", key="ip", rate="1/h", ban_after=2, ban_for="1h")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    with caplog.at_level(logging.WARNING, "django_ratelimit_lua.banned"):
        for url in ("/", "/first/", "/a%0Ab%1B[2J/?token=secret"):
            view(rf.get(url, **CLIENT))
    (record,) = [one for one in caplog.records if one.name == "django_ratelimit_lua.banned"]
    assert (record.client, record.seconds, record.path) == (client, 3600, r"/a\nb\x1b[2J/")
    assert record.limit.startswith("search:")
    assert record.identity in digest(("ip", "203.0.113.9")).decode()


def test_a_flood_of_bans_writes_little_to_the_log(told: list[Any], caplog: Any) -> None:
    """Each ban sends its signal."""
    limiter = RateLimiter("login", "0/h", ban_after=1, ban_for="10m")
    with caplog.at_level(logging.WARNING, "django_ratelimit_lua.banned"):
        for number in range(100):
            limiter.hit(f"client {number}")
    assert len(told) == 100
    written = [record for record in caplog.records if record.name == "django_ratelimit_lua.banned"]
    assert len(written) == MAX_OF_LIMIT == 10
    later = time.monotonic() + 60
    assert ban_log.admit("login", b"another", later)
    assert ban_log.take_skipped("login") == 90


def test_shadow_mode_sends_no_signal(told: list[Any], caplog: Any) -> None:
    """No request is refused. The decision contains the ban."""
    limiter = login(mode="shadow")
    assert all(limiter.hit("ada") for _ in range(8))
    assert limiter.peek("ada").limits[0].banned_until is not None
    assert told == []
    assert not [record for record in caplog.records if record.name == "django_ratelimit_lua.banned"]


def test_the_response_to_a_banned_client_shows_the_end(rf: RequestFactory) -> None:
    """It is a problem document of its own type, text or a page, also in German."""

    @ratelimit(key="ip", rate="1/m", ban_after=1, ban_for="2h")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    def ask(accept: str) -> HttpResponse:
        return view(rf.get("/", headers={"Accept": accept}, **CLIENT))

    assert ask("*/*").status_code == 200
    answer = ask("application/json")
    body = json.loads(answer.content)
    until = body["banned-until"]
    assert body["type"] == "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
    assert body["title"] == "Request not satisfied due to detection of abnormal request pattern"
    assert 7190 <= body["retry_after"] == int(answer["Retry-After"]) <= 7200
    assert until.endswith("Z")
    words = f"You are banned until {until[:10]} {until[11:19]} UTC. Try again in about 2 hours."
    assert body["detail"] == words
    assert ask("text/plain").content.decode().startswith(f"Too many requests. {words}")
    page = ask("text/html").content.decode()
    assert words in page
    assert "<h1>Not allowed</h1>" in page
    with translation.override("de"):
        assert "UTC gebannt." in ask("text/plain").content.decode()


def test_throttle_classes_can_ban(rf: RequestFactory, settings: Any) -> None:
    """The options are attributes of the class."""

    class Throttle(UserRateThrottle):
        scope, rate = "logins", "1/m"
        options: Any = {"ban_after": 2, "ban_for": "1h"}  # noqa: RUF012 - as others write it

    class View(APIView):
        throttle_classes = (Throttle,)
        authentication_classes = ()

        def get(self, request: Any) -> HttpResponse:
            return HttpResponse("ok")

    view = View.as_view()
    assert statuses(view, rf, 3) == [200, 429, 429]
    answer = view(rf.get("/", **CLIENT)).render()
    assert int(answer["Retry-After"]) > 3500
    assert "banned-until" in json.loads(answer.content)


PRIVATE = ["10.1.2.3", "172.16.0.1", "192.168.1.1", "127.0.0.1", "::1", "fd00::7", ""]
PRIVATE += ["::ffff:10.1.2.3"]


def test_private_addresses_are_never_banned_without_a_proxy_setting(
    rf: RequestFactory, settings: Any
) -> None:
    """Such an address may be a proxy of all visitors."""

    @ratelimit(key="ip", rate="1/m", ban_after=1, ban_for="1h")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    def is_banned(address: str) -> bool:
        request = rf.get("/", REMOTE_ADDR=address)
        view(request)
        view(request)
        return request.ratelimit.banned_until is not None

    assert [is_banned(address) for address in PRIVATE] == [False] * 8
    assert is_banned("203.0.113.9")
    settings.RATELIMIT_TRUSTED_PROXIES = 0
    assert is_banned("10.1.2.3")
    settings.RATELIMIT_NEVER_BAN = ["203.0.113.0/24", "::ffff:198.51.100.0/120"]
    found = [is_banned(address) for address in ("203.0.113.9", "198.51.100.1", "203.0.114.9")]
    assert found == [False, False, True]


def test_a_ban_is_lifted_in_all_processes(direct: redis.Redis, settings: Any) -> None:
    """Other processes drop the ban when they receive the message."""
    settings.RATELIMIT_DENY_CACHE_SECONDS = 60
    reset_rules()
    limiter = login()
    for _ in range(7):
        decision = limiter.hit("ada")
    assert decision.source == "deny-cache"
    channel = settings.RATELIMIT_CACHE_PREFIX.encode() + b"changes:0"
    with direct.pubsub() as pubsub:
        pubsub.subscribe(channel)
        pubsub.get_message(timeout=5)
        limiter.unban("ada")
        message = pubsub.get_message(timeout=5)
    assert message is not None
    assert message["data"].startswith(b"reset ")
    assert not len(deny_cache.entries)


@pytest.fixture
def own(settings: Any) -> Iterator[Server]:
    """A server of this test's own."""
    with Server() as server:
        settings.CACHES = {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        }
        reset_rules()
        yield server


@pytest.mark.parametrize("policy", ["open", "local", "closed"])
def test_no_ban_is_triggered_in_an_outage(policy: Any, own: Server) -> None:
    """Banned clients are decided by the policy, like any other client. Manual bans need Redis."""
    limiter = login(ban_for="1h", on_store_error=policy)
    for _ in range(5):
        limiter.hit("ada")
    os.kill(own.pid, signal.SIGSTOP)
    try:
        # The deny cache repeats the last refusal for a second, which a busy machine may take.
        assert limiter.hit("ada").source in ("deny-cache", "fallback")
    finally:
        os.kill(own.pid, signal.SIGCONT)
    own.stop()
    time.sleep(1.1)
    for client in ("ada", "eve"):
        decisions = [limiter.hit(client) for _ in range(9)]
        assert {decision.source for decision in decisions} == {"fallback"}
        assert {decision.banned_until for decision in decisions} == {None}
    assert decisions[0].allowed is (policy != "closed")
    for change in (limiter.unban, limiter.ban):
        with pytest.raises(StoreError):
            change("ada")
