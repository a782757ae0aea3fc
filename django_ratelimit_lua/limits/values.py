"""Checks for the values of settings and options.

A check returns the value as the package uses it, or raises `ValueError` with what would be right.
The caller adds what was wrong, and where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
Check = Callable[[object], T]


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """One of a few values."""

    values: Sequence[T]
    right: str = "must be one of"

    def __call__(self, value: object) -> T:
        for right in self.values:
            if right == value:
                return right
        raise ValueError(f"{self.right}: {', '.join(map(str, self.values))}")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`; `what` it counts, and a `note` for the error."""

    least: int = 0
    most: int | None = None
    what: str = "whole number"
    note: str = ""

    def __call__(self, value: object) -> int:
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or value < self.least
            or (self.most is not None and value > self.most)
        ):
            to = ""
            if self.most is not None:
                to = f" to {self.most}"
            raise ValueError(f"must be a {self.what} from {self.least}{to}{self.note}")
        return int(value)


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `least`, or above 0, to `most`."""

    most: float
    what: str = "number"
    note: str = ""
    is_above_0: bool = False
    least: float = 0

    def __call__(self, value: object) -> float:
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not self.least <= value <= self.most
            or (self.is_above_0 and value == 0)
        ):
            raise ValueError(
                f"must be a {self.what} {'above' if self.is_above_0 else 'from'} "
                f"{self.least:g}{self.note}"
            )
        return float(value)


def or_none(check: Check[T]) -> Check[T | None]:
    """Return a check that also accepts None."""

    def check_unless_none(value: object) -> T | None:
        if value is None:
            return None
        return check(value)

    return check_unless_none


def gettext_noop(text: str) -> str:
    """Mark a text, under the name `_`, that the admin translates when it is shown."""
    return text
