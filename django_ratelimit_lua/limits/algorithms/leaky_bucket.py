"""Leaky bucket as a queue. The header of its Lua file states its promise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..rate import Rate
from ..values import gettext_noop as _
from .algorithm import Algorithm, Numbers, Terms
from .token_bucket import bucket_numbers


class LeakyBucket(Algorithm):
    """A token bucket with callers that wait for their turn.

    At most `queue` callers wait behind the one being served.
    """

    name = "leaky_bucket"
    label = _("leaky bucket: evenly spaced requests; the others wait")
    suffix = b"l"
    lua_parts = ("bucket",)
    options = frozenset({"queue", "max_wait"})
    waits_anyway = True
    is_bucket = True

    def capacity(self, rate: Rate, options: Mapping[str, Any]) -> int:
        """Return the maximum number of waiting callers, plus the one being served."""
        queue = options.get("queue")
        if queue is None or rate.limit == 0:
            return rate.limit
        return int(queue) + 1

    def numbers(self, terms: Terms, now: int) -> Numbers:
        """Return the numbers of a token bucket of this capacity."""
        return bucket_numbers(terms, terms.capacity, "queue")
