"""The base class of algorithms.

No other module of the package refers to a specific algorithm, except as a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..rate import SECOND, Rate
from ..terms import Terms

EXACT = 2**53
"""Lua's numbers are doubles: integers are exact up to here."""

Numbers = tuple[int, ...]
"""The capacity, and the numbers that the header of an algorithm's `.lua` names after it."""


class Algorithm:
    """An algorithm. Its Lua code is in a file of the same name.

    Attributes:
        name: Its name in options and files.
        label: Its name in the admin.
        suffix: The end of its keys.
        lua_parts: The Lua files that its own one needs in addition.
        options: The options that it takes in addition to the general ones.
        waits_anyway: Whether hits wait for their turn, even without `max_wait`.
        holds: Whether units are held until they are released. Its rate is a number of slots.
        is_bucket: Whether units drain at the rate, instead of expiring one period later, so that a
            hit can reserve a turn.
        allows_debt: Whether a hit may take more units than are available, so that later hits wait.
        ends_together: Whether all units of a window expire together.
        is_exact: Whether a unit counts for exactly one period, or until its window ends.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    suffix: ClassVar[bytes]
    lua_parts: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[frozenset[str]]
    waits_anyway: ClassVar[bool] = False
    holds: ClassVar[bool] = False
    is_bucket: ClassVar[bool] = False
    allows_debt: ClassVar[bool] = False
    ends_together: ClassVar[bool] = False
    is_exact: ClassVar[bool] = False

    def numbers(self, terms: Terms, now: int) -> Numbers:
        """Return the numbers of a limit's record at a time in microseconds.

        Raises `LimitError` for a limit that the algorithm cannot count exactly, and for options
        that contradict each other, or the rate.
        """
        raise NotImplementedError

    def capacity(self, rate: Rate, options: Mapping[str, Any]) -> int:
        """Return the maximum number of units that are counted at once."""
        return rate.limit

    def lapse_us(self, terms: Terms) -> int:
        """Return the microseconds for which units that were taken ahead may be spent."""
        return SECOND
