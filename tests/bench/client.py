"""The cost of a decision for the client, with Redis and without."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import django
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from redis import utils

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.engine.local import LocalCounts
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from tests.bench.measure import BARE, DIRECT, interleaved, limiter


def client_cost() -> None:
    """Compare a hit and a decorated request with a bare call, with hiredis and without."""
    if utils.HIREDIS_AVAILABLE:
        compare("hiredis")
    blocked = (
        "import sys; sys.modules['hiredis'] = None; from tests.bench import client; client.main()"
    )
    subprocess.run([sys.executable, "-c", blocked], check=True)
    print(
        "aim, with hiredis: RateLimiter.hit wall at most 1.0, CPU 0.8; @ratelimit beyond the "
        "view, CPU 1.1\n"
    )


def main() -> None:
    """Compare without hiredis."""
    django.setup()
    compare("no hiredis")


def compare(parser: str) -> None:
    """Print the table of one parser."""
    sha = DIRECT.script_load(BARE)
    one = limiter("bench", "10000000/h", "sliding_window")
    bucket = limiter("bench", "10000000/h", "token_bucket")
    three = limiter("bench3", ["10000000/h", "20000000/h", "30000000/h"], "token_bucket")

    def plain(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    decorated = ratelimit(key="ip", rate="10000000/h")(plain)
    request = RequestFactory().get("/")

    def ask(view: Callable[[HttpRequest], HttpResponse]) -> None:
        vars(request).pop("ratelimit", None)
        view(request)

    costs = interleaved(
        {
            "bare EVALSHA by redis-py": lambda: DIRECT.evalsha(sha, 1, "bench"),
            "RateLimiter.hit, sliding_window": lambda: one.hit("someone"),
            "RateLimiter.hit, token_bucket": lambda: bucket.hit("someone"),
            "RateLimiter.hit, 3 token buckets": lambda: three.hit("someone"),
            "bare EVALSHA, then the view": lambda: (DIRECT.evalsha(sha, 1, "bench"), ask(plain)),
            "view, @ratelimit": lambda: ask(decorated),
        }
    )
    bare_wall, bare_cpu = costs["bare EVALSHA by redis-py"]
    print(f"{'per call, ' + parser:34}{'wall µs':>9}{'x bare':>8}{'CPU µs':>9}{'x bare':>8}")
    for name, (wall, cpu) in costs.items():
        print(f"{name:34}{wall:9.1f}{wall / bare_wall:8.2f}{cpu:9.1f}{cpu / bare_cpu:8.2f}")
    # A view takes longer after a call than in a loop, so the time after a bare call is subtracted.
    both, decorated_view = costs["bare EVALSHA, then the view"], costs["view, @ratelimit"]
    more_wall, more_cpu = (
        decorated_view[0] - both[0] + bare_wall,
        decorated_view[1] - both[1] + bare_cpu,
    )
    print(
        f"{'@ratelimit beyond the view':34}{more_wall:9.1f}{more_wall / bare_wall:8.2f}"
        f"{more_cpu:9.1f}{more_cpu / bare_cpu:8.2f}"
    )
    print(flush=True)


def deny_cache() -> None:
    """Compare a refusal from memory with a decision of Redis."""
    refused, asked = RateLimiter("refused", "1/h"), limiter("asked", "10000000/h", "sliding_window")
    with override_settings(RATELIMIT_DENY_CACHE_SECONDS=3600):
        refused.hit("someone")
        costs = interleaved(
            {
                "asked": lambda: asked.hit("someone"),
                "refused from memory": lambda: refused.hit("someone"),
            }
        )
        assert refused.hit("someone").source == "deny-cache"
    (wall, _), (memory_wall, _) = costs["asked"], costs["refused from memory"]
    print(
        f"a hit that Redis answers: {wall:.1f} µs; that is refused from memory: {memory_wall:.2f} "
        "µs;",
        end=" ",
    )
    print(f"{wall / memory_wall:.0f} times less\naim: under 12 µs, at least 10 times less\n")


def outage() -> None:
    """Print the cost of a decision by the counts of this process."""
    limit = Limit("outage", "100000/h", on_store_error="local")
    counts, call = LocalCounts(), build_call([Charge(limit, b"o" * 32)])
    wall, _ = interleaved({"alone": lambda: counts.decide(call, in_outage=True)})["alone"]
    print(f"a decision without Redis: {wall:.1f} µs\n")
