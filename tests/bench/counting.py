"""What it costs that every decision is counted: `python -m tests.bench.counting`, or as a part of
`make bench`.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable

import django

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.bench.settings")
    django.setup()

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics.conf import settings
from django_ratelimit_lua.contrib.statistics.keys import DAY, HOUR, MINUTE
from django_ratelimit_lua.contrib.statistics.recorder import (
    MAX_QUEUED,
    Hits,
    Kind,
    Person,
    Tables,
    recorder,
)
from django_ratelimit_lua.contrib.statistics.telemetry import telemetry
from django_ratelimit_lua.contrib.statistics.writing import Writer
from django_ratelimit_lua.engine.decided_charge import DecidedCharge
from django_ratelimit_lua.extension import decision_hooks
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit
from tests.bench.measure import DIRECT
from tests.server import server

ROUNDS, HITS, RULES, DAYS = 31, 1000, 100, 90
MEASURED = 20
"""So many of the hundred rules are filled: each takes the same."""
PERIOD_US = 3_600_000_000


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


def kept() -> None:
    """Bytes in Redis of a hundred rules, by the real writer at moments that have gone by: minutes
    of two days, hours of ninety.
    """
    DIRECT.flushdb()
    writer, today = Writer(), int(time.time()) // DAY * DAY
    for day in range(DAYS - 1, -1, -1):
        # What is kept by the minute goes away after two days; before, hours tell all that is left.
        step = MINUTE if day < 2 else HOUR
        for moment in range(today - day * DAY, today - day * DAY + DAY, step):
            writer.take(Tables(moment, kinds(moment)), {})
            if moment % HOUR == HOUR - step or step == HOUR:
                assert writer.write()
        if day == 2:
            for key in DIRECT.scan_iter("*", count=1000):
                if re.search(rb":(minutes|hour):\d+$", key):
                    DIRECT.delete(key)
    sizes = sizes_by_kind()
    share = RULES / MEASURED
    parts = ("minutes", "more", "hours", "minute", "hour", "day", "totals")
    for kind in ("more", "minute"):  # Of two days, most have gone by then.
        keys, size = sizes[kind]
        number = KEPT[kind] * MEASURED
        sizes[kind] = (number, size * number // keys)
    print(f"{f'{RULES} rules, each with 3 counters, in Redis':44}{'keys':>8}{'MiB':>8}")
    for kind in parts:
        keys, size = sizes[kind]
        print(f"{WORDS[kind]:44}{keys * share:8.0f}{size * share / 2**20:8.2f}")
    print(f"{'together':52}{sum(sizes[kind][1] for kind in parts) * share / 2**20:8.2f}")
    print("aim: minutes about 8 MiB\n")
    DIRECT.flushdb()
    who = Writer()
    for hour in range(3):
        who.take(people(today + hour * HOUR, hour), {})
        assert who.write()
    sizes = sizes_by_kind()
    most = 0.0
    print(f"{'one rule with 10,000 people an hour, by key':44}{'KiB':>8}{'kept':>8}{'MiB':>8}")
    for kind in sorted(set(sizes) & set(KEPT) - {"minute", "more"}, key=list(WORDS).index):
        size = sizes[kind][1] / sizes[kind][0] / 1024
        most += size * KEPT[kind] / 1024
        print(f"{WORDS[kind]:44}{size:8.1f}{KEPT[kind]:8}{size * KEPT[kind] / 1024:8.1f}")
    print(f"{'together, and no more however many people':60}{most:8.1f}\n")
    DIRECT.flushdb()


WORDS = {
    "minutes": "minutes of two days",
    "more": "units and sources by the minute, two hours",
    "hours": "hours of ninety days",
    "minute": "histograms by the minute, an hour",
    "hour": "histograms by hour, two days",
    "day": "histograms by day, ninety days",
    "totals": "totals, for metrics",
    "marks minute": "high-water marks of a minute",
    "marks hour": "high-water marks of an hour",
    "marks day": "high-water marks of a day",
    "refused minute": "how many were refused in a minute",
    "refused hour": "how many were refused in an hour",
    "refused day": "how many were refused in a day",
    "top minute": "who used most, of a process and a minute",
    "top": "who used most, of a process and an hour",
}


KEPT = {
    "more": 3,
    "minute": 65,
    "marks minute": 65,
    "marks hour": 49,
    "marks day": 91,
    "refused minute": 65,
    "refused hour": 49,
    "refused day": 91,
    "top minute": 65,
    "top": 25,
}
"""How many of these keys there are at one time; of `top`, for each process."""


def kinds(moment: int) -> dict[Kind, Hits]:
    """What rules count in some time: allowed, allowed near the limit, and refused."""
    of: dict[Kind, Hits] = {}
    for number in range(MEASURED):
        spread = (moment // MINUTE + number) % 8
        for result, used, is_near in (
            ("a", spread, False),
            ("a", 14, True),
            ("r", 15 + spread, False),
        ):
            kind = (
                f"rule-{number}",
                result,
                "redis",
                1 + spread % 4,
                PERIOD_US,
                used,
                is_near,
                True,
            )
            of[kind] = Hits(100 + spread, 100 + spread, 0.01)
    return of


def people(moment: int, hour: int) -> Tables:
    """Ten thousand, of whom some were refused."""
    limit, tables = Limit("rule", "100/h"), Tables(moment)
    for number in range(10_000):
        who = f"{hour % 2}-{number}"
        person = Person(DecidedCharge(Charge(limit, digest(who)), "rule", identity=who))
        person.allowed, person.units, person.refused, person.mark = 20, 10, number % 2, number % 120
        tables.people["rule", limit.rate.period_us, digest(who)] = person
    tables.kinds["rule", "a", "redis", 1, limit.rate.period_us, 1, False, True] = Hits(
        10_000, 10_000, 1.0
    )
    return tables


def sizes_by_kind() -> dict[str, tuple[int, int]]:
    """By the kind of key, how many there are and their bytes."""
    keys: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for key in DIRECT.scan_iter("*", count=1000):
        suffix = key.rpartition(b"}:")[2].decode()
        kind = re.sub(r":[-:0-9]+", " ", suffix).strip().replace("top:minute", "top minute")
        kind = re.sub(r"^(marks|refused)[ :](minute|hour|day).*", r"\1 \2", kind)
        keys[kind] += 1
        sizes[kind] += DIRECT.memory_usage(key, samples=0) or 0
    return {kind: (number, sizes[kind]) for kind, number in keys.items()}


if __name__ == "__main__":
    counting()
    kept()
    server.stop()
