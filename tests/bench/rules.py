"""The cost of 1,000 rules and 20,000 overrides for a request."""

from __future__ import annotations

import gc
import resource
import statistics
import time
import tracemalloc
from typing import Any

from django.http import HttpResponse
from django.test import RequestFactory, override_settings

from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.publishing import publish
from django_ratelimit_lua.rules import provider
from django_ratelimit_lua.rules.ruleset import Ruleset

RULES, OVERRIDES = 1000, 20_000
ROUNDS, REQUESTS = 11, 300


def _rules(count: int) -> list[RateLimitRule]:
    """Return rules, one of which applies to /app7/. The others have other paths."""
    paths = [f"/app{n}/" if n % 3 else f"/shop{n}/*/items/**" for n in range(8, 7 + count)]
    others = [
        RateLimitRule(name=f"rule {n}", path=path, key="ip", rate=f"{10**9}/m")
        for n, path in enumerate(paths)
    ]
    return [*others, RateLimitRule(name="met", path="/app7/", key="ip", rate=f"{10**9}/m")]


def _setting(prefix: str, rules: int, overrides: int) -> tuple[Any, Ruleset]:
    """Return the settings of a site with rules and overrides, and its ruleset."""
    setting = override_settings(RATELIMIT_CACHE_PREFIX=prefix, RATELIMIT_RULES=[])
    with setting:
        RateLimitOverride.objects.all().delete()
        RateLimitRule.objects.all().delete()
        RateLimitRule.objects.bulk_create(_rules(rules))
        networks = (f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(overrides))
        RateLimitOverride.objects.bulk_create(
            RateLimitOverride(network=network, rule="met", rate=f"{10**8}/m")
            for network in networks
        )
        publish()
        return setting, provider.reload_ruleset()


def _visits(middleware: RateLimitMiddleware, addresses: list[str]) -> None:
    factory = RequestFactory()
    requests = [
        factory.get(f"/app7/{n}", REMOTE_ADDR=address) for n, address in enumerate(addresses)
    ]
    for request in requests:
        response: Any = middleware(request)
        assert response.status_code == 200


def bench_rules() -> None:
    """Print the time of a request through the middleware, and the memory of the rules."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    cases: dict[str, tuple[Any, Ruleset, list[str]]] = {}
    strangers = [f"192.0.{n >> 8}.{n & 255}" for n in range(REQUESTS)]
    known = [f"10.0.{n >> 8}.{n & 255}" for n in range(REQUESTS)]
    cases["1 rule, no override"] = (*_setting("bench1:", 1, 0), strangers)
    many = _setting(f"bench{RULES}:", RULES, OVERRIDES)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    cases["1,000 rules, 20,000 overrides"] = (*many, strangers)
    cases["the same, a client with an override"] = (*many, known)
    middleware = RateLimitMiddleware(lambda request: HttpResponse())
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, (setting, ruleset, addresses) in cases.items():
            with setting:
                provider._ruleset = ruleset
                _visits(middleware, addresses)  # Warm: overrides are parsed.
                wall, cpu = time.perf_counter(), time.process_time()
                _visits(middleware, addresses)
                taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    middle = {
        name: [statistics.median(column) / REQUESTS * 1e6 for column in zip(*rounds, strict=True)]
        for name, rounds in taken.items()
    }
    base = middle["1 rule, no override"]
    print(f"{'a request through the middleware':38}{'wall µs':>9}{'x':>7}{'CPU µs':>9}{'x':>7}")
    for name, (wall, cpu) in middle.items():
        print(f"{name:38}{wall:9.1f}{wall / base[0]:7.2f}{cpu:9.1f}{cpu / base[1]:7.2f}")
    print("aim: at most 1.5x")
    snapshot = len(str(many[1].snapshot))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"memory of both rulesets in this process: {used / 1024:.0f} KiB (snapshot: "
        f"{snapshot / 1024:.0f} KiB of text);"
    )
    print(f"peak of the process that also wrote the 20,000 overrides: {peak} MiB\n")
