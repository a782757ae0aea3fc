"""The reason and the time of a refusal."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import RequestFactory
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua import Decision
from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.web.refusal import in_time, refusal_of

WAIT = LimitState("search", False, 10, 10, 0, 5.0, 5.0, 0.0, period=1.0)
LARGE = LimitState("export", False, 10, 0, 10, None, 5.0, 0.0, period=1.0)
SHUT = LimitState("shut", False, 0, 0, 0, None, 0.0, 0.0, period=1.0)
FOR_GOOD, FOR_A_TIME = (
    LimitState.blocked("office", seconds, "enforce") for seconds in (None, 60.0)
)
SHADOW = LimitState.blocked("shadow", None, "shadow")
FREE = LimitState("free", True, 10, 1, 9, 0.0, 5.0, 0.0, period=1.0)


TEXTS = {
    "wait": "Try again in ",
    "too large": "This request is larger than the limit allows.",
    "unavailable": "This is not available.",
    "blocked": "You are blocked.",
    "unknown": "",
}


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ([WAIT], "wait"),
        ([WAIT, SHADOW, FREE], "wait"),
        ([FOR_A_TIME], "wait"),
        ([LARGE], "too large"),
        ([WAIT, LARGE], "too large"),
        ([LARGE, SHUT], "unavailable"),
        ([SHUT], "unavailable"),
        ([SHUT, FOR_GOOD], "blocked"),
        ([FOR_GOOD, LARGE, WAIT], "blocked"),
        ([], "unknown"),
    ],
)
def test_the_reason_is_that_of_the_longest_wait(
    states: list[LimitState], reason: str, rf: RequestFactory
) -> None:
    """Limits in shadow mode are ignored."""
    refusal = refusal_of(rf.get("/"), Decision(False, tuple(states)))
    assert refusal.reason == reason
    assert (refusal.retry_after is None) == (reason != "wait")
    assert str(refusal.when()).startswith(TEXTS[reason])
    assert bool(refusal.when()) == (reason != "unknown")


def test_a_decision_is_logged_once(rf: RequestFactory, caplog: Any) -> None:
    """The same decision always has the same refusal and one log record."""
    request, decision = rf.get("/"), Decision(False, (WAIT,))
    assert refusal_of(request, decision) is refusal_of(request, decision)
    assert len(caplog.records) == 1
    assert refusal_of(request, Decision(False, (SHUT,))).reason == "unavailable"
    assert len(caplog.records) == 2


@given(st.integers(1, 10**9))
def test_a_time_in_words_is_never_too_short(seconds: int) -> None:
    """It is exact up to 90 seconds, and then rounded up to whole units."""
    *_, count, unit = in_time(seconds).split()
    size = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}[unit.rstrip("s")]
    assert 0 <= int(count) * size - seconds < size
    assert (size == 1) == (seconds <= 90)


@pytest.mark.parametrize(
    ("seconds", "german"),
    [
        (1, "in 1 Sekunde"),
        (90, "in 90 Sekunden"),
        (91, "in etwa 2 Minuten"),
        (129_600, "in etwa 36 Stunden"),
    ],
)
def test_a_time_is_formatted_in_german(seconds: int, german: str) -> None:
    """The German text has the correct singular and plural forms."""
    with translation.override("de"):
        assert in_time(seconds) == german
