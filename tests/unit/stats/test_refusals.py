"""How often each rule refused: counted in the process, written later. The counts are in Redis."""

from __future__ import annotations

import os
from typing import Any

from django_ratelimit_lua.stats.refusals import FAILED, RefusalCounter, refusal_counter, refusal_counts
from tests.server import url


def refused(counter: RefusalCounter) -> None:
    for rule, mode in (("api", "enforce"), ("api", "enforce"), ("api", "shadow"), ("rule: with a colon", FAILED)):
        counter.add(rule, mode)


COUNTED = {"api": {"enforce": 2, "shadow": 1}, "rule: with a colon": {FAILED: 1}}


def test_refusals_are_counted_by_rule_and_mode() -> None:
    """What is read includes what this process has not written yet, and nothing twice."""
    refused(refusal_counter)
    assert refusal_counts() == refusal_counts(1) == COUNTED
    refusal_counter.add("api", "enforce")
    assert refusal_counts()["api"] == {"enforce": 3, "shadow": 1}


def test_what_cannot_be_written_now_is_written_later(settings: Any) -> None:
    """Redis is away for a moment: nothing is lost of what was counted meanwhile."""
    counter = RefusalCounter()
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    refused(counter)
    counter.flush()
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url()}}
    assert refusal_counts() == {}
    counter.flush()
    assert refusal_counts() == COUNTED


def test_a_child_leaves_to_its_parent_what_that_has_counted() -> None:
    """Else it would be counted twice."""
    counter = RefusalCounter()
    refused(counter)
    child = os.fork()
    if not child:
        os._exit(len(counter._counts))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(counter._counts) == 3
