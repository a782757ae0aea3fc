"""Slots of concurrency limits, as `RateLimiter.slot` holds them."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import redis
from asgiref.sync import markcoroutinefunction
from django.http import StreamingHttpResponse

from django_ratelimit_lua import LimitError, Ratelimited, RateLimiter
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.engine.slots import held_slots
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.store import get_store
from tests.acceptance.slots.cancellation import HOW, How, interrupt_each_wait
from tests.support.processes import until

LATER = 5.0
"""Seconds within which a slot of a second has ended, on a busy machine."""


def exports(rate: Any = "2", **options: Any) -> RateLimiter:
    return RateLimiter("exports", rate, **{"algorithm": "concurrency", **options})


def used(limiter: RateLimiter, identity: Any = "ada") -> int:
    return limiter.peek(identity).limits[-1].used


def test_never_more_slots_are_held_than_the_limit() -> None:
    """The next call is refused."""
    limiter = exports()
    with limiter.slot("ada") as first, limiter.slot("ada"):
        with pytest.raises(Ratelimited) as raised, limiter.slot("ada"):
            pass
        decision = raised.value.decision
        assert decision.denied_by == ("exports",)
        assert 9 < decision.retry_after <= 10.1
        with limiter.slot("bob"):
            assert used(limiter, "bob") == 1
        first.release()
        first.release()
        assert used(limiter) == 1
        with limiter.slot("ada"):
            assert used(limiter) == 2
        with pytest.raises(ZeroDivisionError), limiter.slot("ada"):
            _ = 1 / 0
    assert used(limiter) == 0
    assert not held_slots.all()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("timeout", [0, 30])
def test_a_coroutine_that_is_stopped_at_any_point_holds_no_slot(
    how: How, timeout: float, settings: Any
) -> None:
    """It waits for a connection, a reply, a turn, its work or the release."""
    settings.RATELIMIT_SLOT_SECONDS = 1.0
    limiter = exports(["20/s", "1"], algorithm="leaky_bucket")

    async def hold() -> None:
        async with limiter.slot("ada", timeout=timeout):
            await asyncio.sleep(0.001)

    limiter.charge("ada", 2)
    for number in interrupt_each_wait(hold, how):
        assert held_slots.all() == []
        # The release of a closed one may arrive first, on another connection: then the slot ends.
        if how == "closed":
            until(lambda: used(limiter) == 0, f"wait {number} leaves nothing", LATER)
        assert used(limiter) == 0, number
        limiter.reset("ada")
        limiter.charge("ada", 2)


def test_the_purpose_of_a_slot_is_escaped_in_logs_and_terminals() -> None:
    """The purpose may be the name of an uploaded file."""
    with RateLimiter("uploads", "1", algorithm="concurrency").slot(
        "ada", what="a.pdf\r\nERROR \x1b[2J"
    ):
        (held,) = held_slots.all()
        assert held.what == "a.pdf\\r\\nERROR \\x1b[2J"


def test_a_decorated_function_holds_its_own_slot() -> None:
    """The function is plain or async."""
    limiter = exports("1")

    @limiter.slot(key=lambda user: user)
    def export(user: str) -> tuple[int, str]:
        return used(limiter, user), held_slots.all()[0].what

    @limiter.slot
    async def report() -> int:
        return used(limiter, None)

    assert export("ada") == (1, export.__qualname__)
    assert asyncio.run(report()) == 1
    with limiter.slot("ada"), pytest.raises(Ratelimited):
        export("ada")


class Async:
    """An object with an async `__call__`."""

    async def __call__(self, limiter: RateLimiter) -> int:
        await asyncio.sleep(0)
        return used(limiter, None)


class Marked:
    """One that only says that it is one."""

    def __call__(self, limiter: RateLimiter) -> Any:
        return Async()(limiter)


@pytest.mark.parametrize(
    "made", [Async(), partial(Async()), markcoroutinefunction(Marked()), Async().__call__]
)
def test_a_decorated_coroutine_function_holds_its_slot_until_it_ends(made: Any) -> None:
    """All kinds of coroutine functions are supported."""
    limiter = exports("1")
    decorated = limiter.slot(made)
    assert asyncio.run(decorated(limiter)) == 1
    assert used(limiter, None) == 0
    assert inspect.iscoroutinefunction(RateLimiter("calls", "100/h")(made))


def generator() -> Any:
    yield used


async def async_generator() -> Any:
    yield used


async def coroutine_that_returns_one() -> Any:
    return generator()


class Generator:
    """Objects whose call is one."""

    def __call__(self) -> Any:
        yield used


@pytest.mark.django_db  # To close a response closes connections to the database.
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning")
@pytest.mark.parametrize(
    "made",
    [
        generator,
        async_generator,
        partial(generator),
        contextmanager(generator),
        Generator(),
        Generator,
        lambda: generator(),
        lambda: async_generator(),
        coroutine_that_returns_one,
        lambda: coroutine_that_returns_one(),
        lambda: StreamingHttpResponse(generator()),
    ],
)
def test_the_slot_decorator_refuses_generators(made: Any) -> None:
    """The error is raised by the decorator, or when a call returns one."""
    limiter = exports("1")

    def use() -> Any:
        call = limiter.slot(made)
        return asyncio.run(call()) if inspect.iscoroutinefunction(call) else call()

    with pytest.raises(LimitError, match=r"returns before its work is done, .* use `with limiter"):
        use()
    assert used(limiter, None) == 0


def test_a_slot_object_is_used_by_one_caller_at_a_time() -> None:
    """Threads, tasks and nested blocks cannot share it."""
    limiter = exports("2")
    slot = limiter.slot("ada")
    ready, held, refused = threading.Barrier(8), [], []

    def work() -> None:
        ready.wait(20)
        try:
            with slot:
                held.append(used(limiter))
                while len(refused) < 7:
                    time.sleep(0.001)
        except RuntimeError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert held == [1]
    assert len(refused) == 7
    assert "needs its own slot()" in refused[0]

    with limiter.slot("ada"), limiter.slot("ada"), pytest.raises(Ratelimited), slot:
        pass
    with slot, pytest.raises(RuntimeError), slot:
        pass
    assert used(limiter) == 0


def test_slots_and_rates_are_decided_in_one_call() -> None:
    """A refused slot takes no unit of the rate, and a refused rate takes no slot."""
    limiter = exports(["2/h", "1"], algorithm="token_bucket", burst=2)
    rate, slots = limiter.limits
    assert (rate.algorithm, rate.burst, slots.algorithm) == ("token_bucket", 2, "concurrency")
    with limiter.slot("ada"), pytest.raises(Ratelimited), limiter.slot("ada"):
        pass
    assert [state.used for state in limiter.peek("ada").limits] == [1, 0]
    with limiter.slot("ada"):
        pass
    with pytest.raises(Ratelimited) as raised, limiter.slot("ada"):
        pass
    assert raised.value.decision.denied_by == ("exports",)
    assert used(limiter) == 0


def test_a_slot_that_could_not_be_released_is_an_error() -> None:
    """The error contains the correct use."""
    limiter = exports()
    for call in (
        limiter.hit,
        limiter.acquire,
        limiter.charge,
        limiter.refund,
        limiter(lambda: None),
    ):
        with pytest.raises(LimitError, match=r"slot\(\)"):
            call("ada") if call is not None else None
    assert limiter.peek("ada")


@pytest.mark.parametrize(
    ("rate", "options", "says"),
    [
        ("5/m", {"algorithm": "concurrency"}, "a number of slots, such as 5"),
        ("5", {"algorithm": "sliding_window"}, "for the algorithm concurrency"),
        ("5", {}, "for the algorithm concurrency"),
        ("5", {"algorithm": "concurrency", "lease": 2}, "no option lease"),
        ("5", {"algorithm": "concurrency", "split": True}, "no option split"),
        ("5", {"algorithm": "concurrency", "max_wait": 2}, "no option max_wait"),
        ("5", {"algorithm": "concurrency", "count_denied": True}, "no option count_denied"),
        ("5", {"algorithm": "concurrency", "queue": 5}, "no option queue"),
        ("100001", {"algorithm": "concurrency"}, "A concurrency limit has at most 100000 slots"),
    ],
)
def test_contradicting_options_of_a_slot_limit_are_errors(
    rate: str, options: Any, says: str
) -> None:
    """The error is raised by the declaration."""
    with pytest.raises(LimitError, match=says.replace("(", r"\(")):
        RateLimiter("exports", rate, **options)


def test_a_refusal_by_slots_is_not_cached(settings: Any) -> None:
    """Another process may release a slot at any moment, so the next call asks Redis."""
    settings.RATELIMIT_DENY_CACHE_SECONDS = 60
    limiter = exports("1")
    with limiter.slot("ada"):
        (held,) = held_slots.all()
        for _ in range(2):
            with pytest.raises(Ratelimited) as raised, limiter.slot("ada"):
                pass
            assert raised.value.decision.source == "redis"
        elsewhere = build_call([held.charge], "refund")._replace(slot=held.slot)
        get_store().decide(elsewhere)
        with limiter.slot("ada"):
            pass
    limiter = exports(["1/h", "1"])
    limiter.charge("bob")

    def source() -> str:
        with pytest.raises(Ratelimited) as raised, limiter.slot("bob"):
            pass
        return raised.value.decision.source

    assert source() == "redis"
    # Unless another message was received in between.
    until(lambda: source() == "deny-cache", "the refusal is remembered")


@pytest.mark.django_db(transaction=True)
def test_a_rule_changes_the_number_of_slots() -> None:
    """The rule applies to the limiter of its name."""
    rule = RateLimitRule(
        name="exports", group="exports", rate="1", options={"algorithm": "concurrency"}
    )
    rule.save()
    limiter = exports("5")
    with limiter.slot("ada"), pytest.raises(Ratelimited), limiter.slot("ada"):
        pass
    rule.rate = "2"
    rule.save()
    with limiter.slot("ada"), limiter.slot("ada"):
        assert used(limiter) == 2
    rule.rate = "1/h"
    rule.options = {}
    rule.save()
    assert limiter.hit("ada")
    with pytest.raises(Ratelimited), limiter.slot("ada"):
        pass


def test_a_waiting_call_gets_a_slot_after_its_release() -> None:
    """Threads and coroutines wait."""
    limiter = exports("1")
    taken: list[float] = []

    def wait() -> None:
        with limiter.slot("ada", timeout=30):
            taken.append(time.monotonic())

    async def await_slot() -> None:
        async with limiter.slot("ada", timeout=30):
            taken.append(time.monotonic())

    for work in (wait, lambda: asyncio.run(await_slot())):
        thread = threading.Thread(target=work)
        with limiter.slot("ada"):
            thread.start()
            time.sleep(0.3)
        released = time.monotonic()
        thread.join(30)
        assert 0 <= taken.pop() - released < 2.0
    assert used(limiter) == 0


def test_a_waiting_call_tries_again_less_and_less_often(direct: redis.Redis) -> None:
    """It sleeps for 20 ms, then twice as long each time, up to 250 ms, within its timeout."""
    limiter = exports("1")
    with limiter.slot("ada"):
        direct.config_resetstat()
        began = time.monotonic()
        with pytest.raises(Ratelimited) as raised, limiter.slot("ada", timeout=1.0):
            pass
        waited = time.monotonic() - began
    attempts = direct.info("commandstats")["cmdstat_time"]["calls"]  # One in each decision.
    assert waited >= 1.0
    assert 4 <= attempts <= 10 + 4 * (waited - 1)  # Renewals read the time, too.
    assert 7 < raised.value.decision.retry_after < 9.2
    with limiter.slot("ada", timeout=1.0):
        pass


def test_a_waiting_caller_is_neither_counted_nor_banned_for_its_attempts() -> None:
    """Only the rates of the limiter ban and count refused hits."""
    limiter = RateLimiter("exports", "1/h", algorithm="fixed_window", ban_after=2, ban_for="1h")
    limiter.hit("ada")
    slots = exports("1")
    with slots.slot("ada"), pytest.raises(Ratelimited), slots.slot("ada", timeout=0.2):
        pass
    for _ in range(3):
        assert not limiter.acquire("ada", timeout=5)
    assert limiter.peek("ada").banned_until is None
    for _ in range(2):
        assert not limiter.acquire("ada", timeout=0)
    assert limiter.peek("ada").banned_until is not None
