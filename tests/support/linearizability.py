"""Record a history of concurrent calls, and search for an order of them (Wing and Gong, 1993).

A history is linearizable if the reference model, in some order of the calls, gives each call the
response that it got, and no call comes before one that had ended when it began. A call of a killed
process has no response: it may have taken effect at any time after it began, or never.
"""

from __future__ import annotations

import copy
import json
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django_ratelimit_lua import Decision, RateLimiter
from django_ratelimit_lua.limits.limit import Limit
from tests.support.reference_model import MODELS, Answers, Model, decide

NAME = "history"
MAX_SECONDS = 10.0
"""A search that takes more CPU time is undecided."""


class NotLinearizableError(AssertionError):
    """No order of the calls explains their responses."""


class UndecidedError(AssertionError):
    """The search has taken too long."""


class Response(NamedTuple):
    """The response to a hit."""

    moment: int
    """When the server decided, in microseconds of its clock. 0: the refusal came from memory."""
    limit: int
    """The number of units in the rate that decided."""
    answers: Answers


class Call(NamedTuple):
    """A hit or an edit. The times are nanoseconds of the clock that all processes share."""

    begin: int
    end: int | None
    """None: the process was killed before the call ended."""
    cost: int = 0
    response: Response | None = None
    edit: Limit | None = None
    """The limit from then on, if the call is an edit."""


class Step(NamedTuple):
    """A state of the search: the calls that are not in the order yet, as bits, and the model."""

    remaining: int
    model: Model
    now: int


class Search:
    """The search for an order of the calls of a history."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = sorted(calls, key=lambda call: call.begin)
        self.ended = sum(1 << place for place, call in enumerate(self.calls) if call.end)
        decided = [call.response for call in self.calls if call.response and call.response.moment]
        self.by_moment = sorted(
            (call.response.moment, place)
            for place, call in enumerate(self.calls)
            if call.response and call.response.moment
        )
        moments = {response.moment for response in decided}
        self.unexplained = sorted(set(self._implied(decided)) - moments)

    def _implied(self, responses: Sequence[Response]) -> Iterator[int]:
        """Yield the moments of hits that refusals of windows imply: they end a period later."""
        hour = 3_600_000_000
        for moment, _, answers in responses:
            (answer,) = answers.limits
            if answer.retry_after:
                yield moment + answer.retry_after - hour
            yield moment + answer.reset_after - hour

    def order(self, limit: Limit, seconds: float = MAX_SECONDS) -> list[Call]:
        """Return the calls in an order that explains their responses.

        Raises:
            NotLinearizableError: No order explains them.
            UndecidedError: The search has taken more than these seconds.
        """
        give_up = time.thread_time() + seconds
        first = Step((1 << len(self.calls)) - 1, MODELS[limit.algorithm](limit), 0)
        path, branches, seen = [-1], [self.next_steps(first)], set()
        best: list[int] = []
        while branches:
            if time.thread_time() > give_up:
                raise UndecidedError(f"no order of {len(self.calls)} calls in {seconds} s")
            place, step = next(branches[-1], (-1, None))
            if step is None:
                branches.pop()
                path.pop()
                continue
            if not step.remaining & self.ended:
                return [self.calls[place] for place in [*path[1:], place]]
            key = (step.remaining, step.now, state_of(step.model))
            if key in seen:
                continue
            seen.add(key)
            path.append(place)
            branches.append(self.next_steps(step))
            best = max(best, path[1:], key=len)
        self.fail(best)

    def fail(self, best: Sequence[int]) -> None:
        """Raise NotLinearizableError with the longest explained order and the calls that follow."""
        rest = [call for place, call in enumerate(self.calls) if place not in best and call.end]
        last = [self.calls[place] for place in best[-3:]]
        raise NotLinearizableError(f"{len(best)} calls are explained, {last=}, next={rest[:5]}")

    def minimal(self, remaining: int) -> Iterator[int]:
        """Yield the calls that no remaining call precedes."""
        first_end: float = float("inf")
        bits = remaining
        while bits:
            place = (bits & -bits).bit_length() - 1
            bits &= bits - 1
            call = self.calls[place]
            if call.begin > first_end:
                return
            first_end = min(first_end, call.end or first_end)
            yield place

    def next_steps(self, step: Step) -> Iterator[tuple[int, Step]]:
        """Yield the calls that can be the next ones in the order, each with the state after it."""
        due = next((each for each in self.by_moment if step.remaining >> each[1] & 1), None)
        moment = due[0] if due else step.now
        places = list(self.minimal(step.remaining))
        for place in places:
            call = self.calls[place]
            if call.response is not None and call.response.moment in (0, moment):
                model = explain(step.model, call, max(call.response.moment, step.now))
                if model is not None:
                    yield place, self.after(step, place, model, call.response.moment)
        for place in places:
            call = self.calls[place]
            if call.edit is not None:
                model = copy.copy(step.model)
                model.edit(call.edit)
                yield place, self.after(step, place, model)
            elif call.response is None:
                for at in self.moments_between(step.now, moment):
                    model = copy.copy(step.model)
                    if decide([model], "hit", at, call.cost).allowed:
                        yield place, self.after(step, place, model, at)

    def moments_between(self, first: int, last: int) -> Iterator[int]:
        """Yield the moments at which a call without a response may have taken effect."""
        yield from [moment for moment in self.unexplained if first <= moment <= last]
        yield first

    def after(self, step: Step, place: int, model: Model, moment: int = 0) -> Step:
        """Return the state after a call."""
        return Step(step.remaining & ~(1 << place), model, max(step.now, moment))


def state_of(model: Model) -> tuple[object, ...]:
    """Return the state of a model as a key."""
    values = [value for name, value in vars(model).items() if name != "limit"]
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def explain(model: Model, call: Call, now: int) -> Model | None:
    """Return the model after a hit, or None if it does not give the response of the hit."""
    response = call.response
    assert response is not None
    if response.limit != model.limit.rate.limit:
        return None
    model = copy.copy(model)
    answers = decide([model], "hit" if response.moment else "peek", now, call.cost)
    expected = answers == response.answers
    if not response.moment:  # The numbers of a refusal from memory are a little older.
        expected = not answers.allowed
    return model if expected else None


def check(calls: Sequence[Call], limit: Limit, seconds: float = MAX_SECONDS) -> list[Call]:
    """Return the calls of a history in an order that explains them, which begins with `limit`."""
    return Search(calls).order(limit, seconds)


def numbers(decision: Decision) -> list[object]:
    """Return what a history keeps of a decision, with times in microseconds."""

    def microseconds(seconds: float | None) -> int | None:
        return None if seconds is None else round(seconds * 1e6)

    (state,) = decision.limits
    return [
        decision.moment if decision.source == "redis" else 0,
        state.limit,
        decision.allowed,
        decision.granted,
        microseconds(decision.wait),
        state.used,
        state.remaining,
        microseconds(state.retry_after),
        microseconds(state.reset_after),
        microseconds(state.wait),
        state.counted_at,
    ]


def record(path: str, rate: str, algorithm: str, threads: int, hits: int, start: int) -> None:
    """Hit one identity in several threads, from a moment of the monotonic clock on.

    Each thread writes a line when a hit begins, and another with the response when it ends. What
    was written outlives the process.
    """
    limiter = RateLimiter(NAME, rate, algorithm=algorithm)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    process = os.getpid()

    def note(*event: object) -> None:
        os.write(file, json.dumps([process, *event]).encode() + b"\n")

    def hit(thread: int) -> None:
        dice = random.Random(start + process * 100 + thread)
        time.sleep(max(start - time.monotonic_ns(), 0) / 1e9)
        for number in range(hits // threads):
            cost = dice.choice((1, 1, 1, 2, 3))
            note(thread, number, cost, time.monotonic_ns())
            decision = limiter.hit("everyone", cost=cost)
            note(thread, number, time.monotonic_ns(), numbers(decision))

    workers = [threading.Thread(target=hit, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.close(file)
