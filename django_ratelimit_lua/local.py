"""This process's share of a limit, for when Redis cannot be asked: the algorithms once more, in memory and in floats.

Of N units that P processes share, each admits N / P, rounded up, and at least `RATELIMIT_LOCAL_FLOOR`. So together
they admit at most N + P - 1 units where one Redis admits N, or P times the floor if that is more. A share begins with
what Redis said last of the identity, if that is remembered; what is admitted here, Redis is not told afterwards. One
hit that costs more than a share, but no more than the limit, is admitted where nothing else is counted.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from math import ceil
from threading import Lock

from .conf import conf
from .instances import instances
from .limits.call import Call, Charge
from .limits.decision import LimitState
from .limits.limit import Limit
from .signals import store_up

MOST = 10_000
"""Counters that are remembered: the latest."""
Counter = tuple[bytes, bytes, bytes]


class Bucket:
    """A token bucket or a leaky bucket: what is owed, at a moment in seconds."""

    def __init__(self, limit: Limit, processes: int) -> None:
        rate = limit.rate
        most = rate.limit if limit.algorithm == "token_bucket" else 1 + _queue(limit)
        burst = 0 if rate.limit == 0 else most if limit.burst is None else limit.burst
        self.size = _share(burst, processes)
        self._speed = max(rate.limit / processes, min(conf.LOCAL_FLOOR, rate.limit)) / rate.period
        self._paces = limit.algorithm == "leaky_bucket"
        self._owed, self._at = 0.0, 0.0

    def used(self, now: float) -> float:
        """Units that are owed now."""
        self._owed = max(0.0, self._owed - (now - self._at) * self._speed)
        self._at = now
        return self._owed

    def retry_after(self, now: float, cost: int) -> float | None:
        """Seconds until so many units fit; None: never."""
        if self.size == 0:
            return None
        return max(0.0, self.used(now) + cost - max(self.size, cost)) / self._speed

    def wait(self, now: float) -> float:
        """Seconds that a hit is held which is admitted now."""
        return self.used(now) / self._speed if self._paces and self._speed else 0.0

    def take(self, now: float, cost: int) -> None:
        """Admit units."""
        self._owed = self.used(now) + cost

    def give(self, now: float, cost: int) -> None:
        """Give units back."""
        self._owed = max(0.0, self.used(now) - cost)

    def reset_after(self, now: float) -> float:
        """Seconds until nothing is owed."""
        return self.used(now) / self._speed if self._speed else 0.0


class Window:
    """A fixed or sliding window, or a log: units, and until when in seconds they count."""

    def __init__(self, limit: Limit, processes: int) -> None:
        self.size = _share(limit.rate.limit, processes)
        self._period = limit.rate.period
        self._segment = self._period / (limit.segments or 10) if limit.algorithm == "sliding_window" else 0.0
        self._together = limit.algorithm == "fixed_window"
        self._admitted: deque[tuple[float, int]] = deque()

    def used(self, now: float) -> float:
        """Units that count now."""
        while self._admitted and self._admitted[0][0] <= now:
            self._admitted.popleft()
        return sum(count for _, count in self._admitted)

    def retry_after(self, now: float, cost: int) -> float | None:
        """Seconds until so many units fit; None: never."""
        if self.size == 0:
            return None
        over = self.used(now) + cost - max(self.size, cost)
        if over <= 0:
            return 0.0
        for until, count in self._admitted:
            over -= count
            if over <= 0:
                return until - now
        return None

    def wait(self, now: float) -> float:
        """Nobody is held."""
        return 0.0

    def take(self, now: float, cost: int) -> None:
        """Admit units."""
        self.used(now)
        until = now + self._period
        if self._together and self._admitted:
            until = self._admitted[0][0]
        elif self._segment:
            until = (now // self._segment + 1) * self._segment + self._period
        if self._admitted and self._admitted[-1][0] == until:
            cost += self._admitted.pop()[1]
        self._admitted.append((until, cost))

    def give(self, now: float, cost: int) -> None:
        """Give units back, the latest first."""
        self.used(now)
        while cost > 0 and self._admitted:
            until, count = self._admitted.pop()
            if count > cost:
                self._admitted.append((until, count - cost))
            cost -= count

    def reset_after(self, now: float) -> float:
        """Seconds until nothing counts."""
        return self._admitted[-1][0] - now if self.used(now) else 0.0


def _queue(limit: Limit) -> int:
    return max(0, limit.rate.limit - 1) if limit.queue is None else limit.queue


def _share(units: int, processes: int) -> int:
    return min(units, max(ceil(units / processes), conf.LOCAL_FLOOR))


class Local:
    """The shares of this process, and what Redis said last of each identity."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._said: dict[Counter, tuple[int, float]] = {}
        self._shares: OrderedDict[Counter, tuple[Limit, Bucket | Window]] = OrderedDict()

    def hear(self, call: Call, states: Sequence[LimitState]) -> None:
        """Remember what Redis says is used."""
        now = time.monotonic()
        if len(self._said) >= MOST:
            self._said.clear()
        for charge, state in zip(call.charges, states, strict=True):
            self._said[call.prefix, charge.digest, charge.limit.key_part] = (state.used, now)

    def clear(self) -> None:
        """Redis answers again: what it says holds."""
        with self._lock:
            self._shares.clear()

    def decide(self, call: Call, others_allow: bool) -> list[LimitState]:
        """The state of each charge of a call; units are taken where every limit, and whatever else is asked, allows."""
        now = time.monotonic()
        with self._lock:
            shares = [self._share(call.prefix, charge, now) for charge in call.charges]
            verdicts = [
                share.retry_after(now, max(charge.cost, 1)) for charge, share in zip(call.charges, shares, strict=True)
            ]
            refused = not others_allow or any(
                retry != 0.0 and charge.limit.mode == "enforce"
                for charge, retry in zip(call.charges, verdicts, strict=True)
            )
            states = []
            for charge, share, retry in zip(call.charges, shares, verdicts, strict=True):
                wait = share.wait(now)
                if call.operation == "refund":
                    share.give(now, charge.cost)
                elif call.operation == "charge" or (call.operation == "hit" and retry == 0.0 and not refused):
                    share.take(now, charge.cost)
                states.append(_state(charge, share, now, retry, wait))
            return states

    def _share(self, prefix: bytes, charge: Charge, now: float) -> Bucket | Window:
        counter = (prefix, charge.digest, charge.limit.key_part)
        kept = self._shares.get(counter)
        if kept is not None and kept[0] == charge.limit:
            self._shares.move_to_end(counter)
            return kept[1]
        limit, processes = charge.limit, instances.count
        is_bucket = limit.algorithm in ("token_bucket", "leaky_bucket")
        share = Bucket(limit, processes) if is_bucket else Window(limit, processes)
        used, at = self._said.get(counter, (0, now))
        if used:
            share.take(at, min(share.size, ceil(used / processes)))
        self._shares[counter] = (limit, share)
        if len(self._shares) > MOST:
            self._shares.popitem(last=False)
        return share


def _state(charge: Charge, share: Bucket | Window, now: float, retry: float | None, wait: float) -> LimitState:
    limit, used = charge.limit, ceil(share.used(now))
    return LimitState(
        limit.name,
        retry == 0.0,
        limit.rate.limit,
        used,
        max(0, share.size - used),
        retry,
        share.reset_after(now),
        wait if retry == 0.0 else 0.0,
        limit.mode,
        limit.rate.period,
    )


local = Local()


def _answers_again(**kwargs: object) -> None:
    local.clear()


store_up.connect(_answers_again, dispatch_uid="django_ratelimit_lua.local")
