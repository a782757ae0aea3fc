"""What it costs that every decision is counted: `python -m tests.bench.counting`, or as a part of
`make bench`.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import django

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.bench.settings")
    django.setup()

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics.conf import settings
from django_ratelimit_lua.contrib.statistics.metrics import telemetry
from django_ratelimit_lua.contrib.statistics.recorder import MAX_QUEUED, recorder
from django_ratelimit_lua.engine import DecidedCharge
from django_ratelimit_lua.extension import decision_hooks
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit
from tests.support.redis_server import server

ROUNDS, HITS, RULES = 31, 1000, 100


def counting() -> None:
    """Client CPU of a hit, in turns: counted or not, and told to OpenTelemetry; then counting by
    itself.
    """
    limiter = RateLimiter("counted", "10000000/h", algorithm="token_bucket")
    ways: dict[str, tuple[bool, bool]] = {"not counted": (False, False), "counted": (True, False)}
    if with_telemetry():
        ways["counted, and told to OpenTelemetry"] = (True, True)
    taken: dict[str, list[float]] = {way: [] for way in ways}
    hooks = list(decision_hooks)
    for round_number in range(ROUNDS + 1):
        for way, (is_counted, reports) in ways.items():
            decision_hooks[:] = hooks if is_counted else []
            vars(settings).update(OPENTELEMETRY=reports)
            recorder._is_awaited = True  # No thread writes meanwhile, in whosever turn.
            began = time.process_time()
            for number in range(HITS):
                limiter.hit(number % 100)
            if round_number:  # The first warms up.
                taken[way].append((time.process_time() - began) / HITS * 1e6)
    vars(settings).clear()
    decision_hooks[:] = hooks
    telemetry._begin()
    base = statistics.median(taken["not counted"])
    print(f"{'a hit, token bucket':40}{'CPU µs':>9}{'more µs':>9}{'x':>7}")
    for way, rounds in taken.items():
        # Of rounds that stand beside each other, as the machine's speed wanders more than counting
        # costs.
        more = statistics.median(
            one - other for one, other in zip(rounds, taken["not counted"], strict=True)
        )
        print(f"{way:40}{base + more:9.2f}{more:9.2f}{1 + more / base:7.3f}")
    print(
        f"counting by itself: {by_itself(1):.2f} µs a decision of one client, "
        f"{by_itself(HITS):.2f} where "
        f"each is another's; of that, the call takes {added():.2f}"
    )
    for names in (1, 100):
        print(
            f"writing what {names} rules have counted, once a second: {written(names):.2f} ms of "
            "CPU"
        )
    print("aim: at most 1 µs of client CPU a decision, and no trip more\n")


def with_telemetry() -> bool:
    """Whether there is an SDK to tell; it is switched on for this process."""
    try:
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        print("OpenTelemetry is not measured: opentelemetry-sdk is not installed")
        return False
    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    trace.set_tracer_provider(TracerProvider())
    return True


def decisions(names: int = 1) -> list[tuple[list[DecidedCharge], Decision]]:
    """As Redis gives them, of so many rules."""
    made = []
    for number in range(HITS):
        limit = LIMITS[number % names]
        state = LimitState(
            limit.name, True, 100, number % 100, 100 - number % 100, 0.0, 1.0, 0.0, period=3600.0
        )
        decided = DecidedCharge(
            Charge(limit, digest(str(number))), limit.name, identity=str(number), state=state
        )
        made.append(([decided], Decision(True, (state,), granted=1)))
    return made


LIMITS = [Limit(f"rule-{number}", "100/h") for number in range(RULES)]


def each(work: Callable[[], object]) -> float:
    """Microseconds of CPU for each of `HITS`: the median of rounds."""
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) / HITS * 1e6)
        recorder._begin()
        recorder._is_awaited = True
    return statistics.median(taken)


def by_itself(people: int) -> float:
    """Counted wholly, but not written, of so many people."""
    made = decisions()[:people] * (HITS // people)

    def count() -> None:
        for planned, decision in made:
            recorder.add(planned, decision, 0.0001)
        recorder._count_queue()

    return each(count)


def added() -> float:
    """What whoever decides waits for, but for one of `MAX_QUEUED`, who counts what is in the
    queue."""
    made = decisions()

    def add() -> None:
        for number, (planned, decision) in enumerate(made):
            recorder.add(planned, decision, 0.0001)
            if number % (MAX_QUEUED - 1) == 0:
                recorder._queue.clear()

    return each(add)


def written(names: int) -> float:
    """Milliseconds of CPU of one writing, after a thousand decisions in a second."""
    made, taken = decisions(names), []
    for _ in range(ROUNDS):
        for planned, decision in made:
            recorder.add(planned, decision, 0.0001)
        recorder._count_queue()
        began = time.process_time()
        recorder.flush()
        taken.append((time.process_time() - began) * 1e3)
    return statistics.median(taken)


if __name__ == "__main__":
    counting()
    server.stop()
