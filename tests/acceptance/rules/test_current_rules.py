"""The first request after a change was received obeys it, even if no rule applied to earlier
requests of the process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua.models import RateLimitOverride, RateLimitRevision, RateLimitRule
from tests.examples import examples
from tests.support.processes import Worker

pytestmark = pytest.mark.django_db(transaction=True)
CALLERS = {
    "decorator": ["writes"],
    "a decorator without a rate": ["hook"],
    "two decorators": ["writes", "hook"],
    "get_usage": ["writes"],
    "a throttle": ["anon"],
    "a throttle without a rate": ["user"],
    "throttles": ["anon", "user"],
    "a throttle by method": ["reads"],
    "a throttle by scope": ["uploads"],
    "a throttle for all rules": [],
    "middleware": [],
    "middleware in front of the user": [],
    "limiter": ["limiter"],
}
"""The kinds of callers, and their call sites."""


@pytest.fixture
def other(prefix: str, tmp_path: Path) -> Iterator[Worker]:
    """Return another process, in which nothing else happens."""
    rates = {"anon": "500/h", "user": None, "reads": {"GET": None, "*": "600/h"}, "uploads": None}
    site = {"REST_FRAMEWORK": {"DEFAULT_THROTTLE_RATES": rates}}
    with Worker(prefix, {"default": tmp_path / "empty.sqlite3"}, **site) as worker:
        worker("from tests.acceptance.rules import callers")
        yield worker


def ask(other: Worker, question: dict[str, Any]) -> Any:
    """Return the status, the limits and a header of a request."""
    return other(f"callers.ask(**{question!r})")


def rules(caller: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return rules that replace call sites, add to them or limit paths."""
    sites = CALLERS[caller] or ["none"]
    paths = ["", "", "/"] if CALLERS[caller] else ["/", "/place", "/other"]
    rule = st.fixed_dictionaries(
        {
            "name": st.sampled_from([*sites, "one", "two"]),
            "rate": st.integers(1000, 1005).map("{}/h".format),
            "key": st.sampled_from(["ip", "user_or_ip"]),
            "method": st.sampled_from(["", "GET", "POST"]),
            "audience": st.sampled_from(["everyone", "everyone", "anonymous", "authenticated"]),
            "mode": st.sampled_from(["enforce", "enforce", "shadow", "off"]),
            "group": st.sampled_from(["", *sites]),
            "path": st.sampled_from(paths),
        }
    )
    return st.lists(rule, max_size=2, unique_by=lambda one: one["name"])


@st.composite
def histories(draw: st.DrawFn) -> tuple[Any, ...]:
    """Return rules, a request, other rules, and the first request after these."""
    caller = draw(st.sampled_from(list(CALLERS)))
    first, second = (
        {
            "caller": caller,
            "method": draw(st.sampled_from(["GET", "POST"])),
            "user": draw(st.sampled_from([None, "ada"])),
        }
        for _ in range(2)
    )
    return draw(rules(caller)), first, draw(rules(caller)), second, draw(st.booleans())


def save(declared: list[dict[str, Any]], block: bool) -> None:
    with transaction.atomic():
        RateLimitOverride.objects.all().delete()
        RateLimitRule.objects.all().delete()
        RateLimitRule.objects.bulk_create(RateLimitRule(**one) for one in declared)
        if block:
            RateLimitOverride.objects.create(network="127.0.0.1", effect="block")


def hear(other: Worker) -> None:
    """Wait until the other process has received the change, if it has rules."""
    saved, end = RateLimitRevision.read("default").revision, time.monotonic() + 1
    while other("callers.revision()") not in (None, saved):
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_first_request_after_a_save_obeys_it_in_any_process(other: Worker) -> None:
    """The response equals that of a process that has forgotten its rules."""
    RateLimitRule.objects.create(name="first", path="/first", key="ip", rate="1/m")

    @given(histories())
    @hypothesis_settings(
        max_examples=examples(100),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def holds(history: Any) -> None:
        before, first, after, second, block = history
        save(before, False)
        ask(other, first)
        save(after, block)
        hear(other)
        answer = ask(other, second)
        other("callers.forget()")
        assert answer == ask(other, second)

    holds()


def test_a_new_rule_is_obeyed_by_every_caller(other: Worker) -> None:
    """A limit of 0 refuses the next request, although no rule applied before."""
    for caller, sites in CALLERS.items():
        save([], False)
        hear(other)
        question = {"caller": caller, "method": "GET", "user": None}
        assert ask(other, question)[0] == 200
        if caller == "limiter":
            RateLimitRule.objects.create(name="limiter", rate="0/m")
        elif sites:
            RateLimitRule.objects.create(name="beside", group=sites[0], key="ip", rate="0/m")
        else:
            RateLimitRule.objects.create(name="everything", path="/", key="ip", rate="0/m")
        hear(other)
        status, limits, *told = ask(other, question)
        assert status == 429 or "0" in told, (caller, limits)
