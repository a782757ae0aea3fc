"""`manage.py ratelimit replay` counts what a limit would have refused in access logs."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from django_ratelimit_lua import Limit
from django_ratelimit_lua.contrib.replay.refusals import count_refusals
from django_ratelimit_lua.contrib.replay.requests import KEYS, NAMES, TIMES, Requests, read_logs
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.store import get_store
from tests.examples import examples
from tests.support import reference_model

ROOT = Path(__file__).parents[3]
EXCERPT = ROOT / "tests" / "logs" / "nasa.tsv"
PAGE = ROOT / "docs" / "annexes" / "replay.rst"
SECOND = 1_000_000
ALGORITHMS = ["sliding_log", "sliding_window", "fixed_window", "token_bucket"]


def access(*lines: tuple[float, str, str], status: int = 200, agent: str = "curl") -> str:
    """Return a log of requests: second of a day, address, path."""
    written = []
    for second, address, target in lines:
        hour, rest = divmod(int(second), 3600)
        clock = f"22/Nov/2026:{hour:02}:{rest // 60:02}:{rest % 60:02} +0000"
        written.append(f'{address} - - [{clock}] "GET {target} HTTP/1.1" {status} 1 "-" "{agent}"')
    return "\n".join(written)


def report(*arguments: str) -> Any:
    """Return the report of a replay, and check that nothing is written on standard error."""
    out, errors = io.StringIO(), io.StringIO()
    call_command("ratelimit", "replay", *arguments, "--json", stdout=out, stderr=errors)
    assert errors.getvalue() == ""
    return json.loads(out.getvalue())


def rows(file: Path) -> list[tuple[str, int, str]]:
    """Return host, second and path of each request to NASA's web server."""
    columns = [row.split("\t") for row in file.read_text("latin-1").splitlines()[1:]]
    return [(column[0], int(column[2]), column[4]) for column in columns]


def common(requests: list[tuple[str, int, str]]) -> str:
    """Return requests as NASA's web server has logged them."""
    zone = timedelta(hours=-4)
    return "".join(
        f"{host} - - [{datetime.fromtimestamp(second, UTC) + zone:%d/%b/%Y:%H:%M:%S} -0400] "
        f'"GET {path} HTTP/1.0" 200 62\n'
        for host, second, path in requests
    )


def most(refused: Counter[str]) -> list[dict[str, object]]:
    ordered = sorted(refused.items(), key=lambda item: (-item[1], item[0]))
    return [{"client": client, "refused": count} for client, count in ordered[:10]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_replay_refuses_what_redis_refuses(algorithm: str, tmp_path: Path, prefix: str) -> None:
    """An excerpt of NASA's log of 1 July 1995 is replayed, and decided by the Lua program."""
    log = tmp_path / "access.log"
    log.write_text(common(rows(EXCERPT)))
    rates = ("2/m", "3/10s")
    found = report(str(log), "--rate", rates[0], "--rate", rates[1], "--algorithm", algorithm)
    for summary, rate in zip(found["rates"], rates, strict=True):
        limit = Limit(rate, rate, algorithm=algorithm)
        refused: Counter[str] = Counter()
        for host, second, _path in sorted(rows(EXCERPT), key=lambda row: row[1]):
            charge = Charge(limit, host.encode().hex().encode())
            call = Call([charge], prefix=prefix.encode(), now=second * SECOND)
            refused[host] += not get_store().decide(call).allowed
        assert refused.total()
        counts = {"refused": refused.total(), "clients_refused": len(+refused)}
        assert summary == {"rate": rate, **counts, "most_refused": most(+refused)}


@example_settings(max_examples=examples(200))
@given(
    algorithm=st.sampled_from(ALGORITHMS),
    rate=st.sampled_from(["0/s", "1/s", "2/s", "3/7s", "7/m", "10/s"]),
    gaps=st.lists(st.integers(0, 3 * SECOND) | st.integers(0, 10), min_size=1, max_size=60),
)
def test_the_refusals_are_those_of_the_model(algorithm: str, rate: str, gaps: list[int]) -> None:
    """For every algorithm and any moments, to the microsecond."""
    limit = Limit("replay", rate, algorithm=algorithm)
    model = reference_model.MODELS[algorithm](limit)
    now = 1_750_000_000 * SECOND
    moments = []
    refused = 0
    for gap in gaps:
        now += gap
        moments.append(now)
        refused += not reference_model.decide([model], "hit", now, 1).allowed
    assert count_refusals(limit, moments) == refused


LINES = [(each, f"192.0.2.{each % 3}", f"/page/{each % 2}/?id={each}") for each in range(9)]
DAY = "2026-11-22"


def json_log(line: str) -> str:
    """Return the log with a line for each second, address and path."""
    return "\n".join(line % request for request in LINES)


NGINX = json_log(
    '{"msec": "179530560%d.000", "remote_addr": "%s", "remote_user": "", '
    '"request": "GET %s HTTP/1.1"}'
)
CADDY = json_log('{"ts": 179530560%d.0, "request": {"remote_ip": "%s", "uri": "%s"}}')
TRAEFIK = json_log(
    '{"StartUTC": "2026-11-22T00:00:0%d.000000001Z", "time": "2026-11-22T00:01:00Z", '
    '"ClientHost": "%s", "RequestPath": "%s"}'
)
CADDY_ERROR = (
    '{"ts": 1795305600.0, "logger": "http.log.error.log0", '
    '"request": {"remote_ip": "192.0.2.0", "uri": "/page/0/"}}'
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
MEMBERS = st.sampled_from(["ts", "msec", "time", "ip", "user", "uri", "request", "logger"])


FORMATS = {
    "combined": access(*LINES),
    "common": access(*LINES).replace(' "-" "curl"', ""),
    "nginx": NGINX,
    "ISO 8601": NGINX.replace("msec", "time_iso8601").replace("1795305600.000", f"{DAY}T00:00:00"),
    "Caddy": CADDY,
    "Caddy errors": f"{CADDY}\n{CADDY_ERROR}",
    "common time": CADDY.replace("ts", "time_local").replace(
        "1795305604.0", '"22/Nov/2026:00:00:04 +0000"'
    ),
    "Traefik": TRAEFIK,
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_formats_have_equal_reports(
    name: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """A gzipped file is recognized under any name. The path has no query."""
    log = tmp_path / "access.log"
    log.write_bytes(pack(f"{FORMATS[name]}\n\n".encode()))
    expected: dict[str, object] = {"lines": 9, "unreadable": 0, "anonymous": 0, "requests": 9}
    expected |= {"key": "ip", "clients": 3, "algorithm": "sliding_log"}
    expected |= {"first": f"{DAY}T00:00:00Z", "last": f"{DAY}T00:00:08Z"}
    found = report(str(log), "--rate", "2/m")
    assert found.items() >= expected.items()
    assert found["rates"][0]["refused"] == 3
    by_path = report(str(log), "--rate", "2/m", "--key", "path")
    counts = (("/page/0/", 3), ("/page/1/", 2))
    expected = [{"client": path, "refused": refused} for path, refused in counts]
    assert by_path["rates"][0]["most_refused"] == expected


def common_line(
    client: str = "192.0.2.1 - -",
    time: str = "22/Nov/2026:00:00:00 +0000",
    request: str = "GET / HTTP/1.1",
) -> bytes:
    return f'{client} [{time}] "{request}" 200 1'.encode()


def json_line(**members: object) -> bytes:
    return json.dumps({"ts": 1795305600, "ip": "192.0.2.1", **members}).encode()


@pytest.mark.parametrize(
    ("line", "key", "client"),
    [
        (common_line("192.0.2.1 - John Doe"), "user", "John Doe"),
        (common_line("192.0.2.1 - a-b [x]"), "user", "a-b [x]"),
        (common_line(request="VERSION-CONTROL /a?b HTTP/1.1"), "path", "/a"),
        (common_line(time="31/Dec/2016:23:59:60 +0000"), "ip", "192.0.2.1"),
        (b"\xef\xbb\xbf" + common_line(), "ip", "192.0.2.1"),
        (b"\xef\xbb\xbf" + json_line(), "ip", "192.0.2.1"),
        (json_line(uri="/a b c?d"), "path", "/a b c"),
        (json_line(request="GET /a?b HTTP/1.1"), "path", "/a"),
        (json_line(remote_user="", user_id=7), "user", "7"),
        (json_line(ts=1795305600_000), "ip", "192.0.2.1"),
    ],
)
def test_a_line_is_a_request(line: bytes, key: str, client: str) -> None:
    """Users and decoded paths may contain blanks. A file may begin with a byte order mark."""
    requests = Requests(key)
    requests.add("log", [line])
    assert list(requests.group_by_client()) == [client]


CLIENTS = ("example.com:443 192.0.2.1 - -", "example.com:443 192.0.2.1 - ada", "192.0.2.1, ::1 - -")
COMMON_TIMES = (
    "2026-11-22T00:00:00+00:00",
    "31/Dec/1969:00:00:00 +0000",
    "01/Jan/2100:00:00:00 +0000",
    "22/Nov/9999:00:00:00 -2359",
    "22/Nov/2026:00:00:61 +0000",
)
JSON_NUMBERS = (-1, 4102444800, 1795305600_000_000_000, True)
JSON_TIMES = (
    "2100-01-01T00:00:00Z",
    "0001-01-01T00:00:00",
    "22/Nov/2026:00:00:61 +0000",
    "22/Nov/2026:00:00:00",
)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        *((common_line(request=text), "ip") for text in ("-", "\\x16\\x03\\x01")),
        *((common_line(client), "ip") for client in CLIENTS),
        *((common_line(time=time), "ip") for time in COMMON_TIMES),
        *((json_line(ts=time), "ip") for time in (*JSON_NUMBERS, *JSON_TIMES)),
        *((json_line(ip=client), "ip") for client in (True, "")),
        (json_line(user=True), "user"),
        (json_line(request="\x16\x03"), "path"),
    ],
)
def test_a_line_is_unreadable(line: bytes, key: str) -> None:
    """It has no request line or client, something before the address, or another time."""
    requests = Requests(key)
    requests.add("log", [line])
    assert (requests.unreadable, requests.lines) == (1, 1)


def test_the_first_mebibyte_of_a_line_is_read(tmp_path: Path) -> None:
    """The memory is bounded, whatever the length of a line."""
    log = tmp_path / "access.log"
    lines = [access(LINES[0]) + "x" * 2**25, "x" * 2**25, access(LINES[3])]
    log.write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    del lines
    tracemalloc.start()
    try:
        requests = read_logs([str(log)], "ip", lambda size, lines: None)
        _current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (requests.lines, requests.unreadable) == (3, 1)
    assert peak < 2**24


def test_requests_without_a_user_are_left_out(tmp_path: Path) -> None:
    """The report has their number."""
    log = tmp_path / "access.log"
    signed_in = [access(*LINES).replace(" - - ", " - ada "), NGINX.replace('user": ""', 'user": 7')]
    log.write_text("\n".join([access(*LINES), NGINX, CADDY, *signed_in]))
    found = report(str(log), "--rate", "2/m", "--key", "user")
    assert (found["lines"], found["anonymous"], found["requests"]) == (45, 27, 18)
    expected = [{"client": client, "refused": 7} for client in ("7", "ada")]
    assert found["rates"][0]["most_refused"] == expected


def test_addresses_are_masked_as_by_a_limit(tmp_path: Path, settings: Any) -> None:
    """An IPv6 client is its /64 network, or that of `RATELIMIT_IPV6_MASK`."""
    log = tmp_path / "access.log"
    log.write_text(access(*[(second, f"2001:db8::{second}", "/") for second in range(5)]))
    (summary,) = report(str(log), "--rate", "2/m")["rates"]
    assert summary["most_refused"] == [{"client": "2001:db8::/64", "refused": 3}]
    settings.RATELIMIT_IPV6_MASK = 128
    assert report(str(log), "--rate", "2/m")["clients"] == 5


def test_lines_and_files_may_have_any_order(tmp_path: Path) -> None:
    """The same requests are replayed in order, and shuffled over three files."""
    requests = rows(EXCERPT)
    log = tmp_path / "access.log"
    log.write_text(common(requests))
    expected = report(str(log), "--rate", "3/m")
    random.Random(1).shuffle(requests)
    names = []
    for part in range(3):
        (tmp_path / f"part.{part}").write_text(common(requests[part::3]))
        names.append(str(tmp_path / f"part.{part}"))
    assert report(*names, "--rate", "3/m") == expected


def test_json_is_ascii(tmp_path: Path) -> None:
    """Any terminal and any program can read it."""
    log = tmp_path / "access.log"
    log.write_bytes(common_line("192.0.2.1 - Zoë\u2028") + b"\n")
    out = io.StringIO()
    options = ("--rate", "0/m", "--key", "user", "--json")
    call_command("ratelimit", "replay", str(log), *options, stdout=out)
    assert out.getvalue().isascii()
    assert "Zoë\u2028" in str(json.loads(out.getvalue())["rates"][0]["most_refused"][0]["client"])


def test_the_table_has_a_row_for_each_rate(tmp_path: Path) -> None:
    """Unreadable lines are counted, and the first three shown without control characters."""
    log = tmp_path / "access.log"
    broken = ["\x1b[31mred", "{}", '{"ts": 1}', '192.0.2.1 - - [22/Nov/2026:00:00:00 +0000] "-"']
    lines = [(second, f"192.0.2.{second * second % 5}", "/") for second in range(50)]
    log.write_text("\n".join([access(*lines), *broken]))
    out, errors = io.StringIO(), io.StringIO()
    rates = ("--rate", "10/m", "--rate", "100/m", "--rate", "10/3650d")
    call_command("ratelimit", "replay", str(log), *rates, stdout=out, stderr=errors)
    assert out.getvalue().splitlines() == [
        "50 requests of 3 clients (key ip), 2026-11-22T00:00:00Z to 2026-11-22T00:00:49Z, "
        "sliding_log",
        "4 of 54 lines cannot be read",
        "",
        "rate      requests  refused   share  clients refused  most refused  client",
        "10/m            50       20  40.00%                2            10  192.0.2.1",
        "                                                                10  192.0.2.4",
        "100/m           50        0   0.00%                0",
        "10/3650d        50       20  40.00%                2            10  192.0.2.1",
        "                                                                10  192.0.2.4",
    ]
    broken = ("\\x1b[31mred", "{}", '{"ts": 1}')
    assert errors.getvalue().splitlines() == [f"unreadable: {log}: {line}" for line in broken]


def test_one_request_of_one_client_is_singular(tmp_path: Path) -> None:
    """The heading of the table uses the singular."""
    log = tmp_path / "access.log"
    log.write_text(access(LINES[0]))
    out = io.StringIO()
    call_command("ratelimit", "replay", str(log), "--rate", "2/m", stdout=out)
    assert out.getvalue().startswith("1 request of 1 client (key ip), ")


@example_settings(max_examples=examples(200))
@given(st.binary() | st.recursive(VALUES, lambda inner: st.dictionaries(MEMBERS, inner)))
def test_no_line_raises(line: Any) -> None:
    """Any line is a request, or is counted as unreadable or as empty."""
    if not isinstance(line, bytes):
        line = json.dumps(line).encode()
    for key in KEYS:
        requests = Requests(key)
        requests.add("log", [line])
        counted = sum(map(len, requests.group_by_client().values()))
        assert requests.lines == counted + requests.unreadable + requests.anonymous


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["missing.log", "--rate", "5/m"], "No such file or directory: 'missing.log'"),
        (["LOG", "--rate", "5/q"], "Rate '5/q': write"),
        (["LOG"], "required: --rate"),
        (["LOG", "--rate", "5/m", "--key", "id"], "choose from 'ip', 'user', 'path'"),
        (["LOG", "--rate", "10"], "--rate 10: add a period, as in 10/m"),
        *(
            (
                ["LOG", "--rate", "5/m", "--algorithm", name],
                "'sliding_log', 'sliding_window', 'fixed_window', 'token_bucket', 'gcra')",
            )
            for name in ("concurrency", "leaky_bucket")
        ),
    ],
)
def test_an_error_names_the_remedy(arguments: list[str], problem: str, tmp_path: Path) -> None:
    """The message names the option, the file or the value."""
    log = tmp_path / "access.log"
    log.write_text(access(*LINES))
    with pytest.raises(CommandError, match=re.escape(problem)):
        report(*[str(log) if word == "LOG" else word for word in arguments])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "0 of 0 lines cannot be read"),
        (access(*LINES), "0 of 9 lines cannot be read, and 9 have no user"),
    ],
    ids=["empty", "without users"],
)
def test_a_log_without_requests_is_an_error(text: str, problem: str, tmp_path: Path) -> None:
    """The message mentions users only if requests have none."""
    log = tmp_path / "access.log"
    log.write_text(text)
    with pytest.raises(CommandError) as caught:
        report(str(log), "--rate", "5/m", "--key", "user")
    assert str(caught.value) == f"there are no requests to count: {problem}"


CUT = gzip.compress(access(*LINES).encode())[:-9]


def test_the_lines_before_a_damage_can_be_replayed(tmp_path: Path) -> None:
    """The error has a command that unpacks them, whatever the name of the file."""
    log = tmp_path / "- the site's $log.gz"
    log.write_bytes(CUT)
    with pytest.raises(CommandError, match="is damaged: Compressed file ended") as caught:
        report(str(log), "--rate", "2/m")
    unpack = str(caught.value).split("`")[1]
    subprocess.run(unpack, shell=True, cwd=tmp_path, stderr=subprocess.DEVNULL, timeout=60)
    assert report(str(tmp_path / "readable.log"), "--rate", "2/m")["requests"] == 9


REPLAY = [sys.executable, "-m", "django", "ratelimit", "replay", "--rate", "2/m"]


def offline() -> dict[str, str]:
    """Return the environment of a process in a project without a server."""
    settings = "tests.contrib.replay.offline_settings"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "DJANGO_SETTINGS_MODULE": settings, "PYTHONPATH": paths}


def test_a_replay_of_standard_input_needs_no_server(tmp_path: Path) -> None:
    """A pipe gets no progress bar. The data may be gzipped."""
    data = gzip.compress(access(*LINES).encode())
    command = [*REPLAY, "-", "--json"]
    done = subprocess.run(command, input=data, capture_output=True, env=offline(), timeout=60)
    assert (done.stderr, done.returncode) == (b"", 0)
    assert json.loads(done.stdout)["rates"][0]["refused"] == 3


def test_a_terminal_shows_a_progress_bar(tmp_path: Path) -> None:
    """The bar is on standard error, and is removed at the end."""
    log = tmp_path / "access.log"
    log.write_text(access(*LINES * 400))
    terminal, end = pty.openpty()
    command = [*REPLAY, str(log), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, env=offline())
    os.close(end)
    shown = b""
    with suppress(OSError):  # The other side is closed.
        while data := os.read(terminal, 4096):
            shown += data
    os.close(terminal)
    out, _errors = process.communicate(timeout=60)
    assert json.loads(out)["requests"] == 3600
    assert re.fullmatch(rb"(\r\[#* *\] +\d+%  [\d,]+ lines)+\r\033\[K", shown)


@pytest.mark.parametrize("is_counting", [False, True], ids=["reading", "counting"])
def test_ctrl_c_ends_a_replay_without_a_traceback(is_counting: bool) -> None:
    """The process waits for more lines of a pipe, or counts for a long time."""
    rates = ["--rate", "2/m"] * 1000
    process = subprocess.Popen(
        [*REPLAY, *rates, "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=offline()
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(f"unreadable\n{access(*LINES * 2000)}\n".encode())
    process.stdin.flush()  # More than a pipe holds, so the process has begun to read.
    if is_counting:
        process.stdin.close()
        process.stdin = None
        assert process.stderr.readline() == b"unreadable: -: unreadable\n"
    process.send_signal(signal.SIGINT)
    _out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"CommandError: interrupted\n")


def test_damaged_standard_input_is_an_error() -> None:
    """The remedy names no file."""
    done = subprocess.run([*REPLAY, "-"], input=CUT, capture_output=True, env=offline(), timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(b"CommandError: standard input is damaged: ")
    assert done.stderr.endswith(b"unpack it with `gzip -dc` in the pipe\n")


@pytest.mark.parametrize("is_full", [False, True], ids=["closed pipe", "full disk"])
def test_a_report_that_cannot_be_written_is_no_traceback(is_full: bool) -> None:
    """If the reader has closed the pipe, the replay ends. A full disk is an error."""
    reader, writer = os.pipe()
    os.close(reader)
    expected: tuple[int, bytes] = (0, b"")
    if is_full:
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)
        problem = b"CommandError: the report cannot be written: [Errno 28] No space left on device"
        expected = (1, problem + b"\n")
    data, pipe = access(*LINES).encode(), subprocess.PIPE
    command = [*REPLAY, "-"]
    done = subprocess.run(command, input=data, stdout=writer, stderr=pipe, env=offline())
    os.close(writer)
    assert (done.returncode, done.stderr) == expected


def test_the_page_documents_the_report(tmp_path: Path) -> None:
    """It names every member of the JSON, and all that is read from JSON logs."""
    log = tmp_path / "access.log"
    log.write_text(access(*LINES))
    found = report(str(log), "--rate", "2/m")
    (summary,) = found["rates"]
    names = {*found, *summary, *summary["most_refused"][0], *TIMES, *sum(NAMES.values(), ())}
    assert names <= set(re.findall(r"``([\w@]+)``", PAGE.read_text()))
