"""Deciding each line of a log by the Lua program, at the log's own time, under a prefix that is
thrown away.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...conf import conf
from ...exceptions import StoreError
from ...limits.call import MAX_HOLD_US, Call
from ...limits.rate import SECOND
from ...rules.ruleset import Ruleset
from ...store import Store
from .formats import LogLine
from .planning import LineCharge, LinePlanner
from .reading import Log, Reading, ordered
from .tallies import TOO_MANY, Tally

BATCH = 256
"""Lines that are decided in one trip: more would keep a server that others use for longer than some
milliseconds.
"""
BATCH_SIZE = 2**20
"""Characters of lines in one trip: of long lines, these are fewer."""
SLACK = 600
"""Seconds for which a replay may come behind its log. Keys expire by the server's clock: of a log
that is replayed more slowly than it was written, they would expire too early.
"""


class _Enough(Exception):  # noqa: N818 - not an error: whoever hears of the progress has said so
    pass


class ReplayTooSlowError(Exception):
    """The replay came so far behind its log that keys may have expired which still counted."""


@dataclass(slots=True)
class Progress:
    """How far a replay is: lines that were taken.

    And bytes that were read, of how many (0: not known).
    """

    lines: int
    done: int
    size: int


@dataclass(slots=True)
class Replayed:
    """The counts of a replay.

    - `reading`: the counts of reading; `formats`: of each log, the name of its format;
    - `taken`: lines that were decided, or that no rule matched, or that have no request; more may
      have been read;
    - `first`, `last`: the moments of the first and the last line (None: there was none);
    - `met`: lines that rules matched, and how many of them were `refused`; `refused_then`: lines
      whose status was 429, and `refused_both`: of the refused;
    - `tallies`: by rule, in their order; `planner`: the rules that were left out;
    - `named`: lines that name a user; `is_cut`: it ended before its logs did.
    """

    planner: LinePlanner
    tallies: dict[str, Tally]
    reading: Reading = field(default_factory=Reading)
    formats: dict[str, str] = field(default_factory=dict)
    taken: int = 0
    first: int | None = None
    last: int | None = None
    met: int = 0
    refused: int = 0
    refused_then: int = 0
    refused_both: int = 0
    named: int = 0
    is_cut: bool = False


def replay(
    logs: Sequence[Log],
    ruleset: Ruleset,
    store: Store,
    *,
    trusted: Any = None,
    spread: bool = True,
    draws: bool = False,
    on_progress: Callable[[Progress], bool | None] = lambda progress: None,
) -> Replayed:
    """Decide every line of these logs by these rules, on that server, and return the result.

    - `trusted`: the proxies whose `X-Forwarded-For` is used, as in `RATELIMIT_TRUSTED_PROXIES`;
    - `spread`: lines of one second get different moments in it; `draws`: count the refusal curves,
      too;
    - `on_progress`: receives the progress, with each batch of lines and while a batch is read; if
      it returns true, the replay ends.

    The counts on the server are deleted again, however this ends. Raises `UnreadableLogError`,
    `StoreError`, and `ReplayTooSlowError`.
    """
    knows = [log.format.knows for log in logs if log.format.name != "empty"]
    planner = LinePlanner(
        ruleset, frozenset.intersection(*knows) if knows else frozenset(), trusted
    )
    tallies = {
        rule.name: Tally(rule) for rule in planner.ruleset.rules if rule.template is not None
    }
    replayed = Replayed(planner, tallies, formats={log.name: log.format.name for log in logs})
    deciding = _Deciding(store, replayed, draws)

    def look() -> None:
        if on_progress(Progress(replayed.taken, sum(log.done for log in logs), _size(logs))):
            raise _Enough

    replayed.reading.look = look
    try:
        try:
            deciding.run(ordered(logs, replayed.reading, spread=spread))
        except _Enough:
            replayed.is_cut = True
            deciding.decide()  # What was taken until then.
    except BaseException:
        with suppress(StoreError):  # The original error is raised. Keys have a time to live.
            deciding.clean()
        raise
    deciding.clean()
    return replayed


def _size(logs: Sequence[Log]) -> int:
    sizes = [log.size for log in logs]
    return sum(sizes) if all(sizes) else 0


class _Deciding:
    def __init__(self, store: Store, replayed: Replayed, draws: bool) -> None:
        self.prefix = b"%breplay:%b:" % (conf.CACHE_PREFIX, uuid.uuid4().hex.encode())
        self._store = store
        self._replayed = replayed
        self._draws = draws
        self._calls: list[Call] = []
        self._waiting: list[tuple[int, LogLine, Sequence[LineCharge]]] = []
        self._lead = float(
            "inf"
        )  # The least by which lines came after their time, until the batch before.

    def run(self, timed: Iterator[tuple[int, LogLine]]) -> None:
        replayed, plan, calls, waiting = (
            self._replayed,
            self._replayed.planner.plan,
            self._calls,
            self._waiting,
        )
        prefix, slack = self.prefix, SLACK * SECOND
        reading, size = replayed.reading, 0
        for moment, line in timed:
            size += line.size
            if not replayed.taken % BATCH or size >= BATCH_SIZE:
                size = 0
                self.decide()
                if replayed.taken:
                    reading.look()
            replayed.taken += 1
            if replayed.first is None:
                replayed.first = moment
            if line.status == TOO_MANY:
                replayed.refused_then += 1
            if not line.method:
                reading.empty += 1
                continue
            replayed.last = moment
            if line.user:
                replayed.named += 1
            planned = plan(line)
            if planned:
                charges = planned[0].charges
                if len(planned) > 1:
                    charges = [charge for charged in planned for charge in charged.charges]
                call = Call(
                    charges,
                    "hit",
                    prefix,
                    moment,
                    longest_hold_us=MAX_HOLD_US,
                    slack_us=slack,
                    registers=False,
                )
                calls.append(call)
                waiting.append((moment, line, planned))
        self.decide()

    def decide(self) -> None:
        """Decide what waits, and count it."""
        calls, waiting = self._calls, self._waiting
        if not calls:
            return
        for (
            _,
            _,
            planned,
        ) in waiting:  # Before they are decided: whatever ends this, their keys are known.
            for charged in planned:
                tally = self._replayed.tallies[charged.rule.name]
                if not tally.key_parts:
                    tally.expect(charged, draws=self._draws)
                tally.identities.add(charged.charges[0].digest)
                if tally.ban_parts:
                    tally.banned.add(charged.charges[0].ban_digest)
        sent = time.time()  # By the clock that keys expire by.
        decisions = self._store.decide_many(calls)
        answered = time.time()
        behind = max(answered - sent, answered - waiting[0][0] / SECOND - self._lead)
        self._lead = min(self._lead, sent - waiting[-1][0] / SECOND)
        if behind >= SLACK:
            raise ReplayTooSlowError(
                f"the replay stood still, or came more than {SLACK} seconds behind the log: keys "
                "may have expired that "
                "still counted, so its numbers would be too small. Replay it from a file"
            )
        replayed = self._replayed
        for decision, (moment, line, planned) in zip(decisions, waiting, strict=True):
            replayed.met += 1
            if not decision.allowed:
                replayed.refused += 1
                replayed.refused_both += line.status == TOO_MANY
            at, states = 0, decision.limits
            for charged in planned:
                behind = at + len(charged.charges)
                replayed.tallies[charged.rule.name].add(charged, line, moment, states[at:behind])
                at = behind
        calls.clear()
        waiting.clear()

    def clean(self) -> None:
        """Delete what was counted. Raises `StoreError`."""
        for tally in self._replayed.tallies.values():
            if tally.key_parts:
                self._store.delete_keys(list(tally.keys(self.prefix)))
