"""The answers of `circuit.lua`, and a breaker as one process decides about it alone, while Redis is
unavailable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from ...conf import conf
from .rows import Thresholds

State = Literal["closed", "open", "half", "ramp"]
Operation = Literal["tell", "ask", "done", "hung"]
Result = Literal["ok", "failed", "none", ""]
SHARES = (10, 25, 50)
"""Percent of the calls that are let through, step by step, before all are."""
MAX_JITTER = 1000
"""Random numbers are below this; a pause is up to a tenth longer by chance."""


def tag_of(name: str) -> bytes:
    """The digest of a name, in keys and messages."""
    return (
        hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest().encode()
    )


def circuit_key(name: str) -> bytes:
    """The key of the state of a breaker: all of its keys are in one slot."""
    return b"%b{circuit:%b}" % (conf.CACHE_PREFIX, tag_of(name))


def circuits_key() -> bytes:
    """The key of the sorted set of all breakers in any process: names and declarations, by when
    they were noted.
    """
    return conf.CACHE_PREFIX + b"{circuits}"


class Outcomes(NamedTuple):
    """Outcomes of calls: how many there are, how many failed and were slow."""

    calls: int = 0
    failures: int = 0
    slow: int = 0


NO_OUTCOMES = Outcomes()


class Event(NamedTuple):
    """A change of state, and the numbers that led to it.

    `name`: opened, half_open, ramp or closed.
    """

    name: str
    calls: int
    failures: int
    slow: int
    reason: str


class Answer(NamedTuple):
    """A breaker after an operation: its state.

    How often it has opened (`era`); in how many microseconds it changes, or a probe may be
    requested; the percentage of admitted calls; the counts of the window; whether the probe was
    `granted`; and the changes that this operation made.
    """

    state: State
    era: int
    wait: int
    share: int
    calls: int
    failures: int
    slow: int
    granted: bool
    events: tuple[Event, ...] = ()

    @classmethod
    def read(cls, reply: Sequence[Any]) -> Answer:
        """The answer in a reply of the script."""
        state, era, wait, share, calls, failures, slow, granted, *texts = reply
        events = [
            Event(name.decode(), int(calls), int(failures), int(slow), reason.decode())
            for name, calls, failures, slow, reason in zip(*[iter(texts)] * 5, strict=True)
        ]
        return cls(
            state.decode(), era, wait, share, calls, failures, slow, granted == 1, tuple(events)
        )


class LoneCircuit:
    """A breaker of one process, while Redis is unavailable.

    Times are microseconds of any clock that goes forward.

    It opens by the same thresholds as the shared one. Then it is simpler: after `open_for` it lets
    one call at a time try, and a success closes it at once.

    >>> circuit = LoneCircuit()
    >>> circuit.call(0, Thresholds(minimum=2), outcomes=Outcomes(2, 2)).state
    'open'
    """

    def __init__(self, state: State = "closed", era: int = 0, ends: int = 0) -> None:
        self.state: State = "closed" if state == "ramp" else state
        self.era = era
        self.ends = ends
        self.probes: dict[str, int] = {}
        """When the slots of calls that try end."""
        self._buckets: dict[int, Outcomes] = {}
        """Outcomes, by part of the window."""

    def call(
        self,
        now: int,
        by: Thresholds,
        operation: Operation = "tell",
        *,
        probe: str = "",
        result: Result = "",
        era: int | None = None,
        outcomes: Outcomes = NO_OUTCOMES,
    ) -> Answer:
        """Do one operation at a moment, as the script does it for all processes."""
        events: list[Event] = []
        is_current = era in (None, self.era)
        counts = self._count(now, by, outcomes if is_current else NO_OUTCOMES)
        if self.state == "closed" and (reason := by.reason(*counts)):
            self._open(now, by)
            events.append(Event("opened", *counts, reason))
        granted = False
        if operation == "done":
            self.probes.pop(probe, None)
        if operation == "tell":
            self.probes |= {
                running: now + by.probe_us for running in probe.split() if running in self.probes
            }
        elif operation == "ask":
            granted = self.state != "closed" and now >= max([self.ends, *self.probes.values()])
            if granted and self.state == "open":
                events.append(Event("half_open", 0, 0, 0, ""))
            if granted:
                self.state, self.probes = "half", {probe: now + by.probe_us}
        elif self.state == "half" and is_current and result == "failed":
            self._open(now, by)
            events.append(Event("opened", 1, 1, 0, "probe"))
        elif self.state == "half" and is_current and result == "ok":
            self.state = "closed"
            events.append(Event("closed", 1, 0, 0, ""))
        ends = max([self.ends, *self.probes.values()])
        wait, share = (0, 100) if self.state == "closed" else (max(0, ends - now), 0)
        return Answer(self.state, self.era, wait, share, *counts, granted, tuple(events))

    def _count(self, now: int, by: Thresholds, outcomes: Outcomes) -> Outcomes:
        """Count outcomes; return the sums of the window."""
        part = now // by.width_us
        self._buckets[part] = _sum([self._buckets.get(part, NO_OUTCOMES), outcomes])
        oldest = (now - by.window_us) // by.width_us
        self._buckets = {part: bucket for part, bucket in self._buckets.items() if part > oldest}
        return _sum(self._buckets.values())

    def _open(self, now: int, by: Thresholds) -> None:
        self.state = "open"
        self.era += 1
        self.ends = now + by.open_us
        self._buckets = {}


def _sum(outcomes: Iterable[Outcomes]) -> Outcomes:
    return Outcomes(*(sum(column) for column in zip(NO_OUTCOMES, *outcomes, strict=True)))
