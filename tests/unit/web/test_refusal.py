"""The reason and the time of a refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import RequestFactory
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.web.refusal import in_time, refusal_of
from django_ratelimit_lua.web.responses import too_many_requests

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


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.2, "1"), (1.0, "1"), (1.0001, "2"), (59.5, "60"), (None, None)]
)
def test_retry_after_is_whole_seconds_rounded_up(
    seconds: float | None, header: str | None, rf: RequestFactory
) -> None:
    """It is never 0, and absent if no retry would succeed."""
    refused = Decision(False, (LimitState("x", False, 1, 1, 0, seconds, 1.0, 0.0),))
    response = too_many_requests(rf.get("/", headers={"accept": "application/json"}), refused)
    assert response.headers.get("Retry-After") == header
    assert ("retry_after" in json.loads(response.content)) == (header is not None)


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
ACCEPTED = {
    "application/problem+json": [
        "application/json",
        "application/problem+json",
        "application/json, text/html;q=0.5",
        "a/b," * 30 + "application/json",
    ],
    "text/html": [BROWSER, "text/html", "TEXT/HTML", "text/html, application/json;q=0.9"],
    "text/plain": [
        *("*/*", "image/png", "text/plain", "text/*", ""),
        "application/json," + "a/b," * 300,
        "a/b," * 40 + "application/json",
    ],
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_the_accept_header_selects_the_kind_of_response(kind: str, rf: RequestFactory) -> None:
    """Without a preference, or with an overlong header, it is plain text."""
    for accept in ACCEPTED[kind]:
        response = too_many_requests(rf.get("/", headers={"accept": accept}), Decision(False))
        assert response["Content-Type"].partition(";")[0] == kind, accept
