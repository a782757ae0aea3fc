"""The time that the store may spend on a decision."""

from __future__ import annotations

import time

import pytest

from django_ratelimit_lua.store import Deadline
from django_ratelimit_lua.store.deadline import SLICES


def test_a_late_thread_spends_at_most_one_slice() -> None:
    """It checks the result after each slice before it gives up."""
    deadline, looks = Deadline(0.02), []

    def look(seconds: float) -> bool:
        looks.append(seconds)
        time.sleep(seconds + 0.03)
        return False

    assert not deadline.wait(look)
    assert len(looks) == SLICES
    assert sum(looks) == pytest.approx(0.02)
    share = Deadline(0.06).share(3)
    assert share.left == pytest.approx(0.02)


def test_the_time_left_is_shared_among_servers() -> None:
    """Unspent time is available to the next one, and without time no server is called."""
    deadline, given = Deadline(0.3), []
    for name, share in deadline.shares("abc"):
        given.append((name, round(share.left, 6)))
        share.left -= 0.04
    assert given == [("a", 0.1), ("b", 0.13), ("c", 0.22)]
    assert deadline.left == pytest.approx(0.18)
    deadline.left = 0.0
    assert list(deadline.shares("abc")) == []


def test_a_share_spends_no_more_than_its_length() -> None:
    """The next servers keep their time, even if a loop exceeds a share."""
    deadline = Deadline(0.3)
    share = deadline.share(3)
    share.left -= 5.0
    deadline.spend_share(share)
    assert deadline.left == pytest.approx(0.2)
