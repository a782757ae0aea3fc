"""Logs as one stream of lines, in the order of their times: read, sorted within a window, merged,
and ties spread.

Servers write a line when a request ends, so lines are a little out of order. They are sorted as far
as some ten thousand of them reach; what is later still takes the time of the latest before it, and
is counted.
"""

from __future__ import annotations

import gzip
import heapq
import io
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import IO, Any, NamedTuple

from django.utils.translation import gettext as _

from ...limits.rate import SECOND
from .formats import MAX_LINE, LogFormat, LogLine, combined, excerpt, format_of, whole

WINDOW = 10_000
"""Lines by which one may be out of its place."""
SAMPLE = 100
"""Number of lines from which the format of a log is detected."""
MAX_SPREAD = 100_000
"""Lines of one second that are spread evenly; more than these share its last moment."""
MAX_HELD = 16 * 2**20
"""Characters of lines that are held to be sorted, and as many to be spread: of long lines, these
are fewer.
"""
LOOK_LINES = 10_000
LOOK_BYTES = 4 * 2**20
"""After how many lines, or unpacked bytes, `Reading.look` is called, whatever these lines are."""
BUFFER = 2**18
SHOWN = 3
"""Broken lines that are shown."""
STDIN = "-"


class BrokenLine(NamedTuple):
    """A line that is not of its log's format."""

    log: str
    number: int
    text: str


class UnreadableLogError(Exception):
    """A log that cannot be read, and why."""


@dataclass(slots=True)
class Reading:
    """The counts of reading: lines; those that are `broken`, of which the first are `shown`; those
    that were `late`, beyond the window; those with no request that a site sees (`empty`); and those
    of a second that others share, whose ties were `spread`; and notes on the logs that `ended`
    early.

    Some lines, broken ones and ends may be ahead of the decisions. `look` is called while lines are
    read; if it raises, reading ends.
    """

    lines: int = 0
    broken: int = 0
    late: int = 0
    empty: int = 0
    spread: int = 0
    shown: list[BrokenLine] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    look: Callable[[], None] = lambda: None


class Log:
    """One log, from a file (also gzipped, whatever it is called), from standard input, or from an
    open file.

    A gzipped one that is cut or damaged ends with the last whole line before.

    `size`: its bytes; 0 if that is not known. Raises `UnreadableLogError`.
    """

    def __init__(self, name: str, form: str | None = None, file: IO[bytes] | None = None) -> None:
        self.name = "standard input" if name == STDIN and file is None else whole(name)
        self.size = 0
        self._is_own = file is None and name != STDIN
        self._buffer: io.BufferedReader | None = None
        self._unpacked = 0
        self._end = ""
        try:
            raw: Any = self._opened(name) if file is None else file
            self._raw = raw
            if raw.seekable():
                self.size = raw.seek(0, io.SEEK_END)
                raw.seek(0)
            self._buffer = io.BufferedReader(raw, BUFFER)
            is_packed = self._buffer.peek(2)[:2] == b"\x1f\x8b"
            self._file: Any = gzip.GzipFile(fileobj=self._buffer) if is_packed else self._buffer
            self._texts = self._read()
            self._sample = list(islice(self._texts, SAMPLE))
            texts = [text for _, text in self._sample if text]
            self.format = format_of(texts, form) if texts else LogFormat("empty", combined)
        except (OSError, ValueError) as error:
            self.close()
            raise UnreadableLogError(f"{self.name}: {error}") from error

    @property
    def done(self) -> int:
        """Bytes read of a log of known size."""
        return int(self._raw.tell()) if self.size else 0

    def close(self) -> None:
        """Close the file, if this log has opened it."""
        if self._buffer is not None:
            raw = self._buffer.detach()
            self._buffer = None
            if self._is_own:
                raw.close()

    def _opened(self, name: str) -> Any:
        if name != STDIN:
            return open(name, "rb")
        if sys.stdin is None:
            raise OSError("there is none")
        return sys.stdin.buffer

    def _read(self) -> Iterator[tuple[int, str]]:
        """The lines with their numbers, as they are; the rest of a long line as empty ones.

        Raises `OSError`.
        """
        number = 0
        is_rest = False
        try:
            while line := self._file.readline(MAX_LINE):
                self._unpacked += len(line)
                number += not is_rest
                yield number, "" if is_rest else line.decode("utf-8", "replace").rstrip("\r\n")
                is_rest = not line.endswith(b"\n")
        except EOFError:
            text = _("the file is cut after line %(lines)d, as one is that is still being written")
            self._end = text % {"lines": number}
        except (zlib.error, gzip.BadGzipFile) as error:
            text = _(
                "the file is damaged after line %(lines)d (%(damage)s); what follows is not "
                "looked at"
            )
            self._end = text % {"lines": number, "damage": error}

    def lines(self, reading: Reading) -> Iterator[LogLine]:
        """Its lines as they come. Raises `UnreadableLogError`."""
        look_at = LOOK_BYTES
        try:
            for number, text in chain(self._sample, self._texts):
                if self._unpacked >= look_at or not number % LOOK_LINES:
                    look_at = self._unpacked + LOOK_BYTES
                    reading.look()
                if number <= self.format.heads or not text:
                    continue
                reading.lines += 1
                line = self.format.read(text)
                if line is not None:
                    yield line
                    continue
                reading.broken += 1
                if len(reading.shown) < SHOWN:
                    reading.shown.append(BrokenLine(self.name, number, excerpt(text)))
        except OSError as error:
            raise UnreadableLogError(f"{self.name}: {error}") from error
        if self._end:
            reading.ended.append(f"{self.name}: {self._end}")


def ordered(
    logs: Sequence[Log], reading: Reading, *, spread: bool = True
) -> Iterator[tuple[int, LogLine]]:
    """The lines of all logs with their moments, which never go back.

    `spread`: those of one second get different moments in it, evenly; otherwise they share its
    first.
    """
    timed = heapq.merge(
        *(sorted_lines(log.lines(reading), reading) for log in logs), key=itemgetter(0)
    )
    return _spread(timed, reading) if spread else timed


def sorted_lines(
    lines: Iterable[LogLine], reading: Reading, window: int = WINDOW
) -> Iterator[tuple[int, LogLine]]:
    """Lines in the order of their times, within a window of this number of lines."""
    latest = 0
    for line in _in_window(lines, window):
        if line.moment < latest:
            reading.late += 1
        else:
            latest = line.moment
        yield latest, line


def _in_window(lines: Iterable[LogLine], window: int) -> Iterator[LogLine]:
    waiting: list[tuple[int, int, LogLine]] = []
    held = 0
    for number, line in enumerate(lines):
        heapq.heappush(
            waiting, (line.moment, number, line)
        )  # Those of one moment stay as they came.
        held += line.size
        while len(waiting) > window or held > MAX_HELD:
            first = heapq.heappop(waiting)[2]
            held -= first.size
            yield first
    while waiting:
        yield heapq.heappop(waiting)[2]


def _spread(
    timed: Iterable[tuple[int, LogLine]], reading: Reading
) -> Iterator[tuple[int, LogLine]]:
    for second, pairs in groupby(timed, lambda pair: pair[0] // SECOND):
        group: list[tuple[int, LogLine]] = []
        held = 0
        for pair in pairs:
            group.append(pair)
            held += pair[1].size
            if len(group) >= MAX_SPREAD or held > MAX_HELD:
                break
        ties = sum(line.is_whole for _moment, line in group)
        number = 0
        for place, (_moment, line) in enumerate(group):
            if line.is_whole:
                group[place] = (second * SECOND + number * SECOND // ties, line)
                number += 1
        group.sort(key=itemgetter(0))
        latest = 0
        for moment, line in chain(group, pairs):  # Lines beyond the group follow it at once.
            latest = max(latest, moment)
            yield latest, line
            reading.spread += (
                line.is_whole and ties > 1
            )  # Once it is taken: the others are not counted.
