"""The store's breaker opens after consecutive failures and closes after a successful trial, without
a server or a thread.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua.store.breaker import FAILURES, FIRST_PAUSE, MAX_PAUSE, Breaker


@pytest.fixture
def trials() -> list[bool]:
    """Return the results of the next trials."""
    return []


@pytest.fixture
def breaker(trials: list[bool], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a breaker whose trials the test runs."""
    made = Breaker(lambda: trials.pop(0))
    monkeypatch.setattr(made._task, "start", lambda: True)
    return made


def test_only_consecutive_failures_open_the_breaker(breaker: Breaker) -> None:
    """A success between failures resets their number."""
    for _ in range(FAILURES - 1):
        breaker.failed()
    assert breaker.may_ask()
    breaker.succeeded()
    for _ in range(FAILURES - 1):
        breaker.failed()
    assert breaker.may_ask()
    breaker.failed()
    assert (breaker.is_open, breaker.may_ask()) == (True, False)


def test_a_successful_trial_closes_the_breaker_and_pauses_grow_until_then(
    breaker: Any, trials: list[bool]
) -> None:
    """Each pause is half as long again as the one before, with a random part, up to a second. A
    successful request also closes the breaker.
    """
    for _ in range(FAILURES):
        breaker.failed()
    trials += [False] * 8 + [True]
    pauses = [breaker._next_pause(), *(breaker._try() for _ in range(8))]
    middles = [min(FIRST_PAUSE * 1.5**number, MAX_PAUSE) for number in range(9)]
    assert all(
        0.75 * middle <= pause <= 1.25 * middle
        for pause, middle in zip(pauses, middles, strict=True)
    )
    assert breaker._try() is None
    assert breaker.may_ask()
    for _ in range(FAILURES):
        breaker.failed()
    assert FIRST_PAUSE * 0.75 <= breaker._next_pause() <= FIRST_PAUSE * 1.25, "they begin anew"
    breaker.succeeded()
    assert breaker._try() is None
    assert trials == [], "nobody tried what was closed by then"
