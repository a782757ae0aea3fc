"""The breakers of this process: their last known state, and the outcomes that are not reported yet.

A closed breaker is decided here, by the last state received. Outcomes are reported once a second, with the flush; a
failure that may open the breaker is reported in the call that failed. The answer of `circuit.lua` is the state for all
processes. A change is pushed to every process, and a process without pushes asks once a second. While Redis is
unavailable, each process judges by its own outcomes (`circuit.py`), and uses the shared state again afterwards.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary, ref

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured

from ...conf import conf
from ...conf.changes import on_change
from ...engine.decide import now_us
from ...engine.listener import listener
from ...engine.run import Wait, Waiting, run
from ...exceptions import StoreError
from ...extension import install, is_installed
from ...limits import program
from ...limits.program import Program
from ...limits.rate import SECOND
from ...process.forks import chance, renew_after_fork
from ...rules import provider
from ...store import ANNEX, Patience, flusher, get_store
from .circuit import (
    MOST_JITTER,
    Answer,
    Event,
    LoneCircuit,
    Operation,
    Outcomes,
    Result,
    State,
    circuit_key,
    circuits_key,
    tag_of,
)
from .exceptions import CircuitOpen
from .rows import BreakerError, BreakerRow, Force, Thresholds
from .signals import circuit_closed, circuit_half_open, circuit_opened

logger = logging.getLogger("django_ratelimit_lua")

PROGRAM = Program.of(program.source("contrib/breakers/circuit"))
TRUSTED_SECONDS = 5.0
"""How long a state is used without a confirmation. While there are calls, the background confirms it every second."""
USED_SECONDS = 10.0
"""How long after the last call the background asks for the state."""
AGAIN_SECONDS = 0.005
"""Seconds between two immediate reports of one process, and between two looks for calls that hang."""
MOST_LOOKED_AT = 100
"""Running calls that are looked at in one step, so that a look costs little while thousands run."""
PROBE_PAUSE = 0.05
"""Seconds until a process requests a probe again, if all probes are in use."""
RESENT_SECONDS = 10.0
"""So long, and a window, or a minute if that is longer, what was not answered is sent again; it counts once."""
MOST_OWED, MOST_FRESH = 50, 20
ASK_SECONDS = 1.0
"""For how long the background waits for an answer about one breaker."""
NOTED_SECONDS = 3600.0
"""How often a process notes in Redis which breakers it has."""
NOTES_KEPT = 7 * 86_400
MOST_LISTED = 1000
"""Breakers that are noted in Redis: those that were noted last, and up to a tenth more, so that not every new one costs
a look at all."""
MOST_HELD = 1000
"""Maximum number of breakers that a process keeps without a reference in the code, because names may be made of data:
the last used, and those with recent calls or unreported outcomes."""
HELD_SECONDS = 3600.0
"""For how long after the last call it does."""
MOST_PASSED = 10_000_000
"""Calls between two flushes."""
NEVER, ENDLESS = float("-inf"), float("inf")
SIGNALS = {"opened": circuit_opened, "half_open": circuit_half_open, "closed": circuit_closed}
_numbers = itertools.count(1)
WORDS: Mapping[State, str] = {"closed": "closed", "open": "open", "half": "half-open", "ramp": "ramp"}


class Ticket:
    """An admitted call: how often the breaker had opened by then, and the id of its slot if it is a probe.

    All calls of an era that are not probes share one. `passed` counts a success at the cost of appending to a queue: it
    is counted when outcomes are reported.
    """

    __slots__ = ("era", "passed", "probe", "queue")

    def __init__(self, era: int, probe: str = "") -> None:
        self.era, self.probe = era, probe
        self.queue: deque[None] = deque(maxlen=MOST_PASSED)
        self.passed = self.queue.append


@dataclass(slots=True)
class _Owed:
    """A call of the script that was not answered: when it was made (monotonic), its token and its arguments."""

    at: float
    token: str
    operation: Operation
    probe: str = ""
    result: Result = ""
    era: int = -1
    outcomes: Sequence[tuple[float, int, int, int]] = ()
    """When the last one of these ended (monotonic), calls, failures, slow ones."""


class Circuit:
    """One breaker of this process. `declared`: the thresholds of the code, `by`: those in force; `calm_until`: until
    when (monotonic) calls are admitted without another check, with the ticket `calm`; `slow_seconds`: from which
    duration on a call is slow; `due_at`: when the oldest running call becomes slow, at the earliest."""

    def __init__(self, name: str, declared: Thresholds) -> None:
        self.name, self.declared, self.by = name, declared, declared
        self.row: BreakerRow | None = None
        self.places: list[str] = []
        """Where it is declared in the code."""
        self.conflicts: list[str] = []
        """Where it is declared in another way."""
        self.noted_at = NEVER
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # Reentrant: what is garbage may end a call while another one is counted.
        self.forget()

    def forget(self) -> None:
        """Know nothing, as another process; the settings hold."""
        self.answer = Answer("closed", -1, 0, 0, 100, 0, 0, 0, False)
        self.calm = Ticket(-1)
        self.calm_until = self.known_at = self.used_at = self._told_at = self._sent_at = NEVER
        self._changes_at = NEVER
        self._fresh: list[list[float]] = []
        """Unreported outcomes, by part of the window: when it begins, when the last one ended, how many."""
        self._own: list[list[float]] = []
        """Reported outcomes of this process, for as long as the window."""
        self._owed: list[_Owed] = []
        self._on_the_way: tuple[_Owed, ...] = ()
        """Reported outcomes without an answer yet."""
        self._has_more = False
        self.running: dict[int, tuple[float, Ticket]] = {}
        """Calls that are not slow yet, by their numbers, the oldest first: when they began (monotonic)."""
        self._counted: dict[int, float] = {}
        """When calls that have not ended were counted as slow (monotonic)."""
        self._probes: dict[str, float] = {}
        """When probes that have not ended began, slow or not (monotonic)."""
        self.due_at = ENDLESS
        self.lone: LoneCircuit | None = None
        self.slow_seconds = None if self.by.slow_us is None else self.by.slow_us / SECOND

    @property
    def state(self) -> State:
        """As far as this process knows."""
        return self.answer.state

    # Settings

    def retune(self, row: BreakerRow | None) -> None:
        """Apply a row (None: there is none). The state and the counts stay."""
        by = self.declared
        if row is not None:
            try:
                by = row.over(self.declared)
            except BreakerError as error:
                logger.error("The breaker of the admin is left out: %s", error)
        with self._lock:
            self.row, self.by = row, by
            self.slow_seconds = None if by.slow_us is None else by.slow_us / SECOND
            self.calm_until = NEVER

    def force(self) -> Force | None:
        """What an operator has forced, as long as it lasts."""
        force = None if self.row is None else self.row.force
        return force if force is not None and force.lasts(now_us()) else None

    # Before a call

    def calm_ticket(self) -> Ticket | None:
        """The ticket of a call that needs no other look; None if it does."""
        now = time.monotonic()
        return self.calm if now < self.calm_until and now < self.due_at else None

    def admitting(self) -> Waiting[Ticket]:
        """Let a call through, or raise `CircuitOpen`."""
        if not is_installed("breakers"):
            raise ImproperlyConfigured(f"{install('breakers')}, to use circuit breakers.")
        now = time.monotonic()
        self.used_at = now
        if not conf.ENABLE:
            return Ticket(-1)
        if not listener.task.is_running:
            listener.start()
        is_alone = not flusher.start()
        if not self._is_known(now):
            yield from self._learning()
        elif is_alone and now >= self._sent_at + 1.0:
            yield from self.telling()
        if now >= self.due_at and self.count_hanging():
            yield from self.telling()
        if circuits.has_doubts:
            circuits.has_doubts = False  # One asks, and the others go on for a moment.
            yield from _comparing()
        force = self.force()
        if force is not None:
            if force.how == "open":
                raise CircuitOpen(self.name, _until(force.until_us), "forced")
            return self.calm
        if self.answer.state == "ramp" and time.monotonic() >= self._changes_at:
            self._changes_at = time.monotonic() + PROBE_PAUSE  # Others of this process wait for what comes of it.
            yield from self._exchanging(self._asked("tell"))  # It climbs.
        state = self.answer.state
        if state == "closed":
            self._trust()
            return self.calm
        if state == "ramp":
            if chance.random() * 100 < self.answer.share:
                return self.calm
            raise CircuitOpen(self.name, max(0.0, self._changes_at - time.monotonic()), "ramp")
        return (yield from self._probing())

    def _probing(self) -> Waiting[Ticket]:
        now = time.monotonic()
        if now < self._changes_at:
            raise CircuitOpen(self.name, self._changes_at - now, WORDS[self.answer.state])
        self._changes_at = now + PROBE_PAUSE  # Others of this process wait for what comes of it.
        probe = secrets.token_hex(16)
        answer = yield from self._exchanging(self._asked("ask", probe=probe))
        if answer is not None and answer.granted:
            self._changes_at = time.monotonic()  # There may be another.
            return Ticket(answer.era, probe)
        if self.answer.state == "closed":
            return self.calm
        seconds = max(self.answer.wait / SECOND, PROBE_PAUSE)
        raise CircuitOpen(self.name, seconds, WORDS[self.answer.state])

    def _is_known(self, now: float) -> bool:
        if provider.in_force() is None:
            return False
        if self.lone is not None:
            return now < self.known_at + 1.0 or flusher.is_running
        if now < self.known_at + TRUSTED_SECONDS:
            return True
        # Nothing was pushed since: so nothing has changed.
        return self.known_at > NEVER and listener.heard_since(self.known_at)

    def _trust(self) -> None:
        """Let calls through without another look, for a while."""
        now = time.monotonic()
        with self._lock:
            # Something else may have been heard since this was asked for.
            if self.answer.state != "closed" or self.known_at == NEVER or self.force() is not None:
                return
            until = max(self.known_at, now - 1.0) + TRUSTED_SECONDS
            # Each second without a thread that asks, a call has to.
            self.calm_until = until if flusher.is_running else now + min(1.0, TRUSTED_SECONDS)
            if self.lone is not None:
                self.calm_until = now + 1.0

    def doubt(self) -> None:
        """Record that the state may have changed. The next call asks for it."""
        with self._lock:
            self.known_at = self.calm_until = NEVER

    def _learning(self) -> Waiting[None]:
        if provider.current() is None:
            patience = Patience(conf.TIMEOUT)
            load = partial(provider.load, None, patience)
            yield Wait(load, sync_to_async(load))
            circuits.retune()
        elif not listener.task.is_running:  # No thread would receive other settings.
            yield from _comparing()
        yield from self._exchanging(self._asked("tell"))

    # While calls run

    def begin(self, ticket: Ticket, began: float) -> int:
        """Note that a call runs that may become slow, or is a probe. Returns its number, which is not 0."""
        number = next(_numbers)
        if ticket.probe:
            self._probes[ticket.probe] = began
        slow_seconds = self.slow_seconds
        if slow_seconds is not None:
            if not self.running:
                self.due_at = began + slow_seconds
                if began >= self.used_at + 1.0:
                    self.used_at = began
                    flusher.start()  # Its thread counts the call if it hangs.
            self.running[number] = began, ticket
        return number

    def is_slow(self, began: float) -> bool:
        """Whether a call that began then (monotonic) is slow by now."""
        return self.slow_seconds is not None and time.monotonic() - began >= self.slow_seconds

    def end(self, ticket: Ticket, number: int, began: float) -> bool:
        """Note that a call has ended; whether there is more to count than that it passed."""
        is_noted = self.running.pop(number, None) is not None
        if ticket.probe:
            self._probes.pop(ticket.probe, None)
            return True
        return not is_noted or self.is_slow(began)

    def count_hanging(self) -> bool:
        """Count the running calls that have lasted `slow`. Return whether that may open the breaker, so that it has to
        be reported at once. The background judges probes."""
        with self._lock:
            now, hanging = time.monotonic(), 0
            for number, ticket in self._take_hanging(now):
                if ticket.probe:
                    self._owe_probe(ticket, "hung", "failed")
                elif ticket.era == self.answer.era >= 0:
                    self._counted[number] = now
                    hanging += 1
            if not hanging:
                return False
            self._count(now, hanging, 0, hanging)
            return self._is_to_be_told(now)

    def _take_hanging(self, now: float) -> list[tuple[int, Ticket]]:
        found: list[tuple[int, Ticket]] = []
        slow_seconds, self.due_at = self.slow_seconds, ENDLESS
        if slow_seconds is None:  # Not any more: those that run are judged when they end.
            self.running.clear()
            return found
        while oldest := self._oldest():
            for number, (began, ticket) in oldest:
                if began + slow_seconds > now:
                    self.due_at = max(began + slow_seconds, now + AGAIN_SECONDS)
                    return found
                if self.running.pop(number, None) is not None:  # Otherwise it has ended.
                    found.append((number, ticket))
        return found

    def _oldest(self) -> list[tuple[int, tuple[float, Ticket]]]:
        while True:
            with suppress(RuntimeError):  # Another thread has begun or ended a call.
                return list(itertools.islice(self.running.items(), MOST_LOOKED_AT))

    def _probes_that_run(self) -> str:
        """The ids of the probes whose slots are renewed, separated by spaces."""
        longest, now = self.by.longest_probe_us / SECOND, time.monotonic()
        with self._lock:
            for probe, began in list(self._probes.items()):
                if now - began >= longest:
                    self._probes.pop(probe, None)
            return " ".join(self._probes)

    @property
    def is_running(self) -> bool:
        """Whether a call runs that may become slow, or a probe that keeps its slot."""
        return bool(self.running or self._probes)

    @property
    def is_probing(self) -> bool:
        """Whether the slot of a probe has to be renewed."""
        return bool(self._probes)

    # After a call

    def note(self, ticket: Ticket, number: int, *, failed: bool, slow: bool) -> bool:
        """Count a call that has ended. Return whether that may open the breaker, so that it has to be reported at
        once."""
        now = time.monotonic()
        with self._lock:
            counted_at = self._counted.pop(number, NEVER)
            if ticket.era != self.answer.era or ticket.era < 0:
                return False  # It was let through before the breaker opened last.
            self.used_at = now
            if now - counted_at < self.by.window_us / SECOND:
                self._count(now, 0, failed, 0)  # The window has it, as a slow one.
            else:
                self._count(now, 1, failed, slow)
            is_left_alone = not flusher.is_running and self._is_left_alone(now)
            return ((failed or slow) and self._is_to_be_told(now)) or is_left_alone

    def _is_to_be_told(self, now: float) -> bool:
        """Whether the counts may open the breaker, so that they are reported now."""
        if now < self._told_at + AGAIN_SECONDS or not self._may_open(now):
            return False
        if any(now - asked.at < conf.TIMEOUT for asked in self._on_the_way):
            self._has_more = True  # Earlier counts have to arrive first. Their caller continues.
            return False
        self._told_at = now
        return True

    def _may_open(self, now: float) -> bool:
        """Whether it opens by what this process knows: the window as it was heard last, and what was counted since."""
        self._count_passed(now)
        counts = [self.answer[5:8], *(bucket[2:] for bucket in self._fresh)]
        counts += [numbers[1:] for asked in self._on_the_way for numbers in asked.outcomes]
        calls, failures, slow = (int(sum(column)) for column in zip(*counts, strict=True))
        return self.by.reason(calls, failures, slow, self.answer.share or 100) != ""

    def _count(self, now: float, calls: int, failures: int, slow: int) -> None:
        fresh = self._fresh
        if not fresh or now >= fresh[-1][0] + self.by.width_us / SECOND:
            if len(fresh) > MOST_FRESH:
                del fresh[0]
            fresh.append([now, now, 0, 0, 0])
        bucket = fresh[-1]
        bucket[1] = now
        bucket[2] += calls
        bucket[3] += failures
        bucket[4] += slow

    def _count_passed(self, now: float) -> None:
        queue = self.calm.queue
        passed = len(queue)
        if passed:
            self.used_at = now
            self._count(now, passed, 0, 0)
            for _ in range(passed):
                queue.popleft()

    def _is_left_alone(self, now: float) -> bool:
        """Whether no thread reports, so that this call has to."""
        return not flusher.start() and now >= self._sent_at + 1.0

    def settling(self, ticket: Ticket, number: int, *, failed: bool, slow: bool) -> Waiting[None]:
        """Count the outcome of an admitted call, and report it at once if that may change the state."""
        if ticket.probe:
            result: Result = "failed" if failed or slow else "ok"
            yield from self._exchanging(self._asked("done", probe=ticket.probe, result=result, era=ticket.era))
        elif self.note(ticket, number, failed=failed, slow=slow):
            yield from self.telling()

    def drop(self, ticket: Ticket, *, number: int = 0, slow: bool = False) -> None:
        """Count a cancelled call: it is no evidence about the resource, unless it was slow by then. Its slot gets free
        at once, or soon."""
        if ticket.probe:
            with self._lock:
                if slow:
                    self._owe_probe(ticket, "hung", "failed")
                self._owe_probe(ticket, "done", "none")
                if self.lone is not None:
                    self.lone.probes.pop(ticket.probe, None)
        elif slow:
            self.note(ticket, number, failed=False, slow=True)
        if ticket.probe or slow:
            flusher.start()  # The next flush reports it, if there is a thread.

    def _owe_probe(self, ticket: Ticket, operation: Operation, result: Result) -> None:
        self._owed.append(self._asked(operation, probe=ticket.probe, result=result, era=ticket.era))

    def telling(self) -> Waiting[None]:
        """Tell what was counted, and hear what the state is."""
        yield from self._exchanging(self._taken())

    def _taken(self) -> _Owed:
        with self._lock:
            now = time.monotonic()
            self._count_passed(now)
            fresh, self._fresh = self._fresh, []
            span = self.by.window_us / SECOND
            self._own = [bucket for bucket in (*self._own, *fresh) if bucket[1] > now - span]
            outcomes = [(last, int(calls), int(failures), int(slow)) for _, last, calls, failures, slow in fresh]
            asked = self._asked("tell", era=self.answer.era)
            asked.outcomes = outcomes
            return asked

    def _asked(self, operation: Operation, *, probe: str = "", result: Result = "", era: int = -1) -> _Owed:
        return _Owed(time.monotonic(), secrets.token_hex(8), operation, probe, result, era)

    # With Redis

    def _exchanging(self, asked: _Owed, background: Patience | None = None) -> Waiting[Answer | None]:
        """Ask Redis, and use its answer. While it is unavailable, judge by the counts of this process. With the
        patience of the `background`, raise `StoreError` instead."""
        if background is None:
            if self.lone is not None and flusher.is_running:  # The background finds out when Redis is back.
                if asked.outcomes:
                    self._owe(asked)
                return (yield from self._alone(asked))
            self._sent_at = asked.at
        keys, arguments = self._command(asked)
        store, patience = get_store(background=background is not None), background or Patience(conf.TIMEOUT)
        self._send(asked)
        try:
            reply = yield Wait(
                partial(store.run, PROGRAM, keys, arguments, patience),
                partial(store.arun, PROGRAM, keys, arguments, patience),
            )
            answer = Answer.read(reply)
        except (StoreError, ValueError, IndexError) as error:
            self._owe(asked)
            if background is not None:
                raise StoreError(f"no answer about a breaker: {error}") from error
            logger.debug("The breaker %r is judged by this process alone: %s", self.name, error)
            return (yield from self._alone(asked))
        except BaseException:
            self._owe(asked)
            raise
        finally:
            self._receive(asked)
        self._adopt(answer, asked.at)
        try:
            yield from _signalled(self.name, answer.events, answer, shared=True)
            if self._has_to_go_on():
                yield from self._exchanging(self._taken(), background)
        except BaseException:
            if answer.granted:
                self.drop(Ticket(answer.era, asked.probe))
            raise
        return answer

    def _has_to_go_on(self) -> bool:
        """Whether there was a failure in between that may open it."""
        with self._lock:
            has_more, self._has_more = self._has_more, False
            return has_more and self._may_open(time.monotonic())

    def tell(self, patience: Patience | None = None) -> None:
        """Tell what was counted, and what was not answered before, and hear the state. For the background. Raises
        `StoreError`."""
        patience = patience or Patience(ASK_SECONDS)
        with self._lock:
            owed, self._owed = self._owed, []
        oldest = time.monotonic() - RESENT_SECONDS - min(self.by.window_us / SECOND, 60.0)
        owed = [asked for asked in owed if asked.at > oldest]
        for place, asked in enumerate([*owed, None]):
            try:
                run(self._exchanging(asked or self._taken(), patience))
            except StoreError:
                with self._lock:
                    self._owed += owed[place + 1 :]
                self._go_on_alone()
                raise

    def _go_on_alone(self) -> None:
        """Judge the counts made in between by this process."""
        asked = self._taken()
        if asked.outcomes:
            self._owe(asked)
        hanging = [other for other in self._owed if other.operation == "hung"]
        for each in (asked, *hanging):
            run(self._alone(each))

    @property
    def is_owing(self) -> bool:
        """Whether there is something to report."""
        return bool(self._fresh or self._owed or self.calm.queue)

    def _send(self, asked: _Owed) -> None:
        with self._lock:
            self._on_the_way = (*self._on_the_way, asked)

    def _receive(self, asked: _Owed) -> None:
        with self._lock:
            self._on_the_way = tuple([other for other in self._on_the_way if other is not asked])

    def _owe(self, asked: _Owed) -> None:
        if asked.operation == "ask":
            # No call waits for the probe any more, but its change of state is to be signalled. With the same token: if
            # Redis reads the question later, it is not granted.
            asked = _Owed(asked.at, asked.token, "done", asked.probe, "none")
        with self._lock:
            self._owed = [*self._owed, asked][-MOST_OWED:]

    def _command(self, asked: _Owed) -> tuple[list[bytes], list[bytes]]:
        key, by, now = circuit_key(self.name), self.by, time.monotonic()
        numbers = [
            by.window_us, by.width_us, by.open_us, by.open_max_us, by.probe_us, by.step_us, by.probes, by.minimum,
            by.failures or 0, by.failure_ppm or 0, (by.slow_ppm or 0) if by.slow_us else 0,
            chance.randrange(MOST_JITTER),
        ]  # fmt: skip
        outcomes = [
            part for last, *counts in asked.outcomes for part in (max(0, round((now - last) * SECOND)), *counts)
        ]
        moment = b"%d" % now_us() if conf.CLOCK == "client" else b""
        probe = self._probes_that_run() if asked.operation == "tell" else asked.probe
        arguments = [
            moment, asked.operation.encode(), *(b"%d" % number for number in numbers),
            get_store().channel(conf.CACHE_PREFIX), ANNEX + b" breakers " + tag_of(self.name),
            probe.encode(), asked.result.encode(), b"%d" % asked.era, *(b"%d" % number for number in outcomes),
        ]  # fmt: skip
        return [key, key + b":probes", b"%b:told:%b" % (key, asked.token.encode())], arguments

    def _adopt(self, answer: Answer, asked_at: float) -> None:
        """Go by an answer, unless a later question was answered before."""
        with self._lock:
            if asked_at < self.known_at:
                return
            before, self.lone = self.answer, None
            self._hold(answer, asked_at)
            if answer.era != before.era:
                self._fresh, self._own = [], []

    def _hold(self, answer: Answer, asked_at: float) -> None:
        self.calm_until = NEVER  # First, so that a caller that sees the new state is not admitted by the old one.
        if answer.era != self.calm.era:
            self.calm = Ticket(answer.era)
        self.answer, self.known_at = answer, asked_at
        now = time.monotonic()
        self._changes_at = now + answer.wait / SECOND
        if answer.state == "half":
            self._changes_at = min(self._changes_at, now + PROBE_PAUSE)
        if answer.state == "closed" and self.force() is None and provider.in_force() is not None:
            self._trust()

    # While Redis is away

    def _alone(self, asked: _Owed) -> Waiting[Answer]:
        with self._lock:
            now = time.monotonic()
            if self.lone is None:
                known = self.answer
                left = max(0, round((self._changes_at - now) * SECOND)) if self._changes_at > NEVER else 0
                ends = _us(now) if known.state == "half" else _us(now) + left
                self.lone = LoneCircuit(known.state, max(0, known.era), known.version, ends)
                running = self._probes_that_run().split()
                self.lone.probes = dict.fromkeys(running, _us(now) + self.by.probe_us)
                if known.era < 0:
                    asked.era = 0
                outcomes = [Outcomes(_us(now) - _us(bucket[1]), *map(int, bucket[2:])) for bucket in self._own]
            else:
                outcomes = [Outcomes(_us(now) - _us(last), *counts) for last, *counts in asked.outcomes]
            probe = self._probes_that_run() if asked.operation == "tell" else asked.probe
            answer = self.lone.call(
                _us(now), self.by, asked.operation, probe=probe, result=asked.result,
                era=None if asked.era < 0 else asked.era, outcomes=outcomes,
            )  # fmt: skip
            if answer.era != self.answer.era:
                self._fresh, self._own = [], []
            if any(event.name == "closed" for event in answer.events):
                self._owed = []  # What made it open is over.
            self._hold(answer, now)
        try:
            yield from _signalled(self.name, answer.events, answer, shared=False)
        except BaseException:
            if answer.granted:
                self.drop(Ticket(answer.era, asked.probe))
            raise
        return answer


def _comparing() -> Waiting[None]:
    """Load the rules, if there are newer ones."""
    compare = partial(provider.compare_with_published, loads=True)
    with suppress(StoreError):
        yield Wait(compare, sync_to_async(compare))


def _us(seconds: float) -> int:
    return round(seconds * SECOND)


def _until(moment_us: int | None) -> float | None:
    return None if moment_us is None else max(0.0, (moment_us - now_us()) / SECOND)


def _signalled(name: str, events: Iterable[Event], answer: Answer, *, shared: bool) -> Waiting[None]:
    for event in events:
        signal = SIGNALS.get(event.name)
        if signal is None:
            continue
        told: dict[str, Any] = {
            "breaker": name, "calls": event.calls, "failures": event.failures, "slow": event.slow,
            "reason": event.reason, "seconds": answer.wait / SECOND, "shared": shared,
        }  # fmt: skip
        level = logging.WARNING if event.name == "opened" else logging.INFO
        logger.log(
            level, "The breaker %r %s: %d calls, %d failures, %d slow%s", name, event.name.replace("_", "-"),
            event.calls, event.failures, event.slow, f" ({event.reason})" if event.reason else "",
        )  # fmt: skip
        yield Wait(partial(signal.send_robust, Circuit, **told), partial(signal.asend_robust, Circuit, **told))


class Circuits:
    """All of this process, by name."""

    def __init__(self) -> None:
        self.by_name: MutableMapping[str, Circuit] = WeakValueDictionary()
        self._held: dict[str, Circuit] = {}
        self._looked_at = self._swept_at = NEVER
        self._rows: ref[Any] | None = None
        self.has_doubts = False
        """Whether the rows may have changed, which the next call has to find out."""
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()

    def get(self, name: str, declared: Thresholds, place: str) -> Circuit:
        """The one of that name: several places in the code may be about one resource. The thresholds are those that
        were declared last."""
        with self._lock:
            circuit = self.by_name.get(name)
            if circuit is None:
                self._let_go()
                circuit = self.by_name[name] = self._held[name] = Circuit(name, declared)
            elif circuit.declared != declared:
                if place not in circuit.conflicts:
                    circuit.conflicts.append(place)
                circuit.declared = declared
                circuit.retune(circuit.row)
            if place not in circuit.places:
                circuit.places.append(place)
            return circuit

    def _let_go(self) -> None:
        """Leave those that were not called for long to the code: they end when nothing there has them any more."""
        now = time.monotonic()
        with self._lock:
            if now < self._looked_at + 1.0:
                return
            self._looked_at = now
            for circuit in list(self.by_name.values()):
                if circuit.is_owing or now - circuit.used_at < USED_SECONDS:
                    self._held[circuit.name] = circuit
            idle = [
                circuit for circuit in self._held.values()
                if not circuit.is_owing and now - circuit.used_at >= USED_SECONDS
            ]  # fmt: skip
            idle.sort(key=lambda circuit: circuit.used_at)
            surplus = len(self._held) - MOST_HELD
            for place, circuit in enumerate(idle):
                if place < surplus or now - circuit.used_at >= HELD_SECONDS:
                    del self._held[circuit.name]

    def in_use(self) -> bool:
        """Whether there was a call lately, or one runs that has to be looked after."""
        now = time.monotonic()
        return any(
            circuit.is_running or now - circuit.used_at < USED_SECONDS for circuit in list(self.by_name.values())
        )

    def retune(self) -> None:
        """Go by the rows that are in force; there are new ones, or may be."""
        ruleset = provider.in_force()
        if ruleset is None:
            return
        if self._rows is not None and self._rows() is ruleset:
            self.has_doubts = True
            for circuit in list(self.by_name.values()):
                circuit.calm_until = NEVER
            return
        self._rows, self.has_doubts = ref(ruleset), False
        for circuit in list(self.by_name.values()):
            row = ruleset.parts["breakers"].get(circuit.name)
            if row != circuit.row or circuit.known_at == NEVER:
                circuit.retune(row)

    def heard(self, tags: Collection[bytes]) -> None:
        """The state of these has changed, by a message of another process: ask for it, unless this process does not
        call them."""
        now = time.monotonic()
        for circuit in list(self.by_name.values()):
            if tag_of(circuit.name) not in tags:
                continue
            if now - circuit.used_at < USED_SECONDS:
                with suppress(StoreError):
                    circuit.tell()
                    continue
            circuit.doubt()

    def doubt(self) -> None:
        """A message may have been lost, so the next call asks."""
        for circuit in list(self.by_name.values()):
            circuit.doubt()

    def forget(self) -> None:
        """Know nothing: other settings name another server, or other keys."""
        self._rows, self._swept_at = None, NEVER
        for circuit in list(self.by_name.values()):
            circuit.forget()
            circuit.noted_at = NEVER

    def flush(self, last: Patience | None = None) -> bool:
        """Report the counts, and receive the states; see `Flush`. As the process ends, only report."""
        now, failed = time.monotonic(), None
        self._let_go()
        for circuit in list(self.by_name.values()):
            circuit.count_hanging()  # It is reported below.
            is_wanted = last is None and (circuit.is_probing or now - circuit.used_at < USED_SECONDS)
            if not (is_wanted or circuit.is_owing):
                continue
            try:
                circuit.tell(last)
                if last is None:
                    self._note(circuit, now)
            except StoreError as error:
                failed = error
        if failed is not None:
            raise failed
        return self.in_use()

    def _note(self, circuit: Circuit, now: float) -> None:
        """Note in Redis that there is such a breaker, for operators and metrics of all processes."""
        if now - circuit.noted_at < NOTED_SECONDS:
            return
        noted = {"at": int(time.time()), "declared": circuit.declared.declared(), "places": circuit.places[:10]}
        store, key = get_store(background=True), circuits_key()
        store.execute(b"HSET", key, circuit.name.encode(), json.dumps(noted).encode())
        store.execute(b"EXPIRE", key, b"%d" % NOTES_KEPT)
        number = store.execute(b"HLEN", key)
        if now >= self._swept_at + NOTED_SECONDS or number > MOST_LISTED * 11 // 10:
            reply = store.execute(b"HGETALL", key)
            moments = sorted((_noted_at(text), name) for name, text in zip(reply[::2], reply[1::2], strict=True))
            before = time.time() - NOTES_KEPT
            surplus = len(moments) - MOST_LISTED
            if old := [name for place, (at, name) in enumerate(moments) if at < before or place < surplus]:
                store.execute(b"HDEL", key, *old)
            self._swept_at = now
        circuit.noted_at = now


def _noted_at(text: bytes) -> float:
    """When that breaker was recorded, in seconds since 1970; 0 for a value edited by hand."""
    try:
        return float(json.loads(text)["at"])
    except (ValueError, KeyError, TypeError):
        return 0.0


circuits = Circuits()
flusher.add(circuits.flush, is_urgent=True)
provider.on_new_rules.append(circuits.retune)
on_change(("RATELIMIT_*", "CACHES"), circuits.forget)
