"""Statistics of a day, and by the hour of two weeks before, that nobody has made: so that the
demo's pages show something at the first look. Written as any process writes what it has counted,
but with other times.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from django_ratelimit_lua.contrib.statistics.clients import ClientCount
from django_ratelimit_lua.contrib.statistics.recorder import NEAR
from django_ratelimit_lua.contrib.statistics.writing import Hits, Kind, Tables, Writer
from django_ratelimit_lua.engine import DecidedCharge
from django_ratelimit_lua.identity import Identity, digest
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.rules.provider import loaded_ruleset

MINUTE, HOUR, DAY = 60, 3600, 86_400
WEEKS = 2


class Place(NamedTuple):
    """What is counted: by `name`; by address or user; how many `clients` come in an hour in which
    much is going on, and how often each, about.
    """

    name: str
    limit: Limit
    by: str
    clients: int
    hits: float


EVERYTHING = Place(
    "everything", Limit("everything", "1200/m", algorithm="token_bucket", burst=200), "ip", 90, 9
)
"""Every request of a visitor counts here as well; these are those that count nowhere else."""
PLACES = (
    EVERYTHING,
    Place("search", Limit("search", "500/h"), "ip", 50, 6),
    Place("example_project.views.Login.dispatch", Limit("login", "5/15m"), "ip", 12, 1.6),
    Place(
        "example_project.views.export",
        Limit("export", "60/m", algorithm="token_bucket", burst=50),
        "ip",
        9,
        4,
    ),
    Place("exports of a day", Limit("exports of a day", "20/d", mode="shadow"), "ip", 9, 4),
    Place("api", Limit("api", "60/m", algorithm="token_bucket", burst=20), "user", 14, 30),
    Place("webhooks", Limit("webhooks", "4/s", algorithm="leaky_bucket", queue=12), "", 1, 60),
)
SCANNERS = Place("scanners", Limit("scanners", "8/10s"), "ip", 1, 0)
ATTACK = (4 * HOUR, 4 * HOUR + 40 * MINUTE)
"""When somebody guessed passwords and looked for holes: so many seconds ago."""
FIRST_USER = 2_000_000_000
"""The ids of made-up users begin here: no account of a demo ever gets one of them."""
HEAVY = {"search": 420, "api": 95, "example_project.views.export": 31}
"""How often the one who comes most often comes in an hour, or in a minute of the users of the API.
"""


def fill(now: float) -> None:
    """Write it, the last day first. Where Redis is away, there is none."""
    dice, writer, used = random.Random(1), Writer(), Counter[tuple[str, str, int]]()
    for began, seconds in (*_steps_of_the_day(int(now)), *_steps_before(int(now))):
        visits = {place: _visitors(place, began, seconds, dice) for place in PLACES}
        visits[PLACES[4]] = visits[PLACES[3]]  # The same requests.
        if ATTACK[0] < now - began <= ATTACK[1]:
            for place, hits in ((PLACES[2], 110), (SCANNERS, 260)):
                guesses = {f"203.0.113.{6 + n}": hits * (3 - n) for n in range(3)}
                visits[place] = {**visits.get(place, {}), **guesses}
        for place, visitors in visits.items():
            is_whole = place is not PLACES[4]
            writer.take(_tables(place, began, visitors, dice, used, is_whole=is_whole), {}, {})
            if is_whole and place is not EVERYTHING and place.by:
                passed = {_address(who): times for who, times in visitors.items()}
                writer.take(_tables(EVERYTHING, began, passed, dice, used, is_whole=False), {}, {})
        if began % HOUR + seconds >= HOUR:
            writer.write()
    writer.write()


def _steps_of_the_day(now: int) -> Iterator[tuple[int, int]]:
    """Moments and how long each lasts: ten minutes, then the minutes of the last hour."""
    last = now - HOUR - now % (10 * MINUTE)
    yield from ((at, 10 * MINUTE) for at in range(now - DAY - now % HOUR, last, 10 * MINUTE))
    yield from ((at, MINUTE) for at in range(last, now - MINUTE, MINUTE))


def _steps_before(now: int) -> Iterator[tuple[int, int]]:
    day = now - DAY - now % HOUR
    yield from ((at, HOUR) for at in range(day - HOUR, day - WEEKS * 7 * DAY, -HOUR))


def _visitors(place: Place, began: int, seconds: int, dice: random.Random) -> dict[str, int]:
    """Who comes, and how often."""
    hour = began % DAY / HOUR
    busy = 0.25 + 0.75 * max(0.0, math.sin((hour - 6) / 16 * math.pi)) ** 1.5
    busy *= 0.6 if began // DAY % 7 in (2, 3) else 1.0  # A weekend.
    number = place.clients * busy * min(1.0, seconds / HOUR * 2.5)
    found: Counter[str] = Counter()
    for _ in range(int(number) + (dice.random() < number % 1)):
        who = min(int(dice.paretovariate(0.7)), 2500)
        found[_client(place, who)] += max(1, round(dice.expovariate(1 / place.hits)))
    if place.name in HEAVY and 8 <= hour < 20:
        share = seconds / HOUR
        if place.by == "user":  # It is busy for one minute of ten.
            share = float(began % (10 * MINUTE) < MINUTE)
        found[_client(place, 0)] += round(HEAVY[place.name] * share * dice.uniform(0.6, 1.3))
    return found


def _client(place: Place, who: int) -> str:
    if place.by == "ip":
        return f"198.51.{100 + who // 250}.{1 + who % 250}"
    return str(FIRST_USER + who % 40) if place.by else "receiver.example"


def _address(who: str) -> str:
    """Where a visitor comes from: users of the API have an address each."""
    return who if "." in who else f"198.51.99.{1 + int(who) - FIRST_USER}"


def _tables(
    place: Place,
    began: int,
    visitors: dict[str, int],
    dice: random.Random,
    used: Counter[tuple[str, str, int]],
    *,
    is_whole: bool = True,
) -> Tables:
    """What a process would have counted of them. `used`: by name, who, and the window in which that
    is; `is_whole`: the site counts them here, and not elsewhere.
    """
    limit, name = place.limit, place.name
    window = began * 1_000_000 // limit.rate.period_us
    is_shadow, most = limit.mode == "shadow", limit.rate.limit
    ruleset = loaded_ruleset()
    rule = None if ruleset is None else ruleset.by_name.get(name)
    tables = Tables(float(began))
    for who, times in visitors.items():
        identity: Identity = (place.by, who) if place.by else who
        person = ClientCount(
            DecidedCharge(Charge(limit, digest(identity), 1), name, rule, identity=identity)
        )
        before = used[name, who, window]
        allowed = min(times, most - before)
        used[name, who, window] += allowed
        person.allowed, person.refused, person.units = allowed, times - allowed, allowed
        person.stopped = 0 if is_shadow else person.refused
        tables.clients[name, digest(identity)] = person
        for number in range(1, allowed + 1, max(1, allowed // 8)):
            of, found = min(max(1, allowed // 8), allowed + 1 - number), before + number
            time_bucket = dice.choice((2, 2, 2, 3, 3, 4))
            result = "h" if is_shadow else "a"
            kind = Kind(name, result, "redis", time_bucket, found >= NEAR * most, is_whole)
            hits = tables.kinds.setdefault(kind, Hits())
            hits.number += of
            hits.units += of
            tables.requests[result] += of * is_whole
        if times > allowed:
            source, time_bucket = (
                ("redis", 3) if is_shadow or times - allowed < 5 else ("deny-cache", 0)
            )
            result = "s" if is_shadow else "r"
            kind = Kind(name, result, source, time_bucket, False, is_whole)
            tables.kinds.setdefault(kind, Hits()).number += times - allowed
            tables.requests[result] += (times - allowed) * is_whole
    return tables
