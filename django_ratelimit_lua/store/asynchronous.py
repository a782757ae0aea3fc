"""Connections for coroutines: one for each event loop, on which all of them ask, closed with the loop.

A thousand coroutines that ask in one turn of the loop make one trip.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import closing, suppress
from typing import Any, cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..process.forks import leave_to_parent, renew_after_fork
from .blocking import has_news
from .connection_params import ConnectionParams
from .exchange import Address, Exchange, Question, Replies, Unreachable, ended_by, greet, to_find_master
from .patience import GRACE, Patience, Pulse
from .redis_py import AsyncDial

TICK = 0.005
"""Seconds between two looks at the clock, while anybody waits."""
LONGEST_STEP = 0.01
"""Seconds that the clock advances at most between two looks: what is more, the loop was busy with something else. So
within 0.1 s it has listened ten times at least."""


class _Wait:
    """Somebody waits for something, until `due`; each sign of life that `pulse` tells of is worth all the `seconds`."""

    __slots__ = ("_heard_at", "_pulse", "_seconds", "due", "future", "is_over")

    def __init__(self, future: asyncio.Future[Any], now: float, seconds: float, pulse: Pulse | None) -> None:
        self.future = future
        self.due = now + seconds
        self.is_over = False
        self._seconds = seconds
        self._pulse = pulse
        self._heard_at = pulse.heard_at if pulse is not None else 0.0

    def listen(self, now: float) -> None:
        """Begin anew where there was a sign of life."""
        if self._pulse is not None and self._pulse.heard_at != self._heard_at:
            self._heard_at = self._pulse.heard_at
            self.due = max(self.due, now + self._seconds)

    def end(self) -> None:
        """Its time is over, unless it has come to something already."""
        self.is_over = True
        if isinstance(self.future, asyncio.Task):
            self.future.cancel()
        elif not self.future.done():
            self.future.set_exception(RedisTimeoutError("no answer within the deadline"))


class Watch:
    """The deadlines of one event loop, by a clock that stands still while the loop is busy with something else."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waits: set[_Wait] = set()
        self._clock, self._looked_at = 0.0, time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def clock(self) -> float:
        """Seconds, of no meaning but to each other."""
        return self._clock + min(time.monotonic() - self._looked_at, LONGEST_STEP)

    async def wait(self, future: asyncio.Future[Any], patience: Patience, pulse: Pulse | None = None) -> Any:
        """What a future comes to. Raises `redis.exceptions.TimeoutError` where the patience ends before.

        `pulse`: each sign of life that it tells of gives the patience back.
        """
        if self._timer is None:
            self._looked_at = time.monotonic()
            self._timer = self._loop.call_later(min(TICK, max(patience.left, 0.001)), self._look)
        wait = _Wait(future, self.clock(), patience.left, pulse)
        self._waits.add(wait)
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        try:
            return await future
        except asyncio.CancelledError:
            if not wait.is_over or (task is not None and task.cancelling() > cancelled):
                raise  # It is whoever asked that was cancelled.
            raise RedisTimeoutError("no answer within the deadline") from None
        finally:
            self._waits.discard(wait)
            patience.left = wait.due - self.clock()  # An answer to this one is no sign of life that it has waited for.

    def _look(self) -> None:
        now = time.monotonic()
        self._clock += min(now - self._looked_at, LONGEST_STEP)
        self._looked_at = now
        nearest = TICK
        for wait in self._waits:
            wait.listen(self._clock)
            nearest = min(nearest, wait.due - self._clock)
            if wait.due <= self._clock and not wait.is_over:
                wait.end()
        self._timer = self._loop.call_later(max(nearest, 0.001), self._look) if self._waits else None


class _Asked:
    """What somebody asks: what to send, the replies that are owed for it, and what tells that they have come."""

    __slots__ = ("answered", "replies", "to_send")

    def __init__(self, to_send: bytes, replies: Replies, answered: asyncio.Future[None]) -> None:
        self.to_send = to_send
        self.replies = replies
        self.answered = answered


class Link(asyncio.Protocol):
    """One connection of one event loop, on which many may ask at once.

    Who asks while nobody else does is sent at once. Others go out together at the end of the loop's turn, and replies
    are matched in the order in which was asked. What is answered to who does not wait any more is read and dropped.
    Where a reply is not what it must be, all that follow are in doubt: the connection is closed, and whoever waits for
    one of them is told so. `pulse` is of the server; each complete reply is a sign of life.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pulse: Pulse, watch: Watch) -> None:
        self._loop = loop
        self._server = pulse
        self._watch = watch
        self._silent_since = 0.0
        self._exchanges = 0
        self._loads: set[bytes] = set()
        self._pulse = Pulse()
        self._transport: asyncio.Transport | None = None
        self._asked: deque[_Asked] = deque()
        self._to_ask: list[_Asked] = []
        self._early = b""
        self._was_used = self._is_retired = False
        self._has_news: Callable[[], object] = lambda: True

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked. Whatever can be read where nothing was asked is the server hanging up, or not meant
        for us."""
        is_busy = self._asked or self._to_ask
        return self.is_open and not self._is_retired and (bool(is_busy) or not self._has_news())

    @property
    def silence(self) -> float:
        """For how long (seconds that the loop has listened) it has owed a reply without one."""
        return self._watch.clock() - self._silent_since if self._asked else 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def begin(self) -> None:
        """It is connected."""
        if self._transport is None:
            return  # It was hung up on meanwhile; who asks is told what was said before.
        sock = self._transport.get_extra_info("socket")
        self._has_news = (lambda: False) if sock is None else has_news(sock)  # What the loop has not seen yet.

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if not self._was_used:
            self._early += data  # What it says of itself, before anything was asked, is about the first question.
            return
        try:
            while data:
                if not self._asked:
                    raise InvalidResponse("more than was asked for")
                rest = self._asked[0].replies.take(data)
                if rest is None:
                    return
                data, answered = rest, self._asked.popleft().answered
                self._silent_since = self._watch.clock()
                self._pulse.heard_at = self._server.heard_at = time.monotonic()
                if not answered.done():
                    answered.set_result(None)
        except Exception as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        self._fail(RedisConnectionError("the server hung up" if exc is None else f"{type(exc).__name__}: {exc}"))

    def _fail(self, error: Exception) -> None:
        """Close it; the first that waits is told why, and those behind that they were not answered."""
        self.close()
        waiting = [entry.answered for entry in (*self._asked, *self._to_ask) if not entry.answered.done()]
        self._asked.clear()
        self._to_ask.clear()
        behind = f"the connection was closed before this was answered: {error}"
        for answered in waiting:
            answered.set_exception(error)
            error = RedisConnectionError(behind)

    def retire(self) -> None:
        """Let nobody else ask; it is closed with the last exchange."""
        self._is_retired = True
        if not self._exchanges:
            self.close()

    def close(self) -> None:
        """Close it; it is not used again."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with suppress(RuntimeError):  # The loop is closed, and its transports with it.
                transport.abort()

    async def ask(self, question: Question, patience: Patience) -> Any:
        """The answer to a question; see `blocking.Link.ask`."""
        return await self.perform(question.exchange(self._loads), patience)

    async def perform(self, exchange: Exchange, patience: Patience) -> Any:
        """The answer of an exchange."""
        self._exchanges += 1
        try:
            to_send, owed = next(exchange)
            while True:
                await self._replied(to_send, owed, patience)
                to_send, owed = exchange.send(owed.found)
        except StopIteration as finished:
            return finished.value
        except (asyncio.CancelledError, GeneratorExit, RedisTimeoutError):
            raise
        except BaseException as error:
            raise ended_by(error, self.retire if isinstance(error, ReadOnlyError) else self.close)  # noqa: B904
        finally:
            exchange.close()
            self._exchanges -= 1
            if self._is_retired and not self._exchanges:
                self.close()

    async def _replied(self, to_send: bytes, owed: Replies, patience: Patience) -> None:
        if self._transport is None:
            early, self._early = self._early, b""
            if early and owed.take(early) is not None:
                return  # What it has said before it hung up, as one does that has too many clients.
            raise RedisConnectionError("the server hung up")
        if patience.is_over:
            raise RedisTimeoutError("no time is left to ask")
        entry, pulse = _Asked(to_send, owed, self._loop.create_future()), None
        if self._asked or self._to_ask:
            pulse = self._pulse  # A reply to others before this one shows that the server is at it.
            if not self._to_ask:
                self._loop.call_soon(self._ask)
            self._to_ask.append(entry)
        else:
            self._to_ask.append(entry)
            self._ask()
        try:
            await self._watch.wait(entry.answered, patience, pulse)
        except RedisTimeoutError:
            self._is_retired = True
            raise
        finally:
            with suppress(RuntimeError):  # The loop is closed.
                entry.answered.cancel()
            if entry.answered.done() and not entry.answered.cancelled():
                entry.answered.exception()  # Whoever waited has heard of it, or waits no more.

    def _ask(self) -> None:
        if self._transport is None:
            return  # Whoever waits will be told.
        entries = [entry for entry in self._to_ask if not entry.answered.done()]
        self._to_ask.clear()
        if entries:
            if not self._asked:
                self._silent_since = self._watch.clock()
            self._asked += entries
            self._was_used, early, self._early = True, self._early, b""
            self._transport.write(b"".join([entry.to_send for entry in entries]))
            if early:
                self.data_received(early)


class LoopConnections:
    """One event loop's connection to one server, and how it is made anew. Only ever used in that loop."""

    def __init__(
        self, params: ConnectionParams, pulse: Pulse, ended: Callable[[asyncio.AbstractEventLoop], object]
    ) -> None:
        self._params = params
        self._pulse = pulse
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(self._loop)
        self._dial = params.async_dial()
        self._link: Link | None = None
        self._retired: list[Link] = []
        self._is_closed = False
        self._connecting: asyncio.Task[Link] | None = None
        self._waiting: list[asyncio.Future[Link]] = []
        self._closer = self._close_with_loop()

    async def start(self) -> None:
        """Register with the running loop, so that its end closes the connections."""
        await anext(self._closer)

    async def _close_with_loop(self) -> AsyncGenerator[None]:
        # asyncio.run, and whatever else calls loop.shutdown_asyncgens, ends this generator with the loop.
        try:
            yield
        finally:
            self._ended(self._loop)
            self.close()
            for _ in range(2):  # The sockets are closed by the loop.
                await asyncio.sleep(0)

    def close(self) -> None:
        """Close the connection, and make no other."""
        self._is_closed = True
        for link in (*self._retired, *([] if self._link is None else [self._link])):
            link.close()
        if self._connecting is not None and not self._loop.is_closed():
            self._connecting.cancel()

    async def exchange(self, question: Question, patience: Patience, check: Callable[[], None] = lambda: None) -> Any:
        """See `Connections.exchange`; what `check` raises, where others have made the connection. All who ask at once
        share one."""
        link = self._link
        if link is None or not link.is_ready or link.silence >= patience.whole:
            link = await self._connected(patience, check)
            # Where this loop came late, there is time for an answer still.
            patience.left = max(patience.left, min(GRACE, patience.whole / 5))
        return await link.ask(question, patience)

    async def _connected(self, patience: Patience, check: Callable[[], None]) -> Link:
        self._retire()
        while True:
            if self._is_closed:
                raise Unreachable("the event loop ends")
            is_first = self._connecting is None
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect(patience.share(1)))
                self._connecting.add_done_callback(self._has_connected)
            future: asyncio.Future[Link] = self._loop.create_future()
            self._waiting.append(future)
            try:
                link: Link = await self._watch.wait(future, patience)
            except (RedisError, OSError) as error:
                if is_first or patience.is_over:
                    raise ended_by(error, lambda: None, connecting=True)  # noqa: B904 - it knows its cause
                check()  # What others have tried in vain is tried again, unless too much has failed.
            else:
                return link
            finally:
                with suppress(RuntimeError):  # The loop is closed.
                    future.cancel()

    def _retire(self) -> None:
        """Another connection takes the place of this one; who waits there still may wait, as long as there is room."""
        if self._link is not None:
            self._link.retire()
            self._retired = [link for link in (*self._retired, self._link) if link.is_open]
            self._link = None
        while len(self._retired) >= self._params.most_connections:
            self._retired.pop(0).close()

    def _has_connected(self, task: asyncio.Task[Link]) -> None:
        self._connecting = None
        waiting, self._waiting = self._waiting, []
        error = RedisConnectionError("connecting was given up") if task.cancelled() else task.exception()
        if error is None:
            self._link = task.result()
        for future in waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(task.result())
            else:
                future.set_exception(error)

    async def _connect(self, patience: Patience) -> Link:
        if self._params.sentinels:
            host, port = await self._master(patience)
            return await self._dialled(self._dial, self._params, patience, host=host, port=port)
        return await self._dialled(self._dial, self._params, patience)

    async def _master(self, patience: Patience) -> Address:
        for sentinel, share in patience.shares(self._params.sentinels):
            with suppress(RedisError, OSError):
                link = await self._dialled(sentinel.async_dial(), sentinel, share)
                with closing(link):
                    question = to_find_master(self._params.service)
                    master: Address | None = await link.ask(question, share)
                    if master is not None:
                        return master
        raise Unreachable(f"no sentinel knows the master of {self._params.service!r}")

    async def _dialled(self, dial: AsyncDial, params: ConnectionParams, patience: Patience, **address: Any) -> Link:
        """A new connection, which was greeted; to an address other than its own, as a master."""
        link = Link(self._loop, self._pulse, self._watch)
        try:
            if patience.is_over:
                raise RedisTimeoutError("no time is left to connect")
            await self._watch.wait(self._loop.create_task(dial.connect(lambda: link, **address)), patience)
            credentials = await self._watch.wait(self._loop.create_task(params.acredentials()), patience)
            greeting = greet(credentials, params.database, params.client_name, needs_master=bool(params.sentinels))
            await link.perform(greeting, patience)
            link.begin()
        except BaseException as error:
            raise ended_by(error, link.close, connecting=True)  # noqa: B904 - it knows its cause
        return link


class AsyncConnections:
    """A process's connections to one alias, for every event loop it runs, in whichever thread."""

    def __init__(self, params: ConnectionParams, pulse: Pulse) -> None:
        self._params = params
        self._pulse = pulse
        self._begin()
        renew_after_fork(self._renew)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._loops: dict[asyncio.AbstractEventLoop, LoopConnections] = {}

    def _renew(self) -> None:
        # To close them would take them out of the selector, which a child shares with its parent.
        leave_to_parent(self._loops)
        self._begin()

    async def exchange(self, question: Question, patience: Patience, check: Callable[[], None] = lambda: None) -> Any:
        """See `LoopConnections.exchange`."""
        loop = asyncio.get_running_loop()
        connections = self._loops.get(loop)
        if connections is None:
            connections = LoopConnections(self._params, self._pulse, self._ended)
            with self._lock:
                # A connection refers to its loop; one that ended without saying so is let go by hand.
                ended = [self._loops.pop(other) for other in list(self._loops) if other.is_closed()]
                self._loops[loop] = connections
            for old in ended:
                old.close()
            await connections.start()
        return await connections.exchange(question, patience, check)

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._loops.pop(loop, None)
