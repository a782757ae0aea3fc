"""Recorded histories of several processes are linearizable.

`make test` records a few histories, and `.ci/run` fifty. `RATELIMIT_TEST_HISTORIES=1000` in front
of `python -m tests` records a thousand.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.limit import Limit
from tests.support.linearizability import NAME, Call, NotLinearizableError, Response, check
from tests.support.processes import Worker, copy, migrated
from tests.support.reference_model import Answer, Answers

HISTORIES = int(os.environ.get("RATELIMIT_TEST_HISTORIES", "5"))
PROCESSES = 4
MAX_HITS = 200
RECORD = "__import__('tests.support.linearizability', fromlist=['record']).record"
serial = itertools.count()


class Recorder:
    """Four processes that hit, which can be killed, and one that edits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.empty = migrated(folder / "empty.sqlite3")
        self.database = copy(self.empty, folder / "db.sqlite3")
        self.workers: list[Worker] = []
        self.restart()

    def start(self) -> Worker:
        return Worker("linearizable:", {"default": self.database})

    def restart(self) -> None:
        """Start all processes again. Each history nests another change of settings in them."""
        self.close()
        self.editor, *self.workers = [self.start() for _ in range(1 + PROCESSES)]

    def close(self) -> None:
        if self.workers:
            for worker in (self.editor, *self.workers):
                worker.__exit__()

    def record(self, seed: int) -> tuple[list[Call], Limit]:
        """Record a history, and return its calls and the limit with which it begins."""
        dice = random.Random(seed)
        algorithm = BY_RATE[seed % len(BY_RATE)]
        can_have_both = "bucket" not in algorithm
        kills = dice.randrange(2 + can_have_both)
        edits = dice.randrange(4) if can_have_both or not kills else 0
        # The model of a log looks for the end of each hit, which takes long if a limit was lowered.
        most = 150 if algorithm == "sliding_log" else 600
        limits = [dice.randrange(20, most) for _ in range(edits + 1)]
        number = next(serial)
        if number % 200 == 199:
            self.restart()
        prefix, path = f"linearizable{number}:", self.folder / f"{number}.jsonl"
        copy(self.empty, self.database)
        memory = 0 if edits else dice.choice((0, 1))
        setting = f"override_settings(RATELIMIT_DENY_CACHE_SECONDS={memory}).enable()"
        for worker in (self.editor, *self.workers):
            worker(f"restart({prefix!r}) ;; {setting}")
        if edits:
            self.editor(f"rule({NAME!r}, path='', group={NAME!r}, key='', rate='{limits[0]}/h')")
        given = f"{str(path)!r}, '{limits[0]}/h', {algorithm!r}"
        self.editor(f"{RECORD}({given}, 1, 1, 0)")  # The first hit has a response.
        threads = dice.randrange(1, 6)
        start = time.monotonic_ns() + 30_000_000
        for worker in self.workers:
            hits = dice.randrange(threads, MAX_HITS + 1)
            worker.send(f"{RECORD}({given}, {threads}, {hits}, {start})")
        time.sleep(0.03)
        calls = self.disturb(dice, algorithm, limits[1:], kills)
        for worker in self.workers:
            worker.answer()
        return [*calls, *read(path)], Limit(NAME, f"{limits[0]}/h", algorithm=algorithm)

    def disturb(
        self, dice: random.Random, algorithm: str, limits: list[int], kills: int
    ) -> list[Call]:
        """Kill processes and edit the limit, in a random order. Return the edits."""
        calls = []
        actions = [*limits, *[0] * kills]
        dice.shuffle(actions)
        for limit in actions:
            time.sleep(dice.random() * 0.06)
            if not limit:
                killed = self.workers.pop(dice.randrange(len(self.workers)))
                killed.kill()
                killed.__exit__()
                continue
            begin = time.monotonic_ns()
            self.editor(f"edit({limit}, {NAME!r})")
            edited = Limit(NAME, f"{limit}/h", algorithm=algorithm)
            calls.append(Call(begin, time.monotonic_ns(), edit=edited))
        return calls

    def replace_killed(self) -> None:
        """Start processes instead of those that were killed."""
        self.workers += [self.start() for _ in range(PROCESSES - len(self.workers))]


def read(path: Path) -> Iterator[Call]:
    """Yield the hits of a history from its file."""
    begun: dict[tuple[int, int, int], Call] = {}
    for line in path.read_text().splitlines():
        process, thread, number, *event = json.loads(line)
        key = (process, thread, number)
        if isinstance(event[1], int):
            cost, begin = event
            begun[key] = Call(begin, None, cost)
            continue
        end, (moment, limit, allowed, granted, wait, *answer) = event
        answers = Answers(allowed, granted, wait, [Answer(*answer)])
        response = Response(moment, limit, answers)
        yield begun.pop(key)._replace(end=end, response=response)
    yield from begun.values()


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: Any) -> Iterator[Recorder]:
    """Start the processes of all histories."""
    recorder = Recorder(tmp_path_factory.mktemp("histories"))
    yield recorder
    recorder.close()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_recorded_history_is_linearizable(recorder: Recorder, seed: int) -> None:
    """Processes hit one client, while some are killed and the limit is edited."""
    calls, limit = recorder.record(seed)
    recorder.replace_killed()
    order = check(calls, limit)
    assert len(order) >= sum(call.end is not None for call in calls)


FIRST = 1_750_000_000_000_000
"""The moment of the first hit of the histories below, in microseconds."""


def hit(
    begin: int, end: int | None, used: int = 0, *, limit: int = 3, moment: int | None = None
) -> Call:
    """Return a hit of a fixed window of an hour, by its times in seconds and what it reports."""
    if end is None:
        return Call(begin, None, 1)
    moment = FIRST + begin if moment is None else moment
    allowed = used <= limit
    left = FIRST + 3_600_000_000 - moment
    retry_after = 0 if allowed else left
    answer = Answer(
        min(used, limit), max(limit - used, 0), retry_after, left, retry_after, moment * allowed
    )
    answers = Answers(allowed, int(allowed), retry_after, [answer])
    return Call(begin, end, 1, Response(moment, limit, answers))


def window(limit: int = 3) -> Limit:
    return Limit(NAME, f"{limit}/h", algorithm="fixed_window")


FAULTY = {
    "an update is lost": [hit(0, 1, 1), hit(2, 3, 2), hit(4, 5, 2)],
    "one hit too many is admitted": [hit(0, 1, 1), hit(2, 3, 2), hit(4, 5, 3), hit(6, 7, 3)],
    "a refusal is too early": [hit(0, 1, 1), hit(2, 3, 4)],
    "a hit is decided by an old limit after an edit": [
        hit(0, 1, 1),
        Call(2, 3, edit=window(5)),
        hit(4, 5, 2),
    ],
    "a call is decided before it began": [
        hit(0, 1, 2, moment=FIRST + 9),
        hit(2, 3, 1, moment=FIRST),
    ],
    "a killed hit takes effect before it began": [hit(0, 1, 2), hit(2, None)],
    "a killed hit takes effect twice": [hit(0, 1, 1), hit(2, None), hit(4, 5, 4)],
}


@pytest.mark.parametrize("history", FAULTY)
def test_a_planted_fault_is_found(history: str) -> None:
    """No order explains a history with a fault."""
    with pytest.raises(NotLinearizableError):
        check(FAULTY[history], window())
