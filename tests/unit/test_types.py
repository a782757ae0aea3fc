"""Decorators keep the types of what they decorate, which mypy checks here by `assert_type`."""

from __future__ import annotations

import asyncio
from typing import assert_type

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import RateLimiter, ratelimit, ratelimit_exempt
from django_ratelimit_lua.engine.holding import Held
from django_ratelimit_lua.limiter import Slot

pytestmark = pytest.mark.usefixtures("no_others")


def test_a_limiter_keeps_the_types_of_a_function() -> None:
    """The decorator may have arguments."""
    limiter = RateLimiter("typed", "100/h")

    @limiter
    def plain(number: int) -> str:
        return str(number)

    @limiter(key=lambda number: number, cost=2, timeout=None)
    def with_arguments(number: int) -> str:
        return str(number)

    @limiter
    async def coroutine(number: int) -> str:
        return str(number)

    assert assert_type(plain(number=1), str) == "1"
    assert assert_type(with_arguments(number=1), str) == "1"
    assert assert_type(asyncio.run(coroutine(number=1)), str) == "1"


def test_a_slot_keeps_the_types_of_a_function() -> None:
    """`with` returns the type of the held slot."""
    limiter = RateLimiter("typed", "10", algorithm="concurrency")

    @limiter.slot
    def plain(number: int) -> str:
        return str(number)

    @limiter.slot(key=lambda number: number)
    def with_arguments(number: int) -> str:
        return str(number)

    assert assert_type(plain(number=1), str) == "1"
    assert assert_type(with_arguments(number=1), str) == "1"
    with assert_type(limiter.slot("ada"), Slot) as held:
        assert assert_type(held, Held).decision


def test_other_decorators_keep_the_types_of_a_function() -> None:
    """`@ratelimit` and `@ratelimit_exempt` keep the types of a view."""

    @ratelimit_exempt
    @ratelimit(key="ip", rate="5/m")
    def view(request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(str(number))

    assert assert_type(view(RequestFactory().get("/"), number=1), HttpResponse).content == b"1"
