"""What this process decides by itself: its share of a limit.

For when Redis cannot be asked: of N units that P processes share, each admits N / P, rounded up, and at least
`RATELIMIT_LOCAL_FLOOR`. So together they admit at most N + P - 1 units where one Redis admits N, or P times the floor
if that is more. A share begins with what Redis said last of the identity, if that is remembered. One hit that costs
more than a share, but no more than the limit, is admitted where nothing else is counted. When Redis is back, it is told
what was admitted meanwhile and counts still; and for a moment, until the other processes have come back and told as
well, each goes by both: by Redis, and by its share.

And for limits that are split: each process has exactly its part, together they have the whole. When an instance comes,
the parts of the others shrink with their next heartbeat; until then, and for what they have admitted of a period that
has begun, the sum may be more than N: by the newcomer's part at most.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from threading import Lock

from ..conf import conf
from ..exceptions import StoreError
from ..instances import instances
from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..limits.rate import SECOND
from ..process import renew_after_fork
from ..signals import store_down, store_up
from ..store import get_store
from .counters import Bucket, Window
from .shares import Share, share_of

MOST = 10_000
"""Counters that are remembered: the latest."""
BACK_SECONDS = 1.5
"""Within which all processes come back when Redis does: their breakers try at least so often."""
Counter = tuple[bytes, bytes, bytes]


class Local:
    """The shares of this process, and what Redis said last of each identity."""

    def __init__(self) -> None:
        self._said: dict[Counter, tuple[int, float]] = {}
        self._counters: OrderedDict[Counter, tuple[Limit, Share, Bucket | Window]] = OrderedDict()
        self._back_at = float("-inf")
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        # What is counted stays counted in a child, too; but its parent tells Redis of it.
        self._lock = Lock()
        self._admitted: dict[Counter, int] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether other processes may not have come back yet."""
        return time.monotonic() - self._back_at < BACK_SECONDS

    def hear(self, call: Call, states: Sequence[LimitState]) -> None:
        """Remember what Redis says is used."""
        now = time.monotonic()
        if len(self._said) >= MOST:
            self._said.clear()
        for charge, state in zip(call.charges, states, strict=True):
            self._said[call.prefix, charge.digest, charge.limit.key_part] = (state.used, now)

    def clear(self) -> None:
        """Begin with nothing."""
        with self._lock:
            self._counters.clear()
            self._admitted.clear()
            self._back_at = float("-inf")

    def came_back(self) -> list[Call]:
        """Redis answers again. Returns the calls that tell it what was admitted here and counts still."""
        now = time.monotonic()
        clock = time.time_ns() // 1000 if conf.CLOCK == "client" else None
        calls = []
        with self._lock:
            for (prefix, digest, part), units in self._admitted.items():
                limit, _, counter = self._counters[prefix, digest, part]
                counted = min(units, ceil(counter.used(now)))
                if counted:
                    calls.append(Call([Charge(limit, digest, counted)], "charge", prefix, clock))
            self._admitted.clear()
            self._back_at = now
        return calls

    def went_away(self) -> None:
        """Redis cannot be asked any more: shares begin anew, unless it was there for a moment only."""
        if not self.is_waiting:
            with self._lock:
                for key in [key for key, (limit, _, _) in self._counters.items() if limit.split is None]:
                    del self._counters[key]
                self._admitted.clear()

    def forget(self, call: Call) -> None:
        """Forget what is counted of a call's limits."""
        with self._lock:
            for charge in call.charges:
                key = (call.prefix, charge.digest, charge.limit.key_part)
                self._counters.pop(key, None)
                self._admitted.pop(key, None)

    def decide(self, call: Call, others_allow: bool = True, *, to_be_told: bool = True) -> Decision:
        """Decide a call here: units are taken where every limit, and whatever else is asked, allows.

        `to_be_told`: Redis is to be told of them when it is back.
        """
        now = time.monotonic()
        with self._lock:
            counters = [self._counter(call.prefix, charge, now) for charge in call.charges]
            charges = call.charges
            if call.partial and call.operation == "hit":
                room = [
                    int(counter.size - counter.used(now))
                    for charge, counter in zip(charges, counters, strict=True)
                    if charge.limit.mode == "enforce"
                ]
                charges = [replace(charge, cost=max(1, min([charge.cost, *room]))) for charge in charges]
            verdicts = [_verdict(call, charge, counter, now) for charge, counter in zip(charges, counters, strict=True)]
            allowed = others_allow and all(
                retry == 0.0 or charge.limit.mode != "enforce" for charge, retry in zip(charges, verdicts, strict=True)
            )
            waits = [counter.wait(now) for counter in counters]
            for charge, counter, retry in zip(charges, counters, verdicts, strict=True):
                if call.operation == "refund":
                    counter.give(now, charge.cost)
                    self._admit(call, charge, -charge.cost if to_be_told else 0)
                elif call.operation == "charge" or (call.operation == "hit" and retry == 0.0 and allowed):
                    counter.take(now, charge.cost)
                    self._admit(call, charge, charge.cost if to_be_told else 0)
            states = tuple(map(_state, charges, counters, [now] * len(charges), verdicts, waits))
        allowed = allowed or call.operation in ("refund", "charge")
        taken = call.operation == "hit" and allowed
        wait = max((state.wait for state in states if state.enforced), default=0.0) if allowed else 0.0
        return Decision(allowed, states, max((one.cost for one in charges), default=0) if taken else 0, wait)

    def _admit(self, call: Call, charge: Charge, units: int) -> None:
        if units and charge.limit.split is None and call.now is None:
            key = (call.prefix, charge.digest, charge.limit.key_part)
            self._admitted[key] = max(0, self._admitted.get(key, 0) + units)

    def _counter(self, prefix: bytes, charge: Charge, now: float) -> Bucket | Window:
        key = (prefix, charge.digest, charge.limit.key_part)
        limit, share = charge.limit, share_of(charge.limit)
        kept = self._counters.get(key)
        if kept is not None and kept[0] == limit:
            counter = kept[2]
            if kept[1] != share:
                counter.resize(share, now)
                self._counters[key] = (limit, share, counter)
            self._counters.move_to_end(key)
            return counter
        is_bucket = limit.algorithm in ("token_bucket", "leaky_bucket")
        counter = Bucket(limit, share) if is_bucket else Window(limit, share)
        used, at = self._said.get(key, (0, now)) if limit.split is None else (0, now)
        if used:
            counter.take(at, min(counter.size, ceil(used / instances.count)))
        self._counters[key] = (limit, share, counter)
        if len(self._counters) > MOST:
            self._admitted.pop(self._counters.popitem(last=False)[0], None)
        return counter


def _verdict(call: Call, charge: Charge, counter: Bucket | Window, now: float) -> float | None:
    """Seconds until such a hit is admitted; None: never."""
    retry = counter.retry_after(now, max(charge.cost, 1))
    longest = charge.limit.max_wait_us if call.max_wait_us is None else call.max_wait_us
    if retry == 0.0 and charge.limit.algorithm == "leaky_bucket" and longest >= 0:
        retry = max(0.0, counter.wait(now) - longest / SECOND)
    return retry


def _state(charge: Charge, counter: Bucket | Window, now: float, retry: float | None, wait: float) -> LimitState:
    limit, used = charge.limit, ceil(counter.used(now))
    return LimitState(
        limit.name,
        retry == 0.0,
        limit.rate.limit,
        used,
        max(0, counter.size - used),
        retry,
        counter.reset_after(now),
        wait if retry == 0.0 else 0.0,
        limit.mode,
        limit.rate.period,
    )


local = Local()


def _went_away(**kwargs: object) -> None:
    local.went_away()


def _answers_again(**kwargs: object) -> None:
    calls = local.came_back()
    if calls:
        threading.Thread(target=_tell, args=(calls,), name="ratelimit-local", daemon=True).start()


def _tell(calls: Sequence[Call]) -> None:
    for call in calls:
        try:
            get_store(patient=True).run(call)
        except StoreError:
            return  # It is away again; so much is not told.


store_down.connect(_went_away, dispatch_uid="django_ratelimit_lua.local")
store_up.connect(_answers_again, dispatch_uid="django_ratelimit_lua.local")
