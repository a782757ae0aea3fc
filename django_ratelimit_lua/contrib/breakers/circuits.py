"""The breakers of this process: their last known state, and the outcomes that are not reported yet.

A closed breaker is decided here, by the last state received. Outcomes are reported once a second,
with the flush; a failure that may open the breaker is reported in the call that failed. The answer
of `circuit.lua` is the state for all processes. A change is pushed to every process, and a process
without pushes asks once a second. While Redis is unavailable, each process judges by its own
outcomes (`circuit.py`), and uses the shared state again afterwards.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, MutableMapping
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
from .rows import BreakerError, BreakerRow, Force, Thresholds
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
NEVER, ENDLESS = float("-inf"), float("inf")
SIGNALS = {"opened": circuit_opened, "half_open": circuit_half_open, "closed": circuit_closed}
_numbers = itertools.count(1)
WORDS: Mapping[State, str] = {
    "closed": "closed",
    "open": "open",
    "half": "half-open",
    "ramp": "ramp",
}


class Ticket(NamedTuple):
    """An admitted call: how often the breaker had opened by then, and the id of its slot if it is a
    probe.
    """

    era: int
    probe: str = ""


class Report(NamedTuple):
    """One call of the script."""

    operation: Operation
    probe: str = ""
    result: Result = ""
    era: int = -1
    outcomes: Outcomes = NO_OUTCOMES


ASK_STATE = Report("tell")
"""Reports nothing, so that nothing is lost if the call is cancelled meanwhile."""


class Circuit:
    """One breaker of this process.

    `declared`: the thresholds of the code, `by`: those in force; `calm_until`: until when
    (monotonic) calls are admitted without another check, with the ticket `calm`; `slow_seconds`:
    from which duration on a call is slow; `due_at`: when the oldest running call becomes slow, at
    the earliest.
    """

    def __init__(self, name: str, declared: Thresholds) -> None:
        self.name, self.declared, self.by = name, declared, declared
        self.row: BreakerRow | None = None
        self.is_ambiguous = False
        """Whether the code declares it twice, with different thresholds."""
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = (
            threading.RLock()
        )  # Reentrant: what is garbage may end a call while another one is counted.
        self.forget()

    def forget(self) -> None:
        """Know nothing, as another process; the settings hold."""
        self.answer = Answer("closed", -1, 0, 100, 0, 0, 0, False)
        self.calm = Ticket(-1)
        self.calm_until = self.known_at = self.used_at = self.noted_at = NEVER
        self._sent_at = self._changes_at = NEVER
        self._counts = [0, 0, 0]
        """Unreported outcomes: calls, failures, slow ones."""
        self._queued: deque[Report] = deque(maxlen=MAX_QUEUED)
        self.running: dict[int, tuple[float, Ticket]] = {}
        """Calls that are not slow yet, by their numbers, the oldest first: when they began
        (monotonic).
        """
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
        """Apply a row, or None for the thresholds of the code. The state and the counts stay."""
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
        may_open = now >= self.due_at and self.count_hanging()
        if not self._is_known(now):
            yield from self._learning()
        elif may_open or (is_alone and now >= self._sent_at + 1.0):
            yield from self._reporting()
        if circuits.has_doubts:
            circuits.has_doubts = False  # One asks, and the others go on for a moment.
            yield from _comparing()
        force = self.force()
        if force is not None:
            if force.how == "open":
                raise CircuitOpen(self.name, _until(force.until_us), "forced")
            return self.calm
        if self.state == "ramp" and time.monotonic() >= self._changes_at:
            self._changes_at = (
                time.monotonic() + PROBE_PAUSE
            )  # Others of this process wait for what comes of it.
            yield from self._exchanging(ASK_STATE)  # It climbs.
        if self.state == "closed":
            self._trust()
            return self.calm
        if self.state == "ramp":
            if chance.random() * 100 < self.answer.share:
                return self.calm
            raise CircuitOpen(self.name, max(0.0, self._changes_at - time.monotonic()), "ramp")
        return (yield from self._probing())

    def _probing(self) -> Waiting[Ticket]:
        now = time.monotonic()
        if now < self._changes_at:
            raise CircuitOpen(self.name, self._changes_at - now, WORDS[self.state])
        self._changes_at = now + PROBE_PAUSE  # Others of this process wait for what comes of it.
        probe = secrets.token_hex(16)
        answer = yield from self._exchanging(Report("ask", probe))
        if answer.granted:
            self._changes_at = time.monotonic()  # There may be another.
            return Ticket(answer.era, probe)
        if self.state == "closed":
            return self.calm
        seconds = max(self.answer.wait / SECOND, PROBE_PAUSE)
        raise CircuitOpen(self.name, seconds, WORDS[self.state])

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
            if self.state != "closed" or self.known_at == NEVER or self.force() is not None:
                return
            if self.lone is not None or not flusher.is_running:
                self.calm_until = now + 1.0  # Without a thread that asks, a call has to.
            else:
                self.calm_until = max(self.known_at, now - 1.0) + TRUSTED_SECONDS

    def doubt(self) -> None:
        """Record that the state may have changed. The next call asks for it."""
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
        """Note that a call runs that may become slow, or is a probe.

        Returns its number; 0 without `slow`.
        """
        if ticket.probe:
            self._probes[ticket.probe] = began
        if self.slow_seconds is None:
            return 0
        number = next(_numbers)
        if not self.running:
            self.due_at = began + self.slow_seconds
        self.running[number] = began, ticket
        return number

    def count_hanging(self) -> bool:
        """Count the running calls that have lasted `slow`.

        Return whether that may open the breaker, so that it has to be reported at once. The
        background judges probes.
        """
        now, slow_seconds = time.monotonic(), self.slow_seconds
        self.due_at = ENDLESS
        for number, (began, ticket) in self.running.copy().items():
            if slow_seconds is None:
                return False
            if began + slow_seconds > now:
                self.due_at = began + slow_seconds
                break
            if self.running.pop(number, None) is None:
                continue  # It has ended.
            if ticket.probe:
                self._queued.append(Report("hung", ticket.probe, "failed", ticket.era))
            else:
                self._count(ticket, 1, 0, 1)
        return self._may_open()

    def in_use(self) -> bool:
        """Whether there was a call lately, or one runs that may become slow, or is a probe that
        keeps its slot.
        """
        return bool(self.running or self._probes) or time.monotonic() - self.used_at < USED_SECONDS

    def _running_probes(self) -> str:
        """The ids of the probes with slots to renew, separated by spaces."""
        longest, now = self.by.longest_probe_us / SECOND, time.monotonic()
        for probe, began in self._probes.copy().items():
            if now - began >= longest:
                self._probes.pop(probe, None)
        return " ".join(self._probes.copy())

    # After a call

    def end(
        self, ticket: Ticket, number: int, began: float, failed: bool | None
    ) -> Waiting[Any] | None:
        """Count a call that has ended; `failed` is None if it was cancelled, which is no evidence
        about the resource unless it was slow by then.

        Return what is to be done at once, if anything is.
        """
        slow = self.slow_seconds is not None and time.monotonic() - began >= self.slow_seconds
        is_counted = number != 0 and self.running.pop(number, None) is None
        if ticket.probe:
            return self._end_probe(ticket, failed, slow)
        if is_counted:  # As slow, while it hung.
            self._count(ticket, 0, bool(failed), 0)
        elif failed is not None or slow:
            self._count(ticket, 1, bool(failed), slow)
        if failed is None or not (failed or slow) or not self._may_open():
            return None
        return self._reporting()

    def _end_probe(self, ticket: Ticket, failed: bool | None, slow: bool) -> Waiting[Any] | None:
        self._probes.pop(ticket.probe, None)
        if failed is not None:
            return self._exchanging(
                Report("done", ticket.probe, "failed" if failed or slow else "ok", ticket.era)
            )
        if slow:
            self._queued.append(Report("hung", ticket.probe, "failed", ticket.era))
        self._give_back(ticket.probe)
        return None

    def _give_back(self, probe: str) -> None:
        """Free the slot of a probe, with the next flush."""
        self._probes.pop(probe, None)
        self._queued.append(Report("done", probe, "none"))
        flusher.start()

    def _count(self, ticket: Ticket, calls: int, failures: int, slow: int) -> None:
        with self._lock:
            if (
                ticket.era == self.answer.era >= 0
            ):  # Otherwise it was let through before the breaker opened last.
                counts = self._counts
                counts[0] += calls
                counts[1] += failures
                counts[2] += slow

    def _may_open(self) -> bool:
        """Whether it opens by what this process knows: the window as it was heard last, and what
        was counted since.
        """
        with self._lock:
            calls, failures, slow = self._counts
            if not failures and not slow:
                return False
            known = self.answer
            counts = (known.calls + calls, known.failures + failures, known.slow + slow)
            return self.by.reason(*counts, known.share or 100) != ""

    # With Redis

    def _reporting(self, background: Patience | None = None) -> Waiting[Answer]:
        """Report what was counted, and receive the state."""
        return self._exchanging(self._taken(), background)

    def _taken(self) -> Report:
        with self._lock:
            counts, self._counts = self._counts, [0, 0, 0]
            if any(counts):
                self.used_at = time.monotonic()
            return Report("tell", era=self.answer.era, outcomes=Outcomes(*counts))

    def _exchanging(self, report: Report, background: Patience | None = None) -> Waiting[Answer]:
        """Ask Redis, and use its answer.

        While it is unavailable, judge by the counts of this process. With the patience of the
        `background`, raise `StoreError` instead.
        """
        asked_at = time.monotonic()
        if background is None:
            if (
                self.lone is not None and flusher.is_running
            ):  # The background finds out when Redis is back.
                return (yield from self._alone(report))
            self._sent_at = asked_at
        keys, arguments = self._command(report)
        store, patience = (
            get_store(background=background is not None),
            background or Patience(conf.TIMEOUT),
        )
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
            logger.debug("The breaker %r is judged by this process alone: %s", self.name, error)
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
        """Report what was counted and queued, and receive the state.

        For the background. Raises `StoreError`.
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
        """Whether there is something to report."""
        return bool(self._queued) or any(self._counts)

    def _command(self, report: Report) -> tuple[list[bytes], list[bytes]]:
        key, by = circuit_key(self.name), self.by
        numbers = [
            by.window_us,
            by.width_us,
            by.open_us,
            by.open_max_us,
            by.probe_us,
            by.step_us,
            by.probes,
            by.minimum,
            by.failures or 0,
            by.failure_ppm or 0,
            (by.slow_ppm or 0) if by.slow_us else 0,
            chance.randrange(MAX_JITTER),
        ]
        moment = b"%d" % now_us() if conf.CLOCK == "client" else b""
        probe = self._running_probes() if report.operation == "tell" else report.probe
        arguments = [
            moment,
            report.operation.encode(),
            *(b"%d" % number for number in numbers),
            get_store().channel(conf.CACHE_PREFIX),
            ANNEX + b" breakers " + tag_of(self.name),
            probe.encode(),
            report.result.encode(),
            b"%d" % report.era,
            *(b"%d" % number for number in report.outcomes),
        ]
        return [key, key + b":probes"], arguments

    def _hold(self, answer: Answer, asked_at: float) -> None:
        self.calm_until = (
            NEVER  # First, so that a caller that sees the new state is not admitted by the old one.
        )
        if answer.era != self.answer.era:
            self.calm, self._counts = Ticket(answer.era), [0, 0, 0]
        self.answer, self.known_at = answer, asked_at
        now = time.monotonic()
        self._changes_at = now + answer.wait / SECOND
        if answer.state == "half":
            self._changes_at = min(self._changes_at, now + PROBE_PAUSE)
        if answer.state == "closed" and self.force() is None and provider.in_force() is not None:
            self._trust()

    def _signalled(self, answer: Answer, report: Report, *, shared: bool) -> Waiting[None]:
        """Send the signals of an answer.

        A probe that it grants is given back if the call is cancelled meanwhile.
        """
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
            now = time.monotonic()
            if self.lone is None:
                left = max(0.0, self._changes_at - now) if self.state == "open" else 0.0
                self.lone = LoneCircuit(self.state, max(0, self.answer.era), _us(now + left))
                self.lone.probes = dict.fromkeys(self._probes, _us(now) + self.by.probe_us)
            answer = self.lone.call(
                _us(now),
                self.by,
                report.operation,
                result=report.result,
                outcomes=report.outcomes,
                probe=self._running_probes() if report.operation == "tell" else report.probe,
                era=None if report.era < 0 else report.era,
            )
            self._hold(answer, now)
        yield from self._signalled(answer, report, shared=False)
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


def _signal(name: str, event: Event, seconds: float, *, shared: bool) -> Waiting[None]:
    signal = SIGNALS.get(event.name)
    if signal is None:
        return
    arguments: dict[str, Any] = {
        "breaker": name,
        "calls": event.calls,
        "failures": event.failures,
        "slow": event.slow,
        "reason": event.reason,
        "seconds": seconds,
        "shared": shared,
    }
    level = logging.WARNING if event.name == "opened" else logging.INFO
    logger.log(
        level,
        "The breaker %r %s: %d calls, %d failures, %d slow%s",
        name,
        event.name.replace("_", "-"),
        event.calls,
        event.failures,
        event.slow,
        f" ({event.reason})" if event.reason else "",
    )
    yield Wait(
        partial(signal.send_robust, Circuit, **arguments),
        partial(signal.asend_robust, Circuit, **arguments),
    )


class Circuits:
    """All of this process, by name."""

    def __init__(self) -> None:
        self.by_name: MutableMapping[str, Circuit] = WeakValueDictionary()
        self._held: dict[str, Circuit] = {}
        self._rows: Mapping[str, BreakerRow] = {}
        self.has_doubts = False
        """Whether the rows may have changed, which the next call has to find out."""
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()

    def get(self, name: str, declared: Thresholds) -> Circuit:
        """The one of that name: several places in the code may be about one resource.

        The thresholds are those that were declared last.
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
        """Whether there was a call lately, or one runs that has to be looked after."""
        return any(circuit.in_use() for circuit in list(self.by_name.values()))

    def retune(self) -> None:
        """Go by the rows that are in force; there are new ones, or may be."""
        ruleset = provider.in_force()
        if ruleset is None:
            return
        rows = ruleset.parts.get("breakers", {})
        self.has_doubts = rows is self._rows
        self._rows = rows
        for circuit in list(self.by_name.values()):
            circuit.calm_until = NEVER
            if rows.get(circuit.name) != circuit.row:
                circuit.retune(rows.get(circuit.name))

    def heard(self, tags: Collection[bytes]) -> None:
        """The state of these has changed, by a message of another process: ask for it, unless this
        process does not call them.
        """
        for circuit in list(self.by_name.values()):
            if tag_of(circuit.name) not in tags:
                continue
            if circuit.in_use():
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
        self._rows = {}
        for circuit in list(self.by_name.values()):
            circuit.forget()

    def flush(self, last: Patience | None = None) -> bool:
        """Report the counts, and receive the states; see `Flush`.

        As the process ends, only report.
        """
        failed = None
        for circuit in list(self.by_name.values()):
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
    """Note in Redis that there is such a breaker, for operators and metrics of all processes."""
    if time.monotonic() - circuit.noted_at < NOTED_SECONDS:
        return
    noted = json.dumps([circuit.name, circuit.declared.declared()]).encode()
    store, key, now = get_store(background=True), circuits_key(), int(time.time())
    store.execute(b"ZADD", key, b"%d" % now, noted)
    store.execute(b"ZREMRANGEBYSCORE", key, b"-inf", b"%d" % (now - NOTES_KEPT))
    store.execute(b"ZREMRANGEBYRANK", key, b"0", b"%d" % -(MAX_LISTED + 1))
    store.execute(b"EXPIRE", key, b"%d" % NOTES_KEPT)
    circuit.noted_at = time.monotonic()


def noted(patience: Patience) -> dict[str, dict[str, Any]]:
    """The breakers that any process has noted: how the code declares them, by name.

    Raises `StoreError`.
    """
    reply: Iterable[bytes] = get_store(background=True).execute(
        b"ZRANGE", circuits_key(), b"0", b"-1", patience=patience
    )
    return dict(json.loads(text) for text in reply)  # Of several declarations, the last.


circuits = Circuits()
flusher.add(circuits.flush, is_urgent=True)
provider.on_new_rules.append(circuits.retune)
on_change(("RATELIMIT_*", "CACHES"), circuits.forget)
