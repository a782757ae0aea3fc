"""The first request after a change was received obeys it, even if no rule applied to earlier
requests of the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua.models import RateLimitOverride, RateLimitRevision, RateLimitRule
from tests.examples import examples

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[3]
FACES = {
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
"""What may get a request, and the call sites it is made of."""
Ask = Callable[[Any], Any]


@pytest.fixture
def other(prefix: str) -> Iterator[Ask]:
    """Return a function that sends a task to another process, which does nothing else."""
    environment = {**os.environ, "RATELIMIT_TEST_PREFIX": prefix}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.asked_site"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(question: Any) -> Any:
        print(json.dumps(question), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        assert answer, f"the other process has ended: {process.wait(30)}"
        return json.loads(answer)

    with process:  # Which closes its pipes and waits for it.
        yield ask


def rules(face: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return rules that replace call sites, add to them or limit paths."""
    sites = FACES[face] or ["none"]
    rule = st.fixed_dictionaries(
        {
            "name": st.sampled_from([*sites, "one", "two"]),
            "rate": st.integers(1000, 1005).map("{}/h".format),
            "key": st.sampled_from(["ip", "user_or_ip"]),
            "method": st.sampled_from(["", "GET", "POST"]),
            "audience": st.sampled_from(["everyone", "everyone", "anonymous", "authenticated"]),
            "mode": st.sampled_from(["enforce", "enforce", "shadow", "off"]),
            "group": st.sampled_from(["", *sites]),
            "path": st.sampled_from(["", "", "/"] if FACES[face] else ["/", "/place", "/other"]),
        }
    )
    return st.lists(rule, max_size=2, unique_by=lambda one: one["name"])


@st.composite
def histories(draw: st.DrawFn) -> tuple[Any, ...]:
    """Return rules, a request, other rules, and the first request after these."""
    face = draw(st.sampled_from(list(FACES)))
    first, second = (
        {
            "face": face,
            "method": draw(st.sampled_from(["GET", "POST"])),
            "user": draw(st.sampled_from([None, "ada"])),
        }
        for _ in range(2)
    )
    return draw(rules(face)), first, draw(rules(face)), second, draw(st.booleans())


def save(declared: list[dict[str, Any]], block: bool) -> None:
    with transaction.atomic():
        RateLimitOverride.objects.all().delete()
        RateLimitRule.objects.all().delete()
        RateLimitRule.objects.bulk_create(RateLimitRule(**one) for one in declared)
        if block:
            RateLimitOverride.objects.create(network="127.0.0.1", effect="block")


def hear(other: Ask) -> None:
    """Wait until the other process has received the change, if it has rules."""
    saved, end = RateLimitRevision.read("default").revision, time.monotonic() + 1
    while other("revision") not in (None, saved):
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_first_request_after_a_save_obeys_it_in_any_process(other: Ask) -> None:
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
        other(first)
        save(after, block)
        hear(other)
        answer = other(second)
        other("forget")
        assert answer == other(second)

    holds()


def test_a_new_rule_is_obeyed_by_every_caller(other: Ask) -> None:
    """A limit of 0 refuses the next request, although no rule applied before."""
    for face, sites in FACES.items():
        save([], False)
        hear(other)
        question = {"face": face, "method": "GET", "user": None}
        assert other(question)[0] == 200
        if face == "limiter":
            RateLimitRule.objects.create(name="limiter", rate="0/m")
        elif sites:
            RateLimitRule.objects.create(name="beside", group=sites[0], key="ip", rate="0/m")
        else:
            RateLimitRule.objects.create(name="everything", path="/", key="ip", rate="0/m")
        hear(other)
        status, limits, *told = other(question)
        assert status == 429 or "0" in told, (face, limits)
