"""What an algorithm is: its options, the key its state is under, and the numbers that its Lua is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ..rate import SECOND

if TYPE_CHECKING:
    from ..limit import Limit

EXACT = 2**53
"""Lua's numbers are doubles: integers are exact up to here."""

Numbers = tuple[int, int, int, int, int, int, int, int]
"""limit, period in microseconds, and the six numbers that the first line of an algorithm's `.lua` names."""


class Algorithm:
    """An algorithm. Its Lua is in a file of the same name.

    `label`: its name in the admin; `suffix`: the end of its keys; `options`: those that it takes in addition to the
    general ones; `waits_anyway`: hits are held until their turn, also without `max_wait`; `holds`: units are held until
    they are released, and its rate is a number of slots.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    suffix: ClassVar[bytes]
    options: ClassVar[frozenset[str]]
    waits_anyway: ClassVar[bool] = False
    holds: ClassVar[bool] = False

    @property
    def lua_name(self) -> str:
        """The name of its Lua file."""
        return self.name

    def numbers(self, limit: Limit, now: int) -> Numbers:
        """The arguments of its Lua for a limit at a time in microseconds. Raises `LimitError` for a limit that it
        cannot keep exactly, and for options that contradict each other, or the rate."""
        raise NotImplementedError

    def wants_more(self, limit: Limit) -> bool:
        """Whether its Lua is given something beyond the numbers, by `more`."""
        return False

    def more(self, limit: Limit, now: int, waits: Sequence[int], *, is_patient: bool) -> bytes:
        """Further arguments for one call.

        `waits`: how long the limits of the call may hold a hit, in microseconds, below 0 for any time; `is_patient`:
        the caller sets this itself, and waits in any queue without a set length.
        """
        return b""

    def lapse_us(self, limit: Limit) -> int:
        """Microseconds after which units that were taken ahead may not be spent any more."""
        return SECOND
