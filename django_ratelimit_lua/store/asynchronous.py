"""Connections for coroutines: one set per event loop, closed with it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import closing, suppress
from typing import Any, cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..process.forks import leave_to_parent, renew_after_fork
from .blocking import has_news
from .connection_params import ConnectionParams
from .exchange import Address, Exchange, Question, Replies, Unreachable, ended_by, greet, to_find_master
from .patience import Patience, Pulse
from .redis_py import AsyncDial

TICK = 0.005
"""Seconds between two looks at the clock, while anybody waits."""
LONGEST_STEP = 0.01
"""Seconds that the clock advances at most between two looks: what is more, the loop was busy with something else. So
within 0.1 s it has listened ten times at least."""


class _Wait:
    """Somebody waits for something, until `due`; `renewed`: the seconds that a sign of life is worth."""

    __slots__ = ("due", "future", "is_over", "renewed")

    def __init__(self, future: asyncio.Future[Any], due: float, renewed: float | None) -> None:
        self.future = future
        self.due = due
        self.renewed = renewed
        self.is_over = False

    def end(self) -> None:
        """Its time is over, unless it has come to something already."""
        self.is_over = True
        if isinstance(self.future, asyncio.Task):
            self.future.cancel()
        elif not self.future.done():
            self.future.set_exception(RedisTimeoutError("no answer within the deadline"))


class Watch:
    """The deadlines of one event loop, by a clock that stands still while the loop is busy with something else."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pulse: Pulse) -> None:
        self._loop = loop
        self._pulse = pulse
        self._waits: set[_Wait] = set()
        self._clock, self._looked_at = 0.0, time.monotonic()
        self._heard_at = self._heard_clock = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def clock(self) -> float:
        """Seconds, of no meaning but to each other."""
        return self._clock + min(time.monotonic() - self._looked_at, LONGEST_STEP)

    async def wait(self, future: asyncio.Future[Any], patience: Patience, *, may_renew: bool = False) -> Any:
        """What a future comes to. Raises `redis.exceptions.TimeoutError` where the patience ends before.

        `may_renew`: each sign of life of the server gives the patience back.
        """
        if self._timer is None:
            self._looked_at = time.monotonic()
            self._timer = self._loop.call_later(min(TICK, max(patience.left, 0.001)), self._look)
        wait = _Wait(future, self.clock() + patience.left, patience.left if may_renew else None)
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
            now = self.clock()
            if may_renew:
                self._listen(now)
                wait.due = max(wait.due, self._heard_clock + (wait.renewed or 0.0))
            patience.left = wait.due - now

    def _listen(self, now: float) -> None:
        if self._pulse.heard_at != self._heard_at:
            self._heard_at, self._heard_clock = self._pulse.heard_at, now

    def _look(self) -> None:
        now = time.monotonic()
        self._clock += min(now - self._looked_at, LONGEST_STEP)
        self._looked_at = now
        self._listen(self._clock)
        nearest = TICK
        for wait in self._waits:
            if wait.renewed is not None:
                wait.due = max(wait.due, self._heard_clock + wait.renewed)
            nearest = min(nearest, wait.due - self._clock)
            if wait.due <= self._clock and not wait.is_over:
                wait.end()
        self._timer = self._loop.call_later(max(nearest, 0.001), self._look) if self._waits else None


class Link(asyncio.Protocol):
    """One connection of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._replies: Replies | None = None
        self._answered: asyncio.Future[None] | None = None
        self._early = b""
        self._was_used = False
        self._has_news: Callable[[], object] = lambda: True

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked. Whatever can be read where nothing was asked is the server hanging up, or not meant
        for us."""
        return self.is_open and not self._has_news()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def begin(self) -> None:
        """It is connected."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        self._has_news = (lambda: False) if sock is None else has_news(sock)  # What the loop has not seen yet.

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._replies is None:
            if self._was_used:
                self.close()
            else:
                self._early += data  # What it says of itself, before anything was asked, is about the first question.
            return
        try:
            is_answered = self._replies.feed(data)
        except Exception as error:
            self._fail(error)
        else:
            if is_answered and self._answered is not None and not self._answered.done():
                self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        self._fail(RedisConnectionError("the server hung up" if exc is None else f"{type(exc).__name__}: {exc}"))

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)

    def close(self) -> None:
        """Close it; it is not used again."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with suppress(RuntimeError):  # The loop is closed, and its transports with it.
                transport.abort()

    async def perform(self, exchange: Exchange, patience: Patience, watch: Watch, pulse: Pulse) -> Any:
        """The answer of an exchange; see `blocking.Link.ask`."""
        try:
            to_send, owed = next(exchange)
            while True:
                await self._replied(to_send, owed, patience, watch)
                pulse.heard_at = time.monotonic()
                to_send, owed = exchange.send(owed.found)
        except StopIteration as finished:
            return finished.value
        except BaseException as error:  # A cancellation, too: what it is answered is for nobody any more.
            raise ended_by(error, self.close)  # noqa: B904 - it knows its cause

    async def _replied(self, to_send: bytes, owed: Replies, patience: Patience, watch: Watch) -> None:
        if self._transport is None:
            raise RedisConnectionError("the server hung up")
        if patience.is_over:
            raise RedisTimeoutError("no time is left to ask")
        answered = self._loop.create_future()
        self._replies, self._answered = owed, answered
        early, self._early, self._was_used = self._early, b"", True
        try:
            self._transport.write(to_send)
            if early:
                self.data_received(early)
            await watch.wait(answered, patience)
        finally:
            self._replies = self._answered = None
            answered.cancel()
            if answered.done() and not answered.cancelled():
                answered.exception()  # Whoever waited has heard of it, or waits no more.


class LoopConnections:
    """One event loop's connections to one server. Only ever used in that loop."""

    def __init__(
        self, params: ConnectionParams, pulse: Pulse, ended: Callable[[asyncio.AbstractEventLoop], object]
    ) -> None:
        self._params = params
        self._pulse = pulse
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(self._loop, pulse)
        self._dial = params.async_dial()
        self._idle: list[Link | None] = [None] * params.most_connections  # None: one to be opened.
        self._waiting: deque[asyncio.Future[Link | None]] = deque()
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
        """Close the connections that are idle."""
        for link in self._idle:
            if link is not None:
                link.close()

    async def exchange(self, question: Question, patience: Patience, check: Callable[[], None] = lambda: None) -> Any:
        """See `Connections.exchange`. A connection that was cancelled in the middle of an exchange is closed."""
        link = self._idle.pop() if self._idle else await self._waited_for(patience, check)
        try:
            if link is None or not link.is_ready:
                old, link = link, None
                if old is not None:
                    old.close()
                link = await self._connected(patience)
            return await link.perform(question.exchange(), patience, self._watch, self._pulse)
        finally:
            if link is not None and not link.is_open:
                link.close()
                link = None
            self._give(link)

    async def _waited_for(self, patience: Patience, check: Callable[[], None]) -> Link | None:
        turn: asyncio.Future[Link | None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await self._watch.wait(turn, patience, may_renew=True)
            check()
        except BaseException:
            # A turn that never came, whose time is over (an exception) or which was cancelled, is not passed on.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._give(turn.result())  # It was this one's turn, which it does not take.
            raise
        return turn.result()

    def _give(self, link: Link | None) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(link)
                return
        self._idle.insert(0 if link is None else len(self._idle), link)  # The open ones are taken first.

    async def _connected(self, patience: Patience) -> Link:
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
                    master: Address | None = await link.perform(question.exchange(), share, self._watch, Pulse())
                    if master is not None:
                        return master
        raise Unreachable(f"no sentinel knows the master of {self._params.service!r}")

    async def _dialled(self, dial: AsyncDial, params: ConnectionParams, patience: Patience, **address: Any) -> Link:
        """A new connection, which was greeted; to an address other than its own, as a master."""
        link = Link(self._loop)
        try:
            if patience.is_over:
                raise RedisTimeoutError("no time is left to connect")
            await self._watch.wait(self._loop.create_task(dial.connect(lambda: link, **address)), patience)
            credentials = await params.acredentials()
            greeting = greet(credentials, params.database, params.client_name, needs_master=bool(params.sentinels))
            await link.perform(greeting, patience, self._watch, self._pulse)
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
                left = [self._loops.pop(other) for other in list(self._loops) if other.is_closed()]
                self._loops[loop] = connections
            for one in left:
                one.close()
            await connections.start()
        return await connections.exchange(question, patience, check)

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._loops.pop(loop, None)
