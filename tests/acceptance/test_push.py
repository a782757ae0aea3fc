"""Staying current by push: what one process changes, every other obeys within milliseconds, and asks nobody for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.worker import Worker, copy, migrated

SOON, AT_LAST = 0.05, 1.0
"""Seconds after a save has returned: by when it is obeyed; and at the latest, where the machine is busy or nothing is
heard of it."""


def until(ready: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return migrated(tmp_path_factory.mktemp("push") / "template.sqlite3")


@pytest.fixture
def database(template: Path, tmp_path: Path) -> Path:
    return copy(template, tmp_path / "site.sqlite3")


Start = Callable[..., list[Worker]]


@pytest.fixture
def start(prefix: str, database: Path) -> Iterator[Start]:
    """Starts so many processes of a site, which hear of changes unless told otherwise; the first is to edit."""
    with ExitStack() as stack:

        def begin(count: int = 4, hears: bool = True, **settings: Any) -> list[Worker]:
            options = {"RATELIMIT_DENY_CACHE_SECONDS": 60, **settings}
            workers = [stack.enter_context(Worker(prefix, {"default": database}, **options)) for _ in range(count)]
            for worker in workers:
                worker("ask()")
                if hears:
                    until(lambda worker=worker: worker("hears()"))
            return workers

        yield begin


def lags(workers: list[Worker], question: str, change: str) -> list[float]:
    """How long after the change had returned each process was asked last what it answered as before."""
    editor, *others = workers
    for other in others:
        other.send(f"watch({question!r})")
    assert [other.answer() for other in others] == ["watching"] * len(others)
    done_at = editor(f"timed({change!r})")
    return [other.answer() - done_at for other in others]


CHANGES = [
    ("ask()", "rule(limit=0)", "an edit where no rule was"),
    ("ask()", "edit(10**6)", "an edit for who was just refused"),
    ("ask()", "edit(10**6 + 1)", "an edit"),
    ("ask()", "block(network='127.0.0.1')", "a block"),
    ("ask()", "RateLimitOverride.objects.all().delete() and None", "an unblock"),
    ("ask()", "edit(0)", "an edit"),
    ("ask()", "RateLimitOverride.objects.create(network='127.0.0.1', effect='exempt').pk", "an exemption"),
    ("ask()", "RateLimitOverride.objects.all().delete() and None", "the end of an exemption"),
    ("ask()", "RateLimitRule.objects.all().delete() and None", "the end of a rule"),
    ("limiter.hit('ada').allowed", "limiter.reset('ada')", "a reset for who was just refused"),
]


def test_a_change_is_obeyed_by_every_process_within_50_milliseconds(start: Start) -> None:
    """Edits, blocks, unblocks, exemptions and resets, also for who sits in the deny cache there for a minute."""
    workers = start()
    found: list[float] = []
    for _ in range(3):
        for question, change, what in CHANGES:
            if question != "ask()":
                refused = [worker("[limiter.hit('ada').source for _ in range(5)][-1]") for worker in workers]
                assert set(refused) == {"deny-cache"}
            late = lags(workers, question, change)
            assert max(late) < AT_LAST, what
            found += late
    print(f"median {median(found) * 1000:.1f} ms, most {max(found) * 1000:.1f} ms of {len(found)}")
    assert median(found) < SOON
