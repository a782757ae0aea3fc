"""Checks for the values of settings and options.

A check returns the value as the package uses it, or raises `ValueError` with the valid values. The
caller adds the invalid value and its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
Check = Callable[[object], T]


class Choice(Generic[T]):
    """Check that a value is one of a few values. The error begins with `begin`."""

    def __init__(self, values: Sequence[T], begin: str = "must be one of") -> None:
        self.values = values
        self.begin = begin

    def __call__(self, value: object) -> T:
        for each in self.values:
            if each == value:
                return each
        raise ValueError(f"{self.begin}: {', '.join(map(str, self.values))}")


class Whole:
    """Check for a whole number from `least` to `most`.

    The error contains `what` the number counts, and a `note`.
    """

    def __init__(
        self,
        least: int = 0,
        most: int | None = None,
        what: str = "whole number",
        note: str = "",
    ) -> None:
        self.least = least
        self.most = most
        self.what = what
        self.note = note

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


class Number:
    """Check for a number from `least` (or, with `is_above_0`, above 0) to `most`."""

    def __init__(
        self,
        most: float,
        what: str = "number",
        note: str = "",
        *,
        is_above_0: bool = False,
        least: float = 0,
    ) -> None:
        self.most = most
        self.what = what
        self.note = note
        self.is_above_0 = is_above_0
        self.least = least

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


class Text:
    """Check for text. The error contains `what` it is."""

    def __init__(self, what: str, *, may_be_empty: bool = False) -> None:
        self.what = what
        self.may_be_empty = may_be_empty

    def __call__(self, value: object) -> str:
        if not isinstance(value, str) or not (value or self.may_be_empty):
            raise ValueError(f"must be {self.what}")
        return value


class Lines:
    """Check for a list of texts, which a form shows one per line.

    The error contains an `example`.
    """

    def __init__(self, example: str) -> None:
        self.example = example

    def __call__(self, value: object) -> list[str]:
        if isinstance(value, str):
            return [value]
        if isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
            return list(value)
        raise ValueError(f"must be a list, such as {self.example}")


def flag(value: object) -> bool:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def or_none(check: Check[T]) -> Check[T | None]:
    """Return a check that also accepts None."""

    def check_unless_none(value: object) -> T | None:
        if value is None:
            return None
        return check(value)

    return check_unless_none


def gettext_noop(text: str) -> str:
    """Mark a text for translation, under the name `_`. The admin translates the text."""
    return text
