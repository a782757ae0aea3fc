"""The state of a breaker: in Redis, and as this process has received it last.

Calls of a closed or an open breaker are decided by the received state. The numbers of calls and
failures are reported once a second, with the flusher, and `breaker.lua` decides the state for all
processes. It is requested for each call of a half-open breaker.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

from asgiref.sync import sync_to_async

from ...conf import conf, on_change
from ...engine.listener import listener
from ...engine.run import Wait, Waiting, run
from ...exceptions import StoreError
from ...limits import program
from ...limits.program import Program
from ...limits.rate import SECOND
from ...process import Clock
from ...process.forks import renew_after_fork
from ...rules import provider
from ...store import ANNEX, Deadline, flusher, get_store
from .exceptions import CircuitOpen

logger = logging.getLogger("django_ratelimit_lua")
PROGRAM = Program.of(program.source("contrib/breakers/breaker"))
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,200}")
"""A name has no control characters and no lone surrogates."""
MAX_NAMES = 1000
"""Maximum number of registered names: those that were used last."""
NAME_SECONDS = 7 * 86_400
"""How long a name stays registered after its last use."""
READ_SECONDS = 5.0
"""Timeout of reading the states of all breakers."""
TRUST_SECONDS = 3.0
"""How long a closed or forced state is used after it was received. That a breaker is closed is
trusted for at most `open_for`, so no process uses that state when the breaker is half-open, even if
messages are lost.
"""
USED_SECONDS = 10.0
"""How long after the last call the flusher reports and receives the state."""
OUTAGE_SECONDS = 1.0
"""How long calls are allowed without a request after Redis was unavailable."""
REPORT_SECONDS = 1.0
"""Timeout of all reports of the background together."""
REGISTER_SECONDS = 60.0
"""How often a process registers the name of a breaker that it uses. Redis may lose it."""
NEVER = float("-inf")


def tag_of(name: str) -> bytes:
    """Return the digest of a name, for keys and messages."""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest().encode()


def state_key(tag: bytes) -> bytes:
    """Return the key of the hash that `breaker.lua` writes."""
    return b"%b{breaker:%b}" % (conf.CACHE_PREFIX, tag)


def _names_key() -> bytes:
    """Return the key of the sorted set of names, by the moment of their last use."""
    return conf.CACHE_PREFIX + b"{breakers}"


class Thresholds(NamedTuple):
    """The numbers that the script gets, in its order."""

    width_us: int
    minimum: int
    ratio_ppm: int
    open_us: int
    probes: int


class Ticket(NamedTuple):
    """An allowed call: the version of the state that allowed it, and whether it is a probe."""

    version: int
    is_probe: bool = False


NO_VERSION = -1
"""The version of a call that does not count."""


class SharedState:
    """The state of a breaker in this process.

    - `state`: closed, open or half-open;
    - `forced`: the state that an operator has forced (open or closed), or an empty string.

    Until the moment `_until` (monotonic), calls are allowed or stopped by `_allows`, without a
    request. Then the state must be requested. `_ticket` has the version of the state, to which the
    counts `_calls`, `_failed` and `_failed_in_row` belong.
    """

    def __init__(self, name: str, thresholds: Thresholds, failures: int | None) -> None:
        """Begin closed, without counts. `failures` in a row open the breaker (None: no number)."""
        self.name = name
        self.tag = tag_of(name)
        self._failures = failures
        self._options = {**thresholds._asdict(), "failures": failures}
        self._numbers = [b"%d" % number for number in thresholds]
        self._open_seconds = thresholds.open_us / SECOND
        self._trust_seconds = min(TRUST_SECONDS, self._open_seconds)
        self._begin()
        renew_after_fork(self._begin)
        self._warn_of_other_options()
        _states[id(self)] = self

    def _warn_of_other_options(self) -> None:
        """Log once if another breaker of this process has the same name and other options."""
        for state in shared_states():
            is_other = state.name == self.name and state._options != self._options
            if is_other and self.name not in _warned:
                _warned.add(self.name)
                text = "Two breakers have the name %r and different options: %s and %s"
                logger.warning(text, self.name, state._options, self._options)

    def _begin(self) -> None:
        # Reentrant, because garbage collection may end a call while another one is counted.
        self._lock = threading.RLock()
        self.forget()

    def forget(self) -> None:
        """Forget the state and the counts."""
        self.state = "closed"
        self.forced = ""
        self._ticket = Ticket(0)
        self._allows = False
        self._until = self._received_at = self._used_at = self._registered_at = NEVER
        self._is_used = False
        self._calls = self._failed = self._failed_in_row = 0

    def set_forced(self, forced: str) -> None:
        """Use the state that an operator has forced, or the breaker's own if it is empty."""
        with self._lock:
            if forced:
                self._decide_until(Clock.monotonic() + TRUST_SECONDS, allows=forced == "closed")
            elif self.forced:
                self._until = NEVER  # The breaker's own state must be requested.
            self.forced = forced

    # Calls

    def allow_by_received_state(self) -> Ticket | None:
        """Record a use, and return the ticket of a call if the breaker is known to be closed.

        Return None if the state must be requested. Raise `CircuitOpen` if it is known to be open.
        """
        self._is_used = True
        if Clock.monotonic() >= self._until:
            return None
        if self._allows:
            return self._ticket
        raise self._stopped_error()

    def _stopped_error(self) -> CircuitOpen:
        """Return the error of a stopped call, with the time until the next request."""
        if self.forced:
            return CircuitOpen(self.name)
        return CircuitOpen(self.name, max(0.0, self._until - Clock.monotonic()))

    def request_ticket(self) -> Waiting[Ticket]:
        """Request the state, and return the ticket of a call. Raises `CircuitOpen`."""
        if not conf.ENABLE:
            return Ticket(NO_VERSION)
        listener.task.start()
        has_flusher = flusher.start()
        if provider.loaded_ruleset() is None or not has_flusher:
            load = partial(provider.refresh_ruleset, Deadline(conf.TIMEOUT))
            with suppress(StoreError):
                yield Wait(load, sync_to_async(load))
        self.set_forced(forced_states().get(self.name, ""))
        if not self.forced:
            probe = yield from self._exchange(asks=True)
            if probe is not None:
                return probe
        if self._allows:
            return self._ticket
        raise self._stopped_error()

    def count_call(self, ticket: Ticket, is_failure: bool) -> bytes:
        """Count a call that has ended. Return the result to report at once, or an empty string."""
        self._is_used = True
        if ticket.is_probe:
            return b"failed" if is_failure else b"ok"
        with self._lock:
            if ticket != self._ticket:
                return b""  # It was allowed before the state changed.
            self._calls += 1
            if not is_failure:
                self._failed_in_row = 0
                return b""
            self._failed += 1
            self._failed_in_row += 1
            if self._failed_in_row == self._failures:
                self._failed_in_row = 0
                return b"failed"
            return b""

    # Redis

    def report(
        self, version: int = NO_VERSION, result: bytes = b"", deadline: Deadline | None = None
    ) -> Waiting[object]:
        """Report the counts and a result of a call, and receive the state.

        Args:
            version: The version that allowed the call.
            result: "ok", "failed", or an empty string for no result.
            deadline: The time of the background, or None if a call waits for the report.
        """
        return self._exchange(version, result, deadline=deadline)

    def _exchange(
        self,
        version: int = NO_VERSION,
        result: bytes = b"",
        *,
        asks: bool = False,
        deadline: Deadline | None = None,
    ) -> Waiting[Ticket | None]:
        """Call the script and use its reply. Return the ticket of a probe; None if it grants none.

        `asks`: whether to request a probe. If Redis is unavailable, calls are allowed for a while.
        """
        arguments = self._take_arguments(version, result, asks)
        store = get_store(background=deadline is not None)
        call = (PROGRAM, [state_key(self.tag)], arguments, deadline or Deadline(conf.TIMEOUT))
        sent_at = Clock.monotonic()
        try:
            reply = yield Wait(partial(store.run, *call), partial(store.arun, *call))
        except StoreError as error:
            logger.debug("The breaker %r cannot be requested: %s", self.name, error)
            self._allow_during_outage()
            return None
        state, new_version, wait, is_probe, is_changed = reply
        self._receive(state.decode(), new_version, wait / SECOND, sent_at)
        if is_changed:
            level = logging.WARNING if state == b"open" else logging.INFO
            logger.log(level, "The breaker %r is %s", self.name, state.decode())
        if is_probe:
            return Ticket(new_version, is_probe=True)
        return None

    def _allow_during_outage(self) -> None:
        """Allow calls for a while, unless a received state still decides them."""
        with self._lock:
            now = Clock.monotonic()
            if now >= self._until:
                self._decide_until(now + OUTAGE_SECONDS, allows=True)

    def _take_arguments(self, version: int, result: bytes, asks: bool) -> list[bytes]:
        """Return the arguments of the script, and begin new counts."""
        with self._lock:
            calls, failed = self._calls, self._failed
            self._calls = self._failed = 0
            return [
                b"",
                b"%d" % self._ticket.version,
                self._state_to_restore(),
                b"%d" % calls,
                b"%d" % failed,
                result,
                b"%d" % version,
                b"%d" % asks,
                *self._numbers,
                get_store().channel(conf.CACHE_PREFIX),
                ANNEX + b" breakers " + self.tag,
            ]

    def _state_to_restore(self) -> bytes:
        """Return the state that Redis gets if it has lost the last change."""
        if self.state == "closed":
            return b"closed"
        # A process without news for that long does not know whether the resource still fails, so
        # probes decide. Earlier, lost probes may have begun within `open_for`.
        if Clock.monotonic() - self._received_at > 2 * self._open_seconds:
            return b"half-open"
        return b"open"

    def _receive(self, state: str, version: int, wait: float, sent_at: float) -> None:
        """Use a state, unless it is older than the received one.

        Args:
            state: Closed, open or half-open.
            version: Its version.
            wait: Seconds until a probe may be requested, if it is not closed.
            sent_at: The moment of the request (monotonic).
        """
        with self._lock:
            if version < self._ticket.version:
                return  # A later reply has arrived before.
            if version > self._ticket.version:
                self._ticket = Ticket(version)
                self._calls = self._failed = self._failed_in_row = 0
            self.state = state
            self._received_at = sent_at
            is_closed = state == "closed"
            seconds = self._trust_seconds if is_closed else wait
            if not self.forced:
                self._decide_until(sent_at + seconds, allows=is_closed)

    def _decide_until(self, until: float, *, allows: bool) -> None:
        """Allow or stop calls without a request until a moment (monotonic)."""
        # First, so that no call combines the new answer with the earlier moment.
        self._until = NEVER
        self._allows = allows
        self._until = until

    def report_if_used(self, deadline: Deadline) -> bool:
        """Report, if the breaker was called lately. Return whether it was."""
        now = Clock.monotonic()
        if self._is_used:
            self._used_at = now
            self._is_used = False
        if now - self._used_at > USED_SECONDS:
            return False
        run(self.report(deadline=deadline))
        is_registered = now - self._registered_at < REGISTER_SECONDS
        if not is_registered and register_name(self.name, deadline):
            self._registered_at = now
        return True


_states: WeakValueDictionary[int, SharedState] = WeakValueDictionary()
_warned: set[str] = set()
"""The names of breakers with different options. They are logged once."""


def shared_states() -> list[SharedState]:
    """Return the states of all breakers of this process."""
    references = _states.valuerefs()
    return [state for reference in references if (state := reference()) is not None]


def forced_states() -> Mapping[str, str]:
    """Return the states that operators have forced, by the names of the breakers."""
    ruleset = provider.loaded_ruleset()
    if ruleset is None:
        return {}
    forced: Mapping[str, str] = ruleset.parts.get("breakers") or {}
    return forced


def _set_forced_states() -> None:
    """Use the forced states of the rules that were loaded."""
    forced = forced_states()
    for state in shared_states():
        state.set_forced(forced.get(state.name, ""))


def register_name(name: str, deadline: Deadline) -> bool:
    """Record that a breaker is in use. Return whether Redis has stored it."""
    now = int(Clock.time())
    key = _names_key()
    commands: list[tuple[bytes, ...]] = [
        (b"ZADD", key, b"%d" % now, name.encode()),
        (b"ZREMRANGEBYSCORE", key, b"-inf", b"%d" % (now - NAME_SECONDS)),
        (b"ZREMRANGEBYRANK", key, b"0", b"%d" % -(MAX_NAMES + 1)),
        (b"EXPIRE", key, b"%d" % NAME_SECONDS),
    ]
    try:
        get_store(background=True).execute_all(commands, deadline)
    except StoreError:
        return False
    return True


def read_states(others: Iterable[str] = ()) -> dict[str, str]:
    """Return the states of all registered breakers and of others, by name.

    A state is closed, open or half-open. Raises `StoreError`.
    """
    store = get_store(background=True)
    deadline = Deadline(READ_SECONDS)
    registered = store.execute(b"ZRANGE", _names_key(), b"0", b"-1", deadline=deadline)
    names = sorted({*others, *[name.decode() for name in registered]})
    if not names:
        return {}
    commands = [(b"HGET", state_key(tag_of(name)), b"state") for name in names]
    states = store.execute_all(commands, deadline)
    return {name: (state or b"closed").decode() for name, state in zip(names, states, strict=True)}


def receive_changes(tags: Collection[bytes]) -> None:
    """Request the states of the breakers that other processes have changed."""
    deadline = Deadline(REPORT_SECONDS)
    for state in shared_states():
        if state.tag in tags:
            run(state.report(deadline=deadline))


def _flush(last: Deadline | None = None) -> bool:
    """Report the counts of all breakers; a `Flush` of the flusher."""
    deadline = last or Deadline(REPORT_SECONDS)
    were_used = [state.report_if_used(deadline) for state in shared_states()]
    return any(were_used)


def _forget_states() -> None:
    """Forget all states, because of another server or other keys."""
    for state in shared_states():
        state.forget()


flusher.add(_flush, is_urgent=True)
provider.on_new_rules.append(_set_forced_states)
on_change(("RATELIMIT_*", "CACHES"), _forget_states)
