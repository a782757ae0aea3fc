"""Concurrency: a number of slots. The header of its Lua file states its promise."""

from __future__ import annotations

import os
from struct import Struct

from ..rate import LimitError
from ..values import gettext_noop as _
from .algorithm import Algorithm, Numbers, Terms

MAX_SLOTS = 100_000
"""Slots of a limit. One call that took or renewed them all would keep the server busy for a tenth
of a second.
"""
CLOCK_SECONDS = 0.1
"""How much longer a slot lasts in Redis than its caller has asked for, so that none ends too early
after a fail-over to a server with a clock that is that much faster.
"""
ID_SIZE = 16
_LASTS = Struct(">I")


class Concurrency(Algorithm):
    """Slots that are held until they are released, and expire unless they are renewed."""

    name = "concurrency"
    label = _("concurrency: requests running at the same time")
    suffix = b"c"
    options = frozenset[str]()
    holds = True

    def numbers(self, terms: Terms, now: int) -> Numbers:
        """Return the number of slots."""
        slots = terms.rate.limit
        if slots > MAX_SLOTS:
            raise LimitError(
                _("A concurrency limit has at most %(most)d slots"), "rate", most=MAX_SLOTS
            )
        return (slots,)


def new_slot(seconds: float) -> bytes:
    """Return the id of a new slot, which cannot be guessed.

    It consists of 16 random bytes and the lifetime in milliseconds. The slot lasts for `seconds`,
    and `CLOCK_SECONDS` more, unless it is renewed.

    >>> len(new_slot(10.0)), new_slot(10.0) == new_slot(10.0)
    (20, False)
    """
    return os.urandom(ID_SIZE) + _LASTS.pack(round((seconds + CLOCK_SECONDS) * 1000))
