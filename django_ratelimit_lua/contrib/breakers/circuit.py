"""The replies of `circuit.lua`, and a breaker of one process while Redis is unavailable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from ...conf import conf
from .rows import Thresholds

State = Literal["closed", "open", "half-open"]
Operation = Literal["tell", "ask", "done", "hung"]
Result = Literal["ok", "failed", "none", ""]
MAX_JITTER = 1000
"""Random numbers are below this; a pause is up to a tenth longer by chance."""


def tag_of(name: str) -> bytes:
    """Return the digest of a name, for keys and messages."""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest().encode()


def circuit_key(name: str) -> bytes:
    """Return the key of the state of a breaker. All keys of a breaker are in one hash slot."""
    return b"%b{circuit:%b}" % (conf.CACHE_PREFIX, tag_of(name))


def circuits_key() -> bytes:
    """Return the key of the sorted set of the breakers of all processes.

    Its members are names and declarations. The scores are the times when they were recorded.
    """
    return conf.CACHE_PREFIX + b"{circuits}"


class Outcomes(NamedTuple):
    """Numbers of calls: all calls, failed ones and slow ones."""

    calls: int = 0
    failures: int = 0
    slow: int = 0


NO_OUTCOMES = Outcomes()


class Event(NamedTuple):
    """A change of state, and the numbers that caused it.

    - `name`: opened, half_open or closed.
    """

    name: str
    calls: int
    failures: int
    slow: int
    reason: str


class Answer(NamedTuple):
    """The state of a breaker after an operation.

    Attributes:
        state: Its state.
        era: The number of times it has opened.
        wait: Microseconds until the state changes, or until a probe may be requested.
        calls: The number of calls in the window.
        failures: The number of failed calls among them.
        slow: The number of slow calls among them.
        granted: Whether the requested probe was granted.
        events: The changes that this operation caused.
    """

    state: State
    era: int
    wait: int
    calls: int
    failures: int
    slow: int
    granted: bool
    events: tuple[Event, ...] = ()

    @classmethod
    def read(cls, reply: Sequence[Any]) -> Answer:
        """Return the answer in a reply of the script."""
        state, *numbers, granted = reply[:7]
        events = tuple(
            Event._make([name.decode(), *counts, reason.decode()])
            for name, *counts, reason in reply[7:]
        )
        return cls._make([state.decode(), *numbers, granted == 1, events])


class LoneCircuit:
    """A breaker of one process, used while Redis is unavailable.

    It opens by the same thresholds as the shared one. After `open_for` it lets one call through at
    a time, and closes with the first success. Times are microseconds of a monotonic clock.

    >>> circuit = LoneCircuit()
    >>> circuit.call(0, Thresholds(minimum=2), outcomes=Outcomes(2, 2)).state
    'open'
    """

    def __init__(self, state: State = "closed", era: int = 0, ends: int = 0) -> None:
        self.state = state
        self.era = era
        self.ends = ends
        self.probes: dict[str, int] = {}
        """When the slots of probes end."""
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
        era: int = -1,
        outcomes: Outcomes = NO_OUTCOMES,
    ) -> Answer:
        """Perform one operation at a moment, like the script."""
        events: list[Event] = []
        is_current = era in (-1, self.era)
        if not is_current:
            outcomes = NO_OUTCOMES
        counts = self._count(now, by, outcomes)
        if self.state == "closed" and (reason := by.reason(*counts)):
            self._open(now, by)
            events.append(Event("opened", *counts, reason))
        granted = False
        if operation == "done":
            self.probes.pop(probe, None)
        elif operation == "tell":
            for running in self.probes.keys() & probe.split():
                self.probes[running] = now + by.probe_us
        ends = max([self.ends, *self.probes.values()])
        if operation == "ask" and self.state != "closed" and now >= ends:
            granted = True
            if self.state == "open":
                events.append(Event("half_open", 0, 0, 0, ""))
            self.state = "half-open"
            self.probes = {probe: now + by.probe_us}
        elif self.state == "half-open" and is_current and result == "failed":
            self._open(now, by)
            events.append(Event("opened", 1, 1, 0, "probe"))
        elif self.state == "half-open" and is_current and result == "ok":
            self.state = "closed"
            events.append(Event("closed", 1, 0, 0, ""))
        wait = 0
        if self.state != "closed":
            wait = max(now, self.ends, *self.probes.values()) - now
        return Answer(self.state, self.era, wait, *counts, granted, tuple(events))

    def _count(self, now: int, by: Thresholds, outcomes: Outcomes) -> Outcomes:
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
