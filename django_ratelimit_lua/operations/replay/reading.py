"""Logs as one stream of lines, in the order of their times: read, sorted within a window, merged, and ties spread.

Servers write a line when a request ends, so lines are a little out of order. They are sorted as far as some ten
thousand of them reach; what is later still takes the time of the latest before it, and is counted.
"""

from __future__ import annotations

import gzip
import heapq
import io
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter, itemgetter
from typing import IO, Any, NamedTuple

from ...limits.rate import SECOND
from .formats import LONGEST_LINE, LogFormat, LogLine, combined, excerpt, format_of

WINDOW = 10_000
"""Lines by which one may be out of its place."""
SAMPLE = 100
"""Lines by which the format of a log is told."""
MOST_OF_A_SECOND = 100_000
"""Lines of one second that are spread evenly; of more, one follows the other after a microsecond."""
MOST_PASSED_OVER = 64 * 2**20
"""Bytes of a line's rest that are passed over, before it is taken for none."""
SHOWN = 3
"""Broken lines that are shown."""
STDIN = "-"


class BrokenLine(NamedTuple):
    """A line that is not of its log's format."""

    log: str
    number: int
    text: str


class EarlyEnd(NamedTuple):
    """Where a gzipped log ended early: after so many lines of it; `damage`: what is wrong there, empty where it is cut,
    as a file is that is still being written."""

    log: str
    lines: int
    damage: str


class UnreadableLogError(Exception):
    """A log that cannot be read, and why."""


@dataclass(slots=True)
class Reading:
    """What was met in reading: lines; those that are `broken`, of which the first are `shown`; those that were `late`,
    beyond the window; those with no request that a site sees (`empty`); and those of a second that others share, whose
    ties were `spread`; and the logs that `ended` early."""

    lines: int = 0
    broken: int = 0
    late: int = 0
    empty: int = 0
    spread: int = 0
    shown: list[BrokenLine] = field(default_factory=list)
    ended: list[EarlyEnd] = field(default_factory=list)


class Log:
    """One log, from a file (also gzipped, whatever it is called), from standard input, or from an open file. A gzipped
    one that is cut or damaged ends with the last whole line before.

    `size`: bytes, 0 where that is not known; `done`: how many were read. Raises `UnreadableLogError`.
    """

    def __init__(self, name: str, form: str | None = None, file: IO[bytes] | None = None) -> None:
        self.name = "standard input" if name == STDIN and file is None else name
        try:
            self._raw: Any = file or (sys.stdin.buffer if name == STDIN else open(name, "rb"))  # noqa: SIM115 - see close
            self.size = 0
            if self._raw.seekable():
                self.size = self._raw.seek(0, io.SEEK_END)
                self._raw.seek(0)
            self._counted = _Counted(self._raw)
            buffered = io.BufferedReader(self._counted, 1 << 18)
            is_packed = buffered.peek(2)[:2] == b"\x1f\x8b"
            self._file: Any = gzip.GzipFile(fileobj=buffered) if is_packed else buffered
            self._damage: str | None = None
            self._texts = enumerate(iter(self._next, None), start=1)
            self._sample = list(islice(self._texts, SAMPLE))
            texts = [text for _, text in self._sample if text]
            self.format = format_of(texts, form) if texts else LogFormat("empty", combined)
        except UnreadableLogError:
            self.close()
            raise
        except (OSError, ValueError) as error:
            self.close()
            raise UnreadableLogError(f"{self.name}: {error}") from error

    @property
    def done(self) -> int:
        """Bytes that were read."""
        return self._counted.count

    def close(self) -> None:
        """Close the file."""
        raw = getattr(self, "_raw", None)
        if raw is not None and raw is not sys.stdin.buffer:
            raw.close()

    def _next(self) -> str | None:
        try:
            return self._line()
        except EOFError:
            self._damage = ""
        except (zlib.error, gzip.BadGzipFile) as error:
            self._damage = str(error)
        return None

    def _line(self) -> str | None:
        line: bytes = self._file.readline(LONGEST_LINE)
        if not line:
            return None
        passed_over = 0
        while len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            more: bytes = self._file.readline(LONGEST_LINE)
            passed_over += len(more)
            if not more or more.endswith(b"\n"):
                break
            if passed_over > MOST_PASSED_OVER:
                raise UnreadableLogError(f"{self.name}: a line without an end")
        return line.decode("utf-8", "replace").rstrip("\r\n")

    def lines(self, reading: Reading) -> Iterator[LogLine]:
        """Its lines as they come. Raises `UnreadableLogError`."""
        read, heads = self.format.read, self.format.heads
        texts: Iterable[tuple[int, str]] = self._sample
        number = 0
        try:
            while True:
                for number, text in texts:
                    if number <= heads or not text:
                        continue
                    reading.lines += 1
                    line = read(text)
                    if line is not None:
                        yield line
                        continue
                    reading.broken += 1
                    if len(reading.shown) < SHOWN:
                        reading.shown.append(BrokenLine(self.name, number, excerpt(text)))
                if texts is self._texts:
                    break
                texts = self._texts
        except OSError as error:
            raise UnreadableLogError(f"{self.name}: {error}") from error
        if self._damage is not None:
            reading.ended.append(EarlyEnd(self.name, number, self._damage))


class _Counted(io.RawIOBase):
    """A file that counts what is read of it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


def ordered(logs: Sequence[Log], reading: Reading, *, spread: bool = True) -> Iterator[tuple[int, LogLine]]:
    """The lines of all logs with their moments, which never go back. `spread`: those of one second have moments of
    their own in it, evenly; else they share its first."""
    streams = [sorted_lines(log.lines(reading), reading) for log in logs]
    timed = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=itemgetter(0))
    return _spread(timed, reading) if spread else timed


def sorted_lines(lines: Iterable[LogLine], reading: Reading, window: int = WINDOW) -> Iterator[tuple[int, LogLine]]:
    """Lines in the order of their times, as far as so many of them reach."""
    latest = 0
    waiting: list[LogLine] = []
    lines = iter(lines)
    while True:
        more = list(islice(lines, window))
        waiting += more
        waiting.sort(key=attrgetter("moment"))  # Those of one moment stay as they came.
        ready = len(waiting) - window if len(more) == window else len(waiting)
        for line in waiting[: max(ready, 0)]:
            if line.moment < latest:
                reading.late += 1
            else:
                latest = line.moment
            yield latest, line
        del waiting[: max(ready, 0)]
        if len(more) < window:
            return


def _spread(timed: Iterable[tuple[int, LogLine]], reading: Reading) -> Iterator[tuple[int, LogLine]]:
    second = -1
    group: list[tuple[int, LogLine]] = []
    more = 0  # Of a second that has more lines than are spread evenly, those that were told already.
    for pair in timed:
        moment = pair[0]
        if moment // SECOND != second:
            if group:
                yield from _apart(group, second * SECOND, reading, more)
            second, group, more = moment // SECOND, [pair], 0
        else:
            group.append(pair)
            if len(group) >= MOST_OF_A_SECOND:
                yield from _apart(group, second * SECOND, reading, more or 1)
                more += len(group)
                group = []
    if group:
        yield from _apart(group, second * SECOND, reading, more)


def _apart(
    group: Sequence[tuple[int, LogLine]], start: int, reading: Reading, more: int
) -> Iterable[tuple[int, LogLine]]:
    count = len(group)
    if count == 1 and not more:
        return group
    apart: list[tuple[int, LogLine]] = []
    ties = sum(line.is_whole for _, line in group)
    if ties > 1 or more:
        reading.spread += ties
    number = 0
    for moment, line in group:
        if line.is_whole:
            moment = start + (min(more + number, SECOND - 1) if more else number * SECOND // ties)
            number += 1
        apart.append((moment, line))
    if number < count:
        apart.sort(key=itemgetter(0))
    return apart
