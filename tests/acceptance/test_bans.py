"""Bans as sites use them: views, throttles and limiters, what clients and colleagues are told, and
outages.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils import translation
from rest_framework.views import APIView

from django_ratelimit_lua import Decision, LimitError, RateLimiter, ratelimit
from django_ratelimit_lua.engine.bans import ban_log
from django_ratelimit_lua.engine.decide import answered, build_call
from django_ratelimit_lua.engine.deny_cache import deny_cache
from django_ratelimit_lua.engine.log_sampler import MAX_OF_LIMIT
from django_ratelimit_lua.engine.run import run
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.ban import Ban
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.rules.provider import start_fresh
from django_ratelimit_lua.testing.server import Server
from django_ratelimit_lua.throttling import UserRateThrottle

CLIENT = {"REMOTE_ADDR": "203.0.113.9"}


def ban_of(decision: Decision) -> Ban:
    ban = decision.limits[0].ban
    assert ban is not None
    return ban


def login(**options: Any) -> RateLimiter:
    return RateLimiter("login", "2/h", **{"ban_after": 3, "ban_for": "10m", **options})


def test_a_client_refused_too_often_is_banned() -> None:
    """The ban lasts even if the limit has room again. The decision contains the end of the ban."""
    limiter = login()
    decisions = [limiter.hit("ada") for _ in range(6)]
    assert [decision.allowed for decision in decisions] == [True, True, False, False, False, False]
    assert [ban_of(decision).offences for decision in decisions] == [0, 0, 1, 2, 3, 3]
    until = decisions[-1].banned_until
    assert until is not None
    assert timedelta(minutes=9, seconds=50) < until - datetime.now(UTC) <= timedelta(minutes=10)
    assert decisions[3].banned_until is None
    assert decisions[-1].remaining == 0
    limiter.refund("ada", 2)
    assert limiter.hit("ada").banned_until == until
    assert limiter.hit("bob")


@pytest.mark.usefixtures("quiet")
def test_each_refusal_is_an_offence_and_a_ban_is_cached() -> None:
    """Redis decides every offence. During the ban, the process refuses a flood by itself."""
    limiter = login()
    sources = [limiter.hit("ada").source for _ in range(8)]
    assert sources == ["redis"] * 5 + ["deny-cache"] * 3
    counted = login(ban_on="reported")
    assert [counted.hit("bob").source for _ in range(4)] == ["redis"] * 3 + ["deny-cache"]


def test_code_can_report_offences() -> None:
    """An offence may have any reason. It takes no units."""
    limiter = login(ban_on="reported")
    assert limiter.offend("ada")
    decision = limiter.offend("ada")
    assert (ban_of(decision).offences, decision.remaining, decision.granted) == (2, 2, 0)
    assert not limiter.offend("ada", cost=5)
    assert not limiter.hit("ada")
    assert ban_of(limiter.peek("ada")).offences == 7
    with pytest.raises(LimitError, match="cost is -1"):
        limiter.offend("ada", cost=-1)


def test_a_manual_ban_starts_and_ends() -> None:
    """The ban has a duration and a reason. It is lifted at once, and earlier bans are forgotten
    only with `forget`.
    """
    limiter = login(ban_for="10m,30m")
    for _ in range(5):
        limiter.hit("ada")
    assert not limiter.hit("ada")
    assert limiter.unban("ada").banned_until is None
    assert ban_of(limiter.peek("ada")).times == 1
    ban = ban_of(limiter.ban("ada", "3h", why="scraper"))
    assert (ban.until - ban.since, ban.by_hand, ban.times) == (3 * 3600 * 10**6, True, 1)
    assert limiter.peek("ada").retry_after > 3600
    ban = ban_of(limiter.ban("ada"))
    assert ban.until - ban.since == 30 * 60 * 10**6
    limiter.unban("ada", forget=True)
    ban = ban_of(limiter.ban("ada", timedelta(minutes=1)))
    assert ban.until - ban.since == 60 * 10**6
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
        limiter = login(ban_on="reported")
        assert await limiter.aoffend("ada", 2)
        assert not await limiter.aoffend("ada")
        assert not await limiter.ahit("ada")
        assert (await limiter.aunban("ada", forget=True)).banned_until is None
        assert await limiter.ahit("ada")
        assert not await limiter.aban("ada", "1m", why="scraper")
        await limiter.areset("ada")
        assert await limiter.ahit("ada")

    asyncio.run(bans())
    assert len(told) == 1


def statuses(view: Any, rf: RequestFactory, times: int, **meta: str) -> list[int]:
    return [view(rf.get("/", **{**CLIENT, **meta})).status_code for _ in range(times)]


def test_each_call_of_a_view_may_be_an_offence(rf: RequestFactory) -> None:
    """The last allowed call triggers the ban."""

    @ratelimit(key="ip", rate="100/m", ban_after=3, ban_for="10m", ban_on="counted")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    assert statuses(view, rf, 5) == [200, 200, 200, 429, 429]
    assert statuses(view, rf, 1, REMOTE_ADDR="203.0.113.10") == [200]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_view_may_report_an_offence(is_async: bool, rf: RequestFactory, told: list[Any]) -> None:
    """The response of the view decides: only wrong passwords count, and they count towards a
    ban.
    """

    def is_wrong(request: HttpRequest, response: Any) -> bool:
        return response.status_code == 401

    options: Any = {"ban_after": 3, "ban_for": "10m", "ban_on": "counted", "count_if": is_wrong}

    @ratelimit(key="ip", rate="100/m", **options)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=int(request.GET["status"]))

    @ratelimit(key="ip", rate="100/m", **options)
    async def aview(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=int(request.GET["status"]))

    def ask(status: int) -> int:
        request = rf.get("/", {"status": status}, **CLIENT)
        return int((asyncio.run(aview(request)) if is_async else view(request)).status_code)

    assert [ask(200) for _ in range(9)] == [200] * 9
    assert [ask(401), ask(200), ask(401), ask(200), ask(401), ask(200), ask(401)] == [
        401,
        200,
        401,
        200,
        401,
        429,
        429,
    ]
    (heard,) = told
    assert heard["request"].GET["status"] == "401"


def test_a_success_clears_the_count_but_no_offence(rf: RequestFactory) -> None:
    """The owner of one account cannot clear offences against other accounts."""

    @ratelimit(
        key="ip",
        rate="2/h",
        ban_after=3,
        ban_for="10m",
        ban_on="counted",
        count_if=lambda request, response: response.status_code == 401,
        reset_if=lambda request, response: response.status_code == 200,
    )
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=int(request.GET["status"]))

    asked = [
        view(rf.get("/", {"status": status}, **CLIENT)).status_code
        for status in (401, 200, 401, 200, 401, 200)
    ]
    assert asked == [401, 200, 401, 200, 401, 429]


def test_the_signal_of_a_ban_is_sent_once(told: list[dict[str, Any]], caplog: Any) -> None:
    """A hundred threads are refused at once. There is one signal and one log record, with the
    numbers.
    """
    limiter = login(ban_after=10)
    with (
        caplog.at_level(logging.WARNING, "django_ratelimit_lua.banned"),
        ThreadPoolExecutor(100) as pool,
    ):
        list(pool.map(lambda _: limiter.hit("ada"), range(300)))
    (heard,) = told
    ban = heard["ban"]
    assert (heard["limit"], heard["rule"], heard["mode"], heard["request"]) == (
        "login",
        None,
        "enforce",
        None,
    )
    assert (ban.offences, ban.times, ban.until - ban.since) == (10, 1, 600 * 10**6)
    assert ban.first < ban.last == ban.since
    assert heard["decision"].limits[0].ban == ban
    (record,) = [
        record for record in caplog.records if record.name == "django_ratelimit_lua.banned"
    ]
    assert record.identity == heard["identity"][:8]
    assert record.getMessage().startswith(f"Banned by login (rule: None) until {ban.ends_at}")


def test_a_flood_of_bans_writes_little_to_the_log(told: list[Any], caplog: Any) -> None:
    """Each ban sends its signal. The record after the flood contains the number of records that
    were left out.
    """
    limiter = login(ban_after=1, ban_on="reported")
    with caplog.at_level(logging.WARNING, "django_ratelimit_lua.banned"):
        for number in range(100):
            limiter.offend(f"client {number}")
    assert len(told) == 100
    written = [record for record in caplog.records if record.name == "django_ratelimit_lua.banned"]
    assert len(written) == MAX_OF_LIMIT == 10
    later = time.monotonic() + 60
    assert ban_log.left_out("login", b"another", later) == 90


def test_shadow_mode_sends_no_signal(told: list[Any], caplog: Any) -> None:
    """No request is refused. The decision contains the ban."""
    limiter = login(mode="shadow")
    assert all(limiter.hit("ada") for _ in range(8))
    assert limiter.peek("ada").limits[0].banned_until is not None
    assert told == []
    assert not [record for record in caplog.records if record.name == "django_ratelimit_lua.banned"]


def test_the_response_to_a_banned_client_shows_the_end(rf: RequestFactory) -> None:
    """It is a problem document of its own type, text or a page, also in German. `Retry-After` is
    the end of the ban.
    """

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


def test_headers_show_zero_remaining_during_a_ban(rf: RequestFactory, settings: Any) -> None:
    """The remaining units of the limit do not matter during the ban."""
    settings.RATELIMIT_HEADERS = "draft-10"

    @ratelimit(group="g", key="ip", rate="100/m", ban_after=1, ban_for="2h", ban_on="counted")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    assert statuses(view, rf, 1) == [200]
    answer = view(rf.get("/", **CLIENT))
    assert answer.status_code == 429
    assert answer["RateLimit"].startswith('"g";r=0;t=')
    assert int(answer["RateLimit"].rpartition("=")[2]) == int(answer["Retry-After"])


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


@pytest.mark.parametrize("is_async", [False, True])
def test_a_ban_may_cover_more_clients_than_the_limit_counts(
    is_async: bool, rf: RequestFactory, told: list[dict[str, Any]]
) -> None:
    """Offences against all names that an address tries are added up, and the address is banned.
    Other clients may use these names.
    """
    options: Any = {
        "key": ("ip", "post:username"),
        "rate": "1/h",
        "ban_after": 3,
        "ban_for": "1h",
        "ban_key": "ip",
    }

    @ratelimit(group="sync", **options)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("in")

    @ratelimit(group="async", **options)
    async def aview(request: HttpRequest) -> HttpResponse:
        return HttpResponse("in")

    def ask(name: str, address: str = "203.0.113.9") -> int:
        request = rf.post("/", {"username": name}, REMOTE_ADDR=address)
        return int((asyncio.run(aview(request)) if is_async else view(request)).status_code)

    assert [ask(name) for name in ("ada", "ada", "bob", "bob", "eve")] == [200, 429, 200, 429, 200]
    assert [ask("eve"), ask("new")] == [429, 429]
    assert ask("new", "203.0.113.10") == 200
    (heard,) = told
    assert heard["ban"].offences == 3
    assert heard["identity"] == digest(("ip", "203.0.113.9")).decode()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("nobody", "ban_key: .*nobody"),
        ("shop.keys.who", ": callables are not allowed"),
        (7, "write a key such as"),
    ],
)
def test_an_invalid_ban_key_is_an_error(wrong: Any, message: str) -> None:
    """An unknown key is an error at its declaration. So is a ban key without requests to read it
    from, or without a ban.
    """
    bans: Any = {"ban_after": 3, "ban_for": "1h"}
    with pytest.raises(LimitError, match=message):
        ratelimit(key="ip", rate="1/m", ban_key=wrong, **bans)
    with pytest.raises(LimitError, match="ban_key is not supported"):
        RateLimiter("x", "1/m", ban_key="ip", **bans)
    with pytest.raises(LimitError, match="ban_key is not supported"):
        type("Throttle", (UserRateThrottle,), {"options": {**bans, "ban_key": "ip"}})
    with pytest.raises(LimitError, match="ban_key needs ban_after"):
        ratelimit(key="ip", rate="1/m", ban_key="ip")


PRIVATE = [
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "127.0.0.1",
    "::1",
    "fd00::7",
    "::ffff:10.1.2.3",
    "",
]


def test_private_addresses_are_never_banned_without_a_proxy_setting(
    rf: RequestFactory, settings: Any
) -> None:
    """Such an address may be a proxy of all visitors. If trusted proxies are configured, it is a
    client.
    """

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
    assert [is_banned(address) for address in ("203.0.113.9", "198.51.100.1", "203.0.114.9")] == [
        False,
        False,
        True,
    ]


def test_a_ban_is_lifted_in_all_processes(direct: redis.Redis, settings: Any) -> None:
    """Other processes drop the ban when they receive the message."""
    settings.RATELIMIT_DENY_CACHE_SECONDS = 60
    start_fresh()
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
    assert not len(deny_cache)


@pytest.fixture
def own(settings: Any) -> Iterator[Server]:
    """A server of this test's own."""
    with Server() as server:
        settings.CACHES = {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        }
        start_fresh()
        yield server


@pytest.mark.parametrize("policy", ["open", "local", "closed"])
def test_an_outage_admits_no_client_with_a_known_ban(policy: Any, own: Server) -> None:
    """The ban holds until its end, by the clock of the process. No ban is triggered in an outage,
    and other clients are decided by the policy.
    """
    limiter = login(ban_for="1h", on_store_error=policy)
    for _ in range(5):
        limiter.hit("ada")
    own.stop()
    time.sleep(1.1)  # What was just refused is repeated for a second anyway.
    decision = limiter.hit("ada")
    assert (decision.allowed, decision.source) == (False, "fallback")
    assert decision.retry_after is not None
    assert 3500 < decision.retry_after <= 3600
    assert decision.banned_until is not None
    assert limiter.hit("bob").allowed is (policy != "closed")
    assert [limiter.hit("eve").banned_until for _ in range(9)] == [None] * 9
    assert limiter.offend("eve", 9).banned_until is None
    for change in (limiter.unban, limiter.ban):
        with pytest.raises(StoreError):
            change("ada")


def test_a_shadow_ban_leaves_the_other_limits_in_force_in_an_outage(
    own: Server,
) -> None:
    """A client that a limit in shadow mode would ban is counted by the other limits, as with Redis.
    The decision contains the ban.
    """
    watching = Limit("watching", "0/s", ban_after=1, ban_for="1h", mode="shadow")
    charges = [
        Charge(watching, digest("ada")),
        Charge(Limit("strict", "3/h", on_store_error="local"), digest("ada")),
    ]

    def hit(operation: Any = "hit") -> Decision:
        return run(answered(build_call(charges, operation)))

    assert hit().limits[0].ban.until
    assert login(ban_for="1h").ban("bob").banned_until is not None
    own.stop()
    decisions = [hit() for _ in range(5)]
    assert [decision.source for decision in decisions] == ["fallback"] * 5
    assert [decision.allowed for decision in decisions] == [True] * 2 + [False] * 3
    assert all(decision.limits[0].ban.until for decision in [*decisions, hit("peek")])
    assert login(ban_for="1h").peek("bob").banned_until is not None
