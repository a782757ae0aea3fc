"""The deny cache: who was just refused is refused again without asking Redis, for a moment.

A refusal stays true until its `retry_after` if nothing is given back, reset or edited. So the same question (the same
limits, identities, costs, rules) may be answered from memory until then, at most `RATELIMIT_DENY_CACHE_SECONDS`. What
this process gives back, resets or learns of rules clears what it is about at once; of what other processes do, it hears
when the moment is over. A flood of one identity then costs one call a second and process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from threading import Lock
from typing import Any

from django.core.signals import setting_changed

from ..conf import conf
from ..limits.call import Call
from ..limits.decision import Decision
from ..limits.limit import Limit
from ..process.bounded_map import BoundedMap
from ..process.forks import renew_after_fork
from ..rules import provider

MOST, MOST_BYTES = 10_000, 32 * 2**20
"""Refusals that are remembered: the latest."""


class CachedDenial:
    """One refusal, made between being asked for and now, and for how many seconds it is the answer.

    Redis made it somewhere in between: it ends as if it had been made at the beginning, and what it tells of times
    counts from the end. So it is never repeated too long, and never promises too much.
    """

    __slots__ = ("__weakref__", "_decision", "_told_at", "_until", "limits")

    def __init__(self, limits: tuple[Limit, ...], decision: Decision, asked_at: float, seconds: float) -> None:
        self.limits = limits
        self._decision = decision
        self._told_at = time.monotonic()
        self._until = asked_at + seconds

    def drop(self) -> None:
        """It is no answer any more."""
        self._until = 0.0

    def answer(self) -> Decision | None:
        """The refusal as it would be told now; None if it has to be asked for."""
        now = time.monotonic()
        if now >= self._until:
            return None
        return self._decision.later(now - self._told_at, "deny-cache")


class DenyCache:
    """The refusals of this process, by what was asked."""

    def __init__(self) -> None:
        self._generation = 0
        self._denials: BoundedMap[Any, CachedDenial] = BoundedMap(MOST, MOST_BYTES, _weight)
        self._by_digest: dict[bytes, set[Any]] = {}
        self._lock = Lock()
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        self._lock = Lock()
        self.clear()  # Another thread may have been in the middle of it.

    def __len__(self) -> int:
        return len(self._denials)

    def find(self, call: Call) -> CachedDenial | None:
        """The refusal of the very same call, if it is remembered."""
        denial = self._denials.get(_key(call)) if self._by_digest else None
        if denial is None or denial.limits != tuple(charge.limit for charge in call.charges):
            return None
        return denial

    def begin(self) -> tuple[float, int]:
        """The moment before a call, for `note`."""
        return time.monotonic(), self._generation

    def note(self, call: Call, decision: Decision, begun: tuple[float, int]) -> None:
        """Remember a refusal, unless something was given back or changed since its call had begun."""
        if not _is_lasting(call, decision):
            return
        asked_at, generation = begun
        retry = decision.retry_after
        seconds = conf.DENY_CACHE_SECONDS if retry is None else min(retry, conf.DENY_CACHE_SECONDS)
        key = _key(call)
        denial = CachedDenial(tuple(charge.limit for charge in call.charges), decision, asked_at, seconds)
        with self._lock:
            if generation != self._generation:
                return
            self._remove(key)
            for charge in call.charges:
                self._by_digest.setdefault(charge.digest, set()).add(key)
            for other, gone in self._denials.put(key, denial):
                self._gone(other, gone)

    def forget(self, digests: Iterable[bytes]) -> None:
        """Something was given back to these identities, or all of it; to be called when that is done."""
        with self._lock:
            self._generation += 1
            for who in set(digests) & self._by_digest.keys():
                for key in list(self._by_digest.get(who, ())):
                    self._remove(key)

    def clear(self) -> None:
        """Rules, settings or the clock have changed."""
        with self._lock:
            self._generation += 1
            for denial in self._denials.clear():
                denial.drop()
            self._by_digest.clear()

    def _remove(self, key: Any) -> None:
        denial = self._denials.pop(key)
        if denial is not None:
            self._gone(key, denial)

    def _gone(self, key: Any, denial: CachedDenial) -> None:
        denial.drop()
        for who in {who for who, _, _ in key[-1]}:
            keys = self._by_digest.get(who)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._by_digest[who]


def _key(call: Call) -> Any:
    charges = tuple([(charge.digest, charge.limit.key_part, charge.cost) for charge in call.charges])
    subjects = tuple([(subject.digest, subject.tag) for subject in call.subjects]) if call.subjects else ()
    return (call.prefix, call.revision, call.partial, call.max_wait_us, call.longest_hold_us, subjects, charges)


def _weight(key: Any, denial: CachedDenial) -> int:
    *_, subjects, charges = key
    return 1000 * len(charges) + 200 * len(subjects) + sum(len(limit.name) for limit in denial.limits)


def _is_lasting(call: Call, decision: Decision) -> bool:
    return (
        conf.DENY_CACHE_SECONDS > 0
        and call.operation == "hit"
        and call.now is None
        and decision.source == "redis"
        and not decision.allowed
        and not any(charge.limit.count_denied for charge in call.charges)
    )


deny_cache = DenyCache()


def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting.startswith("RATELIMIT_") or setting in ("CACHES", "SECRET_KEY"):
        deny_cache.clear()


provider.on_new_rules.append(deny_cache.clear)
setting_changed.connect(_settings_changed, dispatch_uid="django_ratelimit_lua.engine.deny_cache")
