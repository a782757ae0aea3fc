"""The effect of leases and of a cluster, with real processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from redis import Redis

from django_ratelimit_lua.testing.server import Server
from tests.support.clusters import client, cluster

PROCESSES = 8
SECONDS = 2.0
IDENTITIES, EACH = 400, 50


def crowd(caches: dict[str, Any], count: int = PROCESSES, **job: Any) -> list[dict[str, Any]]:
    """Run a job in several processes at the same time, and return their reports."""
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.bench.scale",
                json.dumps({"caches": caches, "seed": number, **job}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    # With the second heartbeat, each counts all processes.
    for order in ("beat", "beat", "go"):
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{order}\n")
            worker.stdin.flush()
        if order != "go":
            for worker in workers:
                assert worker.stdout is not None
                worker.stdout.readline()
    return [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Do the job in one of the processes."""
    import django
    from django.conf import settings

    settings.configure(SECRET_KEY="tests", CACHES=job["caches"], RATELIMIT_TIMEOUT=10, USE_TZ=True)
    django.setup()
    from django_ratelimit_lua import RateLimiter
    from django_ratelimit_lua.engine.heartbeat import heartbeat

    limiter = RateLimiter(
        "bench", job["rate"], algorithm=job.get("algorithm", "fixed_window"), lease=job.get("lease")
    )
    limiter.peek("warm")
    for _ in range(2):
        sys.stdin.readline()
        heartbeat.beat()
        print(flush=True)
    sys.stdin.readline()
    chance, names = (
        random.Random(job["seed"]),
        [f"identity {number}" for number in range(job.get("identities", 1))],
    )
    admitted = decisions = 0
    started = time.perf_counter()
    refused_at: float | None = None
    while True:
        for _ in range(50):
            admitted += limiter.hit(chance.choice(names) if len(names) > 1 else "one").allowed
        decisions += 50
        now = time.perf_counter()
        if job.get("once") and admitted < decisions:
            break
        if job.get("until_refused"):
            # Until no hit has been admitted for longer than units are held.
            refused_at = None if admitted != job.get("last") else refused_at or now
            job["last"] = admitted
            if refused_at is not None and now - refused_at > 1.5:
                break
        elif now - started > SECONDS:
            break
    return {"admitted": admitted, "decisions": decisions, "seconds": time.perf_counter() - started}


def alias(url: str) -> dict[str, Any]:
    return {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": {}}}


def per_second(reports: Sequence[dict[str, Any]]) -> float:
    return sum(report["decisions"] / report["seconds"] for report in reports)


def leases() -> None:
    """Print the decisions on one identity in eight processes, with a lease and without."""
    with Server() as server:
        plain = per_second(crowd(alias(server.url), rate="1000000000/h"))
        with Redis.from_url(server.url) as direct:
            direct.flushall()
        leased = per_second(crowd(alias(server.url), rate="1000000000/h", lease=5_000))
        with Redis.from_url(server.url) as direct:
            direct.flushall()
        limit = 2_000_000
        exact = crowd(alias(server.url), rate=f"{limit}/h", lease=5_000, until_refused=True)
        with Redis.from_url(server.url) as direct:
            direct.flushall()
        short = crowd(
            alias(server.url), rate=f"{limit}/h", lease=5_000, until_refused=True, once=True
        )
    print(
        f"one identity, {PROCESSES} processes: {plain:.0f} decisions/s; with a lease "
        f"{leased:.0f}/s,",
        end=" ",
    )
    print(f"{leased / plain:.0f} times as many\naim: at least 10 times")
    print(
        f"with a lease, of a limit of {limit}: {sum(report['admitted'] for report in exact)} "
        "admitted;",
        end=" ",
    )
    print(
        f"{sum(report['admitted'] for report in short)} if each process goes away at its first "
        "refusal\n"
    )


def shards() -> None:
    """Print the speed, the CPU time and the exactness on one server and on three masters."""
    print(
        f"{'4 processes':16}{'decisions/s':>12}{'server CPU, µs/decision':>26}{'busiest':>9}{'admitted':>10}"  # noqa: E501
    )
    for masters in (1, 3):
        with cluster(replicas=False, masters=3) if masters == 3 else Server() as found:
            servers = found.servers if masters == 3 else [found]
            caches = found.cache() if masters == 3 else alias(found.url)
            job = {"identities": IDENTITIES, "algorithm": "sliding_window"}
            before = [_cpu(server) for server in servers]
            reports = crowd(caches, 4, rate="1000000000/h", **job)
            used = [_cpu(server) - was for server, was in zip(servers, before, strict=True)]
            decisions = sum(report["decisions"] for report in reports)
            for server in servers:
                with client(server.port) as direct:
                    direct.flushall()
            exact = crowd(caches, 4, rate=f"{EACH}/h", **job)
            admitted = sum(report["admitted"] for report in exact)
        per_decision = sum(used) / decisions * 1e6
        print(f"{f'{masters} master(s)':16}{per_second(reports):12.0f}{per_decision:26.1f}", end="")
        print(f"{max(used) / sum(used):9.0%}{admitted:10}")
    print(f"exactly {IDENTITIES} identities x {EACH} = {IDENTITIES * EACH} are to be admitted")
    print("1,000,000 / µs per decision: what one master's core decides a second\n")


def _cpu(server: Server) -> float:
    with client(server.port) as direct:
        used = direct.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def bench_scale() -> None:
    """Print all tables."""
    leases()
    shards()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(work(json.loads(sys.argv[1]))), flush=True)
        os._exit(0)
    bench_scale()
