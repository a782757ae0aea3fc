"""The breaker as a model: what `circuit.lua` does, operation by operation. Tests hold both to the
same answers.
"""

from __future__ import annotations

from django_ratelimit_lua.contrib.breakers.circuit import (
    MAX_JITTER,
    NO_OUTCOMES,
    Answer,
    Event,
    Operation,
    Outcomes,
    Result,
    State,
)
from django_ratelimit_lua.contrib.breakers.rows import Thresholds


class CircuitModel:
    """A breaker. Times are microseconds of any clock that goes forward.

    >>> circuit = CircuitModel()
    >>> circuit.call(0, Thresholds(minimum=2), outcomes=Outcomes(2, 2)).state
    'open'
    """

    def __init__(self, state: State = "closed", era: int = 0, ends: int = 0) -> None:
        self.state, self.era = state, era
        self.since = self.successes = self.pause = 0
        self.ends = ends
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
        outcomes: Outcomes = NO_OUTCOMES,
    ) -> Answer:
        """Do one operation at a moment, as the script does it for all processes."""
        self._events = []
        if self.state == "open":
            self.ends = min(self.ends, self.since + by.open_max_us * 11 // 10)
        if era in (None, self.era) and self.state == "closed":
            self._count(now, by, outcomes)
            sums = self._sums(now, by)
            if reason := by.reason(*sums):
                self._open(now, by, chance, reason, *sums)
        granted = False
        if operation == "done":
            self.probes.pop(probe, None)
        if operation in ("done", "hung"):
            self._judge_probe(now, by, chance, result, era)
        elif operation == "ask":
            granted = self._grant(now, by, probe)
        else:
            self.probes |= {
                running: now + by.probe_us for running in probe.split() if running in self.probes
            }
        wait = {
            "open": self.ends - now,
            "half-open": min(self.probes.values(), default=now) - now,
        }
        return Answer(
            self.state,
            self.era,
            max(0, wait.get(self.state, 0)),
            *self._sums(now, by),
            granted,
            tuple(self._events),
        )

    def _event(self, name: str, calls: int, failures: int, slow: int, reason: str = "") -> None:
        self._events.append(Event(name, calls, failures, slow, reason))

    def _count(self, now: int, by: Thresholds, outcomes: Outcomes) -> None:
        if any(outcomes):
            bucket = self.buckets.setdefault((now // by.width_us, by.width_us), [now, 0, 0, 0])
            bucket[0] = now
            bucket[1:] = [one + more for one, more in zip(bucket[1:], outcomes, strict=True)]

    def _sums(self, now: int, by: Thresholds) -> tuple[int, int, int]:
        self.buckets = {
            key: bucket for key, bucket in self.buckets.items() if bucket[0] > now - by.window_us
        }
        calls, failures, slow = (
            sum(bucket[field] for bucket in self.buckets.values()) for field in (1, 2, 3)
        )
        return calls, failures, slow

    def _open(
        self,
        now: int,
        by: Thresholds,
        chance: int,
        reason: str,
        calls: int,
        failures: int,
        slow: int,
    ) -> None:
        longer = (
            by.open_us
            if self.state == "closed"
            else max(by.open_us, min(self.pause * 2, by.open_max_us))
        )
        self.state, self.era, self.since, self.pause = "open", self.era + 1, now, longer
        self.ends, self.successes = now + _longer(longer, chance), 0
        self.buckets = {}
        self._event("opened", calls, failures, slow, reason)

    def _grant(self, now: int, by: Thresholds, probe: str) -> bool:
        if self.state == "open" and now >= self.ends:
            self.state, self.since, self.ends, self.successes = "half-open", now, 0, 0
            self._event("half_open", 0, 0, 0)
        if self.state != "half-open":
            return False
        self.probes = {name: ends for name, ends in self.probes.items() if ends > now}
        if len(self.probes) + self.successes >= by.probes:
            return False
        self.probes[probe] = now + by.probe_us
        return True

    def _judge_probe(
        self, now: int, by: Thresholds, chance: int, result: Result, era: int | None
    ) -> None:
        if self.state != "half-open" or era not in (None, self.era):
            return
        if result == "failed":
            self._open(now, by, chance, "probe", self.successes + 1, 1, 0)
        elif result == "ok":
            self.successes += 1
            if self.successes >= by.probes:
                self.state, self.since, self.pause, self.ends = "closed", now, 0, 0
                self.buckets = {}
                self._event("closed", self.successes, 0, 0)


def _longer(time: int, chance: int) -> int:
    return time + time * chance // (10 * MAX_JITTER)
