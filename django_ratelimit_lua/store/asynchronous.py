"""Connections for coroutines: one for each event loop, on which all of them ask, closed with the loop.

What a thousand coroutines ask in one turn of the loop makes a few trips.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import closing, suppress
from typing import Any, cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..limits.call import StaleRules
from ..process.forks import leave_to_parent, renew_after_fork
from .blocking import has_news
from .connection_params import ConnectionParams
from .exchange import Address, Exchange, Question, Replies, Unreachable, ended_by, greet, string_at, to_find_master
from .patience import Patience, Pulse
from .redis_py import AsyncDial

TICK = 0.005
"""Seconds between two looks at the clock, while anybody waits."""
LONGEST_STEP = 0.01
"""Seconds that the clock advances at most between two looks: what is more, the loop was busy with something else. So
within 0.1 s it has listened ten times at least."""

MOST_AT_ONCE = 32
"""Questions that go out together. The server is at them while the loop comes to those who ask behind them."""


class _Wait:
    """Somebody waits for something, as long as the `patience` lasts."""

    __slots__ = ("_heard_at", "_pulse", "_seconds", "due", "future", "is_over", "patience")

    def __init__(self, future: asyncio.Future[Any], patience: Patience) -> None:
        self.future = future
        self.patience = patience
        self.is_over = False
        self.due = 0.0
        self._seconds = patience.left
        self._pulse: Pulse | None = None
        self._heard_at = 0.0

    def listen_to(self, pulse: Pulse) -> None:
        """Have each of its signs of life give the patience back."""
        self._pulse, self._heard_at = pulse, pulse.heard_at

    def listen(self, now: float) -> None:
        """Begin anew where there was a sign of life."""
        if self._pulse is not None and self._pulse.heard_at != self._heard_at:
            self._heard_at = self._pulse.heard_at
            self.due = max(self.due, now + self._seconds)

    def end(self) -> None:
        self.is_over = True
        self.patience.left = 0.0
        if isinstance(self.future, asyncio.Task):
            self.future.cancel()
        else:
            self.future.set_exception(RedisTimeoutError("no answer within the deadline"))


class Watch:
    """The deadlines of one event loop, by a clock that stands still while the loop is busy with something else.

    `seen`: what it showed when it was looked at last.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seen = 0.0
        self._loop = loop
        self._waits: list[_Wait] = []
        self._looked_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def clock(self) -> float:
        """Seconds, of no meaning but to each other."""
        return self.seen + min(time.monotonic() - self._looked_at, LONGEST_STEP)

    def begin(self, waits: Sequence[_Wait]) -> None:
        """End those, from now on, that have come to nothing when their patience ends."""
        if self._timer is None:
            self._looked_at = time.monotonic()
            soonest = min([wait.patience.left for wait in waits])
            self._timer = self._loop.call_later(min(TICK, max(soonest, 0.001)), self._look)
        now = self.clock()
        for wait in waits:
            wait.due = now + wait.patience.left
        self._waits += waits

    async def wait(self, future: asyncio.Future[Any], patience: Patience) -> Any:
        """What a future comes to. Raises `redis.exceptions.TimeoutError` where the patience ends before."""
        wait = _Wait(future, patience)
        self.begin([wait])
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        try:
            return await future
        except asyncio.CancelledError:
            if not wait.is_over or (task is not None and task.cancelling() > cancelled):
                raise  # It is whoever asked that was cancelled.
            raise RedisTimeoutError("no answer within the deadline") from None
        finally:
            wait.is_over = True
            patience.left = wait.due - self.clock()

    def _look(self) -> None:
        now = time.monotonic()
        self.seen += min(now - self._looked_at, LONGEST_STEP)
        self._looked_at = now
        self._waits = [wait for wait in self._waits if not (wait.is_over or wait.future.done())]
        nearest = TICK
        for wait in self._waits:
            wait.listen(self.seen)
            nearest = min(nearest, wait.due - self.seen)
            if wait.due <= self.seen:
                wait.end()
        self._timer = self._loop.call_later(max(nearest, 0.001), self._look) if self._waits else None


class _Asked(_Wait):
    """A question on its way: what to send, and the replies that are owed for it.

    Without `replies`, one is owed, of `most` bytes at most. A string that comes as a whole is read where it comes in:
    the future's result is what `read` makes of it. Else the result is None, and what came is in `replies`.
    """

    __slots__ = ("most", "read", "replies", "to_send")

    def __init__(
        self,
        to_send: bytes,
        patience: Patience,
        future: asyncio.Future[Any],
        replies: Replies | None = None,
        read: Callable[[Any], Any] = lambda reply: reply,
        most: int = 0,
    ) -> None:
        super().__init__(future, patience)
        self.to_send = to_send
        self.replies = replies
        self.read = read
        self.most = most

    def take(self, data: bytes, at: int) -> int | None:
        """Read on from a place; the place behind what is owed, or None while there is more to come. Raises whatever
        tells that this is no reply."""
        future = self.future
        if self.replies is None:
            whole = string_at(data, at)
            if whole is not None:
                if not future.done():
                    try:
                        future.set_result(self.read(whole[0]))
                    except (ResponseError, StaleRules) as error:
                        future.set_exception(error)
                return whole[1]
            self.replies = Replies(1, self.most)
        after = self.replies.take(data, at)
        if after is not None and not future.done():
            future.set_result(None)
        return after


class Link(asyncio.Protocol):
    """One connection of one event loop, on which many may ask at once.

    Who asks while nobody else does is sent at once. Others go out together at the end of the loop's turn, or as soon as
    they are `MOST_AT_ONCE`, and replies are matched in the order in which was asked. What is answered to who does not
    wait any more is read and dropped. Where a reply is not what it must be, all that follow are in doubt: the
    connection is closed, and whoever waits for one of them is told so. `pulse` is of the server; each complete reply is
    a sign of life.
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
        return self._watch.seen - self._silent_since if self._asked else 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def begin(self) -> None:
        if self._transport is None:
            return  # It was hung up on meanwhile; who asks is told what was said before.
        sock = self._transport.get_extra_info("socket")
        self._has_news = (lambda: False) if sock is None else has_news(sock)  # What the loop has not seen yet.

    def data_received(self, data: bytes) -> None:
        if not self._was_used:
            self._early += data  # What it says of itself, before anything was asked, is about the first question.
            return
        at, now, heard_at = 0, self._watch.clock(), time.monotonic()
        try:
            while at < len(data):
                if not self._asked:
                    raise InvalidResponse("more than was asked for")
                asked = self._asked[0]
                after = asked.take(data, at)
                if after is None:
                    return
                self._asked.popleft()
                at, asked.patience.left = after, asked.due - now
                self._silent_since, self._pulse.heard_at, self._server.heard_at = now, heard_at, heard_at
        except Exception as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(RedisConnectionError("the server hung up" if exc is None else f"{type(exc).__name__}: {exc}"))

    def _fail(self, error: Exception) -> None:
        """Close it; the first that waits is told why, and those behind that they were not answered."""
        self.close()
        now = self._watch.clock()
        for asked in self._asked:
            asked.patience.left = asked.due - now
        waiting = [asked.future for asked in (*self._asked, *self._to_ask) if not asked.future.done()]
        self._asked.clear()
        self._to_ask.clear()
        behind = f"the connection was closed before this was answered: {error}"
        for future in waiting:
            future.set_exception(error)
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
        if question.ahead:
            return await self.perform(question.exchange(self._loads), patience)
        future = self._loop.create_future()
        asked = _Asked(question.command, patience, future, read=question.read, most=question.most)
        self._exchanges += 1
        try:
            self._send(asked)
            answer = await future
        except BaseException as error:
            raise self._ended(error, future)  # noqa: B904 - it knows its cause
        else:
            if asked.replies is None:  # Nearly every reply is one string that comes at once.
                return answer
            return await self.perform(question.exchange(self._loads), patience, asked.replies)
        finally:
            self._leave()

    async def perform(self, exchange: Exchange, patience: Patience, replies: Replies | None = None) -> Any:
        """The answer of an exchange, of which the first replies may have come already."""
        future = self._loop.create_future()
        self._exchanges += 1
        try:
            to_send, owed = next(exchange)
            while True:
                if replies is None:
                    future, replies = self._loop.create_future(), owed
                    self._send(_Asked(to_send, patience, future, owed))
                    await future
                to_send, owed = exchange.send(replies.found)
                replies = None
        except StopIteration as finished:
            return finished.value
        except BaseException as error:
            raise self._ended(error, future)  # noqa: B904 - it knows its cause
        finally:
            exchange.close()
            self._leave()

    def _send(self, asked: _Asked) -> None:
        if self._transport is None:
            early, self._early = self._early, b""
            if early and asked.take(early, 0) is not None:
                return  # What it has said before it hung up, as one does that has too many clients.
            raise RedisConnectionError("the server hung up")
        if asked.patience.is_over:
            raise RedisTimeoutError("no time is left to ask")
        if self._asked or self._to_ask:
            asked.listen_to(self._pulse)  # A reply to others before this one shows that the server is at it.
            if not self._to_ask:
                self._loop.call_soon(self._send_all)
            self._to_ask.append(asked)
            if len(self._to_ask) == MOST_AT_ONCE:
                self._send_all()
        else:
            self._to_ask.append(asked)
            self._send_all()

    def _send_all(self) -> None:
        if self._transport is None:
            return  # Whoever waits will be told.
        sent = [asked for asked in self._to_ask if not asked.future.done()]
        self._to_ask.clear()
        if sent:
            if not self._asked:
                self._silent_since = self._watch.clock()
            self._watch.begin(sent)
            self._asked += sent
            self._was_used, early, self._early = True, self._early, b""
            self._transport.write(b"".join([asked.to_send for asked in sent]))
            if early:
                self.data_received(early)

    def _ended(self, error: BaseException, future: asyncio.Future[Any]) -> BaseException:
        """What to raise where an error ended an exchange, which waits for this future no more."""
        with suppress(RuntimeError):  # The loop is closed.
            future.cancel()
        if future.done() and not future.cancelled():
            future.exception()  # Whoever waited has heard of it, or waits no more.
        if isinstance(error, RedisTimeoutError):
            self._is_retired = True
        elif not isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            return ended_by(error, self.retire if isinstance(error, ReadOnlyError) else self.close)
        return error

    def _leave(self) -> None:
        self._exchanges -= 1
        if self._is_retired and not self._exchanges:
            self.close()


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

    def exchange(
        self, question: Question, patience: Patience, check: Callable[[], None] = lambda: None
    ) -> Awaitable[Any]:
        """See `Connections.exchange`; what `check` raises, where others have made the connection. All who ask at once
        share one."""
        link = self._link
        if link is None or not link.is_ready or link.silence >= patience.whole:
            return self._exchange_anew(question, patience, check)
        return link.ask(question, patience)

    async def _exchange_anew(self, question: Question, patience: Patience, check: Callable[[], None]) -> Any:
        link = await self._connected(patience, check)
        # Where this loop came late, there is time for an answer still.
        patience.was_answered()
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

    def exchange(
        self, question: Question, patience: Patience, check: Callable[[], None] = lambda: None
    ) -> Awaitable[Any]:
        connections = self._loops.get(asyncio.get_running_loop())
        if connections is None:
            return self._exchange_first(question, patience, check)
        return connections.exchange(question, patience, check)

    async def _exchange_first(self, question: Question, patience: Patience, check: Callable[[], None]) -> Any:
        connections = LoopConnections(self._params, self._pulse, self._ended)
        with self._lock:
            # A connection refers to its loop; one that ended without saying so is let go by hand.
            ended = [self._loops.pop(loop) for loop in list(self._loops) if loop.is_closed()]
            self._loops[asyncio.get_running_loop()] = connections
        for old in ended:
            old.close()
        await connections.start()
        return await connections.exchange(question, patience, check)

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._loops.pop(loop, None)
