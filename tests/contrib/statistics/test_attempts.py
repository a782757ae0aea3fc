"""The bound on the refusals of a limit above the current one, computed from recorded counts."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from django_ratelimit_lua.contrib.statistics import attempts
from django_ratelimit_lua.contrib.statistics.attempts import HigherLimits
from django_ratelimit_lua.contrib.statistics.reading import Span
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.rate import SECOND
from django_ratelimit_lua.operations.curve import Between, CurvePoint
from tests import reference
from tests.examples import examples

MINUTES = 20
ANY = Between(0, 10**9)
Traffic = dict[str, list[int]]


def counted(limit: Limit, moments: list[int]) -> list[tuple[int, bool]]:
    """Return the minute of each request, and whether the exact model of the limit allows it."""
    model = reference.MODELS[limit.kind.name](limit)
    return [
        (at // (60 * SECOND), reference.decide([model], "hit", at, 1).allowed) for at in moments
    ]


def lists_of(limit: Limit, traffic: Traffic, least: int = 0) -> list[list[bytes]]:
    """Return the lists that one process writes for each minute, without clients below `least`."""
    tables: list[dict[str, Counter[str]]] = [
        {"used": Counter(), "refused": Counter()} for _ in range(MINUTES)
    ]
    for client, moments in traffic.items():
        for minute, is_allowed in counted(limit, moments):
            tables[minute]["used" if is_allowed else "refused"][client] += 1
    return [
        [
            json.dumps(
                {
                    word: [least, [[who, n, 0, []] for who, n in of.items() if n >= least]]
                    for word, of in table.items()
                }
            ).encode()
        ]
        for table in tables
    ]


def traffic_of(dice: random.Random) -> Traffic:
    """Return requests of clients that come evenly, in bursts, or both."""
    traffic = {}
    for number in range(dice.randint(1, 4)):
        moments = []
        for _ in range(dice.randint(1, 6)):
            begin, length = dice.uniform(0, MINUTES - 3), dice.choice((0.01, 0.5, 1.0, 3.0))
            moments += [
                int((begin + dice.random() * length) * 60 * SECOND)
                for _ in range(dice.choice((3, 12, 40)))
            ]
        traffic[f"client {number}"] = sorted(moments)
    return traffic


def found_by(limit: Limit, traffic: Traffic, least: int = 0) -> tuple[HigherLimits, int]:
    refused = sum(
        not is_allowed for moments in traffic.values() for _, is_allowed in counted(limit, moments)
    )
    stride = attempts._stride(limit, Span.last(3600, 60))
    lists = lists_of(limit, traffic, least)
    return HigherLimits(limit, attempts._attempts(lists, stride), refused), refused


@pytest.mark.parametrize("least", [0, 4])
@pytest.mark.parametrize("seed", range(examples(20)))
@pytest.mark.parametrize(
    "algorithm", ["fixed_window", "sliding_log", "sliding_window", "token_bucket"]
)
def test_no_higher_limit_would_have_refused_more(algorithm: str, seed: int, least: int) -> None:
    """For any traffic, the exact model of a higher limit refuses at most as many requests and
    clients as the bound, even if the lists of clients are short.
    """
    dice = random.Random(seed)
    traffic = traffic_of(dice)
    limit = Limit("x", "5/m", algorithm=algorithm)
    higher, _ = found_by(limit, traffic, least)
    for number in (6, 8, 10, 15, 30, 100, higher.enough(5) + 1):
        options = {"burst": number} if limit.kind.is_bucket else {}
        rate = "5/m" if limit.kind.is_bucket else f"{number}/m"
        other = Limit("x", rate, algorithm=algorithm, **options)
        truth = {
            who: [is_allowed for _, is_allowed in counted(other, moments)].count(False)
            for who, moments in traffic.items()
        }
        bound = higher.cap(CurvePoint(number, ANY, ANY), 5)
        assert sum(truth.values()) <= bound.requests.most, number
        assert sum(map(bool, truth.values())) <= bound.people.most, number


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_log", "sliding_window"])
def test_the_effect_of_a_higher_limit_on_a_burst_is_exact(algorithm: str) -> None:
    """Of 40 requests at a limit of 10 per minute, a limit of 30 refuses 10, and a limit of 40
    refuses none.
    """
    limit = Limit("x", "10/m", algorithm=algorithm)
    higher, refused = found_by(limit, {"ada": list(range(40))})
    assert refused == 30
    found = [higher.cap(CurvePoint(number, ANY, ANY), 10) for number in (30, 40, 10**12)]
    assert [(point.requests.most, point.people.most) for point in found] == [
        (10, 1),
        (0, 0),
        (0, 0),
    ]


def test_a_higher_limit_removes_no_refusals_of_unlisted_clients() -> None:
    """The number of requests of an unlisted client is unknown, so the bound still counts all its
    refusals.
    """
    limit = Limit("x", "1/m", algorithm="sliding_log")
    traffic = {f"client {number}": [number, number + 1] for number in range(30)}
    higher, refused = found_by(limit, traffic, least=2)
    assert refused == 30
    point = higher.cap(CurvePoint(100, ANY, ANY), 1)
    assert (point.requests.most, point.people) == (30, ANY)
