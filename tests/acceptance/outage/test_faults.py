"""When Redis is slow, wrong or gone: obeyed policy, a deadline, never a 500."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.core.cache import caches as django_caches
from django.test import AsyncClient, Client

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.listener import listener
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.publishing import triggers
from django_ratelimit_lua.rules.provider import reset_rules
from django_ratelimit_lua.signals import store_down, store_up
from django_ratelimit_lua.store import availability, get_store
from django_ratelimit_lua.testing.server import Server
from tests.support.processes import until
from tests.support.redis_server import CLOSED, caches

DEADLINE, SCHEDULING = 0.1, 2.0


@pytest.fixture
def own(settings: Any) -> Iterator[Server]:
    """A server that this test may stop. Tests of the deadline set the default one."""
    with Server(os.environ.get("RATELIMIT_TEST_BINARY")) as server:
        settings.RATELIMIT_TIMEOUT = 5
        settings.CACHES = caches(server.url, SOCKET_TIMEOUT=30, SOCKET_CONNECT_TIMEOUT=30)
        reset_rules()
        yield server


@pytest.fixture
def no_server(settings: Any) -> None:
    """The alias names a port that no server listens on."""
    settings.CACHES = caches(CLOSED)
    settings.RATELIMIT_TIMEOUT = DEADLINE


def timed_hits(limiter: RateLimiter, kind: str) -> tuple[list[Any], float]:
    """Return the decisions of two hits, of which the first may connect, and the longer time."""
    hit = async_to_sync(limiter.ahit) if kind == "async" else limiter.hit
    decisions, seconds = [], []
    for _ in range(2):
        started = time.monotonic()
        decisions.append(hit("x"))
        seconds.append(time.monotonic() - started)
    return decisions, max(seconds)


def deciders(direct: redis.Redis) -> int:
    """Return the number of connections whose last command was a decision."""
    return sum(client["cmd"] == "evalsha" for client in direct.client_list())


def until_asked(limiter: RateLimiter) -> Any:
    """Return the first decision by Redis after a pause."""
    for _ in range(500):
        decision = limiter.hit("x")
        if decision.source == "redis":
            return decision
        time.sleep(0.02)
    raise AssertionError("Redis was never called again")


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("policy", ["open", "closed"])
@pytest.mark.usefixtures("no_server")
def test_a_refused_connection_is_decided_by_the_policy(
    kind: str, policy: str, settings: Any
) -> None:
    """It is decided immediately, and the decision names its source."""
    settings.RATELIMIT_ON_STORE_ERROR = policy
    decisions, seconds = timed_hits(RateLimiter("x", "1/m"), kind)
    allowed, retry_after = (True, 0) if policy == "open" else (False, 1)
    for decision in decisions:
        assert (decision.allowed, decision.source) == (allowed, "fallback")
        assert decision.retry_after == retry_after
    assert seconds < DEADLINE + SCHEDULING


def reply_ok(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"+OK\r\n" * 20)


def test_a_server_with_another_protocol_is_a_store_failure(settings: Any) -> None:
    """Another program listens on the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings.CACHES = caches(f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        settings.RATELIMIT_TIMEOUT = DEADLINE
        threading.Thread(target=reply_ok, args=(listener,), daemon=True).start()
        assert RateLimiter("x", "1/m").hit("x").source == "fallback"


@pytest.mark.parametrize("path", ["/plain", "/coroutine"])
@pytest.mark.usefixtures("no_server")
def test_a_view_never_responds_with_500_in_an_outage(
    path: str, settings: Any, client: Client
) -> None:
    """The policy "open" admits, and "closed" responds with 429 and a retry time of a second."""
    settings.RATELIMIT_ON_STORE_ERROR = "open"
    assert [client.get(path).status_code for _ in range(3)] == [200] * 3
    settings.RATELIMIT_ON_STORE_ERROR = "closed"
    response = client.get(path)
    assert (response.status_code, response["Retry-After"]) == (429, "1")
    assert async_to_sync(AsyncClient().get)(path).status_code == 429


def test_a_restarted_server_is_used_again(own: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The outage and its end are logged once each, with the duration."""
    limiter = RateLimiter("x", "100/m")
    limiter.hit("x")
    own.stop()
    with caplog.at_level("WARNING"):
        assert [limiter.hit("x").source for _ in range(20)] == ["fallback"] * 20
        own.start()
        decision = until_asked(limiter)
    assert (decision.source, decision.limits[0].used) == ("redis", 1)
    # The listener logs records of its own.
    messages = [message for message in caplog.messages if message.startswith("Redis of cache")]
    down, up = messages
    assert down.startswith("Redis of cache 'default' cannot decide limits: ")
    assert re.fullmatch(r"Redis of cache 'default' is available again after \d+\.\d s", up)


def test_the_loss_and_return_of_the_channel_are_logged_once(
    own: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The return is logged when the channel has worked for a while."""
    monkeypatch.setattr("django_ratelimit_lua.engine.listener.MAX_PAUSE", 0.2)
    RateLimiter("x", "100/m").hit("x")
    until(lambda: listener.is_listening, "the listener is connected")
    lost = "The channel for changed rules is unavailable"
    back = "The channel for changed rules is available again"
    with caplog.at_level("INFO"):
        own.stop()
        until(lambda: not listener.is_listening, "the listener has lost its connection")
        own.start()
        until(lambda: back in caplog.messages, "the return is logged")
    texts = [text.split(";")[0] for text in caplog.messages if text.startswith("The channel for")]
    assert texts == [lost, back]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_outage_costs_no_time_after_three_failures(
    kind: str, own: Server, settings: Any
) -> None:
    """A hundred hits do not take a hundred deadlines."""
    settings.RATELIMIT_TIMEOUT = DEADLINE
    limiter = RateLimiter("x", "100/m")
    limiter.hit("x")
    changes: list[str] = []

    def down(error: str, **kwargs: Any) -> None:
        changes.append(f"down: {error}")

    def up(alias: str, **kwargs: Any) -> None:
        changes.append(f"up: {alias}")

    hit = async_to_sync(limiter.ahit) if kind == "async" else limiter.hit
    store_down.connect(down)
    store_up.connect(up)
    os.kill(own.pid, signal.SIGSTOP)
    started = time.monotonic()
    try:
        decisions = [hit("x") for _ in range(100)]
        seconds = time.monotonic() - started
        assert get_store().is_paused
    finally:
        os.kill(own.pid, signal.SIGCONT)
    assert {decision.source for decision in decisions} == {"fallback"}
    assert seconds < 30 * DEADLINE
    until_asked(limiter)
    store_down.disconnect(down)
    store_up.disconnect(up)
    assert [one.partition(":")[0] for one in changes] == ["down", "up"]
    assert not get_store().is_paused


def test_a_server_that_replies_with_errors_is_called_again(own: Server) -> None:
    """A full server costs no deadline, and its connection stays in use."""
    limiter = RateLimiter("x", "100/m")
    limiter.hit("x")
    with redis.Redis.from_url(own.url) as direct:
        direct.config_set("maxmemory", 1)
        assert [limiter.hit("x").source for _ in range(10)] == ["fallback"] * 10
        assert not get_store().is_paused
        direct.config_set("maxmemory", 0)
        assert limiter.hit("x").source == "redis"
        assert deciders(direct) == 1


def test_waiting_calls_do_not_probe_a_paused_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate thread makes trials until one succeeds. Other calls fail immediately."""
    threads: set[int] = set()
    answers = iter([False] * 12 + [True])

    def answer() -> bool:
        threads.add(threading.get_ident())
        return next(answers)

    monkeypatch.setattr(availability.Availability, "_lengthen_pause", lambda one: 0.01)
    one = availability.Availability(answer)
    for _ in range(availability.FAILURES):
        assert one.may_send()
        one.record_failure()
    for _ in range(500):
        if one.may_send():
            break
        threading.Event().wait(0.01)
    assert one.may_send()
    assert next(answers, None) is None
    assert threads.isdisjoint({threading.get_ident()})


def test_a_forked_process_probes_redis_itself(own: Server, settings: Any) -> None:
    """A child process, forked in an outage, detects that Redis is available again."""
    settings.RATELIMIT_TIMEOUT = DEADLINE
    limiter = RateLimiter("x", "100/m")
    limiter.hit("x")
    os.kill(own.pid, signal.SIGSTOP)
    for _ in range(5):
        limiter.hit("x")
    assert get_store().is_paused
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            limiter.hit("x")
            os.kill(own.pid, signal.SIGCONT)
            until_asked(limiter)
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    os.kill(own.pid, signal.SIGCONT)
    until_asked(limiter)


@pytest.mark.usefixtures("no_server")
def test_a_failed_reset_is_reported() -> None:
    """A caller has to know that the count was not deleted."""
    limiter = RateLimiter("x", "1/m")
    with pytest.raises(StoreError):
        limiter.reset("x")
    with pytest.raises(StoreError):
        asyncio.run(limiter.areset("x"))


def test_closed_event_loops_leave_no_connections(own: Server) -> None:
    """The connections of a loop are closed with it."""
    limiter = RateLimiter("x", "100/m")

    async def crowd() -> None:
        await asyncio.gather(*(limiter.ahit("x") for _ in range(20)))

    with redis.Redis.from_url(own.url) as direct:
        for _ in range(3):
            asyncio.run(crowd())
        until(lambda: deciders(direct) == 0, "no connection outlives its event loop")
    with asyncio.Runner() as runner:
        runner.run(limiter.ahit("x"))
    assert asyncio.run(limiter.ahit("x")).source == "redis"


def test_the_settings_of_the_cache_alias_are_not_changed(own: Server) -> None:
    """The cache keeps its own timeouts and connections."""
    RateLimiter("x", "1/m").hit("x")
    pool = django_caches["default"].client.get_client().connection_pool
    assert pool.connection_kwargs["socket_timeout"] == 30
    assert get_store() is get_store()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.django_db(transaction=True)
def test_a_slow_database_delays_no_request(
    kind: str, own: Server, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis was emptied, so the rules have to be published again. The request that detects it
    waits no longer than the deadline, and uses the known rules. Other requests do not wait.
    """
    RateLimitRule.objects.create(name="x", rate="7/h")
    limiter = RateLimiter("x", "100/h")
    assert limiter.hit("x").limits[0].limit == 7
    monkeypatch.setattr(triggers, "publish", lambda *args, **options: time.sleep(4))
    settings.RATELIMIT_TIMEOUT = 0.2
    assert limiter.hit("x").limits[0].limit == 7
    with redis.Redis.from_url(own.url) as direct:
        direct.flushall()
    decisions, seconds = timed_hits(limiter, kind)
    assert {(decision.source, decision.limits[0].limit) for decision in decisions} == {("redis", 7)}
    assert seconds < 0.2 + SCHEDULING
    assert triggers.restoring.wait(10)
