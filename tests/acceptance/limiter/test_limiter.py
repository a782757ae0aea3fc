"""`RateLimiter`, away from requests."""

from __future__ import annotations

import asyncio
import pickle
import time
import uuid
from typing import Any

import pytest

from django_ratelimit_lua import LimitError, Ratelimited, RateLimiter
from django_ratelimit_lua.limits.algorithms.token_bucket import max_debt
from django_ratelimit_lua.limits.call import MAX_COST
from django_ratelimit_lua.rules import provider


def test_the_count_follows_hits_peeks_refunds_and_resets() -> None:
    """A hit takes units, a peek reads them, a refund returns them, and a reset deletes them."""
    limiter = RateLimiter("x", "5/h")
    assert limiter.hit("ada", 3).granted == 3
    assert (limiter.peek("ada", 2).allowed, limiter.peek("ada", 3).allowed) == (True, False)
    assert limiter.peek("ada").granted == 0
    assert limiter.hit("ada", 0).remaining == 2
    assert limiter.hit("ada", 4, partial=True).granted == 2
    assert not limiter.hit("ada", 0)
    assert limiter.refund("ada", 4).remaining == 4
    assert limiter.refund("ada", 99).remaining == 5
    limiter.hit("ada")
    limiter.reset("ada")
    assert limiter.peek("ada").remaining == 5


def test_a_limiter_can_be_pickled(settings: Any) -> None:
    """`multiprocessing.Pool.map(limiter.hit, ...)` does so, also after a first use."""
    settings.RATELIMIT_RULES = [
        {"name": "x", "group": "x", "rate": "5/h"},
        {"path": "/", "key": lambda *_: "", "rate": "1/h", "name": "y"},
    ]
    limiter = RateLimiter("x", "9/h")
    assert limiter.hit("ada").remaining == 4
    assert pickle.loads(pickle.dumps(limiter)).hit("ada").remaining == 3


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_limiter_that_is_off_grants_all_units(is_enabled: bool, settings: Any) -> None:
    """A caller that uses `granted` goes on, whichever way the limit was switched off."""
    settings.RATELIMIT_ENABLE = is_enabled
    settings.RATELIMIT_RULES = [{"name": "x", "group": "x", "rate": "5/h", "mode": "off"}]
    limiter = RateLimiter("x", "1/h")
    assert limiter.hit("ada", 5, partial=True).granted == 5
    assert asyncio.run(limiter.ahit("ada", 5)).granted == 5
    assert limiter.peek("ada", 5).granted == 0


@pytest.mark.parametrize("first", ["ban", "unban", "reset"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_first_call_of_a_process_applies_the_rule(
    first: str, is_async: bool, settings: Any
) -> None:
    """The rule replaces the limiter's own limit, also for a ban or a reset."""
    rule = {"name": "uploads", "rate": "3/h", "ban_after": 3, "ban_for": "1d"}
    settings.RATELIMIT_RULES = [{"group": "uploads", "algorithm": "token_bucket", **rule}]
    limiter = RateLimiter("uploads", "100/h")

    def begin(method: str, *arguments: Any) -> Any:
        provider._ruleset = provider._snapshot = None  # As in a process that has just started.
        if not is_async:
            return getattr(limiter, method)("ada", *arguments)

        async def call() -> Any:
            return await getattr(limiter, f"a{method}")("ada", *arguments)

        return asyncio.run(call())

    if first == "ban":
        assert not begin(first, "2h")
        assert not limiter.hit("ada")
    elif first == "unban":
        limiter.ban("ada")
        assert begin(first)
        assert limiter.hit("ada")
    else:
        assert [limiter.hit("ada").allowed for _ in range(4)] == [True, True, True, False]
        begin(first)
        assert limiter.hit("ada").remaining == 2


def test_identities_are_counted_separately(direct: Any, prefix: str) -> None:
    """Identities may be long or unusual. No part of them can be read in Redis."""
    odd: list[Any] = ["", "a", b"a", None, ("a",), ("a", "b"), ("ab",), (("a",), "b"), ["ab", ""]]
    odd += ["\x00", "{a}", "{", "a:b", "a\nb", "😀", "\ud800", ("", "ab"), uuid.UUID(int=7), 8]
    odd += ["x" * 1_000_000, "x" * 1_000_001]
    limiter = RateLimiter("odd", "1/h")
    assert [limiter.hit(identity).allowed for identity in odd] == [True] * len(odd)
    assert [limiter.hit(identity).allowed for identity in odd] == [False] * len(odd)
    keys = direct.keys(f"{prefix}*")
    assert len(keys) == len(odd)
    assert len({len(key) for key in keys}) == 1
    assert not limiter.hit("8"), "a number is the same identity as its text"


def test_any_function_can_be_limited() -> None:
    """The decorator takes an identity and a cost from the arguments, and a timeout."""
    calls: list[tuple[str, int]] = []

    @RateLimiter("function", "4/h")(key=lambda who, size: who, cost=lambda who, size: size)
    def send(who: str, size: int) -> str:
        calls.append((who, size))
        return "sent"

    assert send("ada", 3) == "sent"
    with pytest.raises(Ratelimited) as caught:
        send("ada", 2)
    assert caught.value.decision.remaining == 1
    assert send("grace", 4) == "sent"
    assert calls == [("ada", 3), ("grace", 4)]
    assert send.__name__ == "send"


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [("later", "later"), (None, None), (lambda amount, by: f"{by} owes {amount}", "ada owes 5")],
)
def test_a_fallback_replaces_a_refused_call(fallback: Any, expected: Any) -> None:
    """It is a value or a callable, for coroutine functions a coroutine function as well."""
    limiter = RateLimiter("pay", "1/h")

    @limiter(fallback=fallback)
    def pay(amount: int, by: str) -> Any:
        return "paid"

    @limiter(fallback=fallback)
    async def apay(amount: int, by: str) -> Any:
        return "paid"

    async def owe(amount: int, by: str) -> str:
        return "asked"

    @limiter(fallback=owe)
    async def ask(amount: int, by: str) -> str:
        return "paid"

    assert (pay(5, by="ada"), pay(5, by="ada")) == ("paid", expected)
    assert asyncio.run(apay(5, by="ada")) == expected
    assert asyncio.run(ask(5, by="ada")) == "asked"


def test_any_coroutine_can_be_limited() -> None:
    """A coroutine waits for its turn without blocking the event loop."""

    @RateLimiter("coroutine", "20/s", algorithm="leaky_bucket")(timeout=None)
    async def send() -> float:
        return time.monotonic()

    async def all_at_once() -> list[float]:
        return sorted(await asyncio.gather(*(send() for _ in range(4))))

    times = asyncio.run(all_at_once())
    assert times[-1] - times[0] >= 0.15 - 0.02

    @RateLimiter("refused", "0/s")
    async def never() -> None:
        raise AssertionError

    with pytest.raises(Ratelimited):
        asyncio.run(never())


@pytest.mark.parametrize("cost", [-1, 1.5, True, "1", 2**60])
def test_a_cost_is_a_whole_number(cost: Any) -> None:
    """Any other cost is an error that names the limit, and nothing is counted."""
    limiter = RateLimiter("costly", "5/h")
    with pytest.raises(LimitError, match="'costly': cost is"):
        limiter.hit("ada", cost)
    assert limiter.peek("ada").remaining == 5


@pytest.mark.parametrize(
    "algorithm", ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]
)
@pytest.mark.parametrize("rate", ["5/s", "5/d", "5/520w"])
def test_the_maximum_cost_can_be_charged(rate: str, algorithm: str) -> None:
    """It is counted even if the rate is slow, and the next hit is refused."""
    limiter = RateLimiter("largest", rate, algorithm=algorithm)
    charged = limiter.charge("ada", MAX_COST)
    assert charged.source == "redis"
    refused = limiter.hit("ada")
    assert (refused.allowed, refused.source) == (False, "redis")
    assert refused.retry_after is not None
    assert limiter.hit("ada", MAX_COST).retry_after is None


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True])
def test_timeouts_are_seconds(timeout: Any) -> None:
    """A timeout of another type is an error."""
    with pytest.raises(LimitError, match="timeout is"):
        RateLimiter("x", "5/h").acquire("ada", timeout=timeout)


def test_debt_is_refused_for_other_algorithms_and_inexact_costs() -> None:
    """The error contains the valid values, and nothing is taken."""
    with pytest.raises(
        LimitError, match="debt needs algorithm='token_bucket', not 'sliding_window'"
    ):
        RateLimiter("window", "10/h").acquire("ada", 20, debt=True)
    limiter = RateLimiter("large", "7/11s", algorithm="token_bucket")
    most = max_debt(limiter.limits[0])
    with pytest.raises(LimitError, match=f"the maximum with debt at 7/11s is {most}"):
        limiter.acquire("ada", most + 1, debt=True)
    with pytest.raises(LimitError, match="whole number"):
        limiter.acquire("ada", -1, debt=True)
    assert limiter.peek("ada").remaining == 7
    assert limiter.acquire("ada", most, debt=True).allowed
    assert not limiter.hit("ada")
