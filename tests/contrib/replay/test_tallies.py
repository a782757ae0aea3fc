"""The formats and the order of logs, and the curve that a single pass draws, without a server or a
database.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua import Limit
from django_ratelimit_lua.contrib.replay import Log, UnreadableLogError
from django_ratelimit_lua.contrib.replay import reading as reading_module
from django_ratelimit_lua.contrib.replay import refusal_counter as places_module
from django_ratelimit_lua.contrib.replay.formats import (
    MAX_LINE,
    LogLine,
    alb,
    columns,
    combined,
    format_of,
    json_object,
    moment_of,
)
from django_ratelimit_lua.contrib.replay.planning import LinePlanner, why_unseen
from django_ratelimit_lua.contrib.replay.reading import Reading, ordered, sorted_lines
from django_ratelimit_lua.contrib.replay.refusal_counter import RefusalCounter
from django_ratelimit_lua.contrib.replay.requests import LoggedRequest, client_of
from django_ratelimit_lua.identity.keys import Key
from django_ratelimit_lua.rules.rule import compile_rule
from django_ratelimit_lua.rules.ruleset import Ruleset

SECOND = 1_000_000
COMBINED = (
    r'2001:db8::7 - - [22/Nov/2026:03:00:42 +0100] "GET /a%20b?q=1 HTTP/1.1" 429 12 '
    r'"https://x.example/" "say \"hi\" \\ \x22"'
)
CADDY = json.dumps(
    {
        "level": "info",
        "ts": 1646861401.5241024,
        "logger": "http.log.access",
        "msg": "handled request",
        "request": {
            "remote_ip": "10.0.0.1",
            "remote_port": "41342",
            "client_ip": "203.0.113.9",
            "proto": "HTTP/2.0",
            "method": "GET",
            "host": "localhost",
            "uri": "/x?y=1",
            "headers": {
                "User-Agent": ["curl/7.82.0"],
                "X-Api-Key": ["k1"],
                "X-Forwarded-For": ["203.0.113.9"],
            },
        },
        "bytes_read": 0,
        "user_id": "",
        "duration": 0.000929675,
        "size": 10900,
        "status": 200,
    }
)
NGINX = json.dumps(
    {
        "time_iso8601": "2026-11-22T03:00:42+00:00",
        "remote_addr": "192.0.2.1",
        "remote_user": "ada",
        "request": "POST /login/ HTTP/1.1",
        "status": "302",
        "http_referer": "-",
        "http_user_agent": "curl",
        "request_time": "0.250",
        "http_x_forwarded_for": "198.51.100.7",
        "host": "shop.example",
    }
)
ALB = (
    "h2 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 "
    "10.0.0.1:80 0.001 0.048 "
    '0.037 200 200 0 57 "GET https://www.example.com:443/a HTTP/2.0" "curl/7.46.0" '
    "ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 "
    "arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "
    '"Root=1-58337327-72bd00b0343d75b906739c42" "www.example.com" '
    '"arn:aws:acm:us-east-2:1:certificate/12" 1 '
    '2018-07-02T22:22:48.364000Z "waf,forward" "-" "-" "10.0.0.66:9000" "200" "-" "-"'
)


def line(second: float, address: str = "192.0.2.1", whole: bool = True) -> LogLine:
    return LogLine(round(second * SECOND), whole, address, "GET", "/", 200)


def test_a_line_of_the_combined_format_is_parsed() -> None:
    """The line has an IPv6 address, a time zone, escaped quotes and backslashes."""
    found = combined(COMBINED)
    assert found is not None
    assert (found.moment, found.is_whole, found.address) == (
        1795312842 * SECOND,
        True,
        "2001:db8::7",
    )
    assert (found.method, found.target, found.status, found.user) == ("GET", "/a%20b?q=1", 429, "")
    assert (found.referer, found.agent) == ("https://x.example/", 'say "hi" \\ "')


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ("", (None, None)),
        (" 0.005", (None, None)),
        (' "203.0.113.9, 10.0.0.1"', ("203.0.113.9, 10.0.0.1", None)),
        (' "-" rt=1.5 uct="0.1" "shop.example"', ("", "shop.example")),
        (' "shop.example" "2001:db8::1" 0.250', ("2001:db8::1", "shop.example")),
    ],
)
def test_additional_columns_of_the_combined_format_are_found(
    behind: str, expected: tuple[Any, ...]
) -> None:
    """They are `X-Forwarded-For` and the host, among other columns."""
    found = combined(COMBINED + behind)
    assert found is not None
    assert (found.forwarded, found.host) == expected


def test_a_leading_virtual_host_is_detected_by_the_first_lines() -> None:
    """A user name with a space is not taken for a virtual host."""
    plain = '192.0.2.1 - ada lovelace [01/Jul/1995:00:00:01 -0400] "GET / HTTP/1.0" 200 62'
    form = format_of([plain])
    found = form.read(plain)
    assert found is not None
    assert (found.address, found.user, found.agent, "agent" in form.knows) == (
        "192.0.2.1",
        "ada lovelace",
        None,
        False,
    )
    form = format_of([f"shop.example:443 {COMBINED}"] * 3)
    found = form.read(f"shop.example:443 {COMBINED}")
    assert found is not None
    assert (found.host, found.address) == ("shop.example:443", "2001:db8::7")
    assert form.knows == {"host", "agent", "referer"}


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        ("-", ("", "")),
        ("", ("", "")),
        (r"\x16\x03\x01\x02", ("", "")),
        ("GET /old", ("GET", "/old")),
        ("OPTIONS * HTTP/1.1", ("OPTIONS", "*")),
        ("get http://shop.example/a HTTP/1.1", ("GET", "/a")),
    ],
)
def test_a_line_without_a_request_is_not_broken(
    request_line: str, expected: tuple[str, str]
) -> None:
    """The line of a port scan or of an interrupted client has no method and no target."""
    found = combined(f'192.0.2.1 - - [01/Jul/1995:00:00:01 -0400] "{request_line}" 400 0 "-" "-"')
    assert found is not None
    assert (found.method, found.target) == expected


def test_objects_of_caddy_and_nginx_are_parsed() -> None:
    """All logged headers are read, and times to the microsecond if the log has them."""
    found = json_object(CADDY)
    assert found is not None
    assert (found.moment, found.is_whole) == (1646861401_524102, False)
    assert (found.address, found.target, found.host, found.agent) == (
        "203.0.113.9",
        "/x?y=1",
        "localhost",
        "curl/7.82.0",
    )
    assert (found.headers or {})["X-Api-Key"] == "k1"
    assert "headers" in format_of([CADDY]).knows
    found = json_object(NGINX)
    assert found is not None
    assert (found.moment, found.method, found.target, found.user) == (
        1795316442 * SECOND,
        "POST",
        "/login/",
        "ada",
    )
    assert (found.status, found.forwarded, found.referer) == (302, "198.51.100.7", "")
    assert found.host == "shop.example"


def test_a_line_of_an_aws_load_balancer_is_parsed() -> None:
    """Its moment is the time at which the request arrived."""
    found = alb(ALB)
    assert found is not None
    assert (found.moment, found.is_whole) == moment_of("2018-07-02T22:22:48.364000Z")
    assert (found.address, found.method, found.target, found.host) == (
        "192.168.131.39",
        "GET",
        "/a",
        "www.example.com",
    )
    assert (found.agent, found.status) == ("curl/7.46.0", 200)
    assert format_of([ALB]).name == "alb"


def test_columns_are_found_by_their_names() -> None:
    """The first line names the columns. `host` is the client if no other column has its address."""
    read = columns("host\tlogname\ttime\tmethod\turl\tresponse\tbytes")
    found = read("unicomp6.unicomp.net\t-\t804571206\tGET\t/shuttle/\t200\t3985")
    assert found is not None
    assert (found.address, found.moment, found.target, found.host) == (
        "unicomp6.unicomp.net",
        804571206 * SECOND,
        "/shuttle/",
        None,
    )


ANY_TEXT = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*COMBINED, *'"\\[]{}-:/ \t', "HTTP/1.1", "\x00", "٣", "\ud800"])).map(
        "".join
    ),
    st.sampled_from([COMBINED, CADDY, NGINX, ALB]).flatmap(
        lambda text: st.tuples(
            st.integers(0, len(text)), st.integers(0, len(text)), st.text(max_size=5)
        ).map(lambda cut: text[: cut[0]] + cut[2] + text[cut[1] :])
    ),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["request", "headers", "ts", "host", "uri"]), inner)
        ),
    ).map(json.dumps),
    st.tuples(
        st.sampled_from([CADDY, NGINX]),
        st.integers(0, 9),
        st.sampled_from(["\\ud800", "\\uDFFF%41", "\\\\ud800"]),
    ).map(
        lambda put: '"'.join(
            part + put[2] * (number % 10 == put[1]) for number, part in enumerate(put[0].split('"'))
        )
    ),
).map(
    lambda text: text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
)  # As bytes are read.


def test_a_time_without_a_known_zone_is_read_as_utc() -> None:
    """A zone of -0000 is UTC, and so is a missing zone."""
    expected = (804571201 * SECOND, True)
    for text in ("01/Jul/1995:04:00:01 -0000", "1995-07-01T04:00:01", "1995-07-01 04:00:01Z"):
        assert moment_of(text) == expected


@given(ANY_TEXT)
def test_no_line_makes_a_parser_raise(text: str) -> None:
    """Any text is a line or a broken line, and a parsed line provides every value that a rule
    reads.
    """
    for read in (
        combined,
        json_object,
        alb,
        columns("time\thost\turl"),
        format_of([COMBINED]).read,
    ):
        found = read(text)
        if found is not None:
            request = LoggedRequest(found, client_of(found, 1))
            assert isinstance(request.path_info, str)
            assert request.META["REMOTE_ADDR"]
            request.GET.get("q")
            assert found.moment >= 0
            assert found.method == "" or found.target
            assert repr((*found[:-2], request.META, request.path)).encode()
            assert str(found).encode()


PIECES = (
    " ",
    "\t ",
    '"',
    '" "',
    ' "',
    '"" ',
    "\\",
    '\\"',
    '\\\\"',
    '" \\',
    "[",
    "[]",
    "{",
    '{"a":',
    "(",
    "-",
    " -",
    "1",
    "1.",
    ",",
    " 1,",
    "%",
    "/",
    "://",
    "a",
    "a ",
    "x\t",
    "é",
    "٣",
    ' "a',
    ' "1.1.1.1"',
    " rt=1",
    ' [01/Jul/1995:00:00:01 -0400] "',
    " [01/Jul/1995:",
)


@pytest.mark.parametrize("piece", PIECES)
def test_parsing_a_line_takes_linear_time(piece: str) -> None:
    """For 64 KiB of any piece at any place, eight times the length takes less than 24 times the
    time.
    """
    behind, before = COMBINED + ' 1 "', COMBINED.partition("GET")[0]
    at_agent, at_user = COMBINED.rpartition('"')[0], COMBINED.partition("[")[0]
    places: list[Callable[[str], str]] = [
        lambda filling: filling,
        lambda filling: COMBINED + filling,
        lambda filling: f"{behind}{filling}",
        lambda filling: f"{before}{filling}",
        lambda filling: f"{before}{filling}{COMBINED.partition('GET')[2]}",
        lambda filling: f"{at_agent}{filling}",
        lambda filling: f"{at_user}{filling}",
        lambda filling: f"{ALB}{filling}",
        lambda filling: ALB.replace("GET", f"GET{filling}"),
        lambda filling: ALB.replace("curl", filling),
        lambda filling: NGINX.replace("/login/", filling),
        lambda filling: CADDY.replace('["k1"]', f"[{filling}"),
    ]
    readers = (
        combined,
        format_of([f"h {COMBINED}"]).read,
        json_object,
        alb,
        columns("time\thost\turl"),
    )

    def taken(text: str) -> float:
        began = time.process_time()
        for read in readers:
            read(text)
        return time.process_time() - began

    for place in places:
        small, large = (
            place(piece * (size // len(piece)))[:MAX_LINE] for size in (MAX_LINE // 8, MAX_LINE)
        )
        quick = min(taken(small) for _ in range(3))
        assert any(taken(large) < max(0.02, 24 * quick) for _ in range(3)), place(piece)


@given(st.lists(ANY_TEXT, min_size=1))
def test_a_log_format_is_detected_or_an_error_asks_for_it(sample: list[str]) -> None:
    """Any other text raises a `ValueError`."""
    with suppress(ValueError):
        form = format_of(sample)
        assert any(form.read(text) is not None for text in sample)


@given(st.binary())
def test_a_log_of_invalid_bytes_raises_only_unreadable_log_error(data: bytes) -> None:
    """Zeros, a truncated gzip file and an endless line raise no other error."""
    for content in (data, b"\x1f\x8b" + data, gzip.compress(data)[: len(data) + 5]):
        with suppress(UnreadableLogError):
            log = Log("bytes", file=io.BytesIO(content))
            assert all(isinstance(each, LogLine) for each in log.lines(Reading()))


def held_open(name: str, data: bytes) -> tuple[Log, io.BytesIO]:
    file = io.BytesIO(data)
    return Log(name, file=file), file


@pytest.mark.parametrize(
    "one",
    [
        "",
        "broken",
        COMBINED.replace("GET", "-").replace("/a", "-"),
        COMBINED,
        "x" * 70_000,
        "\0" * 300_000,
    ],
)
def test_a_waiting_call_is_retried_after_a_bounded_number_of_lines(one: str) -> None:
    """The callback is called after some ten thousand lines or some MiB. An exception of the
    callback ends the reading.
    """
    count = 35_000 if len(one) < 1000 else reading_module.SAMPLE + 20 * 2**20 // len(one)
    log, file = held_open(
        "log", gzip.compress(f"{COMBINED}\n".encode() + f"{one}\n".encode() * count, 1)
    )
    looks = itertools.count()
    reading = Reading(look=lambda: next(looks) and None)
    for _ in ordered([log], reading):
        pass
    assert 3 <= next(looks) <= 15

    def enough() -> None:
        raise StopAsyncIteration  # Which nothing else raises here.

    log.close()
    file.seek(0)
    log = Log("log", file=file)
    with pytest.raises(StopAsyncIteration):
        list(ordered([log], Reading(look=enough)))


@contextmanager
def memory() -> Iterator[Callable[[], tuple[int, int]]]:
    """Yield a function that returns the bytes in use since the start, and the maximum."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: (
            tracemalloc.get_traced_memory()[0] - before,
            tracemalloc.get_traced_memory()[1] - before,
        )
    finally:
        tracemalloc.stop()


def test_long_values_are_not_stored() -> None:
    """Lines with invalid times and addresses are broken. Paths and user agents are read, but not
    kept.
    """
    planner = LinePlanner(
        Ruleset([compile_rule({"name": "r", "path": "/", "key": "ip", "rate": "5/m"})]),
        frozenset(),
        1,
    )
    long = "x" * 50_000

    def lines(number: int) -> list[str]:
        asked = f'"GET /{number}{long} HTTP/1.1" 200 1 "-" "{number}{long}"'
        clock = "[01/Jul/1995:00:00:01 -0400]"
        tell = {"ts": 1, "remote_addr": "::1", "request": f"GET /{number}{long}", "status": 200}
        return [
            f"{number}{long} - - {clock} {asked}",
            f"192.0.2.1 - - {clock} {asked}",
            f"192.0.2.1 - {number}{long} {clock} {asked}",
            f'192.0.2.1 - - {clock} {asked} "{number}{long}, {number}{long}"',
            json.dumps({**tell, "ts": f"{number}{long}"}),
            json.dumps({**tell, "ts": "1" * 50_000 + str(number)}),
            json.dumps({**tell, "remote_addr": f"{number}{long}"}),
            json.dumps({**tell, "user": f"{number}{long}"}),
            json.dumps(tell),
            ALB.replace("192.168.131.39", f"{number}{long}"),
            ALB.replace("2018-07-02T22:22:48", f"{number}{long}"),
        ]

    def taken(number: int) -> int:
        count = 0
        for text in lines(number):
            for read in (combined, json_object, alb):
                found = read(text)
                if found is not None:
                    assert planner.plan(found)
                    count += 1
        return count

    assert taken(0) == 3
    with memory() as used:
        for number in range(1, 100):
            taken(number)
        assert used()[0] < 2 * 2**20


def test_broken_lines_are_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    """Broken lines do not stop a replay. A gzipped file is detected under any name."""
    file = tmp_path / "access.log"
    file.write_bytes(
        gzip.compress(
            "\n".join([COMBINED, "nonsense", "", COMBINED, "\x00", "a", "b", "c"]).encode()
        )
    )
    log, found = Log(str(file)), Reading()
    assert len(list(log.lines(found))) == 2
    log.close()
    assert (found.lines, found.broken) == (7, 5)
    assert [(broken.number, broken.text) for broken in found.shown] == [
        (2, "nonsense"),
        (5, "\x00"),
        (6, "a"),
    ]


def test_a_gzipped_log_is_read_up_to_the_damage() -> None:
    """The complete lines before the damage are read, and the rest is not a broken line."""
    written = [
        COMBINED.replace("q=1", f"q={random.Random(number).getrandbits(256):x}")
        for number in range(3000)
    ]
    packed = gzip.compress("".join(f"{one}\n" for one in written).encode())

    def read(data: bytes) -> tuple[list[str], Reading]:
        log, found = Log("access.log.gz", file=io.BytesIO(data)), Reading()
        return [line.target for line in log.lines(found)], found

    whole, found = read(packed)
    assert (len(whole), found.ended) == (3000, [])
    for end in (1000, len(packed) // 2, len(packed) - 999):
        lines, found = read(packed[:end])
        assert 0 < len(lines) < 3000
        assert lines == whole[: len(lines)]
        assert found.broken == 0
        assert f"access.log.gz: the file ends in the middle of line {len(lines)};" in found.ended[0]
    assert "the file ends in the middle of line 0;" in read(packed[:12])[1].ended[0]
    half = len(packed) // 2
    lines, found = read(packed[:half] + b"\xff" * 64 + packed[half + 64 :])
    assert 0 < len(lines) < 3000
    assert lines == whole[: len(lines)]
    assert [f"the file is damaged after line {len(lines)} (" in end for end in found.ended] == [
        True
    ]
    lines, found = read(packed + b"and no more of it")
    assert lines == whole
    assert "the file is damaged after line 3000 (Not a gzipped file" in found.ended[0]


def test_lines_are_sorted_within_a_window_and_later_ones_are_counted() -> None:
    """A later line gets the time of the line before it, so no time decreases."""
    found = Reading()
    moments = [5, 1, 2, 4, 3, 6, 8, 7, 0]
    pairs = list(sorted_lines([line(second) for second in moments], found, window=3))
    assert [moment // SECOND for moment, _ in pairs] == sorted(
        moment // SECOND for moment, _ in pairs
    )
    assert found.late > 0
    assert Counter(each.moment for _, each in pairs) == Counter(
        second * SECOND for second in moments
    )
    assert found.late == sum(moment != each.moment for moment, each in pairs)
    found = Reading()
    pairs = list(sorted_lines([line(second) for second in moments], found, window=9))
    assert ([moment for moment, _ in pairs], found.late) == (
        [second * SECOND for second in sorted(moments)],
        0,
    )


def test_lines_of_one_second_are_spread_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of spread lines is counted. Lines with fractions of a second keep their time."""

    class Source:
        def __init__(self, *lines: LogLine) -> None:
            self._lines = lines

        def lines(self, reading: Reading) -> Any:
            return iter(self._lines)

    found = Reading()
    first = Source(line(1), line(1), line(2))
    second = Source(line(1), line(1.4, whole=False), line(1))
    pairs = list(ordered([first, second], found))  # type: ignore[list-item]
    assert [moment for moment, _ in pairs] == [
        1_000_000,
        1_250_000,
        1_400_000,
        1_500_000,
        1_750_000,
        2_000_000,
    ]
    assert found.spread == 4
    found = Reading()
    pairs = list(ordered([first, second], found, spread=False))  # type: ignore[list-item]
    assert [moment for moment, _ in pairs] == [
        SECOND,
        SECOND,
        SECOND,
        SECOND,
        1_400_000,
        2 * SECOND,
    ]
    assert found.spread == 0
    monkeypatch.setattr(reading_module, "MAX_SPREAD", 3)
    moments = [moment for moment, _ in ordered([Source(*[line(1)] * 8, line(3))], Reading())]  # type: ignore[list-item]
    assert moments == sorted(moments)
    assert moments[-2] < 2 * SECOND
    assert len(moments) == 9


@pytest.mark.parametrize(
    ("given_rule", "reason"),
    [
        ({"key": "ip"}, ""),
        ({"key": "header:User-Agent"}, ""),
        ({"key": ["ip", "get:q"]}, ""),
        ({"key": "route"}, ""),
        ({"key": "post:username"}, "post:username, which no log contains"),
        ({"key": ["ip", "json:a.b"]}, "json:a.b"),
        ({"key": "cookie:c"}, "cookie:c"),
        ({"key": "session"}, "session"),
        ({"key": "header:X-API-Key"}, "header"),
        ({"key": "exact:header:Host"}, "header"),
        ({"key": "ip", "audience": "staff"}, "staff"),
        ({"key": "ip", "audience": ["group:gold"]}, "group:gold"),
        ({"key": "ip", "group": "login"}, "login"),
        ({"key": lambda group, request: "x"}, "lambda"),
        ({"key": ["ip", "tenant"]}, "tenant"),
        ({"key": "shop"}, ""),
    ],
)
def test_rules_that_need_values_missing_in_the_log_are_left_out(
    given_rule: dict[str, Any], reason: str, settings: Any
) -> None:
    """The reason names the value."""
    settings.RATELIMIT_KEYS = {"tenant": len, "shop": Key("shop", len, known_to_proxies=True)}
    rule = compile_rule({"name": "r", "path": "/", "rate": "5/m", **given_rule})
    found = why_unseen(rule, frozenset({"agent"}))
    assert reason in found
    assert bool(found) == bool(reason)
    if "header" in reason:
        assert not why_unseen(rule, frozenset({"headers"}))


def slow_curve(moments: list[int], limit: int, period: int) -> int:
    """Return the number of refusals of a sliding log, by its definition."""
    admitted: deque[int] = deque()
    refused = 0
    for moment in moments:
        while admitted and admitted[0] <= moment - period:
            admitted.popleft()
        if len(admitted) < limit:
            admitted.append(moment)
        else:
            refused += 1
    return refused


@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from("ab"))))
def test_one_pass_computes_the_refusals_of_every_limit(hits: list[tuple[int, str]]) -> None:
    """Refused requests and identities are exact for every limit."""
    hits.sort()
    counter = RefusalCounter(Limit("x", "5/m", algorithm="sliding_log"))
    for second, who in hits:
        assert counter.add(who.encode(), second * SECOND)
    curve = counter.curve()
    by_who = [[second for second, one in hits if one == who] for who in {who for _, who in hits}]
    for limit in range(len(hits) + 2):
        refused = [slow_curve(moments, limit, 60) for moments in by_who]
        point = curve.at(limit)
        assert (point.requests.most, point.people.most) == (
            sum(refused),
            sum(1 for count in refused if count),
        )


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "fixed_window"},
        {"algorithm": "sliding_window"},
        {"algorithm": "fixed_window", "align": "day"},
    ],
)
def test_the_memory_of_a_curve_does_not_grow_with_lines(options: dict[str, Any]) -> None:
    """Hits that end together are stored as one entry, for one or several identities."""
    counter = RefusalCounter(Limit("x", "100000/d", **options))
    with memory() as used:
        for number in range(50_000):
            assert counter.add(b"%d" % (number * number % 7 % 3), number * SECOND)
        assert used()[1] < 2**20
    assert counter.curve().requests == 50_000


@given(
    hits=st.lists(st.tuples(st.integers(1, 40), st.sampled_from("aab")), max_size=200),
    algorithm=st.sampled_from(["sliding_log", "sliding_window", "fixed_window"]),
)
def test_a_curve_is_the_same_after_dropping_entries(
    hits: list[tuple[int, str]], algorithm: str
) -> None:
    """The curves are equal, unless there is no room for a further hit."""
    small, large = (RefusalCounter(Limit("x", "5/m", algorithm=algorithm)) for _ in range(2))
    most, second = places_module.MAX_RUNS, 0
    for wait, who in hits:
        second += wait
        places_module.MAX_RUNS = 12
        try:
            has_room = small.add(who.encode(), second * SECOND)
        finally:
            places_module.MAX_RUNS = most
        assert large.add(who.encode(), second * SECOND)
        if not has_room:
            return
    assert small.curve().points() == large.curve().points()


def test_a_curve_that_needs_too_much_memory_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not drawn if too many hits count at the same time, for one identity or for all. Hits
    that have ended do not matter.
    """
    monkeypatch.setattr(places_module, "MAX_RUNS", 1000)
    log = RefusalCounter(Limit("x", "100000/d", algorithm="sliding_log"))
    assert [log.add(b"a", number * SECOND) for number in range(1001)] == [True] * 1000 + [False]
    log = RefusalCounter(Limit("x", "100000/d", algorithm="sliding_log"))
    assert [log.add(b"%d" % number, number * SECOND) for number in range(1001)] == [True] * 1000 + [
        False
    ]
    window = RefusalCounter(Limit("x", "100000/d", algorithm="fixed_window"))
    assert [window.add(b"a", SECOND) for _ in range(1001)] == [True] * 1000 + [False]
    minutes = RefusalCounter(Limit("x", "100000/m", algorithm="sliding_log"))
    assert all(minutes.add(b"%d" % (number % 7), number * SECOND) for number in range(5000))


def test_a_curve_with_many_steps_is_thinned() -> None:
    """The first and the last point are kept."""
    counter = RefusalCounter(Limit("x", "10000/d", algorithm="fixed_window"))
    assert all(counter.add(b"a", SECOND) for _ in range(5000))
    curve = counter.curve()
    points = curve.points()
    assert len(points) <= 203
    assert [(point.limit, point.requests.most) for point in (points[0], points[-1])] == [
        (0, 5000),
        (12500, 0),
    ]
