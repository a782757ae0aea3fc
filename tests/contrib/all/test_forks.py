"""Forks, with all annexes."""

from __future__ import annotations

from tests.acceptance import test_forks
from tests.acceptance.test_forks import (  # noqa: F401
    test_nothing_of_a_process_is_older_than_the_process,
    test_whatever_lock_is_held_a_child_decides,
)

own = test_forks.own
