"""One deadline for all calls of Redis that a page of the admin makes.

A page makes many calls, some of them with the long timeout of the background. If Redis hangs, the
first call fails after 0.3 s, and the others fail at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..exceptions import StoreError
from .patience import Patience

PAGE_SECONDS = 0.3


class Deadline:
    """The calls of one page; `error` is the last failure."""

    def __init__(self) -> None:
        self.error: StoreError | None = None

    def limit(self, patience: Patience) -> Patience:
        """Return the patience for the next call.

        Raises:
            StoreError: A call before it had no reply.
        """
        if self.error is not None and not self.error.was_answered:
            raise StoreError(str(self.error))
        if patience.left > PAGE_SECONDS:
            return Patience(PAGE_SECONDS)
        return patience


_deadline: ContextVar[Deadline | None] = ContextVar("ratelimit_page_deadline", default=None)
current_deadline = _deadline.get


@contextmanager
def page_deadline() -> Iterator[Deadline]:
    """Apply one deadline to all calls of this thread."""
    deadline = Deadline()
    token = _deadline.set(deadline)
    try:
        yield deadline
    finally:
        _deadline.reset(token)
