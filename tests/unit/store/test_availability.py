"""The store pauses after consecutive failures until a successful trial, without
a server or a thread.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua.store.availability import FAILURES, FIRST_PAUSE, MAX_PAUSE, Availability


@pytest.fixture
def trials() -> list[bool]:
    """Return the results of the next trials."""
    return []


@pytest.fixture
def availability(trials: list[bool], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an availability. The test runs its trials."""
    made = Availability(lambda: trials.pop(0))
    monkeypatch.setattr(made._task, "start", lambda: True)
    return made


def test_only_consecutive_failures_begin_a_pause(availability: Availability) -> None:
    """A success between failures resets their number."""
    for _ in range(FAILURES - 1):
        availability.record_failure()
    assert availability.may_send()
    availability.record_reply()
    for _ in range(FAILURES - 1):
        availability.record_failure()
    assert availability.may_send()
    availability.record_failure()
    assert (availability.is_paused, availability.may_send()) == (True, False)


def test_a_successful_trial_ends_the_pause_and_intervals_grow_until_then(
    availability: Any, trials: list[bool]
) -> None:
    """Each interval is half as long again as the one before, with a random part, up to a second."""
    for _ in range(FAILURES):
        availability.record_failure()
    trials += [False] * 8 + [True]
    pauses = [availability._lengthen_pause(), *(availability._run_trial() for _ in range(8))]
    middles = [min(FIRST_PAUSE * 1.5**number, MAX_PAUSE) for number in range(9)]
    assert all(
        0.75 * middle <= pause <= 1.25 * middle
        for pause, middle in zip(pauses, middles, strict=True)
    )
    assert availability._run_trial() is None
    assert availability.may_send()
    for _ in range(FAILURES):
        availability.record_failure()
    assert FIRST_PAUSE * 0.75 <= availability._lengthen_pause() <= FIRST_PAUSE * 1.25, (
        "the intervals start again"
    )
    availability.record_reply()
    assert availability._run_trial() is None
    assert trials == [], "no trial after the pause"
