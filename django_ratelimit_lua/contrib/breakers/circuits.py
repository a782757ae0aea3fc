"""The breakers of this process: their last known states, and the outcomes to report.

This process decides calls of a closed breaker by the last state received. Outcomes are reported
once a second, with the flush. A failure that may open the breaker is reported by the call that
failed. The reply of `circuit.lua` is the state for all processes. A change is pushed to every
process, and a process without pushes polls once a second. While Redis is unavailable, each process
decides by its own outcomes (`circuit.py`). Afterwards it uses the shared state again.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

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
from ...process.clock import Clock
from ...process.forks import chance, renew_after_fork
from ...rules import provider
from ...store import ANNEX, Patience, flusher, get_store
from .circuit import (
    MAX_JITTER,
    NO_OUTCOMES,
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
from .rows import BreakerError, BreakerRow, Thresholds
from .signals import circuit_closed, circuit_half_open, circuit_opened

logger = logging.getLogger("django_ratelimit_lua")

PROGRAM = Program.of(program.source("contrib/breakers/circuit"))
TRUSTED_SECONDS = 5.0
"""How long a state is used without a confirmation. While there are calls, the background confirms
it every second.
"""
USED_SECONDS = 10.0
"""How long after the last call the background asks for the state."""
PROBE_PAUSE = 0.05
"""Seconds until a process requests a probe again, if all probes are in use."""
MAX_QUEUED = 50
"""Results of probes that wait for the next flush."""
ASK_SECONDS = 1.0
"""For how long the background waits for an answer about one breaker."""
NOTED_SECONDS = 3600.0
"""How often a process notes in Redis which breakers it has."""
NOTES_KEPT = 7 * 86_400
MAX_LISTED = 1000
"""Breakers that are noted in Redis: those that were noted last."""
MAX_HELD = 1000
"""Breakers that a process keeps without a reference in the code, because names may be made of data:
those that were declared last.
"""
NEVER = float("-inf")
ENDLESS = float("inf")
SIGNALS = {"opened": circuit_opened, "half_open": circuit_half_open, "closed": circuit_closed}
_numbers = itertools.count(1)


class Ticket(NamedTuple):
    """An admitted call.

    - `era`: the number of times the breaker had opened;
    - `probe`: the id of the call's slot, if it is a probe.
    """

    era: int
    probe: str = ""


class Report(NamedTuple):
    """The arguments of one call of the script."""

    operation: Operation
    probe: str = ""
    result: Result = ""
    era: int = -1
    outcomes: Outcomes = NO_OUTCOMES


ASK_STATE = Report("tell")
"""Reports nothing, so that nothing is lost if the call is cancelled meanwhile."""


class Circuit:
    """One breaker of this process.

    - `declared`: the thresholds in the code;
    - `by`: the thresholds in force;
    - `calm_until`: the monotonic time until which calls are admitted without another check;
    - `calm`: the ticket that these calls get;
    - `slow_seconds`: the duration from which a call is slow;
    - `due_at`: the earliest time at which a running call becomes slow.
    """

    def __init__(self, name: str, declared: Thresholds) -> None:
        self.name = name
        self.declared = declared
        self.is_ambiguous = False
        """Whether the code declares it twice, with different thresholds."""
        self._begin()
        self.retune(None)
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        # Reentrant, because garbage collection may end a call while another one is counted.
        self._lock = threading.RLock()
        self.forget()

    def forget(self) -> None:
        """Reset the state and the counts, but not the thresholds."""
        self.answer = Answer("closed", -1, 0, 0, 0, 0, False)
        self.calm = Ticket(-1)
        self.calm_until = self.known_at = self.used_at = self.noted_at = NEVER
        self._sent_at = self._changes_at = NEVER
        self._counts = [0, 0, 0]
        """Unreported outcomes: calls, failures, slow ones."""
        self._queued: deque[Report] = deque(maxlen=MAX_QUEUED)
        self.running: dict[int, tuple[float, Ticket]] = {}
        """When calls that are not slow yet began (monotonic), by their numbers, oldest first."""
        self._probes: dict[str, float] = {}
        """When probes that have not ended began, slow or not (monotonic)."""
        self.due_at = ENDLESS
        self.lone: LoneCircuit | None = None

    @property
    def state(self) -> State:
        """Return the state that this process knows."""
        return self.answer.state

    # Settings

    def retune(self, row: BreakerRow | None) -> None:
        """Apply the thresholds of a row, or those declared in code if there is no row.

        The state and the counts are kept.
        """
        by = self.declared
        if row is not None:
            try:
                by = row.over(self.declared)
            except BreakerError as error:
                logger.error("The thresholds of the admin are not applied: %s", error)
        with self._lock:
            self.row = row
            self.by = by
            self.slow_seconds = ENDLESS
            if by.slow_us is not None:
                self.slow_seconds = by.slow_us / SECOND
            self.calm_until = NEVER

    def forced_by(self) -> BreakerRow | None:
        """Return the row by which an operator has forced a state, if it is in force."""
        row = self.row
        if row is not None and row.is_forced(now_us()):
            return row
        return None

    # Before a call

    def calm_ticket(self) -> Ticket | None:
        """Return the ticket of a call that needs no other check, or None."""
        if Clock.monotonic() < min(self.calm_until, self.due_at):
            return self.calm
        return None

    def admitting(self) -> Waiting[Ticket]:
        """Let a call through, or raise `CircuitOpen`."""
        if not is_installed("breakers"):
            raise ImproperlyConfigured(f"{install('breakers')}, to use circuit breakers.")
        now = Clock.monotonic()
        self.used_at = now
        if not conf.ENABLE:
            return Ticket(-1)
        listener.start()
        is_alone = not flusher.start()
        may_open = now >= self.due_at and self.count_hanging()
        if not self._is_known(now):
            yield from self._learning()
        elif may_open or (is_alone and now >= self._sent_at + 1.0):
            yield from self._reporting()
        if circuits.has_doubts:
            circuits.has_doubts = False  # One asks, and the others go on for a moment.
            yield from _comparing()
        row = self.forced_by()
        if row is not None:
            if row.forced == "closed":
                return self.calm
            seconds = None
            if row.until_us is not None:
                seconds = max(0.0, (row.until_us - now_us()) / SECOND)
            raise CircuitOpen(self.name, seconds, "forced")
        if self.state == "closed":
            self._trust()
            return self.calm
        return (yield from self._probing())

    def _probing(self) -> Waiting[Ticket]:
        now = Clock.monotonic()
        if now < self._changes_at:
            raise CircuitOpen(self.name, self._changes_at - now, self.state)
        self._changes_at = now + PROBE_PAUSE  # Other calls of this process wait for the answer.
        probe = secrets.token_hex(16)
        answer = yield from self._exchanging(Report("ask", probe))
        if answer.granted:
            self._changes_at = Clock.monotonic()  # There may be another.
            return Ticket(answer.era, probe)
        if self.state == "closed":
            return self.calm
        seconds = max(self.answer.wait / SECOND, PROBE_PAUSE)
        raise CircuitOpen(self.name, seconds, self.state)

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
        """Let calls through without another check, for some time."""
        now = Clock.monotonic()
        with self._lock:
            # Something else may have been heard since this was asked for.
            if self.state != "closed" or self.known_at == NEVER or self.forced_by() is not None:
                return
            if self.lone is not None or not flusher.is_running:
                self.calm_until = now + 1.0  # Without a thread that asks, a call has to.
            else:
                self.calm_until = max(self.known_at, now - 1.0) + TRUSTED_SECONDS

    def doubt(self) -> None:
        """Record that the state may have changed. The next call requests it."""
        with self._lock:
            self.known_at = self.calm_until = NEVER

    def _learning(self) -> Waiting[None]:
        if provider.current() is None:
            load = partial(provider.load, None, Patience(conf.TIMEOUT))
            yield Wait(load, sync_to_async(load))
        elif not listener.task.is_running:  # No thread would receive other settings.
            yield from _comparing()
        yield from self._exchanging(ASK_STATE)

    # While calls run

    def begin(self, ticket: Ticket, began: float) -> int:
        """Record a call that may become slow or is a probe, and return its number (0: neither)."""
        if ticket.probe:
            self._probes[ticket.probe] = began
        if self.slow_seconds == ENDLESS:
            return 0
        number = next(_numbers)
        if not self.running:
            self.due_at = began + self.slow_seconds
        self.running[number] = began, ticket
        return number

    def count_hanging(self) -> bool:
        """Count the running calls that have lasted at least as long as the threshold `slow`.

        Return whether that may open the breaker, so that it must be reported immediately. Probes
        are left to the background task.
        """
        now = Clock.monotonic()
        self.due_at = ENDLESS
        for number, (began, ticket) in self.running.copy().items():
            due_at = began + self.slow_seconds
            if due_at > now:
                self.due_at = due_at
                break
            if self.running.pop(number, None) is None:
                continue  # It has ended.
            if ticket.probe:
                self._queued.append(Report("hung", ticket.probe, "failed", ticket.era))
            else:
                self._count(ticket, 1, 0, 1)
        return self._may_open()

    def in_use(self) -> bool:
        """Return whether the breaker was called lately, or has a running call to watch.

        Watched calls may become slow, or are probes.
        """
        return bool(self.running or self._probes) or Clock.monotonic() - self.used_at < USED_SECONDS

    def _running_probes(self) -> str:
        """Return the ids of the probes with slots to renew, separated by spaces."""
        oldest = Clock.monotonic() - self.by.longest_probe_us / SECOND
        for probe, began in self._probes.copy().items():
            if began <= oldest:
                self._probes.pop(probe, None)
        return " ".join(self._probes.copy())

    # After a call

    def end(
        self, ticket: Ticket, number: int, began: float, failed: bool | None
    ) -> Waiting[object] | None:
        """Count a call that has ended.

        Args:
            ticket: Its ticket.
            number: Its number, from `begin`.
            began: Its start (monotonic).
            failed: Whether it failed. None: it was cancelled, which says nothing about the
                resource, unless the call was slow by then.

        Returns:
            The steps to perform immediately, or None.
        """
        slow = Clock.monotonic() - began >= self.slow_seconds
        is_counted = number != 0 and self.running.pop(number, None) is None
        if ticket.probe:
            return self._end_probe(ticket, failed, slow)
        if is_counted:  # As slow, while it hung.
            self._count(ticket, 0, bool(failed), 0)
        elif failed is not None or slow:
            self._count(ticket, 1, bool(failed), slow)
        if failed is not None and (failed or slow) and self._may_open():
            return self._reporting()
        return None

    def _end_probe(self, ticket: Ticket, failed: bool | None, slow: bool) -> Waiting[object] | None:
        self._probes.pop(ticket.probe, None)
        if failed is None:
            if slow:
                self._queued.append(Report("hung", ticket.probe, "failed", ticket.era))
            self._give_back(ticket.probe)
            return None
        result: Result = "ok"
        if failed or slow:
            result = "failed"
        return self._exchanging(Report("done", ticket.probe, result, ticket.era))

    def _give_back(self, probe: str) -> None:
        """Release the slot of a probe with the next flush."""
        self._queued.append(Report("done", probe, "none"))
        flusher.start()

    def _count(self, ticket: Ticket, calls: int, failures: int, slow: int) -> None:
        with self._lock:
            # Otherwise it was let through before the breaker opened last.
            if ticket.era == self.answer.era >= 0:
                counts = self._counts
                counts[0] += calls
                counts[1] += failures
                counts[2] += slow

    def _may_open(self) -> bool:
        """Return whether the last known counts, with those since then, open the breaker."""
        with self._lock:
            calls, failures, slow = self._counts
            if not failures and not slow:
                return False
            known = self.answer
            counts = (known.calls + calls, known.failures + failures, known.slow + slow)
            return self.by.reason(*counts) != ""

    # With Redis

    def _reporting(self, background: Patience | None = None) -> Waiting[Answer]:
        """Report the counts, and receive the state."""
        return self._exchanging(self._taken(), background)

    def _taken(self) -> Report:
        with self._lock:
            outcomes = Outcomes(*self._counts)
            self._counts = [0, 0, 0]
            if any(outcomes):
                self.used_at = Clock.monotonic()
            return Report("tell", era=self.answer.era, outcomes=outcomes)

    def _exchanging(self, report: Report, background: Patience | None = None) -> Waiting[Answer]:
        """Send a report to Redis, and apply the reply.

        While Redis is unavailable, decide by the counts of this process.

        Args:
            report: The report.
            background: The patience, if the background task is the caller. In that case,
                `StoreError` is raised while Redis is unavailable.
        """
        asked_at = Clock.monotonic()
        if background is None:
            if self.lone is not None and flusher.is_running:
                # The background finds out when Redis is available again.
                return (yield from self._alone(report))
            self._sent_at = asked_at
        keys, arguments = self._command(report)
        store = get_store(background=background is not None)
        patience = background or Patience(conf.TIMEOUT)
        try:
            reply = yield Wait(
                partial(store.run, PROGRAM, keys, arguments, patience),
                partial(store.arun, PROGRAM, keys, arguments, patience),
            )
        except BaseException as error:
            if report.operation == "ask":  # It may have been granted.
                self._give_back(report.probe)
            if background is not None or not isinstance(error, StoreError):
                raise
            logger.debug("The breaker %r is evaluated by this process alone: %s", self.name, error)
            return (yield from self._alone(report))
        answer = Answer.read(reply)
        with self._lock:
            if asked_at >= self.known_at:  # Otherwise a later question was answered before.
                self.lone = None
                self._hold(answer, asked_at)
        yield from self._signalled(answer, report, shared=True)
        if self._may_open():  # There were failures in between.
            yield from self._reporting(background)
        return answer

    def tell(self, patience: Patience | None = None) -> None:
        """Report the counts and the queued reports, and receive the state.

        It is for the background task. Raises `StoreError`.
        """
        patience = patience or Patience(ASK_SECONDS)
        with self._lock:
            reports = [*self._queued, self._taken()]
            self._queued.clear()
        while reports:
            try:
                run(self._exchanging(reports[0], patience))
            except StoreError:
                for report in reports:
                    run(self._alone(report))
                raise
            del reports[0]

    @property
    def is_owing(self) -> bool:
        """Return whether there is something to report."""
        return bool(self._queued) or any(self._counts)

    def _command(self, report: Report) -> tuple[list[bytes], list[bytes]]:
        key = circuit_key(self.name)
        by = self.by
        numbers = [
            by.window_us,
            by.width_us,
            by.open_us,
            by.open_max_us,
            by.probe_us,
            by.probes,
            by.minimum,
            by.failures or 0,
            by.failure_ppm or 0,
            (by.slow_us and by.slow_ppm) or 0,
            chance.randrange(MAX_JITTER),
        ]
        arguments = [
            b"",  # By the clock of Redis.
            report.operation.encode(),
            *(b"%d" % number for number in numbers),
            get_store().channel(conf.CACHE_PREFIX),
            ANNEX + b" breakers " + tag_of(self.name),
            self._probe(report).encode(),
            report.result.encode(),
            b"%d" % report.era,
            *(b"%d" % number for number in report.outcomes),
        ]
        return [key, key + b":probes"], arguments

    def _probe(self, report: Report) -> str:
        if report.operation == "tell":
            return self._running_probes()
        return report.probe

    def _hold(self, answer: Answer, asked_at: float) -> None:
        # First, so that a caller that sees the new state is not admitted by the old one.
        self.calm_until = NEVER
        if answer.era != self.answer.era:
            self.calm = Ticket(answer.era)
            self._counts = [0, 0, 0]
        self.answer = answer
        self.known_at = asked_at
        now = Clock.monotonic()
        self._changes_at = now + answer.wait / SECOND
        if answer.state == "half-open":
            self._changes_at = min(self._changes_at, now + PROBE_PAUSE)
        if provider.in_force() is not None:
            self._trust()

    def _signalled(self, answer: Answer, report: Report, *, shared: bool) -> Waiting[None]:
        """Send the signals of a reply. If that is cancelled, release the probe that it grants."""
        try:
            for event in answer.events:
                yield from _signal(self.name, event, answer.wait / SECOND, shared=shared)
        except BaseException:
            if answer.granted:
                self._give_back(report.probe)
            raise

    # While Redis is away

    def _alone(self, report: Report) -> Waiting[Answer]:
        with self._lock:
            now = Clock.monotonic()
            if self.lone is None:
                ends = now
                if self.state == "open":
                    ends = max(now, self._changes_at)
                self.lone = LoneCircuit(self.state, max(0, self.answer.era), _us(ends))
                self.lone.probes = dict.fromkeys(self._probes, _us(now) + self.by.probe_us)
            report = report._replace(probe=self._probe(report))
            answer = self.lone.call(_us(now), self.by, **report._asdict())
            self._hold(answer, now)
        yield from self._signalled(answer, report, shared=False)
        return answer


def _comparing() -> Waiting[None]:
    """Load the rules if newer ones are published."""
    compare = partial(provider.compare_with_published, loads=True)
    with suppress(StoreError):
        yield Wait(compare, sync_to_async(compare))


def _us(seconds: float) -> int:
    return round(seconds * SECOND)


def _signal(name: str, event: Event, seconds: float, *, shared: bool) -> Waiting[None]:
    numbers = event._asdict()
    change = numbers.pop("name").replace("_", "-")
    level = logging.INFO
    if change == "opened":
        level = logging.WARNING
    logger.log(level, "The breaker %r %s: %s", name, change, numbers)
    send = {"breaker": name, **numbers, "seconds": seconds, "shared": shared}
    signal = SIGNALS[event.name]
    yield Wait(
        partial(signal.send_robust, Circuit, **send),
        partial(signal.asend_robust, Circuit, **send),
    )


class Circuits:
    """All breakers of this process, by name."""

    def __init__(self) -> None:
        self.by_name: MutableMapping[str, Circuit] = WeakValueDictionary()
        self._held: dict[str, Circuit] = {}
        self._rows: Mapping[str, BreakerRow] = {}
        self.has_doubts = False
        """Whether the rows may have changed. The next call has to compare them."""
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[Circuit]:
        return iter(list(self.by_name.values()))

    def get(self, name: str, declared: Thresholds) -> Circuit:
        """Return the breaker of a name, with these thresholds.

        If it was declared with other thresholds before, it is marked as ambiguous.
        """
        with self._lock:
            circuit = self.by_name.get(name)
            if circuit is None:
                circuit = self.by_name[name] = Circuit(name, declared)
                circuit.retune(self._rows.get(name))
            elif circuit.declared != declared:
                circuit.is_ambiguous = True
                circuit.declared = declared
                circuit.retune(circuit.row)
            self._held.pop(name, None)
            self._held[name] = circuit
            if len(self._held) > MAX_HELD:
                del self._held[next(iter(self._held))]
            return circuit

    def in_use(self) -> bool:
        """Return whether any breaker was called lately, or has a running call to watch."""
        return any(circuit.in_use() for circuit in self)

    def retune(self) -> None:
        """Apply the rows in force."""
        ruleset = provider.in_force()
        if ruleset is None:
            return
        rows = ruleset.parts.get("breakers", {})
        self.has_doubts = rows is self._rows
        self._rows = rows
        for circuit in self:
            circuit.calm_until = NEVER
            if rows.get(circuit.name) != circuit.row:
                circuit.retune(rows.get(circuit.name))

    def heard(self, tags: Collection[bytes]) -> None:
        """Load the states that other processes have changed, of breakers in use in this process."""
        for circuit in self:
            if tag_of(circuit.name) not in tags:
                continue
            if circuit.in_use():
                with suppress(StoreError):
                    circuit.tell()
                    continue
            circuit.doubt()

    def doubt(self) -> None:
        """Let the next call request the state, because a message may have been lost."""
        for circuit in self:
            circuit.doubt()

    def forget(self) -> None:
        """Reset all states, because settings may name another server or other keys."""
        self._rows = {}
        for circuit in self:
            circuit.forget()

    def flush(self, last: Patience | None = None) -> bool:
        """Report the counts, and receive the states; a `Flush` of the flusher.

        When the process ends, the counts are only reported.
        """
        failed = None
        for circuit in self:
            circuit.count_hanging()  # It is reported below.
            if not circuit.is_owing and (last is not None or not circuit.in_use()):
                circuit.calm_until = NEVER  # The next call starts the flusher again.
                continue
            try:
                circuit.tell(last)
                if last is None:
                    _note(circuit)
            except StoreError as error:
                failed = error
        if failed is not None:
            raise failed
        return self.in_use()


def _note(circuit: Circuit) -> None:
    """Record the breaker in Redis, for operators and metrics of all processes."""
    if Clock.monotonic() - circuit.noted_at < NOTED_SECONDS:
        return
    noted = json.dumps([circuit.name, circuit.declared.declared()]).encode()
    store = get_store(background=True)
    key = circuits_key()
    now = int(time.time())
    store.execute(b"ZADD", key, b"%d" % now, noted)
    store.execute(b"ZREMRANGEBYSCORE", key, b"-inf", b"%d" % (now - NOTES_KEPT))
    store.execute(b"ZREMRANGEBYRANK", key, b"0", b"%d" % -(MAX_LISTED + 1))
    store.execute(b"EXPIRE", key, b"%d" % NOTES_KEPT)
    circuit.noted_at = Clock.monotonic()


def noted(patience: Patience) -> dict[str, dict[str, Any]]:
    """Return the declarations of the breakers that any process has recorded, by name.

    Raises:
        StoreError: Redis is unavailable.
    """
    reply: Iterable[bytes] = get_store(background=True).execute(
        b"ZRANGE", circuits_key(), b"0", b"-1", patience=patience
    )
    return dict(json.loads(text) for text in reply)  # Of several declarations, the last.


circuits = Circuits()
flusher.add(circuits.flush, is_urgent=True)
provider.on_new_rules.append(circuits.retune)
on_change(("RATELIMIT_*", "CACHES"), circuits.forget)
