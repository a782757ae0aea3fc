"""What a request costs through Django's handler."""

from __future__ import annotations

import statistics
import time
from typing import Any

from django.test import Client, override_settings


def rules(count: int) -> list[dict[str, Any]]:
    """Rules of which one applies."""
    others = [
        {"name": f"r{n}", "path": f"/area{n}/*", "key": "ip", "rate": "5/m"}
        for n in range(count - 1)
    ]
    return [*others, {"name": "all", "path": "/plain", "key": "ip", "rate": "100000000/h"}]


def faces() -> None:
    """Requests per second through the test client's handler."""
    middleware = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]
    with_middleware = {"MIDDLEWARE": middleware}
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "no limiter": ("/plain", {}),
        "@ratelimit": ("/decorated", {}),
        "middleware, 1 rule": ("/plain", {**with_middleware, "RATELIMIT_RULES": rules(1)}),
        "middleware, 100 rules": ("/plain", {**with_middleware, "RATELIMIT_RULES": rules(100)}),
        "DRF, no throttle": ("/drf-plain", {}),
        "DRF, its own 3 throttles": ("/drf-theirs", {}),
        "DRF, our 3 throttles (sliding log)": ("/drf-ours", {}),
        "DRF, our 3 throttles (token bucket)": ("/drf-bucket", {}),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(5):
        for name, (path, options) in cases.items():
            with override_settings(ROOT_URLCONF="tests.bench.site", **options):
                client = Client()
                for _ in range(20):
                    assert client.get(path).status_code == 200
                started = time.perf_counter()
                for _ in range(200):
                    client.get(path)
                seconds[name].append((time.perf_counter() - started) / 200)
    middle = {name: statistics.median(rounds) for name, rounds in seconds.items()}
    print(f"{'through the handler':38}{'requests/s':>11}{'µs':>8}{'x its bare view':>17}")
    for name, taken in middle.items():
        bare = middle["DRF, no throttle" if name.startswith("DRF") else "no limiter"]
        print(f"{name:38}{1 / taken:11.0f}{taken * 1e6:8.0f}{taken / bare:17.2f}")
    print()
