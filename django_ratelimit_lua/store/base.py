"""What every store does, however many servers it has: it performs calls, and tells when that cannot be done."""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from redis.exceptions import InvalidResponse

from ..exceptions import StoreError
from ..limits.call import Call
from ..limits.decision import Decision
from ..process.forks import renew_after_fork
from ..signals import store_down, store_up
from . import wire
from .exchange import ANSWERS, LARGEST, Question
from .patience import Patience

logger = logging.getLogger("django_ratelimit_lua")


STEADY_SECONDS = 1.0
"""For which nothing may have failed before Redis is said to answer again, unless it was not asked in between."""


def check_time(patience: Patience) -> None:
    """Raises `StoreError` where it is too late to ask; that is nobody's failure."""
    if patience.is_over:
        raise StoreError("no time is left to ask Redis")


def decides(call: Call) -> Question:
    """The question that decides a call; the answer is the decision, and how many keys had to be cleared."""
    token = random.getrandbits(64).to_bytes(8, "little")
    return Question(wire.evalsha(call, token), partial(call.read, token=token), wire.SCRIPT_LOAD)


def forgets(call: Call) -> Question:
    """The question that forgets what a call's limits have counted."""
    return Question(wire.delete(call), _number)


def asks(*parts: bytes) -> Question:
    """The question that any other command is; its reply has the form that the command's have."""

    def read(reply: Any) -> Any:
        form = _FORMS.get(parts[0])
        if form is not None and not form(reply, len(parts)):
            raise InvalidResponse(f"no reply to {parts[0].decode()}: {reply!r:.80}")
        return reply

    return Question(wire.command(*parts), read, most=LARGEST)


def _is_number(reply: Any, parts: int) -> bool:
    return isinstance(reply, int)


def _is_text(reply: Any, parts: int) -> bool:
    return reply is None or isinstance(reply, bytes)


def _is_text_of_each(reply: Any, parts: int) -> bool:
    return isinstance(reply, list) and len(reply) == parts - 2 and all(_is_text(text, 0) for text in reply)


def _is_pairs(reply: Any, parts: int) -> bool:
    return isinstance(reply, list) and len(reply) % 2 == 0 and all(isinstance(text, bytes) for text in reply)


_FORMS: dict[bytes, Callable[[Any, int], bool]] = {
    b"EXPIRE": _is_number,
    b"GET": _is_text,
    b"HDEL": _is_number,
    b"HGET": _is_text,
    b"HGETALL": _is_pairs,
    b"HINCRBY": _is_number,
    b"HMGET": _is_text_of_each,
    b"HSET": _is_number,
}
"""What the replies to a command of so many parts may be; a script's may be anything."""


def _number(reply: Any) -> int:
    if not isinstance(reply, int) or reply < 0:
        raise InvalidResponse(f"no number of keys: {reply!r:.80}")
    return reply


class Store(ABC):
    """Performs calls on the cache alias of a name.

    After repeated failures nothing is asked until there are answers again. A `background` store asks on, and leaves it
    to its caller to say that it failed. Both changes are told once: a server that answers with errors between its
    decisions is down until it has decided for a while without one.
    """

    def __init__(self, name: str, timeout: float, *, background: bool) -> None:
        self._name = name
        self._timeout = timeout
        self._is_background = background
        self._is_down = False
        self._failing: set[object] = set()
        self._failed_at = float("-inf")
        self._was_paused = False
        self._begin()
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def is_paused(self) -> bool:
        """Whether somebody is not asked at the moment, because too much has failed."""

    @abstractmethod
    def decide(self, call: Call, patience: Patience | None = None) -> Decision:
        """Decide a call, within what is left of a patience, where one is given. Raises `StoreError`, `StaleRules`."""

    @abstractmethod
    async def adecide(self, call: Call, patience: Patience | None = None) -> Decision:
        """`decide`, without blocking the event loop."""

    @abstractmethod
    def delete(self, call: Call) -> None:
        """Delete the state of every limit of a call. Raises `StoreError`."""

    @abstractmethod
    async def adelete(self, call: Call) -> None:
        """`delete`, without blocking the event loop."""

    @abstractmethod
    def execute(self, *parts: bytes, patience: Patience | None = None) -> Any:
        """The reply to any other command, for what is not on the way of a request. Raises `StoreError`."""

    @abstractmethod
    def close(self) -> None:
        """Close the idle connections of threads; those of an event loop are closed with it."""

    def _decided(self, call: Call, answer: tuple[Decision, int]) -> Decision:
        decision, cleared = answer
        if cleared:
            logger.warning("Cleared %d key(s) of a foreign type under the prefix %r", cleared, call.prefix)
        return decision

    def _answered(self, node: object = None) -> None:
        if not self._is_down:
            return
        with self._lock:
            self._failing.discard(node)
            is_steady = self._was_paused or time.monotonic() - self._failed_at >= STEADY_SECONDS
            if not self._is_down or self._failing or not is_steady:
                return
            self._is_down = False
        logger.info("Redis of cache %r answers again", self._name)
        store_up.send_robust(Store, alias=self._name)

    def _failed(self, error: Exception, node: object = None) -> StoreError:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        failure = StoreError(message)
        failure.was_answered = isinstance(error, ANSWERS)
        if self._is_background:
            return failure
        with self._lock:
            was_down, self._is_down = self._is_down, True
            self._failing.add(node)
            self._failed_at = time.monotonic()
            # After a pause the first answer is enough: a trial has shown that Redis is back. What fails without one is
            # answered with errors, or not answered now and then: that has to end before all is well.
            self._was_paused = self.is_paused
        if not was_down:
            logger.error("Redis of cache %r cannot decide limits: %s", self._name, message)
            store_down.send_robust(Store, alias=self._name, error=message)
        return failure
