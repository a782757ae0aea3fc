"""The answers of `circuit.lua`, and a breaker as one process decides about it alone, while Redis cannot be asked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ...conf import conf
from .rows import Thresholds

State = Literal["closed", "open", "half", "ramp"]
Operation = Literal["tell", "ask", "done", "hung"]
Result = Literal["ok", "failed", "none", ""]
SHARES = (10, 25, 50)
"""Percent of the calls that are let through, step by step, before all are."""
MOST_JITTER = 1000
"""Random numbers are below this; a pause is up to a tenth longer by chance."""


def tag_of(name: str) -> bytes:
    """The digest of a name, in keys and messages."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest().encode()


def circuit_key(name: str) -> bytes:
    """The key of the state of a breaker: all of its keys are in one slot."""
    return b"%b{circuit:%b}" % (conf.CACHE_PREFIX, tag_of(name))


def circuits_key() -> bytes:
    """The key of the hash of all breakers in any process: their names, and their declarations in the code."""
    return conf.CACHE_PREFIX + b"{circuits}"


class Outcomes(NamedTuple):
    """Outcomes of calls: how many microseconds ago the last one ended, how many there are, how many failed and were
    slow."""

    age: int
    calls: int
    failures: int
    slow: int


class Event(NamedTuple):
    """A change of state, and the numbers that led to it. `name`: opened, half_open, ramp or closed."""

    name: str
    calls: int
    failures: int
    slow: int
    reason: str


class Answer(NamedTuple):
    """A breaker after an operation: its state; how often it has opened (`era`) and changed (`version`); in how many
    microseconds it changes, or a probe may be requested; the percentage of admitted calls; the counts of the window;
    whether the requested probe was `granted`; and the change that this operation made."""

    state: State
    era: int
    version: int
    wait: int
    share: int
    calls: int
    failures: int
    slow: int
    granted: bool
    events: tuple[Event, ...] = ()

    @classmethod
    def read(cls, reply: Sequence[bytes | int]) -> Answer:
        """The answer in a reply of the script. Raises `ValueError` or `IndexError` if it is invalid."""
        state, *numbers = reply[:9]
        texts = [part.decode() if isinstance(part, bytes) else str(part) for part in reply[9:]]
        events = [
            Event(name, int(calls), int(failures), int(slow), reason)
            for name, calls, failures, slow, reason in zip(*[iter(texts)] * 5, strict=True)
        ]
        era, version, wait, share, calls, failures, slow, granted = map(int, numbers)
        named = state.decode() if isinstance(state, bytes) else str(state)
        if named not in ("closed", "open", "half", "ramp"):
            raise ValueError(f"no state: {named!r}")
        return cls(named, era, version, wait, share, calls, failures, slow, granted == 1, tuple(events))  # type: ignore[arg-type]


class LoneCircuit:
    """A breaker of one process, while Redis cannot be asked. Times are microseconds of any clock that goes forward.

    It opens by the same thresholds as the shared one. Then it is simpler: after `open_for` it lets one call at a time
    try, and a success closes it at once.

    >>> circuit = LoneCircuit()
    >>> circuit.call(0, Thresholds(minimum=2), outcomes=[Outcomes(0, 2, 2, 0)]).state
    'open'
    """

    def __init__(self, state: State = "closed", era: int = 0, version: int = 0, ends: int = 0) -> None:
        self.state: State = "closed" if state == "ramp" else state
        self.era = era
        self.version = version
        self.ends = ends
        self.probes: dict[str, int] = {}
        """When the slots of calls that try end."""
        self._buckets: dict[int, list[int]] = {}
        """Calls, failures and slow ones, by part of the window."""

    def call(
        self, now: int, by: Thresholds, operation: Operation = "tell", *, probe: str = "", result: Result = "",
        era: int | None = None, outcomes: Sequence[Outcomes] = (),
    ) -> Answer:  # fmt: skip
        """Do one operation at a moment, as the script does it for all processes."""
        events: list[Event] = []
        is_current = era in (None, self.era)
        calls, failures, slow = self._count(now, by, outcomes if is_current else ())
        if self.state == "closed" and (reason := by.reason(calls, failures, slow)):
            self._open(now, by)
            events.append(Event("opened", calls, failures, slow, reason))
        granted = False
        if operation == "done":
            self.probes.pop(probe, None)
        if operation == "tell":
            self.probes |= {running: now + by.probe_us for running in probe.split() if running in self.probes}
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
        self.version += len(events)
        ends = max([self.ends, *self.probes.values()])
        wait, share = (0, 100) if self.state == "closed" else (max(0, ends - now), 0)
        return Answer(self.state, self.era, self.version, wait, share, calls, failures, slow, granted, tuple(events))

    def _count(self, now: int, by: Thresholds, outcomes: Sequence[Outcomes]) -> list[int]:
        """Count outcomes; return the sums of the window."""
        for age, *numbers in outcomes:
            bucket = self._buckets.setdefault((now - age) // by.width_us, [0, 0, 0])
            bucket[:] = map(sum, zip(bucket, numbers, strict=True))
        oldest = (now - by.window_us) // by.width_us
        self._buckets = {part: bucket for part, bucket in self._buckets.items() if part > oldest}
        return [sum(column) for column in zip([0, 0, 0], *self._buckets.values(), strict=True)]

    def _open(self, now: int, by: Thresholds) -> None:
        self.state = "open"
        self.era += 1
        self.ends = now + by.open_us
        self._buckets = {}
