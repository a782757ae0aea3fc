"""The states of a breaker as one process decides them alone, while Redis cannot be asked: what `circuit.lua` does, by
what this process sees itself. A test holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from ..rules.breakers import Thresholds

State = Literal["closed", "open", "half", "ramp"]
Operation = Literal["tell", "ask", "done", "hung"]
Result = Literal["ok", "failed", "none", ""]
SHARES = (10, 25, 50)
"""Percent of the calls that are let through, step by step, before all are."""
MOST_JITTER = 1000
"""Random numbers are below this; a pause is up to a tenth longer by chance."""


class Outcomes(NamedTuple):
    """What came of calls: how many microseconds ago the last one ended, how many they are, how many failed and were
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
    """What is known of a breaker after an operation: its state; how often it has opened (`era`) and changed
    (`version`); in how many microseconds it changes, or a probe may be asked for; the percent of calls that are let
    through; what the window has; whether the probe that was asked for was `granted`; and what this operation changed.
    """

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
        """The answer that a reply of the script is. Raises `ValueError` or `IndexError` for what is none."""
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
    """A breaker of one process. Times are microseconds of any clock that goes forward.

    >>> circuit = LoneCircuit()
    >>> circuit.call(0, Thresholds(minimum=2), outcomes=[Outcomes(0, 2, 2, 0)]).state
    'open'
    """

    def __init__(
        self, state: State = "closed", era: int = 0, version: int = 0, ends: int = 0, share: int = 100
    ) -> None:
        self.state, self.era, self.version = state, era, version
        self.since = self.successes = self.pause = 0
        self.ends = ends
        self.step = SHARES.index(share) + 1 if state == "ramp" and share in SHARES else 0
        self.buckets: dict[tuple[int, int], list[int]] = {}
        self.probes: dict[str, int] = {}
        self._events: list[Event] = []

    def call(
        self,
        now: int,
        by: Thresholds,
        operation: Operation = "tell",
        *,
        chance: int = 0,
        probe: str = "",
        result: Result = "",
        era: int | None = None,
        outcomes: Sequence[Outcomes] = (),
    ) -> Answer:
        """Do one operation at a moment, as the script does it for all processes."""
        self._events = []
        if self.state == "open":
            self.ends = min(self.ends, self.since + by.open_max_us * 11 // 10)
        self._climb(now, by, chance)
        if era in (None, self.era) and self.state in ("closed", "ramp"):
            self._count(now, by, outcomes)
            sums = self._sums(now, by)
            share = SHARES[self.step - 1] if self.state == "ramp" else 100
            if reason := by.reason(*sums, share):
                self._open(now, by, chance, reason, *sums)
        granted = False
        if operation == "done":
            self.probes.pop(probe, None)
        if operation in ("done", "hung"):
            self._judge_probe(now, by, chance, result, era)
        elif operation == "ask":
            granted = self._grant(now, by, probe)
        else:
            self.probes |= {running: now + by.probe_us for running in probe.split() if running in self.probes}
        wait = {"open": self.ends - now, "ramp": self.ends - now, "half": min(self.probes.values(), default=now) - now}
        shares = {"closed": 100, "open": 0, "half": 0, "ramp": SHARES[self.step - 1]}
        return Answer(
            self.state, self.era, self.version, max(0, wait.get(self.state, 0)), shares[self.state],
            *self._sums(now, by), granted, tuple(self._events),
        )  # fmt: skip

    def _event(self, name: str, calls: int, failures: int, slow: int, reason: str = "") -> None:
        self._events.append(Event(name, calls, failures, slow, reason))
        self.version += 1

    def _climb(self, now: int, by: Thresholds, chance: int) -> None:
        while self.state == "ramp" and now >= self.ends:
            self.step, self.since = self.step + 1, self.ends
            if self.step > len(SHARES):
                self.state, self.step, self.pause, self.ends = "closed", 0, 0, 0
                self._event("closed", *self._sums(now, by))
            else:
                self.ends += _longer(by.step_us, chance)
                self.version += 1

    def _count(self, now: int, by: Thresholds, outcomes: Sequence[Outcomes]) -> None:
        for age, *numbers in outcomes:
            moment = now - age
            if moment > now - by.window_us:
                bucket = self.buckets.setdefault((moment // by.width_us, by.width_us), [moment, 0, 0, 0])
                bucket[0] = max(bucket[0], moment)
                bucket[1:] = [one + more for one, more in zip(bucket[1:], numbers, strict=True)]

    def _sums(self, now: int, by: Thresholds) -> tuple[int, int, int]:
        self.buckets = {key: bucket for key, bucket in self.buckets.items() if bucket[0] > now - by.window_us}
        calls, failures, slow = (sum(bucket[field] for bucket in self.buckets.values()) for field in (1, 2, 3))
        return calls, failures, slow

    def _open(self, now: int, by: Thresholds, chance: int, reason: str, calls: int, failures: int, slow: int) -> None:
        longer = by.open_us if self.state == "closed" else max(by.open_us, min(self.pause * 2, by.open_max_us))
        self.state, self.era, self.since, self.pause = "open", self.era + 1, now, longer
        self.ends, self.step, self.successes = now + _longer(longer, chance), 0, 0
        self.buckets = {}
        self._event("opened", calls, failures, slow, reason)

    def _grant(self, now: int, by: Thresholds, probe: str) -> bool:
        if self.state == "open" and now >= self.ends:
            self.state, self.since, self.ends, self.successes = "half", now, 0, 0
            self._event("half_open", 0, 0, 0)
        if self.state != "half":
            return False
        self.probes = {name: ends for name, ends in self.probes.items() if ends > now}
        if len(self.probes) + self.successes >= by.probes:
            return False
        self.probes[probe] = now + by.probe_us
        return True

    def _judge_probe(self, now: int, by: Thresholds, chance: int, result: Result, era: int | None) -> None:
        if self.state != "half" or era not in (None, self.era):
            return
        if result == "failed":
            self._open(now, by, chance, "probe", self.successes + 1, 1, 0)
        elif result == "ok":
            self.successes += 1
            if self.successes >= by.probes:
                self.state, self.step, self.since = "ramp", 1, now
                self.ends = now + _longer(by.step_us, chance)
                self.buckets = {}
                self._event("ramp", self.successes, 0, 0)


def _longer(time: int, chance: int) -> int:
    return time + time * chance // (10 * MOST_JITTER)
