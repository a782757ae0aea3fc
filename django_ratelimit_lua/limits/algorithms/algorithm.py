"""The base class of algorithms, and the terms of a limit, which they read.

No other module of the package refers to a specific algorithm, except as a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from ..rate import SECOND, Rate

Align = Literal["clock", "day", "week", "month"]
Mode = Literal["enforce", "advise", "shadow"]
Policy = Literal["open", "closed", "local"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

EXACT = 2**53
"""Lua's numbers are doubles: integers are exact up to here."""

Numbers = tuple[int, ...]
"""The capacity, and the numbers that the header of an algorithm's `.lua` names after it."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Terms:
    """The attributes of a `Limit` from which everything else follows.

    - `counted_as`: the name of the count;
    - `variant`: distinguishes this count from those of the same name at other rates;
    - `capacity`: the maximum number of units that are counted at once;
    - `max_wait_us`: `max_wait` in microseconds; negative: the algorithm waits without a maximum.
    """

    name: str
    counted_as: str
    variant: str
    rate: Rate
    algorithm: str
    burst: int | None
    queue: int | None
    segments: int | None
    align: Align | None
    time_zone: str
    max_wait: float | None
    count_denied: bool
    mode: Mode
    on_store_error: Policy | None
    lease: int | None
    split: bool
    ban_after: int | None
    ban_window: str | None
    ban_for: str | None
    capacity: int = field(repr=False)
    max_wait_us: int = field(repr=False)


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
