"""Logs as one stream of lines in the order of their times: read, sorted, merged and spread.

Servers write a line when a request ends, so lines are slightly out of order. They are sorted within
a window of ten thousand lines. A line that is later than that takes the time of the latest line
before it, and is counted as late. Lines of the same second are spread over it.
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
"""Number of lines within which they are sorted."""
SAMPLE = 100
"""Number of lines from which the format of a log is detected."""
MAX_SPREAD = 100_000
"""Maximum number of lines of one second that are spread. Further ones share its last moment."""
MAX_HELD = 16 * 2**20
"""Maximum number of characters of lines that are held to be sorted, and again to be spread."""
LOOK_LINES = 10_000
LOOK_BYTES = 4 * 2**20
"""Number of lines, or of unpacked bytes, between two calls of `Reading.look`."""
BUFFER = 2**18
SHOWN = 3
"""Broken lines that are shown."""
STDIN = "-"


class BrokenLine(NamedTuple):
    """A line that does not have the format of its log."""

    log: str
    number: int
    text: str


class UnreadableLogError(Exception):
    """A log cannot be read."""


@dataclass(slots=True)
class Reading:
    """The counts of reading. Some of the lines may not be decided yet.

    Attributes:
        broken: Lines that do not have the format of their log.
        shown: The first of the broken lines.
        late: Lines beyond the window.
        empty: Lines without a request that a site sees.
        spread: Lines that share their second with others, if they were spread over it.
        ended: Notes on logs that ended early.
        look: Called while lines are read. If it raises, reading ends.
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
    """One log, from a file, from standard input, or from an open file; may be gzipped.

    A gzipped log that is cut or damaged ends with the last complete line.

    Attributes:
        size: Its bytes; 0 if that is not known.

    Raises:
        UnreadableLogError: It cannot be read.
    """

    def __init__(self, name: str, form: str | None = None, file: IO[bytes] | None = None) -> None:
        self.name = whole(name)
        self.size = 0
        self._is_own = False
        self._buffer: io.BufferedReader | None = None
        self._unpacked = 0
        self._end = ""
        try:
            self._raw: Any = file
            if file is None:
                self._raw = self._opened(name)
            if self._raw.seekable():
                self.size = self._raw.seek(0, io.SEEK_END)
                self._raw.seek(0)
            self._buffer = io.BufferedReader(self._raw, BUFFER)
            self._file: IO[bytes] | gzip.GzipFile = self._buffer
            if self._buffer.peek(2)[:2] == b"\x1f\x8b":
                self._file = gzip.GzipFile(fileobj=self._buffer)
            self._texts = self._read()
            self._sample = list(islice(self._texts, SAMPLE))
            texts = [text for _, text in self._sample if text]
            self.format = LogFormat("empty", combined)
            if texts:
                self.format = format_of(texts, form)
        except (OSError, ValueError) as error:
            self.close()
            raise UnreadableLogError(f"{self.name}: {error}") from error

    @property
    def done(self) -> int:
        """Return the number of bytes read, or 0 if the size of the log is not known."""
        if not self.size:
            return 0
        return int(self._raw.tell())

    def close(self) -> None:
        """Close the file, if this log has opened it."""
        if self._buffer is not None:
            raw = self._buffer.detach()
            self._buffer = None
            if self._is_own:
                raw.close()

    def _opened(self, name: str) -> IO[bytes]:
        if name != STDIN:
            self._is_own = True
            return open(name, "rb")
        self.name = "standard input"
        if sys.stdin is None:
            raise OSError("not available")
        return sys.stdin.buffer

    def _read(self) -> Iterator[tuple[int, str]]:
        """Yield the lines with their numbers. The rest of a long line is yielded as empty lines."""
        number = 0
        is_rest = False
        try:
            while line := self._file.readline(MAX_LINE):
                self._unpacked += len(line)
                text = ""
                if not is_rest:
                    number += 1
                    text = line.decode("utf-8", "replace").rstrip("\r\n")
                yield number, text
                is_rest = not line.endswith(b"\n")
        except EOFError:
            text = _("the file ends in the middle of line %(lines)d; it may be incomplete")
            self._end = text % {"lines": number}
        except (zlib.error, gzip.BadGzipFile) as error:
            text = _("the file is damaged after line %(lines)d (%(damage)s); the rest is ignored")
            self._end = text % {"lines": number, "damage": error}

    def lines(self, reading: Reading) -> Iterator[LogLine]:
        """Yield the lines in the order of the file. Raises `UnreadableLogError`."""
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
    """Yield the lines of all logs with their moments, which never decrease.

    Args:
        logs: The logs.
        reading: The counts of reading, which are updated.
        spread: Whether lines of the same second are spread evenly over it. Otherwise all have its
            beginning as their moment.
    """
    streams = [sorted_lines(log.lines(reading), reading) for log in logs]
    timed = heapq.merge(*streams, key=itemgetter(0))
    if spread:
        return _spread(timed, reading)
    return timed


def sorted_lines(
    lines: Iterable[LogLine], reading: Reading, window: int = WINDOW
) -> Iterator[tuple[int, LogLine]]:
    """Yield lines in the order of their times, sorted within a window of a number of lines."""
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
        heapq.heappush(waiting, (line.moment, number, line))  # Ties stay in their order.
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
            reading.spread += line.is_whole and ties > 1  # After it was taken.
