"""A hundred blocks in ten seconds, with 1,000 rules and 20,000 overrides, in eight processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from itertools import count
from typing import Any

import django

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.bench.settings")
    django.setup()

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from redis import Redis

from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.publishing import publish
from django_ratelimit_lua.rules import provider
from tests.support.redis_server import server, url

RULES, OVERRIDES = 1_000, 20_000
PROCESSES, BLOCKS, SECONDS = 8, 100, 10.0
DEADLINE = 0.1
REFUSED = "192.0.3.1"
"""An address that is blocked from the beginning."""
PAUSE = 0.02
"""Seconds between two requests of a process."""
SETTINGS: dict[str, Any] = {"RATELIMIT_CACHE_PREFIX": "bench-overrides:", "RATELIMIT_RULES": []}


def blocked_address(number: int) -> str:
    """Return the address of a block."""
    return f"198.51.100.{number}"


def fill() -> None:
    """Create the rules and overrides: half of them for users, half for networks."""
    RateLimitOverride.objects.all().delete()
    RateLimitRule.objects.all().delete()
    User.objects.all().delete()
    RateLimitRule.objects.bulk_create(
        RateLimitRule(name=f"rule {number}", path=f"/app{number}/", key="ip", rate=f"{10**9}/m")
        for number in range(RULES)
    )
    users = User.objects.bulk_create(
        User(username=f"user {number}") for number in range(OVERRIDES // 2)
    )
    RateLimitOverride.objects.bulk_create(
        [
            *(RateLimitOverride(user=user, effect="exempt") for user in users),
            *(
                RateLimitOverride(network=f"10.{number >> 8}.{number & 255}.9", effect="block")
                for number in range(OVERRIDES // 2)
            ),
            RateLimitOverride(network=REFUSED, effect="block"),
        ]
    )
    publish(rebuild=True, take_over=True)


def work() -> None:
    """Serve requests until all blocks apply; print when each did, and how long requests took."""
    middleware = RateLimitMiddleware(lambda request: HttpResponse())
    factory = RequestFactory()
    durations: list[float] = []

    def visit(address: str) -> int:
        request = factory.get("/app7/", REMOTE_ADDR=address)
        began = time.perf_counter()
        response: Any = middleware(request)
        durations.append(time.perf_counter() - began)
        return int(response.status_code)

    provider.load_ruleset()
    for number in range(20):
        visit(f"192.0.2.{number}")
    visit(REFUSED)  # The first refusal of a process costs more.
    durations.clear()
    print("ready", flush=True)
    sys.stdin.readline()
    obeyed: list[float] = []
    for number in count():
        visit(f"192.0.2.{number % 256}")
        while len(obeyed) < BLOCKS and visit(blocked_address(len(obeyed))) == 429:
            obeyed.append(time.time())
        if len(obeyed) == BLOCKS:
            break
        time.sleep(PAUSE)
    print(json.dumps({"obeyed": obeyed, "durations": durations}), flush=True)


def bench_many_overrides() -> None:
    """Print the 99th percentile of a request, what Redis sent, and when the last process obeyed."""
    # Other processes read, and write statistics, while this one writes.
    connection.settings_dict["OPTIONS"] |= {"timeout": 60, "transaction_mode": "IMMEDIATE"}
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode = WAL")
    with override_settings(**SETTINGS):
        fill()
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.bench.many_overrides", "work"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(PROCESSES)
        ]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        with Redis.from_url(url()) as direct:
            before = direct.info("stats")["total_net_output_bytes"]
            try:
                saved = _save_blocks(workers)
                reports = [json.loads(worker.communicate(timeout=300)[0]) for worker in workers]
            finally:
                for worker in workers:
                    worker.kill()
            sent = direct.info("stats")["total_net_output_bytes"] - before
        provider.delete_published(b"bench-overrides:")
    durations = sorted(duration for report in reports for duration in report["durations"])
    last = [
        max(report["obeyed"][number] for report in reports) - moment
        for number, moment in enumerate(saved)
    ]
    took = saved[-1] - saved[0]
    print(f"{OVERRIDES:,} overrides, {RULES:,} rules, {PROCESSES} processes:", end=" ")
    print(f"{BLOCKS} blocks in {took:.1f} s")
    percentile = durations[len(durations) * 99 // 100]
    print(f"a request: median {statistics.median(durations) * 1e3:.1f} ms,", end=" ")
    late = sum(duration > DEADLINE for duration in durations)
    print(f"p99 {percentile * 1e3:.1f} ms, longest {durations[-1] * 1e3:.1f} ms;", end=" ")
    print(f"{late} of {len(durations)} beyond the deadline of {DEADLINE * 1e3:.0f} ms")
    print(f"until the last process obeys: median {statistics.median(last) * 1e3:.0f} ms,", end=" ")
    print(f"longest {max(last) * 1e3:.0f} ms; Redis sent {sent / 1e6:.0f} MB\n")


def _save_blocks(workers: list[subprocess.Popen[str]]) -> list[float]:
    """Save the blocks one after the other, and return when each was saved."""
    saved = []
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    began = time.perf_counter()
    for number in range(BLOCKS):
        time.sleep(max(0.0, began + number * SECONDS / BLOCKS - time.perf_counter()))
        RateLimitOverride.objects.create(network=blocked_address(number), effect="block")
        saved.append(time.time())
    return saved


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        with override_settings(**SETTINGS):
            work()
    else:
        call_command("migrate", verbosity=0)
        bench_many_overrides()
        server.stop()
