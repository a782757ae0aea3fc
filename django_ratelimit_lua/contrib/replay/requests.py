"""The requests of access logs: the moments of each client.

A limit counts each client separately, so only the moments of one client are sorted. Files and lines
may have any order, and a log needs eight bytes of memory for each request.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from ...identity.address import address_as
from ...limits.rate import SECOND

STANDARD_INPUT = "-"
CHUNK_SIZE = 2**20
"""Bytes of lines that are parsed together."""
MAX_EXAMPLES = 3
MAX_SECONDS = 10**11
"""Any larger number is a time in milliseconds."""

_LINE = re.compile(
    rb"(?P<ip>\S+) \S+ (?P<user>\S+) "
    rb"\[(?P<minute>\d\d/\w{3}/\d{4}:\d\d:\d\d):(?P<second>\d\d) (?P<zone>[+-]\d{4})\] "
    rb'"[A-Za-z]+ (?P<path>[^\s?"]+)'
)
_TIMES = ("msec", "time_iso8601", "time_local", "@timestamp", "timestamp", "time", "ts", "StartUTC")
_NAMES = {
    "ip": ("client_ip", "remote_addr", "remote_ip", "ip", "ClientHost"),
    "user": ("remote_user", "user_id", "user", "ClientUsername"),
    "path": ("request_uri", "uri", "path", "url", "RequestPath", "request"),
}
KEYS = tuple(_NAMES)


class UnreadableLogError(Exception):
    """A log cannot be opened, or is damaged."""


@dataclass(slots=True)
class Requests:
    """The requests of one or several logs.

    Attributes:
        key: The part of a request that identifies its client, one of `KEYS`.
        lines: The number of lines that are not empty.
        unreadable: The number of lines that are not requests.
        examples: The first unreadable lines, each with the name of its log.
        anonymous: The number of requests without a user, which `user` leaves out.
    """

    key: str
    lines: int = 0
    unreadable: int = 0
    examples: list[str] = field(default_factory=list)
    anonymous: int = 0
    _moments: dict[bytes, array[int]] = field(default_factory=lambda: defaultdict(_new_moments))

    def add(self, name: str, lines: Iterable[bytes]) -> None:
        """Add the lines of a log."""
        match = _LINE.match
        group = _LINE.groupindex[self.key]
        for line in lines:
            try:
                if found := match(line):
                    minute, second, zone = found.group("minute", "second", "zone")
                    moment = _read_minute(minute, zone) + int(second) * SECOND
                    client = found[group]
                else:
                    moment, client = _read_object(line, self.key)
            except (ValueError, OverflowError, RecursionError):
                self._add_unreadable(name, line)
                continue
            self.lines += 1
            if client == b"-" and self.key == "user":
                self.anonymous += 1
            else:
                self._moments[client].append(moment)

    def _add_unreadable(self, name: str, line: bytes) -> None:
        if not line.strip():
            return
        self.lines += 1
        self.unreadable += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{name}: {line.strip()[:120].decode(errors='replace')}")

    def group_by_client(self) -> Mapping[str, array[int]]:
        """Return the moments of each client, in microseconds since 1970, in the order of the logs.

        Addresses are masked as the key `ip` of a limit masks them.
        """
        clients: dict[str, array[int]] = {}
        for text, moments in self._moments.items():
            client = text.decode(errors="replace")
            if self.key == "ip":
                client = _mask(client)
            if client in clients:
                clients[client].extend(moments)
            else:
                clients[client] = moments
        return clients


def read_logs(names: Sequence[str], key: str, on_progress: Callable[[int, int], None]) -> Requests:
    """Read logs in the common or combined format or of JSON lines, which may be gzipped.

    Args:
        names: The files; `-` is standard input.
        key: One of `KEYS`.
        on_progress: Called from time to time with the number of bytes that were read from files,
            and the number of lines.

    Raises:
        UnreadableLogError: A log cannot be opened, or is damaged.
    """
    requests = Requests(key)
    size = 0
    for name in names:
        try:
            with _open(name) as file:
                for chunk in _read_chunks(file):
                    requests.add(name, chunk)
                    on_progress(size + _get_position(file), requests.lines)
                size += _get_position(file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UnreadableLogError(
                f"{name} is damaged: {error}. To replay the lines before the damage, run "
                f"`zcat {name} | python manage.py ratelimit replay -`"
            ) from error
        except OSError as error:
            raise UnreadableLogError(str(error)) from error
    return requests


def _open(name: str) -> io.BufferedReader:
    if name == STANDARD_INPUT:
        return open(0, "rb", closefd=False)
    return open(name, "rb")


def _get_position(file: io.BufferedReader) -> int:
    if not file.seekable():
        return 0
    return file.tell()


def _read_chunks(file: io.BufferedReader) -> Iterator[list[bytes]]:
    lines: io.BufferedReader | gzip.GzipFile = file
    if file.peek(2)[:2] == b"\x1f\x8b":
        lines = gzip.GzipFile(fileobj=file)
    while chunk := lines.readlines(CHUNK_SIZE):
        yield chunk


def _new_moments() -> array[int]:
    return array("q")


@lru_cache(maxsize=4096)
def _read_minute(minute: bytes, zone: bytes) -> int:
    """Return the microseconds since 1970 of a minute such as `01/Jul/1995:00:00`, `-0400`."""
    text = f"{minute.decode()} {zone.decode()}"
    return round(datetime.strptime(text, "%d/%b/%Y:%H:%M %z").timestamp()) * SECOND


def _read_object(line: bytes, key: str) -> tuple[int, bytes]:
    """Return the moment and the client of a JSON object by nginx, Caddy or Traefik.

    Raises `ValueError`, `OverflowError` or `RecursionError` if the line is not a request.
    """
    given = json.loads(line)
    if not isinstance(given, dict):
        raise ValueError("not an object")
    request = given.get("request")
    if isinstance(request, dict):  # Caddy's.
        given |= request
    client = _find_value(given, _NAMES[key])
    if key == "user":
        client = client or "-"
    elif key == "path":
        words = client.split(" ", 2)  # The name `request` has the whole line of the request.
        client = words[len(words) > 1].partition("?")[0]
    if not client:
        raise ValueError(f"no {key}")
    return _read_moment(_find_value(given, _TIMES)), client.encode()


def _find_value(given: Mapping[str, object], names: Iterable[str]) -> str:
    """Return the value of the first name that has one, or an empty text."""
    values = (given.get(name) for name in names)
    return next((str(value) for value in values if isinstance(value, (str, int, float))), "")


def _read_moment(text: str) -> int:
    """Return the microseconds since 1970 of a time: a number, ISO 8601, or that of a common log.

    >>> _read_moment("804571201.5"), _read_moment("1995-07-01T00:00:01.5-04:00")
    (804571201500000, 804571201500000)
    """
    if "/" in text:
        return _read_minute(text[:17].encode(), text[-5:].encode()) + int(text[18:20]) * SECOND
    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    if seconds > MAX_SECONDS:
        seconds /= 1000
    if not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"not a time: {text}")
    return round(seconds * SECOND)


def _mask(address: str) -> str:
    """Return the network by which a limit counts an address. A host name is its own."""
    found = address_as(address, "it is in the log")
    if found.address is None:
        return address
    return str(found.network)
