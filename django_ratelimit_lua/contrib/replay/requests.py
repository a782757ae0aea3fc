"""The requests of access logs: the moments of each client.

A limit counts each client separately, so only the moments of one client are sorted. Files and lines
may have any order, and a log needs about ten bytes of memory for each request.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from ...conf import conf
from ...identity.address import network_words, parse_address, parse_network
from ...limits.rate import SECOND

STANDARD_INPUT = "-"
CHUNK_SIZE = 2**20
"""Bytes that are parsed together, and the part of a line that is read."""
MAX_EXAMPLES = 3
MAX_SECONDS = 4_102_444_800
"""The start of 2100. Any larger number is a time in milliseconds."""

_TIME = rb"(?P<minute>\d\d/\w{3}/\d{4}:\d\d:\d\d):(?P<second>[0-5]\d|60) (?P<zone>[+-]\d{4})"
# A user may contain blanks. One that begins with "- " has a virtual host or a proxy before the
# address, which must not be counted as the client. A file may begin with a byte order mark.
_LINE = re.compile(
    rb"(?:\xef\xbb\xbf)?(?P<ip>\S+) \S+ (?P<user>-|(?!- ).+?) "
    rb"\[" + _TIME + rb'\] "[A-Za-z-]+ (?P<path>[^\s?"]+)'
)
# The start of a request is better than the time of the line, which is its end.
TIMES = ("StartUTC", "msec", "time_iso8601", "time_local", "@timestamp", "timestamp", "time", "ts")
NAMES = {
    "ip": ("client_ip", "remote_addr", "remote_ip", "ip", "ClientHost"),
    "user": ("remote_user", "user_id", "user", "ClientUsername"),
    "path": ("request_uri", "uri", "path", "url", "RequestPath"),
}
KEYS = tuple(NAMES)


class UnreadableLogError(Exception):
    """A log cannot be opened, or is damaged."""


class RepeatedRequestError(Exception):
    """A line is about the error of a request that has another line."""


@dataclass(slots=True)
class Requests:
    """The requests of one or several logs.

    Attributes:
        key: The part of a request that identifies its client, one of `KEYS`.
        lines: The number of lines that are not empty, without those of Caddy about errors.
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
        """Add the lines of a log, in the common or combined format or of JSON."""
        for line in lines:
            try:
                if match := _LINE.match(line):
                    moment = _read_common_time(match)
                    client = match[self.key]
                else:
                    moment, client = _read_object(line, self.key)
            except RepeatedRequestError:
                continue
            except (ValueError, OverflowError, RecursionError):
                self._add_unreadable(name, line)
                continue
            self.lines += 1
            if client == b"-" and self.key == "user":
                self.anonymous += 1
            else:
                self._moments[client].append(moment)

    def _add_unreadable(self, name: str, line: bytes) -> None:
        """Count a line that is no request, unless it is empty, and keep the first as examples."""
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
            with _open_log(name) as file:
                for chunk in _read_chunks(file):
                    requests.add(name, chunk)
                    on_progress(size + _get_position(file), requests.lines)
                size += _get_position(file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damage_error(name, error) from error
        except OSError as error:
            raise UnreadableLogError(str(error)) from error
    return requests


def _damage_error(name: str, error: Exception) -> UnreadableLogError:
    """Return the error for a damaged log, with the command that saves its readable part."""
    if name == STANDARD_INPUT:
        label = "standard input"
        remedy = "unpack it with `gzip -dc` in the pipe"
    else:
        label = name
        remedy = f"run `gzip -dc < {shlex.quote(name)} > readable.log`, and replay readable.log"
    return UnreadableLogError(
        f"{label} is damaged: {error}. To replay the lines before the damage, {remedy}"
    )


def _open_log(name: str) -> io.BufferedReader:
    if name == STANDARD_INPUT:
        return open(0, "rb", closefd=False)
    return open(name, "rb")


def _get_position(file: io.BufferedReader) -> int:
    """Return how many bytes of a file were read; 0 for a pipe."""
    if not file.seekable():
        return 0
    return file.tell()


def _read_chunks(file: io.BufferedReader) -> Iterator[list[bytes]]:
    """Yield the lines of each chunk of a file, unpacked and cut to the size of a chunk."""
    unpacked: io.BufferedReader | gzip.GzipFile = file
    if file.peek(2)[:2] == b"\x1f\x8b":
        unpacked = gzip.GzipFile(fileobj=file)
    line = b""
    while chunk := unpacked.read1(CHUNK_SIZE):  # `read` waits for a chunk even after Ctrl-C.
        first, *others = chunk.split(b"\n")
        line += first[: CHUNK_SIZE - len(line)]
        if others:
            yield [line, *others[:-1]]
            line = others[-1]
    yield [line]


def _new_moments() -> array[int]:
    return array("q")


def _read_common_time(match: re.Match[bytes]) -> int:
    """Return the microseconds since 1970 of a match of `_TIME`."""
    minute, second, zone = match.group("minute", "second", "zone")
    return _read_minute(minute, zone) + int(second) * SECOND


@lru_cache(maxsize=4096)
def _read_minute(minute: bytes, zone: bytes) -> int:
    """Return the microseconds since 1970 of a minute such as `01/Jul/1995:00:00`, `-0400`."""
    text = f"{minute.decode()} {zone.decode()}"
    return _convert_seconds(datetime.strptime(text, "%d/%b/%Y:%H:%M %z").timestamp())


def _convert_seconds(seconds: float) -> int:
    """Return a moment in microseconds. Raises `ValueError` if no log can be so old or so new."""
    if not 0 <= seconds < MAX_SECONDS:
        raise ValueError("not from 1970 to 2100")
    return round(seconds * SECOND)


def _read_object(line: bytes, key: str) -> tuple[int, bytes]:
    """Return the moment and the client of a JSON object by nginx, Caddy or Traefik.

    Raises `RepeatedRequestError`, or `ValueError`, `OverflowError` or `RecursionError` if the line
    is not a request.
    """
    members = json.loads(line)
    if not isinstance(members, dict):
        raise ValueError("not an object")
    if str(members.get("logger")).startswith("http.log.error"):
        raise RepeatedRequestError
    request = members.get("request")
    if isinstance(request, dict):  # Caddy's.
        members |= request
    client = _find_client(members, key)
    return _read_moment(_find_value(members, TIMES)), client.encode()


def _find_client(members: Mapping[str, object], key: str) -> str:
    """Return the address, the user or the path of a request; `-` if no user is signed in.

    Raises `ValueError` if the request has no address or no path.
    """
    client = _find_path(members) if key == "path" else _find_value(members, NAMES[key])
    if client:
        return client
    if key == "user":
        return "-"
    raise ValueError(f"no {key}")


def _find_path(members: Mapping[str, object]) -> str:
    """Return the path of a request without its query, or an empty text."""
    target = _find_value(members, NAMES["path"])
    if not target:
        # The first line of the request, as nginx logs it: method, path and version.
        line = _find_value(members, ["request"])
        _method, _space, path_and_version = line.partition(" ")
        target, _space, _version = path_and_version.partition(" ")
    path, _mark, _query = target.partition("?")
    return path


def _find_value(members: Mapping[str, object], names: Iterable[str]) -> str:
    """Return the value of the first name that has one, or an empty text."""
    for name in names:
        value = members.get(name)
        if isinstance(value, bool):
            raise ValueError(f"{name} is a boolean")
        if isinstance(value, (str, int, float)) and value != "":
            return str(value)
    return ""


def _read_moment(text: str) -> int:
    """Return the microseconds since 1970 of a time: a number, ISO 8601, or that of a common log.

    >>> _read_moment("804571201.5"), _read_moment("1995-07-01T00:00:01.5-04:00")
    (804571201500000, 804571201500000)
    """
    if match := re.fullmatch(_TIME, text.encode()):
        return _read_common_time(match)
    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    if seconds > MAX_SECONDS:
        seconds /= 1000
    return _convert_seconds(seconds)


def _mask(text: str) -> str:
    """Return the network by which a limit counts an address. A host name is its own."""
    address = parse_address(text)
    if address is None:
        return text
    bits = {4: conf.IPV4_MASK, 6: conf.IPV6_MASK}[address.version]
    return network_words(parse_network(f"{address}/{bits}"))
