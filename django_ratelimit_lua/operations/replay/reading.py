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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import IO, Any, NamedTuple

from ...limits.rate import SECOND
from .formats import LONGEST_LINE, LogFormat, LogLine, combined, excerpt, format_of, whole

WINDOW = 10_000
"""Lines by which one may be out of its place."""
SAMPLE = 100
"""Lines by which the format of a log is told."""
MOST_OF_A_SECOND = 100_000
"""Lines of one second that are spread evenly; of more, one follows the other after a microsecond."""
MOST_HELD = 16 * 2**20
"""Characters of lines that are held to be sorted, and as many to be spread: of long lines, these are fewer."""
LOOK_LINES = 10_000
LOOK_BYTES = 4 * 2**20
"""After how many lines, or unpacked bytes, `Reading.look` is called, whatever these lines are."""
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
    """Where a log ended early: after so many lines of it; `damage`: what is wrong there, empty where it is cut, as a
    file is that is still being written; `most`: the bytes beyond which it is not unpacked, 0 where it did not end so.
    """

    log: str
    lines: int
    damage: str
    most: int = 0


class UnreadableLogError(Exception):
    """A log that cannot be read, and why."""


@dataclass(slots=True)
class Reading:
    """What was met in reading: lines; those that are `broken`, of which the first are `shown`; those that were `late`,
    beyond the window; those with no request that a site sees (`empty`); and those of a second that others share, whose
    ties were `spread`; and the logs that `ended` early. Of lines, broken ones and ends, some may be ahead of what was
    decided. `look` is called while lines are read; what it raises ends the reading."""

    lines: int = 0
    broken: int = 0
    late: int = 0
    empty: int = 0
    spread: int = 0
    shown: list[BrokenLine] = field(default_factory=list)
    ended: list[EarlyEnd] = field(default_factory=list)
    look: Callable[[], None] = lambda: None


class Log:
    """One log, from a file (also gzipped, whatever it is called), from standard input, or from an open file. A gzipped
    one that is cut or damaged ends with the last whole line before.

    - `most`: after so many bytes, unpacked, it ends; 0: at its own end;
    - `size`: bytes, 0 where that is not known; `done`: how many were read.

    Raises `UnreadableLogError`.
    """

    def __init__(self, name: str, form: str | None = None, file: IO[bytes] | None = None, most: int = 0) -> None:
        self.name = "standard input" if name == STDIN and file is None else whole(name)
        self._own: IO[bytes] | None = None
        try:
            self._raw: Any = self._opened(name) if file is None else file
            self.size = 0
            if self._raw.seekable():
                self.size = self._raw.seek(0, io.SEEK_END)
                self._raw.seek(0)
            self._counted = _Counted(self._raw)
            buffered = io.BufferedReader(self._counted, 1 << 18)
            is_packed = buffered.peek(2)[:2] == b"\x1f\x8b"
            self._file: Any = gzip.GzipFile(fileobj=buffered) if is_packed else buffered
            self._most, self._unpacked = most, 0
            self._end: EarlyEnd | None = None
            self._texts = self._read()
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
        """Close the file, where this log has opened it."""
        if self._own is not None:
            self._own.close()

    def _opened(self, name: str) -> IO[bytes]:
        if name != STDIN:
            self._own = open(name, "rb")  # noqa: SIM115 - see close
            return self._own
        if sys.stdin is None:
            raise UnreadableLogError(f"{self.name}: there is none")
        return sys.stdin.buffer

    def _read(self) -> Iterator[tuple[int, str]]:
        """The lines with their numbers, as they are. Raises `UnreadableLogError`."""
        readline, number = self._file.readline, 0
        try:
            while line := readline(LONGEST_LINE):
                self._unpacked += len(line)
                if self._most and self._unpacked > self._most:
                    self._end = EarlyEnd(self.name, number, "", self._most)
                    return
                if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    self._pass_over()
                number += 1
                yield number, line.decode("utf-8", "replace").rstrip("\r\n")
        except EOFError:
            self._end = EarlyEnd(self.name, number, "")
        except (zlib.error, gzip.BadGzipFile) as error:
            self._end = EarlyEnd(self.name, number, str(error))
        except OSError as error:
            raise UnreadableLogError(f"{self.name}: {error}") from error

    def _pass_over(self) -> None:
        """Leave out the rest of a line. Raises `UnreadableLogError`."""
        most = self._unpacked + MOST_PASSED_OVER
        while more := self._file.readline(LONGEST_LINE):
            self._unpacked += len(more)
            if more.endswith(b"\n"):
                return
            if self._unpacked > most:
                raise UnreadableLogError(f"{self.name}: a line without an end")

    def lines(self, reading: Reading) -> Iterator[LogLine]:
        """Its lines as they come. Raises `UnreadableLogError`."""
        read, heads = self.format.read, self.format.heads
        look_at = LOOK_BYTES
        for number, text in chain(self._sample, self._texts):
            if self._unpacked >= look_at or not number % LOOK_LINES:
                look_at = self._unpacked + LOOK_BYTES
                reading.look()
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
        if self._end is not None:
            reading.ended.append(self._end)


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
    latest = held = 0
    waiting: list[LogLine] = []
    lines = iter(lines)
    is_end = False
    while not is_end:
        most = len(waiting) + window
        for line in lines:
            waiting.append(line)
            held += line.size
            if len(waiting) == most or held > 2 * MOST_HELD:
                break
        else:
            is_end = True
        waiting.sort(key=attrgetter("moment"))  # Those of one moment stay as they came.
        left = len(waiting)
        for line in waiting:
            if left <= window and held <= MOST_HELD and not is_end:
                break
            left -= 1
            held -= line.size
            if line.moment < latest:
                reading.late += 1
            else:
                latest = line.moment
            yield latest, line
        del waiting[: len(waiting) - left]


def _spread(timed: Iterable[tuple[int, LogLine]], reading: Reading) -> Iterator[tuple[int, LogLine]]:
    second = -1
    group: list[tuple[int, LogLine]] = []
    held = 0
    more = 0  # Of a second that has more lines than are spread evenly, those that were told already.
    for pair in timed:
        moment = pair[0]
        if moment // SECOND != second:
            if group:
                yield from _apart(group, second * SECOND, reading, more)
            second, group, more, held = moment // SECOND, [pair], 0, pair[1].size
        else:
            group.append(pair)
            held += pair[1].size
            if len(group) >= MOST_OF_A_SECOND or held > MOST_HELD:
                yield from _apart(group, second * SECOND, reading, more or 1)
                more += len(group)
                group, held = [], 0
    if group:
        yield from _apart(group, second * SECOND, reading, more)


def _apart(
    group: Sequence[tuple[int, LogLine]], start: int, reading: Reading, more: int
) -> Iterator[tuple[int, LogLine]]:
    count = len(group)
    if count == 1 and not more:
        yield group[0]
        return
    apart: list[tuple[int, LogLine]] = []
    ties = sum(line.is_whole for _, line in group)
    number = 0
    for moment, line in group:
        if line.is_whole:
            moment = start + (min(more + number, SECOND - 1) if more else number * SECOND // ties)
            number += 1
        apart.append((moment, line))
    if number < count:
        apart.sort(key=itemgetter(0))
    if ties > 1 or more:
        for pair in apart:
            yield pair
            reading.spread += pair[1].is_whole  # Once it is taken: of what is not, nothing is said.
    else:
        yield from apart
