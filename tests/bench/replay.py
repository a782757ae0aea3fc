"""The lines of a log that a replay reads and decides in a second."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from django.core.management import call_command

LINES = 200_000
CLIENTS = 5_000
PER_SECOND = 50
AGENT = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 "
    "Safari/537.36"
)
RATES = ("--rate", "5/m", "--rate", "10/m", "--rate", "20/m")


def _lines() -> Iterator[str]:
    for number in range(LINES):
        hour, rest = divmod(number // PER_SECOND % 86_400, 3600)
        clock = f"22/Nov/2026:{hour:02}:{rest // 60:02}:{rest % 60:02} +0000"
        client = number * number * 7919 % CLIENTS
        yield (
            f"10.0.{client >> 8}.{client & 255} - - [{clock}] "
            f'"GET /shop/{number * 31 % 997}/?page={number % 9} HTTP/1.1" 200 512 "-" "{AGENT}"\n'
        )


def bench_replay() -> None:
    """Print the lines per second, of the CPU time of this process, with three rates."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "access.log")
        log.write_text("".join(_lines()))
        print(f"{'a replay with three rates':26}{'lines/s':>10}")
        for algorithm in ("sliding_log", "sliding_window", "token_bucket"):
            begin = time.process_time()
            with open(Path(folder, "report"), "w") as report:
                call_command(
                    "ratelimit", "replay", str(log), *RATES, "--algorithm", algorithm, stdout=report
                )
            print(f"{algorithm:26}{LINES / (time.process_time() - begin):10,.0f}")
    print("aim: at least 100,000\n")
