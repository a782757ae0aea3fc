"""The deny cache: repeats a refusal for a moment without calling Redis.

A refusal stays true until its `retry_after` if no units are refunded, and no count is reset or rule
edited. So an equal call (the same limits, identities, costs and rules) may be refused from memory
until then, for at most `RATELIMIT_DENY_CACHE_SECONDS`.

Refunds and resets of this process and newer rules clear the affected entries at once. Resets and
edits of other processes clear them when their message arrives (`listener`). Without a working
channel for messages, a refusal is repeated for a second at most. Refunds of other processes send no
message, so they take effect when the entry ends. A flood of one identity costs at most one call per
second and process.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from ..conf import conf, on_change
from ..limits.call import Call
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..process import Clock
from ..process.bounded_map import BoundedMap
from ..process.forks import renew_after_fork
from ..rules import provider

UNHEARD_SECONDS = 1.0
"""How long a refusal may be repeated after the last moment up to which all messages are known to
have arrived.
"""

MAX_ENTRIES = 10_000
MAX_BYTES = 32 * 2**20
"""Refusals that are remembered: the latest."""

_Key = tuple[bytes, object, object, tuple[tuple[bytes, Limit, int], ...]]
"""The prefix, revision, options and charges of a call."""


class CachedDenial(NamedTuple):
    """A cached refusal, the moments of its request and reply, and its end.

    Redis decided between these two moments. The refusal ends as if it had been decided at the
    first, and its times count from the second. So it is never repeated for too long, and never
    gives a time that is too short.
    """

    decision: Decision
    asked_at: float
    answered_at: float
    until: float


class DenyCache:
    """The refusals of this process, by call.

    - `received_at`: the monotonic time up to which all changes of other processes were received,
      see `UNHEARD_SECONDS`;
    - `generation`: the number of refunds and changes so far;
    - `entries`: the refusals. Without any, nothing has to be looked up.
    """

    received_at = float("-inf")

    def __init__(self) -> None:
        self.generation = 0
        self._denials: BoundedMap[_Key, CachedDenial] = BoundedMap(
            MAX_ENTRIES, MAX_BYTES, _weigh, labels_of=_digests_of
        )
        self.entries = self._denials.entries
        self._renew()
        renew_after_fork(self._renew)

    def _renew(self) -> None:
        """Make a new lock, and begin without refusals: in a child process, or at first."""
        self._lock = Lock()
        self.clear()  # Another thread of the parent may have been in the middle of it.

    def find(self, call: Call) -> Decision | None:
        """Return the cached refusal of an equal hit, with its times updated, or None."""
        if call.operation != "hit" or call.now is not None:
            return None
        denial = self._denials.get(_key_of(call))
        if denial is None:
            return None
        now = Clock.monotonic()
        known_until = max(denial.asked_at, self.received_at) + UNHEARD_SECONDS
        if now >= denial.until or now >= known_until:
            return None
        return denial.decision.repeated(now - denial.answered_at, "deny-cache")

    def add(self, call: Call, decision: Decision, asked_at: float, generation: int) -> None:
        """Store a refusal, unless it may change, or has been changed since its call began.

        Args:
            call: The call.
            decision: The refusal.
            asked_at: When the call began, by the monotonic clock.
            generation: The generation at that moment.
        """
        if not _may_be_repeated(call, decision):
            return
        seconds = conf.DENY_CACHE_SECONDS
        if decision.retry_after is not None:
            seconds = min(seconds, decision.retry_after)
        denial = CachedDenial(decision, asked_at, Clock.monotonic(), asked_at + seconds)
        with self._lock:
            if generation == self.generation:
                self._denials.put(_key_of(call), denial)

    def forget(self, digests: Iterable[bytes]) -> None:
        """Drop the refusals of these identities, after their units were refunded or reset."""
        with self._lock:
            self.generation += 1
            for digest in digests:
                self._denials.pop_labelled(digest)

    def clear(self) -> None:
        """Drop all refusals, because rules, settings or the clock have changed."""
        with self._lock:
            self.generation += 1
            self._denials.clear()


def _key_of(call: Call) -> _Key:
    """Return what two calls have in common if one refusal answers both."""
    charges = tuple([(charge.digest, charge.limit, charge.cost) for charge in call.charges])
    options = (call.partial, call.debt, call.max_wait_us, call.longest_hold_us)
    return (call.prefix, call.revision, options, charges)


def _digests_of(key: _Key) -> set[bytes]:
    """Return the digests of the charged identities."""
    *_, charges = key
    return {digest for digest, _, _ in charges}


def _weigh(key: _Key, denial: CachedDenial) -> int:
    """Return the approximate bytes of a refusal."""
    *_, charges = key
    return 1000 * len(charges) + sum(len(limit.name) for _, limit, _ in charges)


def _may_be_repeated(call: Call, decision: Decision) -> bool:
    """Return whether an equal call would be refused in the same way for some time."""
    if conf.DENY_CACHE_SECONDS == 0 or call.operation != "hit" or not call.is_repeatable:
        return False
    # A caller with its own clock does not use the one by which refusals end.
    if decision.source != "redis" or call.now is not None:
        return False
    states = zip(call.charges, decision.limits, strict=True)
    return not any(_may_differ(charge.limit, state) for charge, state in states)


def _may_differ(limit: Limit, state: LimitState) -> bool:
    """Return whether an equal hit would change the state, or get another decision."""
    # Any process may release a slot at any moment.
    if limit.count_denied or (limit.holds and state.refuses):
        return True
    if state.ban is None or state.allowed:
        return False
    # It would be another offence.
    return not state.ban.until


deny_cache = DenyCache()

provider.on_new_rules.append(deny_cache.clear)
on_change(("RATELIMIT_*", "CACHES", "SECRET_KEY"), deny_cache.clear)
