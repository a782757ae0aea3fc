"""Decide each line of a log with the Lua script, at the log's own time, on temporary keys."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from ...conf import conf
from ...exceptions import StoreError
from ...limits.call import MAX_HOLD_US, Call
from ...limits.rate import SECOND
from ...rules.ruleset import Ruleset
from ...store import Store
from .formats import LogLine
from .planning import LineCharge, LinePlanner
from .reading import Log, Reading, ordered
from .requests import Trusted
from .tallies import TOO_MANY, Tally

BATCH = 256
"""Lines that are decided in one trip. More would block a shared server for milliseconds."""
BATCH_SIZE = 2**20
"""Maximum number of characters of lines in one trip."""
SLACK = 600
"""Seconds that a replay may lag behind its log.

Keys expire by the server's clock. If a log is replayed more slowly than it was written, they would
expire too early.
"""


class _Enough(Exception):  # noqa: N818 - not an error: the receiver of the progress ends the replay
    pass


class ReplayTooSlowError(Exception):
    """The replay lags so far behind its log that keys may have expired too early."""


@dataclass(slots=True)
class Progress:
    """The progress of a replay: the lines decided, and the bytes read.

    - `size`: the total number of bytes; 0 if it is not known.
    """

    lines: int
    done: int
    size: int


@dataclass(slots=True)
class Replayed:
    """The counts of a replay.

    Attributes:
        planner: The planner, with the rules that were left out.
        tallies: The counts by rule, in the order of the rules.
        reading: The counts of reading.
        formats: The name of the format of each log.
        taken: Lines that were decided, that no rule matched, or that have no request. More lines
            may have been read.
        first: The moment of the first line, or None.
        last: The moment of the last line, or None.
        met: Lines that matched a rule.
        refused: Lines that were refused.
        refused_then: Lines with the status 429.
        refused_both: Lines with the status 429 that were refused.
        named: Lines that name a user.
        is_cut: Whether the replay ended before its logs did.
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
    trusted: Trusted = None,
    spread: bool = True,
    draws: bool = False,
    on_progress: Callable[[Progress], bool | None] = lambda progress: None,
) -> Replayed:
    """Decide every line of these logs by these rules, on a server, and return the result.

    The counts on the server are deleted at the end, also after an error.

    Args:
        logs: The logs.
        ruleset: The rules.
        store: The server.
        trusted: The trusted proxies, as in `RATELIMIT_TRUSTED_PROXIES`.
        spread: Whether lines of the same second get different moments in it.
        draws: Whether to count the refusal curves, too.
        on_progress: Receives the progress, with each batch of lines and while a batch is read. If
            it returns true, the replay ends.

    Raises:
        UnreadableLogError: A log cannot be read.
        StoreError: The server does not reply.
        ReplayTooSlowError: The replay lags too far behind its log.
    """
    knows = [log.format.knows for log in logs if log.format.name != "empty"] or [frozenset()]
    planner = LinePlanner(ruleset, frozenset.intersection(*knows), trusted)
    tallies = {
        rule.name: Tally(rule) for rule in planner.ruleset.rules if rule.template is not None
    }
    replayed = Replayed(planner, tallies, formats={log.name: log.format.name for log in logs})
    deciding = _Deciding(store, replayed, draws)

    sizes = [log.size for log in logs]
    size = 0
    if all(sizes):
        size = sum(sizes)

    def look() -> None:
        if on_progress(Progress(replayed.taken, sum(log.done for log in logs), size)):
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


class _Deciding:
    def __init__(self, store: Store, replayed: Replayed, draws: bool) -> None:
        self.prefix = b"%breplay:%b:" % (conf.CACHE_PREFIX, uuid.uuid4().hex.encode())
        self._store = store
        self._replayed = replayed
        self._draws = draws
        self._waiting: list[tuple[int, LogLine, Sequence[LineCharge]]] = []
        self._lead = float("inf")
        """The minimum of the times between lines and their decisions, before this batch."""

    def run(self, timed: Iterator[tuple[int, LogLine]]) -> None:
        replayed = self._replayed
        size = 0
        for moment, line in timed:
            size += line.size
            if not replayed.taken % BATCH or size >= BATCH_SIZE:
                size = 0
                self.decide()
                if replayed.taken:
                    replayed.reading.look()
            replayed.taken += 1
            if replayed.first is None:
                replayed.first = moment
            replayed.refused_then += line.status == TOO_MANY
            if not line.method:
                replayed.reading.empty += 1
                continue
            replayed.last = moment
            replayed.named += bool(line.user)
            planned = replayed.planner.plan(line)
            if planned:
                self._waiting.append((moment, line, planned))
        self.decide()

    def decide(self) -> None:
        """Decide the waiting lines, and count the results."""
        waiting = self._waiting
        if not waiting:
            return
        calls = []
        for moment, _line, planned in waiting:
            charges = [charge for charged in planned for charge in charged.charges]
            calls.append(
                Call(
                    charges,
                    "hit",
                    self.prefix,
                    moment,
                    longest_hold_us=MAX_HOLD_US,
                    slack_us=SLACK * SECOND,
                )
            )
            # Before the decision, so that the keys are known whatever happens.
            for charged in planned:
                self._replayed.tallies[charged.rule.name].expect(charged, draws=self._draws)
        sent = time.time()  # By the clock by which keys expire.
        decisions = self._store.decide_many(calls)
        answered = time.time()
        behind = max(answered - sent, answered - waiting[0][0] / SECOND - self._lead)
        self._lead = min(self._lead, sent - waiting[-1][0] / SECOND)
        if behind >= SLACK:
            raise ReplayTooSlowError(
                f"the replay paused, or fell more than {SLACK} seconds behind the log: "
                "keys that still counted may have expired, so the results would be too "
                "low. Replay the log from a file"
            )
        replayed = self._replayed
        for decision, (moment, line, planned) in zip(decisions, waiting, strict=True):
            replayed.met += 1
            if not decision.allowed:
                replayed.refused += 1
                replayed.refused_both += line.status == TOO_MANY
            states = iter(decision.limits)
            for charged in planned:
                own = list(islice(states, len(charged.charges)))
                replayed.tallies[charged.rule.name].add(charged, line, moment, own)
        waiting.clear()

    def clean(self) -> None:
        """Delete the counts on the server."""
        for tally in self._replayed.tallies.values():
            if keys := list(tally.keys(self.prefix)):
                self._store.delete_keys(keys)
