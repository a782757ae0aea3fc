"""Decisions while Redis is unavailable, by each limit's policy.

"local": of N units that P processes share, each admits N / P, rounded up. So together they admit at
most N + P - 1 units where one Redis admits N. A share begins with the last reply of Redis about the
identity, if it is still stored. One hit that costs more than a share, but no more than the limit,
is admitted if nothing else is counted. Units that this process has admitted stay in its share as
long as the limit counts them, also in the next outage, and whether or not they were reported to
Redis.

When Redis is available again, a thread reports the admitted units that still count. Until the other
processes have reported theirs as well (slots with their next renewal), both Redis and the share
have to allow a hit.
"""

from __future__ import annotations

import time
from threading import Lock

from ..conf import conf
from ..exceptions import StoreError
from ..limits.call import Call, Charge, Operation
from ..limits.decision import Decision
from ..process.forks import chance, renew_after_fork
from ..process.tasks import Task
from ..signals import store_up
from ..store import Patience, get_store
from .counters import Counter, counters, policy_of
from .run import Waiting
from .slots import held_slots

Steps = Waiting[Decision]
"""Yields the calls that have to be made for a decision, and is sent theirs."""
BACK_SECONDS = 1.5
"""Seconds within which all processes are back after Redis is: the interval of their breakers'
trials.
"""
TELL_SECONDS = 0.2
"""Seconds between two attempts to report admitted units to Redis, with a jitter of a quarter."""
MAX_ERRORS = 10
"""Maximum number of errors that Redis answers in one attempt, for example because it is full. The
next attempt starts with others.
"""


class FallbackLimiter:
    """Decides while Redis is unavailable (`decide`), and just after an outage (`decide_by_both`).

    - `is_recovering`: whether some units that were admitted in an outage may be unreported.
    """

    def __init__(self) -> None:
        self.is_recovering = False
        self._back_at = float("-inf")
        self._begin()
        self.task = Task(
            "fallback",
            self._step,
            delay=_pause,
            meanwhile="units that were admitted without Redis are not counted there",
        )
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = Lock()

    def decide(self, call: Call) -> Decision:
        """Return the decision about a call while Redis is unavailable."""
        self._wait_for_others()
        return self._by_policies(call)

    def decide_by_both(self, call: Call, steps: Steps) -> Steps:
        """Return the decision of `steps`, which call Redis.

        If this process's share does not allow the call, Redis is not called.
        """
        share = self._share_of(call)
        if share is None:
            return (yield from steps)
        if not counters.decide(share):
            return self._by_policies(call)
        is_taken = False
        try:
            decision = yield from steps
            is_taken = decision.allowed
        finally:
            if not is_taken:
                counters.decide(share._replace(operation="refund"))
        return decision

    def on_store_up(self, **kwargs: object) -> None:
        self._wait_for_others()
        if counters.is_owing:
            self.task.start()

    def clear(self) -> None:
        counters.clear()
        self.is_recovering = False
        self._back_at = float("-inf")

    def _wait_for_others(self) -> None:
        with self._lock:
            self._back_at = time.monotonic()
            self.is_recovering = True

    def _share_of(self, call: Call) -> Call | None:
        """Return the part of a call that this process's share has to allow as well, or None."""
        if not self.is_recovering:
            return None
        # Their renewal reports slots, also those of a process that has noticed no outage.
        slots_wait = self._is_back_within(BACK_SECONDS + held_slots.interval)
        if not slots_wait and not counters.is_owing:
            with self._lock:
                slots_wait = self._is_back_within(BACK_SECONDS + held_slots.interval)
                self.is_recovering = slots_wait or counters.is_owing
            return None
        if call.operation != "hit" or call.partial or call.now is not None:
            return None
        is_waiting = self._is_back_within(BACK_SECONDS) or counters.owes_any(call)
        charges = [
            charge
            for charge in call.charges
            if policy_of(charge.limit) == "local" and not charge.limit.is_hot
            if is_waiting or (slots_wait and charge.limit.holds)
        ]
        return call._replace(charges=charges) if charges else None

    def _is_back_within(self, seconds: float) -> bool:
        return time.monotonic() - self._back_at < seconds

    def _by_policies(self, call: Call) -> Decision:
        decision = counters.decide(call, in_outage=True)
        if counters.is_owing:
            self.task.start()
        return decision._replace(source="fallback")

    def _step(self) -> float | None:
        # Not only after a request: a process that gets none, or refuses all by itself, has to
        # report as well.
        if not get_store().is_paused:
            self._report()
            counters.owing()  # Until here, every owed identity is decided by the share as well.
        return _pause() if counters.is_owing else None

    def _report(self) -> None:
        """Report the owed units of all identities to Redis."""
        store = get_store(background=True)
        owing = counters.owing()
        chance.shuffle(owing)  # An identity that gets an error each time must not always be first.
        answers = False
        errors = 0
        for counter in owing:
            try:
                if not answers:  # A silent Redis might count, when it wakes up, what it was sent.
                    store.decide(_report_call(counter, "peek", 1), Patience(conf.TIMEOUT))
                    answers = True
                units = counter.owed
                if units:
                    call = _report_call(counter, "charge", units)
                    counters.mark_reported(counter, units, call, store.decide(call).limits)
            except StoreError as error:
                errors += 1
                if not error.was_answered or errors >= MAX_ERRORS:
                    return


def _pause() -> float:
    return TELL_SECONDS * chance.uniform(0.75, 1.25)


def _report_call(counter: Counter, operation: Operation, units: int) -> Call:
    prefix, digest, _ = counter.key
    call = Call([Charge(counter.limit, digest, units)], operation, prefix)
    if conf.CLOCK == "client":
        return call._replace(now=time.time_ns() // 1000)
    return call


fallback_limiter = FallbackLimiter()
store_up.connect(fallback_limiter.on_store_up, dispatch_uid="django_ratelimit_lua.engine.fallback")
