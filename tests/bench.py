"""`make bench`: what a decision costs, as ratios to a bare redis-py EVALSHA of a one-line INCR script, in one run."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import django
import redis

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django.core.management import call_command  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.test import Client, RequestFactory, override_settings  # noqa: E402

from django_ratelimit_lua import RateLimiter, ratelimit  # noqa: E402
from django_ratelimit_lua.engine.counters import Counters  # noqa: E402
from django_ratelimit_lua.engine.decide import build_call  # noqa: E402
from django_ratelimit_lua.engine.heartbeat import BEAT_SECONDS, Heartbeat  # noqa: E402
from django_ratelimit_lua.limits.algorithms import ALGORITHMS  # noqa: E402
from django_ratelimit_lua.limits.call import Call, Charge, Revision  # noqa: E402
from django_ratelimit_lua.limits.limit import Limit  # noqa: E402
from django_ratelimit_lua.limits.program import GENERAL, Program  # noqa: E402
from django_ratelimit_lua.store import exchange  # noqa: E402
from tests.bench_rules import bench_rules  # noqa: E402
from tests.bench_scale import bench_scale  # noqa: E402
from tests.server import server, url  # noqa: E402

BARE = "return redis.call('INCR', KEYS[1])"
DIRECT = redis.Redis.from_url(url())
ROUNDS, CALLS = 9, 400


def interleaved(functions: dict[str, Callable[[], Any]], calls: int = CALLS) -> dict[str, tuple[float, float]]:
    """Microseconds of wall and of this process's CPU per call: the median of rounds in which all take turns."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(50):
            function()
    gc.disable()
    for _ in range(ROUNDS):
        for name, function in functions.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                function()
            taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    gc.enable()
    return {
        name: tuple(statistics.median(column) / calls * 1e6 for column in zip(*rounds, strict=True))
        for name, rounds in taken.items()
    }


def script_time(batches: dict[str, list[bytes]]) -> dict[str, float]:
    """Microseconds of script time per call as the server counts it: the median of rounds in which all take turns, each
    with its commands in turn, a thousand in four pipelines."""
    connection = DIRECT.connection_pool.get_connection()
    taken: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(ROUNDS):
        for name, commands in batches.items():
            DIRECT.config_resetstat()
            for _ in range(4):
                connection.send_packed_command([b"".join(commands) * (250 // len(commands))])
                for _ in range(250):
                    connection.read_response()
            used = DIRECT.info("commandstats")["cmdstat_evalsha"]
            taken[name].append(used["usec_per_call"])
    DIRECT.connection_pool.release(connection)
    return {name: statistics.median(rounds) for name, rounds in taken.items()}


def asked(call: Call, program: Program | None = None) -> bytes:
    """The command that decides a call, by that program or by its own, which the server knows."""
    question = exchange.to_decide(call)
    assert question.program is not None
    program = program or question.program
    DIRECT.script_load(program.source)
    return question.command.replace(question.program.sha, program.sha, 1)


def limiter(name: str, rates: Any, algorithm: str, **options: Any) -> RateLimiter:
    if algorithm == "leaky_bucket":
        options.setdefault("queue", 10**6)
    return RateLimiter(name, rates, algorithm=algorithm, **options)


def client_cost(sha: str) -> None:
    """A hit, and a decorated request, against the bare call."""
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
            "view, undecorated": lambda: ask(plain),
            "view, @ratelimit": lambda: ask(decorated),
        }
    )
    bare_wall, bare_cpu = costs["bare EVALSHA by redis-py"]
    print(f"{'per call':34}{'wall µs':>9}{'x bare':>8}{'CPU µs':>9}{'x bare':>8}")
    for name, (wall, cpu) in costs.items():
        print(f"{name:34}{wall:9.1f}{wall / bare_wall:8.2f}{cpu:9.1f}{cpu / bare_cpu:8.2f}")
    more_wall, more_cpu = (costs["view, @ratelimit"][i] - costs["view, undecorated"][i] for i in range(2))
    print(
        f"{'@ratelimit beyond the view':34}{more_wall:9.1f}{more_wall / bare_wall:8.2f}"
        f"{more_cpu:9.1f}{more_cpu / bare_cpu:8.2f}"
    )
    print("aim for RateLimiter.hit: at most 1.0 and 1.0\n")


def server_cost(sha: str) -> None:
    """Script time of a hit of 1, 3 and 8 limits of each algorithm: for one identity alone, for 250 in turn, where
    the rules' revision is compared, and by the general program."""
    batches = {"bare": [exchange.command(b"EVALSHA", sha.encode(), b"1", b"bench")]}
    revision = Revision.of(7, "0123456789abcdef")
    DIRECT.hset("benchrules", "revision", revision.text)
    rules = {"revision": revision, "fence": b"benchrules"}
    ways: dict[str, tuple[int, dict[str, Any], Program | None]] = {
        "one": (1, {}, None),
        "one, rules": (1, rules, None),
        "one, general": (1, {}, GENERAL),
        "250": (250, {}, None),
        "250, rules": (250, rules, None),
        "250, general": (250, {}, GENERAL),
    }
    for algorithm in ALGORITHMS:
        for count in (1, 3, 8):
            most = 90_000 if algorithm == "sliding_log" else 10**7
            rates = [f"{most + number}/h" for number in range(count)]
            for way, (identities, options, program) in ways.items():
                limits = limiter(f"{way} {count}", rates, algorithm).limits
                batches[f"{algorithm} {count} {way}"] = [
                    asked(build_call([Charge(limit, b"%032d" % who) for limit in limits])._replace(**options), program)
                    for who in range(identities)
                ]
    times = script_time(batches)
    print(f"script time, µs and times a bare INCR script ({times['bare']:.2f} µs)")
    print(f"{'':29}{'1 limit':>17}{'3 limits':>17}{'8 limits':>17}")
    for algorithm in ALGORITHMS:
        for way in ways:
            columns = [times[f"{algorithm} {count} {way}"] for count in (1, 3, 8)]
            print(f"{algorithm + ', ' + way:29}" + "".join(f"{t:9.1f}{t / times['bare']:7.1f}x" for t in columns))
    print("aim: 1 limit at most 4.5x, 3 at most 9x; 1 sliding log at most 9x\n")


def backlog() -> None:
    """Script time of a hit that reserves its turn where nobody waits, and where ten thousand do."""
    batches = {}
    for algorithm in ALGORITHMS:
        for waiting in (0, 10_000):
            limit = limiter(f"waiting{waiting}", "10/s", algorithm).limits[0]
            # A cost of 1 each at the very same moment, so that the backlog stays what it is.
            call = build_call([Charge(limit, b"w" * 32)], max_wait_us=-1, now=1_750_000_000_000_000)
            with DIRECT.pipeline(transaction=False) as pipeline:
                for _ in range(waiting):
                    pipeline.execute_command(*_with_time(call, call.now))
                pipeline.execute()
            peek = build_call([Charge(limit, b"w" * 32)], "peek", max_wait_us=-1, now=1_750_000_000_000_000)
            batches[f"{algorithm} {waiting}"] = [asked(peek)]
    times = script_time(batches)
    print(f"{'script time':18}{'nobody waits':>14}{'10,000 wait':>14}")
    for algorithm in ALGORITHMS:
        empty, full = times[f"{algorithm} 0"], times[f"{algorithm} 10000"]
        print(f"{algorithm:18}{empty:14.1f}{full:14.1f}{full / empty:7.1f}x")
    print("aim: at most 3x\n")


def rules(count: int) -> list[dict[str, Any]]:
    """Rules of which one applies."""
    others = [{"name": f"r{n}", "path": f"/area{n}/*", "key": "ip", "rate": "5/m"} for n in range(count - 1)]
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
            with override_settings(ROOT_URLCONF="tests.bench_site", **options):
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


def memory() -> None:
    """Bytes per live identity, and how they grow with the limit when all of it is used."""
    sizes = (10, 100, 1000, 10_000, 100_000)
    print(f"{'bytes, limit used up':24}" + "".join(f"{size:>10}" for size in sizes))
    for algorithm in ALGORITHMS:
        row = []
        for size in sizes:
            who = RateLimiter(
                "mem", f"{size}/h", algorithm=algorithm, **({"queue": size - 1} if algorithm == "leaky_bucket" else {})
            )
            # Spread over a period, so that a sliding window uses all its segments.
            parts = 20 if algorithm == "sliding_window" else 1
            key = None
            for part in range(parts):
                call = build_call([Charge(limit, b"m" * 32, max(1, size // parts)) for limit in who.limits])
                start = 1_750_000_000_000_000 + part * 3_600_000_000 // parts
                DIRECT.execute_command(*_with_time(call, start))
                key = call.keys()[0]
            row.append(DIRECT.memory_usage(key, samples=0))
            DIRECT.delete(key)
        print(f"{algorithm:24}" + "".join(f"{used:>10}" for used in row))
    print(
        "aim: token bucket and fixed window at most 160, sliding window of 10 at most 400; flat for all but the log\n"
    )


def _with_time(call: Call, now: int) -> list[Any]:
    call = call._replace(now=now)
    return ["EVALSHA", GENERAL.sha, len(call.keys()), *call.keys(), *call.args()]


def deny_cache() -> None:
    """A refusal from memory, against an answer of Redis."""
    refused, asked = RateLimiter("refused", "1/h"), limiter("asked", "10000000/h", "sliding_window")
    with override_settings(RATELIMIT_DENY_CACHE_SECONDS=3600):
        refused.hit("someone")
        costs = interleaved(
            {"asked": lambda: asked.hit("someone"), "refused from memory": lambda: refused.hit("someone")}
        )
        assert refused.hit("someone").source == "deny-cache"
    (wall, _), (memory_wall, _) = costs["asked"], costs["refused from memory"]
    print(f"a hit that Redis answers: {wall:.1f} µs; that is refused from memory: {memory_wall:.2f} µs;", end=" ")
    print(f"{wall / memory_wall:.0f} times less\naim: under 12 µs, at least 10 times less\n")


def outage() -> None:
    """A decision by this process's share, where little is counted and where much is."""
    limit, costs = Limit("outage", "100000/h", algorithm="sliding_log"), {}
    for units in (10, 10_000):
        counted, call = Counters(), build_call([Charge(limit, b"o" * 32)])
        for _ in range(units):
            counted.decide(call)
        costs[f"{units} units"] = partial(counted.decide, build_call([Charge(limit, b"o" * 32)], "peek"))
    (few, _), (many, _) = interleaved(costs).values()
    print(f"a decision without Redis: {few:.1f} µs where 10 units are counted,", end=" ")
    print(f"{many:.1f} µs where 10,000 are, {many / few:.2f} times as much\naim: at most 1.5 times\n")


def heartbeats() -> None:
    """Script time of a heartbeat of ten processes and of a thousand, which beat every two seconds."""
    processes, taken = [Heartbeat() for _ in range(1000)], []
    for count in (10, 1000):
        for process in processes[:count]:
            process.beat()
        DIRECT.config_resetstat()
        for number in range(500):
            processes[number % count].beat()
        taken.append(DIRECT.info("commandstats")["cmdstat_eval"]["usec_per_call"])
    share = taken[1] * 1000 / BEAT_SECONDS / 1e6
    print(f"a heartbeat of 10 processes: {taken[0]:.1f} µs of script time; of 1,000: {taken[1]:.1f} µs,", end=" ")
    print(f"{share:.1%} of a core in all\naim: at most twice as much, and 5 %\n")


def main() -> None:
    call_command("migrate", verbosity=0)
    sha = DIRECT.script_load(BARE)
    DIRECT.script_load(GENERAL.source)
    RateLimiter("warm", "1/s").hit("up")
    print("medians of rounds taken in turns; Valkey on loopback\n")
    client_cost(sha)
    server_cost(sha)
    backlog()
    faces()
    memory()
    deny_cache()
    outage()
    heartbeats()
    bench_rules()
    bench_scale()
    server.stop()


if __name__ == "__main__":
    main()
