"""The formats of access logs: parse a line into the values of its request.

- `combined`: the common and combined formats of Apache and nginx, and gunicorn's own; optionally
  with the virtual host at the beginning, and with further columns at the end in any order, such as
  `X-Forwarded-For` and the host in quotes;
- `json`: one object in each line, of nginx (by the names of its variables) or of Caddy;
- `alb`: the format of AWS's Application Load Balancer;
- `tsv`: columns separated by tabs, named in the first line.

Each format parses a line into named fields, from which `_line` makes a `LogLine`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ...identity.forwarded import parse_address
from ...limits.rate import SECOND

MAX_LINE = 64 * 1024
"""Maximum number of characters of a line. Servers reject requests that would make a longer one."""
MAX_EXCERPT = 80
"""Characters of a line that are shown if it cannot be parsed."""
MAX_TIME = 64
"""Characters of a time that are read."""
MAX_ADDRESS = 255
"""Maximum length of an address, which may be a name."""
MAX_USER = 255
LATEST = 7_258_118_400 * SECOND
"""The year 2200, in microseconds since 1970: no later time is read. From 2255 on, the Lua program's
numbers would not be exact; and in 9999, calendars have days that Python has not.
"""
HEADER_SIZE = 128
"""Bytes of a header, in addition to its characters."""


class LogLine(NamedTuple):
    """The values of a line. None: the log does not contain the value. Empty: the request had none.

    Attributes:
        moment: Microseconds since 1970.
        is_whole: Whether the log has times in whole seconds.
        address: The peer of the server.
        method: The HTTP method. Empty if the line has no request that a site could see.
        target: Path and query.
        forwarded: `X-Forwarded-For`.
        headers: All headers, by name.
        size: The approximate number of characters stored.
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
    headers: Mapping[str, str] | None = None
    size: int = 0


Read = Callable[[str], LogLine | None]
"""Parses a line; None: the line is broken. Raises nothing."""

# No pattern may read a part of a line more than once, because clients write parts of log lines.
_TEXT = r'[^"\\]*+(?:\\.[^"\\]*+)*+'
_QUOTED = f'"({_TEXT})"'
_REQUEST, _REFERER, _AGENT, _HOST = (
    f'"(?P<{name}>{_TEXT})"' for name in ("request", "referer", "agent", "host")
)
_ADDRESS = rf"(?P<address>\S{{1,{MAX_ADDRESS}}})"
_COMMON = (
    rf"{_ADDRESS} \S+ (?P<user>.{{1,{MAX_USER}}}?) "
    rf"\[(?P<moment>[^]\s]{{1,40}} [+-]\d{{4}})\] {_REQUEST} "
    rf"(?P<status>\d{{3}}|-) \S+(?: {_REFERER} {_AGENT})?(?P<more>.*)"
)
_COMBINED = re.compile(_COMMON, re.ASCII | re.DOTALL)
_WITH_HOST = re.compile(rf"(?P<host>\S+) {_COMMON}", re.ASCII | re.DOTALL)
_ALB = re.compile(
    rf"\w+ (?P<answered>\S+) \S+ {_ADDRESS} \S+ \S+ \S+ \S+ (?P<status>\d{{3}}|-) \S+ \S+ \S+ "
    rf"{_REQUEST} {_AGENT}(?: \S+ \S+ \S+ {_QUOTED} {_HOST} {_QUOTED} \S+ (?P<came>\S+))?.*",
    re.ASCII | re.DOTALL,
)
_MORE = re.compile(rf'(?<!\s)\s++(?:{_QUOTED}|[^\s"]++)', re.ASCII)
_STATUS = re.compile(r"\d{1,3}", re.ASCII)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_METHOD = re.compile(r"[A-Za-z][A-Za-z-]{0,30}")
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?", re.ASCII)
_CLOCK = re.compile(r"\d\d?/[A-Za-z]{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_NAMES = {
    "moment": [
        "msec",
        "time_iso8601",
        "time_local",
        "@timestamp",
        "timestamp",
        "datetime",
        "time",
        "ts",
    ],
    "address": ["client_ip", "remote_addr", "remote_ip", "clientip", "client", "ip", "remote_host"],
    "forwarded": [
        "http_x_forwarded_for",
        "x_forwarded_for",
        "x-forwarded-for",
        "xff",
        "forwarded_for",
    ],
    "request": ["request", "request_line"],
    "method": ["request_method", "method", "verb"],
    "target": ["request_uri", "uri", "url", "path"],
    "query": ["query_string", "args", "query"],
    "status": ["status", "status_code", "response", "code"],
    "user": ["remote_user", "user_id", "user", "logname"],
    "host": ["http_host", "host", "server_name", "vhost"],
    "referer": ["http_referer", "http_referrer", "referer", "referrer"],
    "agent": ["http_user_agent", "user_agent", "useragent", "agent"],
}
"""The names of each field in JSON and in columns. The first name that is present is used."""


def _given(text: str | None) -> str | None:
    """Return the text of a field, or an empty string if the server wrote a hyphen."""
    if text == "-":
        return ""
    return text


def _line(
    fields: Mapping[str, Any], size: int, headers: Mapping[str, str] | None = None
) -> LogLine | None:
    """Return a line with these fields.

    Args:
        fields: The fields, by the keys of `_NAMES`.
        size: The number of characters in the line.
        headers: The headers, if all are known.
    """
    get = fields.get
    address = get("address")
    host = get("host")
    if address is None:
        # A column with the name of the client is often called host.
        address = host
        host = None
    user = _given(get("user")) or ""
    at = moment_of((get("moment") or "")[:MAX_TIME])
    if at is None or not address or len(address) > MAX_ADDRESS or len(user) > MAX_USER:
        return None
    request = get("request") or ""
    if get("method") and get("target"):
        request = f"{fields['method'].upper()} {fields['target']} HTTP/1.1"
    method, target, requested_host = _request(request)
    if get("query") and method and "?" not in target:
        target += f"?{fields['query']}"
    if requested_host is None:
        requested_host = _given(host)
    status = 0
    if _STATUS.fullmatch(get("status") or ""):
        status = int(fields["status"])
    return LogLine(
        *at,
        address,
        method,
        target,
        status,
        user,
        requested_host,
        _given(get("referer")),
        _given(get("agent")),
        _given(get("forwarded")),
        headers,
        size + HEADER_SIZE * len(headers or ()),
    )


def _request(text: str) -> tuple[str, str, str | None]:
    """Return the method, the path with its query, and the host if the target is a complete URL.

    The method is empty if the text is not a request.
    """
    method, _, rest = text.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not version.startswith("HTTP/"):
        target = rest  # HTTP/0.9 has no protocol.
    if not target or not _METHOD.fullmatch(method):
        return "", "", None
    method = method.upper()
    if target == "*" or target.startswith("/"):
        return method, target, None
    scheme, mark, rest = target.partition("://")
    if not mark or not scheme.isalnum():
        return method, f"/{target}", None
    host, _, path = rest.partition("/")
    return method, f"/{path}", host.removesuffix(":80").removesuffix(":443")


@lru_cache(maxsize=4096)
def moment_of(text: str) -> tuple[int, bool] | None:
    """Return the microseconds since 1970 of a time in a log, and whether it has only seconds.

    Return None if the time is invalid.

    >>> (
    ...     moment_of("804571201"),
    ...     moment_of("1995-07-01T00:00:01-04:00"),
    ...     moment_of("1995-07-01T04:00:01.25Z"),
    ... )
    ((804571201000000, True), (804571201000000, True), (804571201250000, False))
    >>> moment_of("01/Jul/1995:00:00:01 -0400")
    (804571201000000, True)
    """
    is_whole = "." not in text
    try:
        if _NUMBER.fullmatch(text):
            unit = SECOND
            if len(text.partition(".")[0]) >= 12:  # Milliseconds, as in JavaScript.
                unit = 1000
                is_whole = False
            moment = int(Decimal(text) * unit)
        else:
            if _CLOCK.fullmatch(text):
                at = parsedate_to_datetime(text.replace("/", " ").replace(":", " ", 1))
            else:
                at = datetime.fromisoformat(text)
            if at.tzinfo is None:
                at = at.replace(tzinfo=UTC)
            moment = (at - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None
    if 0 <= moment < LATEST:
        return moment, is_whole
    return None


def _unescaped(text: str) -> str:
    r"""Return text without the escapes that a server has added: `\"`, `\\` and `\x22`."""

    def unescape(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return match[2]

    plain = _ESCAPE.sub(unescape, text)
    try:
        # Bytes that were not ASCII were escaped one by one.
        return plain.encode("latin-1").decode()
    except UnicodeError:
        return plain


def combined(text: str, pattern: re.Pattern[str] = _COMBINED) -> LogLine | None:
    """Return a line of the common or combined format.

    >>> text = '192.0.2.1 - ada [01/Jul/1995:00:00:01 -0400] "GET /x?q=1 HTTP/1.0" 200 62'
    >>> line = combined(text + ' "-" "curl"')
    >>> line.moment, line.address, line.user, line.method, line.target
    (804571201000000, '192.0.2.1', 'ada', 'GET', '/x?q=1')
    >>> line.status, line.referer, line.agent
    (200, '', 'curl')
    """
    match = pattern.fullmatch(text)
    if match is None:
        return None
    fields = match.groupdict()
    if fields["more"]:
        fields = _more(fields["more"]) | fields
    if "\\" in text:
        for name in ("user", "request", "referer", "agent"):
            if fields[name]:
                fields[name] = _unescaped(fields[name])
    return _line(fields, len(text))


def _more(text: str) -> dict[str, str]:
    """Return `X-Forwarded-For` and the host, if they are among further quoted fields."""
    fields: dict[str, str] = {}
    for match in _MORE.finditer(text):
        quoted = match[1]
        if quoted is None:
            continue
        is_forwarded = quoted in ("-", "") or parse_address(quoted.rpartition(",")[2])
        if is_forwarded and "forwarded" not in fields:
            fields["forwarded"] = quoted
        elif 0 < len(quoted) <= 260 and not set(quoted) & set(" /\\\"'()<>,;"):
            fields.setdefault("host", quoted)
    return fields


def alb(text: str) -> LogLine | None:
    """Return a line of an Application Load Balancer, with the time at which the request arrived."""
    match = _ALB.fullmatch(text)
    if match is None:
        return None
    fields = match.groupdict()
    fields |= {
        "moment": fields["came"] or fields["answered"],
        "address": fields["address"].rpartition(":")[0],
        "request": _unescaped(fields["request"]),
        "agent": _unescaped(fields["agent"]),
        "host": fields["host"] or "",
    }
    return _line(fields, len(text))


def whole(text: str) -> str:
    r"""Return text that UTF-8 can encode, with U+FFFD for lone surrogates.

    JSON and names of files may contain lone surrogates.

    >>> whole("caf\u00e9 \ud800") == "caf\u00e9 " + "\ufffd" * 3
    True
    """
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def json_object(text: str) -> LogLine | None:
    """Return a line that is a JSON object of nginx or Caddy.

    >>> text = '{"msec":"804571201.5","remote_addr":"::1","request":"GET / HTTP/2.0",'
    >>> line = json_object(text + '"status":"429"}')
    >>> line.moment, line.is_whole, line.address, line.status, line.agent
    (804571201500000, False, '::1', 429, None)
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    headers: dict[str, str] | None = None
    request = given.get("request")
    if isinstance(request, dict):  # Caddy's.
        given = {**given, **request, "request": None}
        if isinstance(request.get("headers"), dict):
            headers = {}
            for name, value in request["headers"].items():
                if isinstance(value, list):
                    value = ", ".join(map(str, value))
                headers[whole(name).title()] = whole(str(value))
    fields = _named(given)
    if headers is not None:
        fields["agent"] = headers.get("User-Agent", "")
        fields["referer"] = headers.get("Referer", "")
        fields["forwarded"] = headers.get("X-Forwarded-For", "")
    return _line(fields, len(text), headers)


def _named(given: Mapping[str, object]) -> dict[str, str]:
    """Return the fields that are present under any of their names."""
    fields: dict[str, str] = {}
    for field, names in _NAMES.items():
        for name in names:
            value = given.get(name)
            if isinstance(value, (str, int, float)):
                fields[field] = whole(str(value))
                break
    return fields


def columns(head: str) -> Read:
    """Return a parser for lines with the columns that the first line names."""
    names = [name.strip().lower() for name in head.split("\t")]
    return lambda text: _line(_named(dict(zip(names, text.split("\t"), strict=False))), len(text))


class LogFormat(NamedTuple):
    """The format of a log.

    Attributes:
        read: Parses a line.
        heads: The number of lines at the beginning that are not requests.
        knows: Which of `host`, `referer`, `agent`, `forwarded` and `headers` its lines contain.
    """

    name: str
    read: Read
    heads: int = 0
    knows: frozenset[str] = frozenset()


FORMATS = ("combined", "json", "alb", "tsv")
_MAYBE = ("host", "referer", "agent", "forwarded", "headers")


def excerpt(text: str, most: int = MAX_EXCERPT) -> str:
    """Return the beginning of a text, with … for the rest.

    >>> excerpt("GET /"), excerpt("a" * 5_000_000) == "a" * 79 + "…"
    ('GET /', True)
    """
    if len(text) > most:
        return text[: most - 1] + "…"
    return text


def format_of(sample: Sequence[str], name: str | None = None) -> LogFormat:
    """Return the format of a log, from its first lines.

    Args:
        name: The declared format.

    Raises:
        ValueError: If no line has the declared format, or any known one.

    >>> format_of(['::1 - - [01/Jul/1995:00:00:01 -0400] "GET / HTTP/1.0" 200 62']).name
    'combined'
    """
    candidates = [
        LogFormat("json", json_object),
        LogFormat("alb", alb),
        LogFormat("combined", combined),
        LogFormat("combined", partial(combined, pattern=_WITH_HOST)),
    ]
    second = [line.split(" ", 2)[1] for line in sample if line.count(" ") > 1]
    # With a virtual host in front, the address is the second word, which is "-" otherwise.
    if sum(parse_address(word) is not None for word in second) * 2 > len(second):
        candidates.reverse()
    if sample and "\t" in sample[0]:
        candidates.insert(0, LogFormat("tsv", columns(sample[0]), heads=1))
    best = None
    lines: list[LogLine] = []
    for candidate in candidates:
        if name in (None, candidate.name):
            read = list(filter(None, map(candidate.read, sample[candidate.heads :])))
            if len(read) > len(lines):
                best = candidate
                lines = read
    if best is None:
        expected = f"a known format ({', '.join(FORMATS)})"
        if name:
            expected = f"the format {name}"
        raise ValueError(f"no line has {expected}; the first line is {excerpt(sample[0])!r}")
    knows = {what for what in _MAYBE if any(getattr(line, what) is not None for line in lines)}
    return best._replace(knows=frozenset(knows))
