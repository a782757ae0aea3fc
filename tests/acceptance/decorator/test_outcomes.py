"""Counting by outcome: reserved before the view, settled after it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.limits.algorithms import BY_RATE
from tests.support.redis_server import CLOSED, caches


def failed(request: HttpRequest, outcome: Any) -> bool:
    return isinstance(outcome, Exception) or outcome.status_code != 302


def succeeded(request: HttpRequest, outcome: Any) -> bool:
    return not failed(request, outcome)


async def afailed(request: HttpRequest, outcome: Any) -> bool:
    return failed(request, outcome)


def answer(request: HttpRequest) -> HttpResponse:
    """A login: a right password is redirected, a wrong one gets the form, a broken one raises."""
    password = request.GET.get("password")
    if password == "broken":
        raise ValueError(password)
    return HttpResponse(status=302 if password == "right" else 200)


def ask(view: Any, *passwords: str) -> list[int]:
    return [
        view(RequestFactory().get("/", {"password": password})).status_code
        for password in passwords
    ]


@pytest.mark.parametrize("algorithm", [name for name in BY_RATE if name != "leaky_bucket"])
def test_the_option_count_if_refunds_successes(algorithm: str) -> None:
    """The units of successes are refunded. Failures and exceptions count."""
    login = ratelimit("login", "ip", "3/15m", count_if=failed, algorithm=algorithm)(answer)
    assert ask(login, *["right"] * 10, "wrong", "right", "wrong") == [302] * 10 + [200, 302, 200]
    with pytest.raises(ValueError, match="broken"):
        ask(login, "broken")
    assert ask(login, "right", "wrong") == [429, 429]


def test_a_hundred_parallel_guesses_reach_the_view_five_times(rf: RequestFactory) -> None:
    """The next correct password that reaches the view clears the count."""
    reached, gate = [], threading.Barrier(100)

    def guess(request: HttpRequest) -> HttpResponse:
        reached.append(1)
        time.sleep(0.05)
        return answer(request)

    login = ratelimit("login", "get:name", (5, 4), count_if=failed, reset_if=succeeded)(guess)

    def attempt(number: int) -> int:
        gate.wait()
        return login(rf.get("/", {"name": "ada", "password": "wrong"})).status_code

    with ThreadPoolExecutor(100) as pool:
        statuses = list(pool.map(attempt, range(100)))
    assert len(reached) == 5
    assert sorted(statuses) == [200] * 5 + [429] * 95
    right = rf.get("/", {"name": "ada", "password": "right"})
    assert login(right).status_code == 429, "a right password must not open the lock"
    time.sleep(right.ratelimit.retry_after)
    reached.clear()
    assert login(right).status_code == 302
    assert [login(rf.get("/", {"name": "ada"})).status_code for _ in range(6)] == [200] * 5 + [429]


def test_outcomes_of_coroutines_are_settled() -> None:
    """The predicates are plain functions or coroutine functions. The view may raise."""

    options: Any = {"count_if": afailed, "reset_if": succeeded, "cost_after": lambda *_: 0}

    @ratelimit("login", "ip", "3/15m", **options)
    async def login(request: HttpRequest) -> HttpResponse:
        await asyncio.sleep(0)
        return answer(request)

    async def asked(*passwords: str) -> list[Any]:
        found = []
        for password in passwords:
            request = RequestFactory().get("/", {"password": password})
            try:
                found.append((await login(request)).status_code)
            except ValueError:
                found.append("raised")
        return found

    found = asyncio.run(asked("wrong", "broken", "right", "wrong", "broken", "wrong", "right"))
    assert found == [200, "raised", 302, 200, "raised", 200, 429]


def test_an_asynchronous_predicate_works_on_a_plain_view() -> None:
    """Its result is awaited."""
    login = ratelimit("login", "ip", "2/15m", count_if=afailed)(answer)
    assert ask(login, "right", "right", "wrong", "wrong", "wrong") == [302, 302, 200, 200, 429]


@pytest.mark.parametrize("algorithm", [name for name in BY_RATE if name != "leaky_bucket"])
def test_cost_after_may_charge_beyond_the_limit(algorithm: str) -> None:
    """The request is charged once. Later requests are refused until the excess has expired."""
    options: Any = {"cost_after": lambda request, outcome: int(request.GET["password"])}
    export = ratelimit("export", "ip", "10/h", algorithm=algorithm, **options)(answer)
    assert ask(export, "3", "20", "0") == [200, 200, 429]


def test_cost_after_charges_a_request_once(rf: RequestFactory) -> None:
    """It charges once even if the request passes the view again."""
    export = ratelimit("export", "ip", "100/h", cost=1, cost_after=lambda *_: 10)(answer)
    request = rf.get("/")
    for used in (1, 12):
        export(request)
        assert request.ratelimit.limits[-1].used == used
    export(rf.get("/"))
    assert RateLimiter("export:*:ip:100/h", "100/h").peek(("ip", "127.0.0.1")).limits[0].used == 23


def test_charge_counts_used_units_beyond_the_limit() -> None:
    """The given cost is charged even if it exceeds the limit."""
    for algorithm in ("token_bucket", "fixed_window", "sliding_window", "sliding_log"):
        limiter = RateLimiter("used", "10/h", algorithm=algorithm)
        assert limiter.charge("ada", 4).remaining == 6
        decision = asyncio.run(limiter.acharge("ada", 8))
        assert (decision.granted, decision.remaining) == (8, 0)
        assert not limiter.hit("ada")
    bucket = RateLimiter("debt", "10/h", algorithm="token_bucket")
    bucket.charge("ada", 30)
    assert 7100 < bucket.peek("ada").retry_after <= 7560, "twenty tokens and one"


def test_a_killed_worker_loses_its_unit_until_it_expires() -> None:
    """It is killed between the hit and its outcome. The period frees the unit."""

    def dies(request: HttpRequest) -> HttpResponse:
        os._exit(9)

    view = ratelimit("dying", "ip", (2, 1), algorithm="sliding_log", count_if=failed)
    child = os.fork()
    if not child:
        view(dies)(RequestFactory().get("/"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    request = RequestFactory().get("/", {"password": "right"})
    view(answer)(request)
    assert request.ratelimit.remaining == 0, "one of the killed worker, one of this request"
    time.sleep(1)
    assert ask(view(answer), "wrong", "wrong", "wrong") == [200, 200, 429]


def test_an_outcome_during_an_outage_raises_nothing(settings: Any) -> None:
    """Units that could not be refunded expire."""
    view = ratelimit("x", "ip", "2/h", count_if=failed, reset_if=succeeded)

    def breaks(request: HttpRequest) -> HttpResponse:
        settings.CACHES = caches(CLOSED)
        return answer(request)

    assert ask(view(breaks), "right") == [302]
