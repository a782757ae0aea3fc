"""Forks, with all annexes."""

from __future__ import annotations

from tests.acceptance.processes import test_forks
from tests.acceptance.processes.test_forks import (  # noqa: F401
    test_a_child_decides_whatever_lock_was_held_at_the_fork,
    test_a_child_uses_no_object_of_its_parents_process,
)

own = test_forks.own
