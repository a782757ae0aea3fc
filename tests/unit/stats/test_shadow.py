"""Versions of rules in shadow mode: what makes one, and what is kept of it before it is written."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua.rules.rule import compile_rule
from django_ratelimit_lua.stats import shadow
from django_ratelimit_lua.stats.shadow import MOST_PEOPLE, ShadowCounter, version_of

API = {"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"}


@pytest.mark.parametrize(
    ("words", "is_another"),
    [
        ({"rate": "50/m"}, True), ({"rate": ["100/m", "5/s"]}, True), ({"key": "user"}, True), ({"path": "/"}, True),
        ({"tiers": [{"group": "a", "rate": "9/m"}]}, True), ({"name": "other"}, True),
        ({"mode": "shadow"}, False), ({"id": 7}, False), ({"description": "x", "order": 5, "message": "y"}, False),
    ],
)  # fmt: skip
def test_a_version_is_what_changes_whom_it_refuses(words: dict[str, Any], is_another: bool) -> None:
    """Whatever order its words stand in."""
    assert (version_of({**API, **words}) != version_of(API)) is is_another
    assert version_of(dict(reversed([*API.items()]))) == version_of(API)


def test_people_are_bounded_and_requests_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two writings."""
    counter = ShadowCounter()
    monkeypatch.setattr(counter._task, "start", lambda: True)
    rule = compile_rule({**API, "mode": "shadow"})
    for number in range(MOST_PEOPLE + 100):
        counter.add(rule, b"%d" % number, number % 2 == 0)
    (tally,) = counter._tallies.values()
    assert (tally.seen, tally.refused) == (MOST_PEOPLE + 100, MOST_PEOPLE // 2 + 50)
    assert (len(tally.people), len(tally.refused_people)) == (MOST_PEOPLE, MOST_PEOPLE // 2)
    counter.clear()
    assert counter._tallies == {}


def test_people_are_bounded_also_while_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """However many come in the middle of every attempt: at most twice as many; the requests are all counted."""
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1"}}
    counter = ShadowCounter()
    monkeypatch.setattr(counter._task, "start", lambda: True)
    rule = compile_rule({**API, "mode": "shadow"})
    numbers, write = iter(range(10**6)), shadow._write

    def others_come(*args: Any) -> None:
        for _ in range(MOST_PEOPLE):
            counter.add(rule, b"%d" % next(numbers), True)
        write(*args)

    monkeypatch.setattr(shadow, "_write", others_come)
    counter.add(rule, b"first", True)
    for _ in range(4):
        counter.flush()
    (tally,) = counter._tallies.values()
    assert tally.seen == 1 + 4 * MOST_PEOPLE
    assert MOST_PEOPLE <= len(tally.people) == len(tally.refused_people) <= 2 * MOST_PEOPLE
