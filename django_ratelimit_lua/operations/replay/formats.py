"""The formats of access logs: from one line to what is known of its request.

- `combined`: Apache's and nginx's common and combined formats, and gunicorn's own: with the virtual host in front of
  them or without, and behind them, in any order, what many sites add: the time taken (`0.005`: seconds, as nginx writes
  it; a whole number: microseconds, as Apache's `%D` is; `rt=0.005`), `X-Forwarded-For` and the host in quotes;
- `json`: one object in each line, of nginx (by the names of its variables) or of Caddy;
- `alb`: of AWS's Application Load Balancer;
- `tsv`: columns apart by tabs, named in the first line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from ...identity.forwarded import parse_address
from ...limits.rate import SECOND
from ...rules.methods import METHODS

LONGEST_LINE = 64 * 1024
"""Characters of a line: no server takes a request that makes a longer one."""
LONGEST_EXCERPT = 80
"""Characters of a line that are shown where it is not understood."""
LONGEST_TIME = 64
LONGEST_ADDRESS = 255
"""Characters of who asked, which may be a name; what is longer is none."""
LONGEST_USER = 255
LATEST = 7_258_118_400 * SECOND
"""The year 2200, in microseconds since 1970: what says more is no time. From 2255 on, the Lua program's numbers would
not be exact; and in 9999, calendars have days that Python has not."""


class LogLine(NamedTuple):
    """What a line knows of its request. None: the log does not have it; empty: the request did not.

    - `moment`: microseconds since 1970; `is_whole`: of which only the second is known;
    - `address`: who asked the server; `forwarded`: `X-Forwarded-For`;
    - `method`: empty where the line has no request that a site could see; `target`: path and query;
    - `seconds`: the time taken; `headers`: all of them, by their names;
    - `size`: about the characters that it keeps.
    """

    moment: int
    is_whole: bool
    address: str
    method: str
    target: str
    status: int
    user: str = ""
    host: str | None = None
    referer: str | None = None
    agent: str | None = None
    forwarded: str | None = None
    seconds: float | None = None
    headers: Mapping[str, str] | None = None
    size: int = 0


Read = Callable[[str], LogLine | None]
"""Makes of a line what it knows; None: the line is broken. Raises nothing."""

# No pattern may look at a part of a line more than once: log lines are written by whoever sends requests.
_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_ADDRESS = rf"(\S{{1,{LONGEST_ADDRESS}}})"
_USER = rf"(.{{1,{LONGEST_USER}}}?)"
_CLOCK = r"\[(\d\d?/[A-Za-z]{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]"
_BEHIND = rf"{_CLOCK} {_QUOTED} (\d{{3}}|-) \S+(?: {_QUOTED} {_QUOTED})?(.*)"
_COMMON = re.compile(rf"{_ADDRESS} \S+ {_USER} {_BEHIND}", re.ASCII | re.DOTALL)
_WITH_HOST = re.compile(rf"(\S+) {_ADDRESS} \S+ {_USER} {_BEHIND}", re.ASCII | re.DOTALL)
_MORE = re.compile(rf'(?<!\s)\s++(?:{_QUOTED}|([^\s"]++))', re.ASCII)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME_TAKEN = re.compile(r"(?:rt=|request_time=)?(\d{1,9}\.\d{1,9})|(\d{1,15})", re.ASCII)
_METHOD = re.compile(r"[A-Za-z][A-Za-z-]{0,30}")
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?", re.ASCII)
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?", re.ASCII)


def combined(text: str, *, has_host: bool = False) -> LogLine | None:
    """A line of the common or combined format.

    >>> line = combined('192.0.2.1 - ada [01/Jul/1995:00:00:01 -0400] "GET /x?q=1 HTTP/1.0" 200 62 "-" "a \\\\"b\\\\""')
    >>> line.moment, line.address, line.user, line.method, line.target, line.status, line.referer, line.agent
    (804571201000000, '192.0.2.1', 'ada', 'GET', '/x?q=1', 200, '', 'a "b"')
    """
    match = (_WITH_HOST if has_host else _COMMON).fullmatch(text)
    if match is None:
        return None
    host = None
    if has_host:
        host, address, user, clock, request, status, referer, agent, more = match.groups()
    else:
        address, user, clock, request, status, referer, agent, more = match.groups()
    moment = _clock(clock)
    if moment is None:
        return None
    forwarded = seconds = None
    if more:
        host_behind, forwarded, seconds = _more(more)
        host = host_behind if host is None else host
    if "\\" in text:
        user, request = _unescaped(user), _unescaped(request)
        referer, agent = referer and _unescaped(referer), agent and _unescaped(agent)
    method, target, host_asked = _request(request)
    return LogLine(
        moment, True, address, method, target, 0 if status == "-" else int(status), "" if user == "-" else user,
        host if host_asked is None else host_asked, "" if referer == "-" else referer, "" if agent == "-" else agent,
        forwarded, seconds, None, len(text),
    )  # fmt: skip


def _with_host(text: str) -> LogLine | None:
    return combined(text, has_host=True)


@lru_cache(maxsize=4096)
def _clock(text: str) -> int | None:
    """Microseconds since 1970 of 01/Jul/1995:00:00:01 -0400; None for what is no time."""
    clock, zone = text.split(" ")
    day, month, rest = clock.split("/")
    year, hour, minute, second = rest.split(":")
    try:
        number = _MONTHS.index(month.capitalize()) + 1
        # A leap second is counted to the minute that follows.
        at = datetime(int(year), number, int(day), int(hour), int(minute), tzinfo=UTC) + timedelta(seconds=int(second))
        away = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:]))
        return _us(at + away if zone[0] == "-" else at - away)
    except (ValueError, OverflowError):
        return None


def _us(at: datetime) -> int | None:
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return _moment((since.days * 86_400 + since.seconds) * SECOND + since.microseconds)


def _moment(us: int) -> int | None:
    return us if 0 <= us < LATEST else None


def _request(text: str) -> tuple[str, str, str | None]:
    """Method, path with query, and the host where it is asked for by a whole URL; empty for what is no request."""
    method, _, rest = text.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not version.startswith("HTTP/"):
        target = rest  # HTTP/0.9 has none.
    if target[:1] == "/" and method in METHODS:
        return method, target, None
    if not target or not _METHOD.fullmatch(method):
        return "", "", None
    if target.startswith("/"):
        return method.upper(), target, None
    scheme, mark, rest = target.partition("://")
    if not mark or not scheme.isalnum():
        return method.upper(), target if target == "*" else "/" + target, None
    host, slash, path = rest.partition("/")
    return method.upper(), f"/{path}" if slash else "/", host


def _more(text: str) -> tuple[str | None, str | None, float | None]:
    """What stands behind: a host, `X-Forwarded-For` and the time taken."""
    host = forwarded = seconds = None
    for match in _MORE.finditer(text):
        quoted, bare = match.groups()
        if bare is not None:
            taken = _TIME_TAKEN.fullmatch(bare)
            if taken is not None and seconds is None:
                seconds = float(taken[1]) if taken[1] else int(taken[2]) / SECOND
        elif forwarded is None and (quoted in ("-", "") or parse_address(quoted.rpartition(",")[2])):
            forwarded = _given(quoted)
        elif host is None and _is_host(quoted):
            host = quoted
    return host, forwarded, seconds


def _is_host(text: str) -> bool:
    return 0 < len(text) <= 260 and not set(text) & set(" /\\\"'()<>,;")


def _given(text: str) -> str:
    return "" if text == "-" else text


def _unescaped(text: str) -> str:
    r"""Text as it was before a server escaped it: `\"`, `\\` and `\x22`."""
    plain = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[2], text)
    try:
        return plain.encode("latin-1").decode()  # Bytes that were not ASCII were escaped one by one.
    except UnicodeError:
        return plain


_NAMES: dict[str, tuple[str, ...]] = {
    "moment": ("msec", "time_iso8601", "time_local", "@timestamp", "timestamp", "datetime", "time", "ts"),
    "address": ("client_ip", "remote_addr", "remote_ip", "clientip", "client", "ip", "remote_host"),
    "forwarded": ("http_x_forwarded_for", "x_forwarded_for", "x-forwarded-for", "xff", "forwarded_for"),
    "request": ("request", "request_line"),
    "method": ("request_method", "method", "verb"),
    "target": ("request_uri", "uri", "url", "path"),
    "query": ("query_string", "args", "query"),
    "status": ("status", "status_code", "response", "code"),
    "user": ("remote_user", "user_id", "user", "logname"),
    "host": ("http_host", "host", "server_name", "vhost"),
    "referer": ("http_referer", "http_referrer", "referer", "referrer"),
    "agent": ("http_user_agent", "user_agent", "useragent", "agent"),
    "seconds": ("request_time", "duration", "time_taken", "elapsed"),
}
"""What a field is called, in JSON and in columns: the first that is there."""
_ENTRY = 128
"""Bytes that a header takes, beside its characters."""


_SURROGATE = re.compile(r"\\u[dD]")


def whole(text: str) -> str:
    """Text that can be written as UTF-8: U+FFFD stands for halves of characters, which JSON and file names may have.

    >>> whole("caf\\u00e9 \\ud800") == "caf\\u00e9 " + "\\ufffd" * 3
    True
    """
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def json_object(text: str) -> LogLine | None:
    """A line that is an object.

    >>> line = json_object('{"msec":"804571201.5","remote_addr":"::1","request":"GET / HTTP/2.0","status":"429"}')
    >>> line.moment, line.is_whole, line.address, line.status, line.agent
    (804571201500000, False, '::1', 429, None)
    """
    try:
        given = json.loads(text)
        if _SURROGATE.search(text):
            given = json.loads(whole(json.dumps(given, ensure_ascii=False)))
        if not isinstance(given, dict):
            return None
        asked = given.get("request")
        headers: dict[str, str] | None = None
        if isinstance(asked, dict) and isinstance(asked.get("headers"), dict):
            headers = {name.title(): _first(value) for name, value in asked["headers"].items()}
    except (ValueError, RecursionError):
        return None
    if isinstance(asked, dict):  # Caddy's.
        given = {**given, **asked, "request": None}
        if headers is not None:
            given["agent"], given["referer"] = headers.get("User-Agent", ""), headers.get("Referer", "")
            given["xff"] = headers.get("X-Forwarded-For", "")
    return _named(given, len(text), headers)


def _first(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _named(given: Mapping[str, Any], size: int, headers: Mapping[str, str] | None = None) -> LogLine | None:
    """The line of whose fields these are the names; `size`: its characters."""

    def field(what: str) -> str | None:
        for name in _NAMES[what]:
            value = given.get(name)
            if isinstance(value, (str, int, float)):
                return _given(str(value))
        return None

    stamp, address, host = field("moment"), field("address"), field("host")
    if address is None:
        address, host = host, None  # In columns with one name for who asks, it is often that.
    at = None if stamp is None else moment_of(stamp)
    if at is None or not address or len(address) > LONGEST_ADDRESS:
        return None
    request, target, host_asked = field("request"), field("target"), None
    method = (field("method") or "").upper()
    if method and target and _METHOD.fullmatch(method):
        _, target, host_asked = _request(f"{method} {target} HTTP/1.1")
        query = field("query")
        if query and "?" not in target:
            target += f"?{query}"
    elif request is not None:
        method, target, host_asked = _request(request)
    else:
        method, target = "", ""
    status, taken = field("status") or "", field("seconds") or ""
    return LogLine(
        *at, address, method, target, int(status) if status.isdecimal() and len(status) <= 3 else 0,
        field("user") or "", host if host_asked is None else host_asked, field("referer"), field("agent"),
        field("forwarded"), float(taken) if _NUMBER.fullmatch(taken) else None, headers,
        size + _ENTRY * len(headers or ()),
    )  # fmt: skip


def moment_of(text: str) -> tuple[int, bool] | None:
    """Microseconds since 1970 of a time as logs write it, and whether it has only seconds; None: it is none.

    >>> moment_of("804571201"), moment_of("1995-07-01T00:00:01-04:00"), moment_of("1995-07-01T04:00:01.25Z")
    ((804571201000000, True), (804571201000000, True), (804571201250000, False))
    """
    return _moment_of(text) if len(text) <= LONGEST_TIME else None  # The cache holds nothing longer.


@lru_cache(maxsize=4096)
def _moment_of(text: str) -> tuple[int, bool] | None:
    if _NUMBER.fullmatch(text):
        seconds, dot, part = text.partition(".")
        whole, us = int(seconds), int(part[:6].ljust(6, "0")) if dot else 0
        if len(seconds) >= 12:  # Milliseconds, as JavaScript counts.
            whole, us, dot = whole // 1000, whole % 1000 * 1000, "."
        moment = _moment(whole * SECOND + us)
        return None if moment is None else (moment, not dot)
    iso = _ISO.match(text)
    if iso is not None:
        try:
            at = datetime.fromisoformat(text)
            moment = _us(at if at.tzinfo else at.replace(tzinfo=UTC))
        except (ValueError, OverflowError):
            return None
        return None if moment is None else (moment, iso[1] is None)
    if re.fullmatch(_CLOCK, f"[{text}]"):
        moment = _clock(text)
        return None if moment is None else (moment, True)
    return None


_ALB = re.compile(
    rf"\w+ (\S+) \S+ {_ADDRESS} \S+ (\S+) (\S+) (\S+) (\d{{3}}|-) \S+ \S+ \S+ "
    rf"{_QUOTED} {_QUOTED}(?: \S+ \S+ \S+ {_QUOTED} {_QUOTED} {_QUOTED} \S+ (\S+))?.*",
    re.ASCII | re.DOTALL,
)


def alb(text: str) -> LogLine | None:
    """A line of an Application Load Balancer: the time is that at which the request came, where it is told."""
    match = _ALB.fullmatch(text)
    if match is None:
        return None
    answered, client, *parts, status, request, agent, _trace, domain, _certificate, came = match.groups()
    at = moment_of(came or answered)
    if at is None:
        return None
    method, target, host = _request(_unescaped(request))
    if host is None:
        host = _given(domain or "")
    elif host.endswith((":80", ":443")):
        host = host.rpartition(":")[0]
    taken = [float(part) for part in parts if _NUMBER.fullmatch(part)]  # -1 where nobody was asked.
    return LogLine(
        *at, client.rpartition(":")[0], method, target, 0 if status == "-" else int(status), "", host, None,
        _given(_unescaped(agent)), None, sum(taken) if taken else None, None, len(text),
    )  # fmt: skip


def columns(head: str) -> Read:
    """What reads lines whose columns that line names."""
    names = [name.strip().lower() for name in head.split("\t")]

    def read(text: str) -> LogLine | None:
        return _named(dict(zip(names, text.split("\t"), strict=False)), len(text))

    return read


def has_columns(head: str) -> bool:
    """Whether a line names columns, and those that a log must have."""
    names = {name.strip().lower() for name in head.split("\t")}
    who = {*_NAMES["address"], *_NAMES["host"]}
    return bool(names & set(_NAMES["moment"]) and names & who and names & {*_NAMES["target"], *_NAMES["request"]})


class LogFormat(NamedTuple):
    """What reads the lines of a log. `heads`: how many lines at its beginning are no requests; `knows`: of `host`,
    `referer`, `agent`, `forwarded`, `headers` and `seconds`, what its lines tell."""

    name: str
    read: Read
    heads: int = 0
    knows: frozenset[str] = frozenset()


FORMATS = ("combined", "json", "alb", "tsv")
_MAYBE = ("host", "referer", "agent", "forwarded", "seconds", "headers")


class UnknownFormatError(ValueError):
    """A log whose format cannot be told from its first lines."""


def excerpt(text: str, most: int = LONGEST_EXCERPT) -> str:
    """The beginning of a text, with … in the place of what follows.

    >>> excerpt("GET /"), excerpt("a" * 5_000_000) == "a" * 79 + "…"
    ('GET /', True)
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def format_of(sample: Sequence[str], name: str | None = None) -> LogFormat:
    """The format of a log, from its first lines. `name`: the one that it is said to have. Raises
    `UnknownFormatError`.

    >>> format_of(['::1 - - [01/Jul/1995:00:00:01 -0400] "GET / HTTP/1.0" 200 62']).name
    'combined'
    """
    candidates: list[LogFormat] = []
    if sample and has_columns(sample[0]):
        candidates.append(LogFormat("tsv", columns(sample[0]), heads=1))
    candidates += [LogFormat("json", json_object), LogFormat("alb", alb)]
    common = [LogFormat("combined", combined), LogFormat("combined", _with_host)]
    second = [line.split(" ", 2)[1] for line in sample if line.count(" ") > 1]
    # A virtual host in front: then the address is the second word, where else nearly always "-" stands.
    candidates += (
        reversed(common) if sum(parse_address(word) is not None for word in second) * 2 > len(second) else common
    )
    best, most = None, 0
    for candidate in candidates:
        if name in (None, candidate.name):
            read = [line for line in map(candidate.read, sample[candidate.heads :]) if line is not None]
            if len(read) > most:
                most = len(read)
                knows = {what for what in _MAYBE if any(getattr(line, what) is not None for line in read)}
                best = candidate._replace(knows=frozenset(knows))
    if best is None:
        asked = f"the format {name}" if name else f"any format that is known ({', '.join(FORMATS)})"
        raise UnknownFormatError(f"no line is of {asked}; the first is {excerpt(sample[0])!r}")
    return best
