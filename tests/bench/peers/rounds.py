"""The cost of a hit: every limiter in turn, in several rounds, and the median of each number.

A round is a hit of each identity, one after the other.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import django

from tests.bench.measure import DIRECT
from tests.bench.peers.limiters import LIMITERS, AsyncDecide, Decide, Limiter

IDENTITIES = [f"10.0.{number >> 8}.{number & 255}" for number in range(1000)]
PROCESSES, PROCESS_SECONDS = 8, 1.0


class Cost(NamedTuple):
    """The cost of a hit in microseconds, and its round trips.

    `client` and `server` are CPU times, and `commands` is the server's time in commands.
    """

    p50: float
    p99: float
    client: float
    server: float
    commands: float
    trips: float

    def beyond(self, view: Cost) -> Cost:
        """Return the cost beyond a view. Its p99 is compared with the p50 of the view."""
        return Cost(
            *(more - less for more, less in zip(self, view._replace(p99=view.p50), strict=True))
        )


class Footprint(NamedTuple):
    """The memory and the number of keys of an identity in Redis."""

    bytes_of_one: float
    bytes_of_ten: float
    keys: float


class Rate(NamedTuple):
    """Hits a second, and microseconds of CPU for one."""

    per_second: float
    client: float
    server: float


Turn = TypeVar("Turn")
Failed = str
"""The reason for missing numbers."""


class Refused(Exception):  # noqa: N818 - it is an answer
    """A hit was refused that all limits have room for."""


def _from(turn: int, all_of_them: list[Turn]) -> list[Turn]:
    """Return the list rotated by the number of the round."""
    at = turn * 5 % max(len(all_of_them), 1)
    return all_of_them[at:] + all_of_them[:at]


def server_cpu() -> float:
    """Return the CPU seconds of the server."""
    used = DIRECT.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def failure(error: Exception) -> Failed:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:100]


# One process


def _round(
    decide: Decide, identities: Sequence[str], trips: float, commands: frozenset[str]
) -> Cost:
    took, clock = [], time.perf_counter_ns
    DIRECT.config_resetstat()
    used, cpu = server_cpu(), time.process_time()
    for identity in identities:
        started = clock()
        admitted = decide(identity)
        took.append(clock() - started)
        if not admitted:
            raise Refused(identity)
    cpu, used = time.process_time() - cpu, server_cpu() - used
    stats = DIRECT.info("commandstats")
    inside = sum(
        stats[f"cmdstat_{name}"]["usec"] for name in commands if f"cmdstat_{name}" in stats
    )
    took.sort()
    count = len(took)
    p50, p99 = took[count // 2] / 1e3, took[count * 99 // 100] / 1e3
    return Cost(p50, p99, cpu / count * 1e6, used / count * 1e6, inside / count, trips)


def measure_hits(
    limiters: Iterable[Limiter], limits: int, rounds: int, calls: int
) -> dict[str, Cost | Failed]:
    """Return the cost of a hit of a number of limits with each limiter."""
    made: dict[str, tuple[Decide, float, frozenset[str]]] = {}
    found: dict[str, Cost | Failed] = {}
    taken: dict[str, list[Cost]] = {}
    identities = IDENTITIES[:calls]
    DIRECT.flushdb()
    for limiter in limiters:
        if limiter.make is None:
            continue
        try:
            decide = limiter.make(limits)
            for identity in identities:
                if not decide(identity):
                    raise Refused(identity)
            made[limiter.name] = decide, *_asked(decide)
            taken[limiter.name] = []
        except Exception as error:
            found[limiter.name] = failure(error)
    gc.collect()
    gc.disable()
    for turn in range(rounds):
        for name in _from(turn, list(made)):
            decide, trips, commands = made[name]
            try:
                taken[name].append(_round(decide, identities, trips, commands))
            except Exception as error:
                found[name] = failure(error)
                del made[name], taken[name]
    gc.enable()
    return found | {
        name: Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))
        for name, costs in taken.items()
    }


def beyond_views(found: dict[str, Cost | Failed]) -> dict[str, Cost | Failed]:
    """Return the costs, those of views without the cost of the view itself."""
    result = dict(found)
    for limiter in LIMITERS:
        cost, view = found.get(limiter.name), found.get(limiter.beyond)
        if isinstance(cost, Cost) and isinstance(view, Cost) and cost is not view:
            result[limiter.name] = cost.beyond(view)
    return result


def _asked(decide: Decide) -> tuple[float, frozenset[str]]:
    """Return the round trips of a hit, and the names of its commands outside scripts."""
    reads = [DIRECT.info("stats")["total_reads_processed"] for _ in range(4)]
    idle = min(after - before for before, after in itertools.pairwise(reads))
    trips = []
    for _ in range(3):  # A heartbeat may come between.
        before = DIRECT.info("stats")["total_reads_processed"]
        for identity in IDENTITIES[:10]:
            decide(identity)
        trips.append((DIRECT.info("stats")["total_reads_processed"] - before - idle) / 10)
    return min(trips), _commands(decide) & _commands(decide)


def _commands(decide: Decide) -> frozenset[str]:
    with DIRECT.monitor() as monitor:
        decide(IDENTITIES[0])
        DIRECT.echo("over")
        commands = iter(monitor.next_command, None)
        lines = itertools.takewhile(lambda line: not line["command"].startswith("ECHO"), commands)
        return frozenset(
            line["command"].split()[0].lower() for line in lines if line["client_type"] != "lua"
        )


def _present() -> set[bytes]:
    """Return the keys, without those of statistics."""
    return {key for key in map(bytes, DIRECT.keys()) if b"{stats" not in key}


def measure_footprints(limiters: Iterable[Limiter], count: int = 20) -> dict[str, Footprint]:
    """Return the memory of an identity under one limit, by limiter."""
    found = {}
    for limiter in limiters:
        if limiter.make is None:
            continue
        try:
            decide = limiter.make(1)
            DIRECT.flushdb()
            decide("another")
            before, sizes, keys = _present(), [], set()
            for hits in (1, 9):
                for _, identity in itertools.product(range(hits), IDENTITIES[:count]):
                    decide(identity)
                keys = _present() - before
                sizes.append(sum(DIRECT.memory_usage(key, samples=0) or 0 for key in keys) / count)
            found[limiter.name] = Footprint(sizes[0], sizes[1], len(keys) / count)
        except Exception:
            continue  # Other tables have the error.
    return found


# Coroutines


async def _together(decide: AsyncDecide, coroutines: int, decisions: int) -> Rate:
    async def one(identities: Sequence[str]) -> None:
        for identity in identities:
            if not await decide(identity):
                raise Refused(identity)

    shares = [IDENTITIES[first:decisions:coroutines] for first in range(coroutines)]
    used, cpu, started = server_cpu(), time.process_time(), time.perf_counter()
    await asyncio.gather(*map(one, shares))
    seconds, cpu, used = (
        time.perf_counter() - started,
        time.process_time() - cpu,
        server_cpu() - used,
    )
    return Rate(decisions / seconds, cpu / decisions * 1e6, used / decisions * 1e6)


def measure_coroutines(
    limiters: Sequence[Limiter], counts: Iterable[int], rounds: int
) -> dict[int, dict[str, Rate | Failed]]:
    """Measure hits of one limit by different numbers of coroutines in one event loop."""

    async def run(coroutines: int) -> dict[str, Rate | Failed]:
        made: dict[str, AsyncDecide] = {}
        found: dict[str, Rate | Failed] = {}
        taken: dict[str, list[Rate]] = {}
        for limiter in limiters:
            if limiter.amake is None:
                continue
            try:
                made[limiter.name] = decide = limiter.amake(1)
                await _together(decide, coroutines, len(IDENTITIES))
                taken[limiter.name] = []
            except Exception as error:
                found[limiter.name] = failure(error)
        for turn in range(rounds):
            for name in _from(turn, list(taken)):
                try:
                    taken[name].append(await _together(made[name], coroutines, len(IDENTITIES)))
                except Exception as error:
                    found[name] = failure(error)
                    del taken[name]
        return found | {
            name: Rate(*(statistics.median(column) for column in zip(*rates, strict=True)))
            for name, rates in taken.items()
        }

    DIRECT.flushdb()
    with asyncio.Runner() as runner:
        return {count: runner.run(run(count)) for count in counts}


# Processes


def measure_processes(limiters: list[Limiter], rounds: int) -> dict[str, Rate | Failed]:
    """Measure hits of one limit in eight processes, for a second in each round."""
    DIRECT.flushdb()
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.peers.rounds"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    found: dict[str, list[Rate]] = {}
    failed: dict[str, Rate | Failed] = {}
    try:
        for turn in range(rounds):
            for limiter in _from(turn, limiters):
                if limiter.make is None or limiter.name in failed:
                    continue
                reports = _order(workers, f"make {limiter.name}")
                used = server_cpu()
                if not any("failed" in report for report in reports):
                    reports = _order(workers, f"hit {limiter.name}")
                used = server_cpu() - used
                wrong = next((report["failed"] for report in reports if "failed" in report), None)
                if wrong is not None:
                    failed[limiter.name] = wrong
                    continue
                decisions = sum(report["decisions"] for report in reports)
                found.setdefault(limiter.name, []).append(
                    Rate(
                        sum(report["decisions"] / report["seconds"] for report in reports),
                        sum(report["cpu"] for report in reports) / decisions * 1e6,
                        used / decisions * 1e6,
                    )
                )
    finally:
        for worker in workers:
            worker.communicate(timeout=60)
    return failed | {
        name: Rate(*(statistics.median(column) for column in zip(*rates, strict=True)))
        for name, rates in found.items()
        if name not in failed
    }


def _order(workers: Sequence[subprocess.Popen[str]], line: str) -> list[Any]:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{line}\n")
        worker.stdin.flush()
    return [json.loads(worker.stdout.readline()) for worker in workers if worker.stdout is not None]


def _work() -> None:
    """Create limiters and hit them, as the lines of the input order."""
    django.setup()
    makers = {limiter.name: limiter.make for limiter in LIMITERS}
    made: dict[str, Decide] = {}
    for line in sys.stdin:
        order, _, name = line.strip().partition(" ")
        try:
            if order == "make" and name not in made:
                make = makers[name]
                assert make is not None
                made[name] = make(1)
                for identity in IDENTITIES[:50]:
                    made[name](identity)
            print(json.dumps(_hits(made[name]) if order == "hit" else {}), flush=True)
        except Exception as error:
            print(json.dumps({"failed": failure(error)}), flush=True)


def _hits(decide: Decide) -> dict[str, float]:
    identities, decisions = itertools.cycle(IDENTITIES), 0
    cpu, started = time.process_time(), time.perf_counter()
    while time.perf_counter() - started < PROCESS_SECONDS:
        for identity in itertools.islice(identities, 20):
            if not decide(identity):
                raise Refused(identity)
        decisions += 20
    return {
        "decisions": decisions,
        "cpu": time.process_time() - cpu,
        "seconds": time.perf_counter() - started,
    }


if __name__ == "__main__":
    _work()
