"""One server with its connections and its breaker, and the store that uses one server."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..exceptions import StoreError
from ..limits.call import Call
from ..limits.decision import Decision
from ..limits.program import Program
from ..process.clock import Clock
from ..process.forks import renew_after_fork
from ..signals import store_down, store_up
from .asynchronous import IDLE_SECONDS, AsyncConnections, LoopConnections
from .blocking import Link
from .breaker import Breaker
from .commands import (
    Address,
    Question,
    Reply,
    to_decide,
    to_execute,
    to_reset,
    to_run,
)
from .connection_params import ConnectionParams
from .deadline import current_deadline
from .failures import Paused, as_store_error, failures, kind_of
from .patience import Patience, Pulse

A = TypeVar("A")
T = TypeVar("T")

logger = logging.getLogger("django_ratelimit_lua")

MAX_KEYS = 500
"""Keys of one command, so that it does not keep the server busy for long."""
STEADY_SECONDS = 1.0
"""Time without a failure after which Redis counts as up again, unless it was not asked in between.
"""


class Node:
    """Exchanges commands with one server. After repeated failures it sends none for a while.

    A background node does not pause. Threads share a LIFO of connections, each used by one exchange
    at a time. redis-py's own pool costs as much processor time as sending a command (`make bench`).
    """

    def __init__(self, params: ConnectionParams, timeout: float, *, background: bool) -> None:
        self._params = params
        self._timeout = timeout
        self.pulse = Pulse()
        self._async_connections = AsyncConnections(
            partial(LoopConnections, params, self.pulse, timeout, self._check)
        )
        self.breaker = Breaker(self._answers, is_idle=background)
        self._begin()
        renew_after_fork(self._renew)

    def _begin(self) -> None:
        # list.append and list.pop are atomic, so that the lock is needed only by threads that wait.
        self._idle = [Link(self._params, self.pulse) for _ in range(self._params.max_connections)]
        self._freed = threading.Condition()
        self._waiting = 0

    def _renew(self) -> None:
        for link in self._idle:
            link.close()  # Only this process's copy; the parent's connection stays open.
        self._begin()

    def use(
        self,
        ask: Callable[[Link, A, Patience], T],
        asked: A,
        patience: Patience,
        *,
        is_trial: bool = False,
    ) -> T:
        """Call a method of a free connection, and return its result.

        With `is_trial`, it is called after repeated failures as well. Raises the errors of the
        method, and `TimeoutError` of redis-py if no connection becomes free.
        """
        if self.breaker.is_open and not is_trial:
            self._check()
        try:
            if self._waiting:
                link = self._wait(patience)
            else:
                try:
                    link = self._idle.pop()
                except IndexError:
                    link = self._wait(patience)
            try:
                if self.breaker.is_open and not is_trial:  # Others failed while it waited.
                    self._check()
                answer = ask(link, asked, patience)
            finally:
                link.used_at = Clock.monotonic()
                self._idle.append(link)
                if self._waiting:
                    with self._freed:
                        self._freed.notify()
        except (RedisError, OSError) as error:
            self.note(error)
            raise
        if self.breaker.failures:
            self.breaker.succeeded()
        return answer

    def aexchange(self, question: Question[T], patience: Patience) -> Awaitable[T]:
        """Send the command of a question and return the parsed reply.

        This does not block the event loop. Raises the errors of `Question.read` and of redis-py.
        The caller reports them to `note`, and a reply to the breaker.
        """
        if self.breaker.is_open:
            self._check()
        return self._async_connections.exchange(question, patience)

    def close(self) -> None:
        """Close the idle connections of threads, and stop trials.

        The connections of an event loop are closed with the loop.
        """
        self.breaker.succeeded()
        self._close(unused_since=float("inf"))

    def close_idle(self) -> bool:
        """Close the connections that were not used for a while. Return whether any are open."""
        return self._close(unused_since=Clock.monotonic() - IDLE_SECONDS)

    def _close(self, unused_since: float) -> bool:
        for link in self._idle[:]:
            if link.connection is not None and link.used_at <= unused_since:
                with suppress(ValueError):  # A thread has taken it.
                    self._idle.remove(link)
                    link.close()
                    self._idle.insert(0, link)
        idle = self._idle[:]
        return len(idle) < self._params.max_connections or any(
            link.connection is not None for link in idle
        )

    def _wait(self, patience: Patience) -> Link:
        """Wait for a connection. Each reply of the server to another thread restarts the wait."""
        at_first = patience.left
        with self._freed:
            self._waiting += 1
            try:
                while True:
                    with suppress(IndexError):
                        return self._idle.pop()
                    began = Clock.monotonic()
                    most = patience.next_slice
                    self._freed.wait(most)
                    patience.spend(began, most)
                    if self.pulse.heard_at > began:
                        silence = Clock.monotonic() - self.pulse.heard_at
                        patience.left = at_first - min(silence, most)
                    elif not most:
                        raise RedisTimeoutError(
                            "no connection is free, and the server does not reply"
                        )
            finally:
                self._waiting -= 1

    def _answers(self) -> bool:
        try:
            self.use(Link.ask, to_execute(b"PING"), Patience(self._timeout), is_trial=True)
        except (RedisError, OSError) as error:
            return isinstance(error, ResponseError)
        return True

    def _check(self) -> None:
        if not self.breaker.may_ask():
            raise Paused("Redis has failed repeatedly; calls to it are paused for a moment")

    def note(self, error: Exception) -> None:
        """Record an error of an exchange in the breaker."""
        # A server that answers with an error costs no deadline, and may answer the next call.
        if isinstance(error, ResponseError):
            self.breaker.succeeded()
        elif not isinstance(error, Paused):
            self.breaker.failed()


class Outage(NamedTuple):
    """A time in which Redis did not decide, in seconds since 1970; `end` is None while it lasts."""

    start: float
    end: float | None = None


class Store:
    """Performs calls on one server, or on the master that Sentinel names.

    Each call ends within `timeout` seconds. After repeated failures it sends nothing until the
    server replies again. A `background` store does not pause, and does not report failures itself.
    The log and the signals report each change of state once. A server that replies to some calls
    with errors is reported as available only when it has decided for a while without an error.

    - `last_outage`: the last one that this process has seen.
    """

    compares_rules = True
    """Whether the call that counts also compares the revision of the rules. Otherwise a call
    without charges does.
    """

    def __init__(self, params: ConnectionParams, timeout: float, *, background: bool) -> None:
        self._params = params
        self._timeout = timeout
        self._is_background = background
        self._nodes: dict[Address | None, Node] = {}
        self.last_outage: Outage | None = None
        self._is_down = False
        self._failing: set[Address | None] = set()
        self._failed_at = float("-inf")
        self._down_since = 0.0
        self._was_paused = False
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()

    @property
    def is_paused(self) -> bool:
        """Return whether a server is not used at the moment, after repeated failures."""
        return any(node.breaker.is_open for node in list(self._nodes.values()))

    @property
    def heard_at(self) -> float:
        """Return when a server last replied to a caller in this process (monotonic)."""
        return max(
            (node.pulse.heard_at for node in list(self._nodes.values())), default=float("-inf")
        )

    def decide(self, call: Call, patience: Patience | None = None) -> Decision:
        """Decide a call within the given `Patience`, or within the timeout.

        Raises `StoreError` or `StaleRules`.
        """
        return self._use(Link.ask, to_decide(call), patience)

    def delete_keys(self, keys: Sequence[bytes]) -> None:
        for places in self._portions(keys):
            self.execute(b"DEL", *[keys[place] for place in places])

    def find_keys(self, begin: bytes, pattern: bytes = b"*") -> set[bytes]:
        """Return the keys that begin with `begin` and then match a pattern, from all masters.

        Raises `StoreError`.
        """
        begin = re.sub(rb"([*?\[\]\\])", rb"\\\1", begin)
        found: set[bytes] = set()
        for address in self._masters():
            cursor = b""
            while cursor != b"0":
                scan = (b"SCAN", cursor or b"0", b"MATCH", begin + pattern, b"COUNT", b"1000")
                cursor, keys = self._use(Link.ask, to_execute(*scan), address=address)
                found.update(keys)
        return found

    def _masters(self) -> Collection[Address | None]:
        return [None]

    def adecide(self, call: Call, patience: Patience | None = None) -> Awaitable[Decision]:
        """`decide`, without blocking the event loop."""
        return self._aexchange(to_decide(call), patience)

    def channel(self, prefix: bytes) -> bytes:
        """Return the channel of the processes that share a database and a prefix.

        Its messages are: new rules (`RULES <revision>`), resets (`RESET <digest> <digest>
        ...`), and messages of an optional app (`ANNEX <app> <word> <word> ...`).
        """
        # Redis has the same channels in all databases.
        return b"%bchanges:%d" % (prefix, self._params.database)

    def reset(self, call: Call) -> int:
        """Delete the state of every limit of a call, and notify all processes.

        After an `unban` the state is kept. Return the number of deleted keys. Raises `StoreError`.
        """
        return self._exchange(to_reset(call, self.channel(call.prefix)))

    def areset(self, call: Call) -> Awaitable[int]:
        """`reset`, without blocking the event loop."""
        return self._aexchange(to_reset(call, self.channel(call.prefix)))

    def execute(self, *parts: bytes, patience: Patience | None = None) -> Reply:
        """Return the reply to any other command. Raises `StoreError`."""
        return self._exchange(to_execute(*parts), patience)

    def run(
        self,
        program: Program,
        keys: Sequence[bytes],
        arguments: Sequence[bytes],
        patience: Patience | None = None,
    ) -> list[Reply]:
        """Return the reply to a script. Its keys must be in one hash slot. Raises `StoreError`."""
        return self._exchange(to_run(program, keys, arguments), patience)

    def arun(
        self,
        program: Program,
        keys: Sequence[bytes],
        arguments: Sequence[bytes],
        patience: Patience | None = None,
    ) -> Awaitable[list[Reply]]:
        """`run`, without blocking the event loop."""
        return self._aexchange(to_run(program, keys, arguments), patience)

    def execute_all(
        self, commands: Sequence[Sequence[bytes]], patience: Patience | None = None
    ) -> list[Reply]:
        """Return the replies to several other commands, sent together.

        Raises `StoreError` if one of the replies is an error.
        """
        questions = [to_execute(*parts) for parts in commands]
        return self._exchange_all(questions, patience)

    def run_each(
        self,
        program: Program,
        common: Sequence[bytes],
        items: Sequence[tuple[bytes, bytes]],
        patience: Patience,
    ) -> list[int | None]:
        """Return the results of a script that returns one for each key.

        Its arguments are the `common` ones and one for each key. The result is None for the keys of
        a server that did not reply.
        """
        answers: list[int | None] = [None] * len(items)
        failing: set[Address | None] = set()  # A server that failed is not tried again.
        for places in self._portions([key for key, _ in items]):
            keys = [items[place][0] for place in places]
            arguments = [items[place][1] for place in places]
            server = self._server_of(keys[0])
            if server in failing:
                continue
            try:
                found = self.run(program, keys, [*common, *arguments], Patience(patience.whole))
            except StoreError:
                failing.add(server)
            else:
                for place, answer in zip(places, found, strict=True):
                    answers[place] = answer
        return answers

    def _portions(self, keys: Sequence[bytes]) -> Iterator[Sequence[int]]:
        """Yield the positions of the keys that may be in one command."""
        for first in range(0, len(keys), MAX_KEYS):
            yield range(first, min(first + MAX_KEYS, len(keys)))

    def _server_of(self, key: bytes) -> Address | None:
        return None

    def close(self) -> None:
        """Close the idle connections of threads. A loop's connections are closed with the loop."""
        for node in list(self._nodes.values()):
            node.close()

    def close_idle(self) -> bool:
        """Close the connections that were not used for a while. Return whether any are open."""
        others = [node.close_idle() for node in list(self._nodes.values())]
        return any(others)

    def _use(
        self,
        ask: Callable[[Link, A, Patience], T],
        asked: A,
        patience: Patience | None = None,
        address: Address | None = None,
    ) -> T:
        """Call a method of a connection to a server, and report whether it failed."""
        # `_patience`, inlined: it is on the way of every hit.
        if patience is None or patience.left <= 0.0:
            patience = self._patience(patience)
        deadline = current_deadline()
        if deadline is not None:
            patience = deadline.limit(patience)
        node = self._nodes.get(address) or self._node_at(address)
        try:
            answer = node.use(ask, asked, patience)
        except (RedisError, OSError) as error:
            raise self._failed(error, address) from error
        if self._is_down:
            self._answered(address)
        return answer

    def _exchange(self, question: Question[T], patience: Patience | None = None) -> T:
        return self._use(Link.ask, question, patience)

    def _exchange_all(
        self, questions: Iterable[Question[T]], patience: Patience | None = None
    ) -> list[T]:
        return self._use(Link.ask_all, questions, patience)

    async def _aexchange(self, question: Question[T], patience: Patience | None = None) -> T:
        # `_patience`, inlined, as in `_use`.
        if patience is None or patience.left <= 0.0:
            patience = self._patience(patience)
        node = self._node_at(None)
        try:
            answer = await node.aexchange(question, patience)
        except (RedisError, OSError) as error:
            node.note(error)
            raise self._failed(error) from error
        if node.breaker.failures:
            node.breaker.succeeded()
        if self._is_down:
            self._answered()
        return answer

    def _node_at(self, address: Address | None) -> Node:
        node = self._nodes.get(address)
        if node is None:
            params = self._params
            if address is not None:
                params = params.at(address)
            new_node = Node(params, self._timeout, background=self._is_background)
            node = self._nodes.setdefault(address, new_node)  # Another thread may have been faster.
        return node

    def _patience(self, patience: Patience | None = None) -> Patience:
        """Return the patience for a call. Raises `StoreError` if no time is left.

        That does not count as a failure of the server.
        """
        if patience is None:
            return Patience(self._timeout)
        if patience.left <= 0.0:
            if not self._is_background:
                failures.add("timeout")
            raise StoreError("the deadline has passed before Redis was called")
        return patience

    def _answered(self, node: Address | None = None) -> None:
        with self._lock:
            self._failing.discard(node)
            is_steady = self._was_paused or Clock.monotonic() - self._failed_at >= STEADY_SECONDS
            if not self._is_down or self._failing or not is_steady:
                return
            self._is_down = False
            seconds = Clock.monotonic() - self._down_since
            self.last_outage = Outage(Clock.time() - seconds, Clock.time())
        logger.warning(
            "Redis of cache %r is available again after %.1f s", self._params.name, seconds
        )
        store_up.send_robust(Store, alias=self._params.name)

    def _failed(self, error: Exception, node: Address | None = None) -> StoreError:
        failure = as_store_error(error)
        deadline = current_deadline()
        if deadline is not None:
            deadline.error = failure
        if self._is_background:
            return failure
        failures.add(kind_of(error))
        with self._lock:
            was_down = self._is_down
            self._is_down = True
            self._failing.add(node)
            self._failed_at = Clock.monotonic()
            if not was_down:
                self._down_since = self._failed_at
                self.last_outage = Outage(Clock.time())
            # After a pause the first answer is enough: a trial has shown that Redis is back.
            # Without a pause, some calls were answered with errors or not at all: that has to end
            # first.
            self._was_paused = self.is_paused
        if not was_down:
            logger.error("Redis of cache %r cannot decide limits: %s", self._params.name, failure)
            store_down.send_robust(Store, alias=self._params.name, error=str(failure))
        return failure
