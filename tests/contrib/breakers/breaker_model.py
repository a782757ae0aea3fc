"""The state of a breaker as a model: the exact replies of `breaker.lua`."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from django_ratelimit_lua.contrib.breakers.shared_state import Thresholds

PARTS = 10


class Reply(NamedTuple):
    """The reply of the script. `wait`: microseconds until a probe may be requested."""

    state: str = "closed"
    version: int = 0
    wait: int = 0
    is_probe: bool = False
    is_changed: bool = False


class Report(NamedTuple):
    """The arguments of one call. `restores`: the state to restore if its version is lost."""

    known: Reply = Reply()
    restores: str = "closed"
    calls: int = 0
    failures: int = 0
    result: str = ""
    allowed_by: int = -1
    asks: bool = False


@dataclass
class BreakerModel:
    """A breaker. Times are microseconds."""

    state: str = "closed"
    version: int = 0
    ends: int = 0
    granted: int = 0
    succeeded: int = 0
    reports: list[tuple[int, int, int]] = field(default_factory=list)
    """The part of the window, the calls and the failures of each report since the last change."""

    def call(self, now: int, by: Thresholds, report: Report) -> Reply:
        """Process one report, like the script."""
        before = self.version
        if report.known.version > self.version:
            self._change(report.restores, report.known.version, now, by)
        self.ends = min(self.ends, now + by.open_us)
        result = report.result if report.allowed_by == self.version else ""
        fails = False
        if self.state == "closed" and report.known.version == self.version:
            self.reports.append((now // by.width_us, report.calls, report.failures))
            fails = self._is_failing(now, by)
        if fails or (result == "failed" and self.state != "open"):
            self._change("open", self.version + 1, now, by)
        elif result == "ok" and self.state == "half-open":
            self.succeeded += 1
            if self.succeeded >= by.probes:
                self._change("closed", self.version + 1, now, by)
        is_probe = report.asks and self._grant(now, by)
        wait = 0
        if self.state == "open" or self.granted >= by.probes:
            wait = max(0, self.ends - now)
        return Reply(self.state, self.version, wait, is_probe, self.version != before)

    def _change(self, state: str, version: int, now: int, by: Thresholds) -> None:
        self.state, self.version, self.ends = state, version, now + by.open_us
        self.granted = self.succeeded = 0
        self.reports = []

    def _is_failing(self, now: int, by: Thresholds) -> bool:
        part = now // by.width_us
        # Parts that were outside the window once do not come back when a clock is set back.
        self.reports = [each for each in self.reports if 0 <= part - each[0] < PARTS]
        calls = sum(each[1] for each in self.reports)
        failures = sum(each[2] for each in self.reports)
        ratio = Fraction(by.ratio_ppm, 10**6)
        return by.ratio_ppm > 0 and calls >= by.minimum and failures >= ratio * calls

    def _grant(self, now: int, by: Thresholds) -> bool:
        if self.state == "open" and now >= self.ends:
            self._change("half-open", self.version + 1, now, by)
        if self.state != "half-open":
            return False
        if self.granted >= by.probes and now >= self.ends:
            self.granted = min(self.succeeded, by.probes - 1)
        if self.granted >= by.probes:
            return False
        self.granted += 1
        self.ends = now + by.open_us
        return True
