"""What a line of a log costs to replay, and what a replay keeps in memory."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django_ratelimit_lua.contrib.replay import Log, replay
from django_ratelimit_lua.contrib.replay.reading import Reading, ordered
from django_ratelimit_lua.rules.rule import compile_rule
from django_ratelimit_lua.rules.ruleset import Ruleset
from django_ratelimit_lua.store import store_at
from tests.server import url

LINES, ADDRESSES = 60_000, 5_000
PER_SECOND = 50
AGENT = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 "
    "Safari/537.36"
)
CASES: dict[str, dict[str, Any]] = {
    "a sliding window": {},
    "a token bucket": {"algorithm": "token_bucket"},
    "a sliding log": {"algorithm": "sliding_log"},
    "by the user agent": {"key": "header:User-Agent"},
    "with the refusal curve": {"draws": True},
}


def _lines(count: int) -> Iterator[str]:
    for number in range(count):
        hour, rest = divmod(number // PER_SECOND % 86_400, 3600)
        clock = f"22/Nov/2026:{hour:02}:{rest // 60:02}:{rest % 60:02} +0000"
        who = number * 7919 % ADDRESSES
        path = f"/shop/{number * 31 % 997}/?page={number % 9}"
        yield (
            f'10.0.{who >> 8}.{who & 255} - - [{clock}] "GET {path} HTTP/1.1" 200 512 "-" '
            f'"{AGENT}"\n'
        )


def _log(folder: str, count: int) -> str:
    file = Path(folder, f"{count}.log")
    with file.open("w") as written:
        written.writelines(_lines(count))
    return str(file)


def _replayed(name: str, draws: bool = False, **given: Any) -> tuple[float, float, int]:
    """Seconds by the wall and of this process's CPU; the most bytes at once, where that
    is traced."""
    rule = compile_rule({"name": "r", "path": "/", "key": "ip", "rate": "60/m", **given})
    store, log = store_at(url()), Log(name)
    wall, cpu = time.perf_counter(), time.process_time()
    replayed = replay([log], Ruleset([rule]), store, draws=draws)
    taken = time.perf_counter() - wall, time.process_time() - cpu
    log.close()
    store.close()
    return *taken, replayed.met


def bench_replay() -> None:
    """Lines a second, and memory by the number of lines."""
    with tempfile.TemporaryDirectory() as folder:
        name = _log(folder, LINES)
        began = time.process_time()
        log, reading = Log(name), Reading()
        for _pair in ordered([log], reading):
            pass
        log.close()
        read = time.process_time() - began
        print(f"{'a replay':26}{'lines/s':>10}{'CPU µs a line':>15}{'x reading':>11}")
        print(
            f"{'reading and sorting alone':26}{LINES / read:10,.0f}{read / LINES * 1e6:15.1f}{1:11.2f}"  # noqa: E501
        )
        for case, options in CASES.items():
            wall, cpu, lines = min(_replayed(name, **options) for _ in range(3))
            print(f"{case:26}{lines / wall:10,.0f}{cpu / lines * 1e6:15.1f}{cpu / read:11.2f}")
        print("aim: at least 30,000 lines a second per core with one rule\n")
        print(f"{'memory of a replay':26}{'lines':>10}{'MiB at most':>15}")
        for count in (LINES, 4 * LINES):
            many = _log(folder, count)
            tracemalloc.start()
            _replayed(many)
            most = tracemalloc.get_traced_memory()[1] / 2**20
            tracemalloc.stop()
            print(f"{f'{ADDRESSES:,} addresses':26}{count:10,}{most:15.1f}")
        print("aim: the same for more lines of the same addresses\n")
