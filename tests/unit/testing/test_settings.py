"""The helpers for tests of projects: temporary settings and a clock. No limit is decided."""

from __future__ import annotations

import unittest
from datetime import timedelta
from typing import Any

import pytest

from django_ratelimit_lua.conf import conf
from django_ratelimit_lua.engine import decide
from django_ratelimit_lua.testing import move_clock, override_ratelimits


def test_settings_apply_only_inside_the_block() -> None:
    """`enabled` and `rules` are short names of settings."""
    with override_ratelimits(enabled=False, rules=[{"name": "x"}], RATELIMIT_ALGORITHM="gcra"):
        assert (conf.ENABLE, conf.RULES, conf.ALGORITHM) == (False, [{"name": "x"}], "token_bucket")
    assert (conf.ENABLE, conf.RULES, conf.ALGORITHM) == (True, [], "sliding_window")


def test_each_use_has_its_own_prefix() -> None:
    """The prefix is not changed if `fresh` is False, and is the given one if a prefix is set."""
    before, seen = conf.CACHE_PREFIX, set()
    again = override_ratelimits()
    for _ in range(2):
        with again:
            seen.add(conf.CACHE_PREFIX)
            with override_ratelimits():
                seen.add(conf.CACHE_PREFIX)
    assert len(seen | {before}) == 5
    with override_ratelimits(fresh=False):
        assert before == conf.CACHE_PREFIX
    with override_ratelimits(RATELIMIT_CACHE_PREFIX="mine:"):
        assert conf.CACHE_PREFIX == b"mine:"
    assert before == conf.CACHE_PREFIX


def test_a_clock_stands_still_until_it_is_moved() -> None:
    """`advance` takes seconds or a `timedelta`, also a negative one."""
    with move_clock() as clock:
        started = decide.now_us()
        clock.advance(1.5)
        clock.advance(timedelta(minutes=1))
        clock.advance(-0.5)
        assert decide.now_us() == started + 61_000_000
    assert decide.clock is None
    assert decide.now_us() >= started


def test_a_decorated_function_gets_the_clock() -> None:
    """The clock is passed in the argument that `kwarg_name` names."""

    @override_ratelimits(enabled=False)
    @move_clock(kwarg_name="clock")
    def test(clock: Any) -> tuple[bool, bool]:
        return conf.ENABLE, decide.clock is not None and decide.clock() == clock.now_us

    assert test() == (False, True)


def test_only_test_cases_can_be_decorated() -> None:
    """A class has to be a test case, such as one of unittest. Other classes raise an error."""
    with pytest.raises(ValueError, match="a subclass of TestCase"):
        override_ratelimits()(object)
    assert override_ratelimits()(type("Case", (unittest.TestCase,), {}))
