"""How long ago rules and overrides were found to be the current ones, where a call cannot ask so itself.

In a cluster they live in another slot than the limits; and a limit that is decided in this process asks nobody. There
the fence is asked apart, at most once in `RATELIMIT_RULES_MAX_AGE` seconds (there, 1 by default).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from django.core.signals import setting_changed

from ..conf import conf
from ..exceptions import StoreError
from ..limits.call import Call
from ..process.bounded_map import BoundedMap

APART_MAX_AGE = 1.0
EARLY = 0.9
"""Of that time: from then on one of those who come asks for all, and the others go on until it is over."""
Steps = Generator[Any, Any, None]
MOST = 10_000
"""Subjects that are remembered: the latest."""


def alone(call: Call) -> Call:
    """What a call asks about rules and overrides, and nothing else."""
    return replace(call, charges=(), operation="peek", partial=False, hit_at=None)


def without(call: Call) -> Call:
    """The call without what it asks about rules and overrides."""
    # On the way of every request in a cluster: `replace` takes four times as long.
    return Call(
        call.charges, call.operation, call.prefix, call.now, call.max_wait_us, call.partial, hit_at=call.hit_at,
        longest_hold_us=call.longest_hold_us,
    )  # fmt: skip


class Fence:
    """The rules and the subjects' tags that were the current ones, and when."""

    def __init__(self) -> None:
        self._passed: BoundedMap[Any, float] = BoundedMap(MOST)
        self._asked: BoundedMap[Any, float] = BoundedMap(MOST)
        """Whose time is nearly over, and when it was found current last: somebody asks again for all."""

    def clear(self) -> None:
        """Nothing was found yet."""
        self._passed.clear()
        self._asked.clear()

    def is_due(self, call: Call) -> bool:
        """Whether it has to be asked whether the call goes by what is current, and nobody asks for all just now."""
        if call.revision is None:
            return False
        age = APART_MAX_AGE if conf.RULES_MAX_AGE is None else conf.RULES_MAX_AGE
        now = time.monotonic()
        due = []
        for key in _keys(call):
            passed = self._passed.get(key)
            if passed is None or passed <= now - age:
                return True
            # What is about nothing else is the question itself, which somebody asks for all.
            if passed <= now - age * EARLY and (not call.charges or self._asked.get(key) != passed):
                due.append((key, passed))
        for key, passed in due:
            self._asked.put(key, passed)
        return bool(due)

    def verify(self, call: Call, ask: Callable[[Call], Generator[Any, Any, Any]], *, needed: bool) -> Steps:
        """Ask apart whether a call goes by what is current, if that is due. Raises `StaleRules`; and `StoreError` only
        if it is `needed`, else the rules that are known hold."""
        if not self.is_due(call):
            return
        asked_at = time.monotonic()
        try:
            yield from ask(alone(call))
        except StoreError:
            if needed:
                raise
        else:
            self.passed(call, asked_at)

    def passed(self, call: Call, asked_at: float) -> None:
        """It was so at that moment or later."""
        for key in _keys(call):
            self._passed.put(key, asked_at)


fence = Fence()
"""One for all who ask apart, so that nobody takes the word of another for fresh."""


def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting.startswith("RATELIMIT_") or setting == "CACHES":
        fence.clear()


setting_changed.connect(_settings_changed, dispatch_uid="django_ratelimit_lua.store.freshness")


def _keys(call: Call) -> list[Any]:
    rules = (call.fence, call.revision)
    return [rules, *[(call.fence, subject.digest, subject.tag) for subject in call.subjects]]
