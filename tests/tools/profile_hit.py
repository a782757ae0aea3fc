"""`python -m tests.tools.profile_hit`: the time of a hit by function.

Profiles `RateLimiter.hit`, a decorated view, and `ahit` in a hundred coroutines. The argument is
the number of each (2,000).
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import pstats
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN, COROUTINES = 20, 100


def hits(count: int) -> Callable[[], None]:
    from django_ratelimit_lua import RateLimiter

    limiter = RateLimiter("profile", "10000000/h")

    def work() -> None:
        for number in range(count):
            limiter.hit(number % 1000)

    return work


def requests(count: int) -> Callable[[], None]:
    from django.http import HttpRequest, HttpResponse

    from django_ratelimit_lua import ratelimit

    @ratelimit(key="ip", rate="10000000/h")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    def work() -> None:
        for number in range(count):
            request = HttpRequest()
            request.method = "GET"
            request.META["REMOTE_ADDR"] = f"192.0.2.{number % 250}"
            view(request)

    return work


def coroutines(count: int) -> Callable[[], None]:
    from django_ratelimit_lua import RateLimiter

    limiter = RateLimiter("profile", "10000000/h")

    async def ask(numbers: range) -> None:
        for number in numbers:
            await limiter.ahit(number % 1000)

    async def ask_all() -> None:
        await asyncio.gather(*(ask(range(first, count, COROUTINES)) for first in range(COROUTINES)))

    loop = asyncio.new_event_loop()  # One for all rounds: its connection stays.
    return lambda: loop.run_until_complete(ask_all())


def profile(name: str, work: Callable[[], None], count: int) -> None:
    """Print the functions with the most time of their own."""
    work()
    profiler = cProfile.Profile()
    profiler.runcall(work)
    rows = sorted(pstats.Stats(profiler).stats.items(), key=lambda row: -row[1][2])  # type: ignore[attr-defined]
    whole = sum(own for _, (_, _, own, _, _) in rows)
    called = sum(calls for _, (_, calls, _, _, _) in rows)
    print(
        f"{name}: {called / count:.0f} calls of functions, {whole / count * 1e6:.0f} µs with the "
        "profiler's own part"
    )
    print(f"{'own µs':>8}{'':>6}{'with called':>13}{'calls':>8}  function")
    for (file, line, function), (_, calls, own, total, _) in rows[:SHOWN]:
        path = Path(file)
        where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(*path.parts[-2:])
        at = "" if file == "~" else f" {where}:{line}"
        print(
            f"{own / count * 1e6:8.2f}{own / whole:6.0%}{total / count * 1e6:13.2f}{calls / count:8.2f}  {function}{at}"  # noqa: E501
        )
    print()


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.bench.settings")
    django.setup()
    from django.core.management import call_command

    from tests.support.redis_server import server

    call_command("migrate", verbosity=0)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for name, made in {
        "RateLimiter.hit": hits,
        "a view under @ratelimit": requests,
        f"RateLimiter.ahit, {COROUTINES} coroutines": coroutines,
    }.items():
        profile(name, made(count), count)
    server.stop()


if __name__ == "__main__":
    main()
