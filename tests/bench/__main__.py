"""`make bench`: costs as ratios to a bare EVALSHA of a one-line INCR script by redis-py."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.bench.settings")
django.setup()

from django.core.management import call_command  # noqa: E402

from django_ratelimit_lua import RateLimiter  # noqa: E402
from tests.bench.breakers import breakers  # noqa: E402
from tests.bench.client import client_cost, deny_cache, outage  # noqa: E402
from tests.bench.counting import counting  # noqa: E402
from tests.bench.crawlers import calm_cost, crawlers  # noqa: E402
from tests.bench.gateway import gateway  # noqa: E402
from tests.bench.many_overrides import bench_many_overrides  # noqa: E402
from tests.bench.many_rules import bench_many_rules  # noqa: E402
from tests.bench.memory import crowd_memory, memory  # noqa: E402
from tests.bench.replay import bench_replay  # noqa: E402
from tests.bench.rules import bench_rules  # noqa: E402
from tests.bench.scale import bench_scale  # noqa: E402
from tests.bench.script import bans, heartbeats, server_cost  # noqa: E402
from tests.bench.setup import setup  # noqa: E402
from tests.bench.slots import slots  # noqa: E402
from tests.support.redis_server import server  # noqa: E402


def main() -> None:
    call_command("migrate", verbosity=0)
    RateLimiter("warm", "1/s").hit("up")
    print("medians of alternating rounds; Valkey on loopback\n")
    setup()
    client_cost()
    counting()
    server_cost()
    slots()
    breakers()
    bans()
    gateway()
    memory()
    crowd_memory()
    deny_cache()
    outage()
    heartbeats()
    bench_replay()
    bench_rules()
    bench_many_rules()
    bench_many_overrides()
    bench_scale()
    calm_cost()
    crawlers()
    server.stop()


if __name__ == "__main__":
    main()
