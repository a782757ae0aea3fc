"""Tools for the tests of projects: other settings, fresh counts, a movable clock, a server.

It imports `engine` and `rules`. No other package imports it, and it must not imitate Redis: it
starts real servers.
"""

from __future__ import annotations

import itertools
import os
import time
import unittest
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import timedelta
from typing import Any

from django.test import SimpleTestCase
from django.test.utils import TestContextDecorator, override_settings

from ..engine import decide
from ..engine.deny_cache import deny_cache
from ..rules.provider import delete_published, reset_rules
from .server import Server

__all__ = ["Server", "move_clock", "override_ratelimits", "server"]

_serial = itertools.count(1)


class override_ratelimits(override_settings):  # noqa: N801 - named like Django's
    """Use other limits with their own counts: a context manager and decorator for tests.

    - `enabled`: `RATELIMIT_ENABLE`; `rules`: `RATELIMIT_RULES`; any other `RATELIMIT_` setting by
      its name;
    - `fresh`: whether counts start at zero, and those outside stay unchanged (default: true).

    >>> from django_ratelimit_lua import RateLimiter
    >>> limiter = RateLimiter("once", "1/h")
    >>> with override_ratelimits():
    ...     [limiter.hit("ada").allowed for _ in range(2)]
    [True, False]
    >>> with override_ratelimits(enabled=False):
    ...     [limiter.hit("ada").allowed for _ in range(2)]
    [True, True]
    """

    def __init__(
        self,
        *,
        enabled: bool | None = None,
        rules: Sequence[Mapping[str, object]] | None = None,
        fresh: bool = True,
        **settings: object,
    ) -> None:
        if enabled is not None:
            settings["RATELIMIT_ENABLE"] = enabled
        if rules is not None:
            settings["RATELIMIT_RULES"] = rules
        self._fresh = fresh and "RATELIMIT_CACHE_PREFIX" not in settings
        super().__init__(**settings)

    def enable(self) -> None:
        """Apply the settings."""
        if self._fresh:
            self.options["RATELIMIT_CACHE_PREFIX"] = _new_prefix()
        super().enable()
        if self._fresh:
            reset_rules()

    def disable(self) -> None:
        """Restore the settings. Delete the rules in Redis that were published since `enable`."""
        if self._fresh:
            delete_published(self.options["RATELIMIT_CACHE_PREFIX"].encode())
        super().disable()

    def decorate_class(self, cls: Any) -> Any:
        """Apply the settings to the whole class, as Django does, with fresh counts for each test.

        Raises `ValueError` if the class is not a `TestCase`.
        """
        if not issubclass(cls, unittest.TestCase):
            raise ValueError(
                "override_ratelimits must decorate a function, a coroutine or a subclass "
                "of TestCase"
            )
        if issubclass(cls, SimpleTestCase):
            self._decorate_whole(cls)
        set_up = cls.setUp

        def setUp(test: unittest.TestCase) -> None:
            # A copy for each test: if a subclass is decorated, too, two are in force at once.
            override = copy(self)
            override.options = dict(self.options)
            override.enable()
            test.addCleanup(override.disable)
            set_up(test)

        cls.setUp = setUp
        return cls

    def _decorate_whole(self, cls: Any) -> None:
        """Apply the settings to the set-up of a class (`setUpTestData`), with a new prefix."""
        prefix = _new_prefix()
        if self._fresh:
            self.options["RATELIMIT_CACHE_PREFIX"] = prefix
        super().decorate_class(cls)
        cls._overridden_settings = dict(cls._overridden_settings)
        set_up_class = cls.setUpClass.__func__

        def setUpClass(case: type[unittest.TestCase]) -> None:
            set_up_class(case)
            if self._fresh:
                case.addClassCleanup(delete_published, prefix.encode())

        cls.setUpClass = classmethod(setUpClass)


def _new_prefix() -> str:
    return f"test:{os.getpid()}:{time.monotonic_ns()}:{next(_serial)}:"


class move_clock(TestContextDecorator):  # noqa: N801 - named like Django's
    """A clock that stands still until it is moved, in place of Redis's.

    Used like `override_ratelimits`.

    Only decisions use it: `acquire`, and views that hold a request, sleep real seconds.

    >>> from django_ratelimit_lua import RateLimiter
    >>> limiter = RateLimiter("clock", "1/h", algorithm="sliding_log")
    >>> with override_ratelimits(), move_clock() as clock:
    ...     before = [limiter.hit("ada").allowed for _ in range(2)]
    ...     clock.advance(3600)
    ...     before, limiter.hit("ada").allowed
    ([True, False], True)

    As a decorator, `kwarg_name` names the argument in which the test gets the clock.
    """

    def __init__(self, kwarg_name: str | None = None) -> None:
        self.now_us = 0
        super().__init__(kwarg_name=kwarg_name)

    def advance(self, seconds: float | timedelta) -> None:
        """Move the clock forward, or back if `seconds` is negative."""
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        self.now_us += round(seconds * 1_000_000)

    def enable(self) -> move_clock:
        """Stop the clock."""
        deny_cache.clear()
        self._real_clock = decide.clock
        self.now_us = time.time_ns() // 1000
        decide.clock = lambda: self.now_us
        return self

    def disable(self) -> None:
        """Restore the real clock."""
        decide.clock = self._real_clock
        deny_cache.clear()
