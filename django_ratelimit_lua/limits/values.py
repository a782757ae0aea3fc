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
    """Check that a value is one of a few values. The error begins with `prefix`."""

    def __init__(self, values: Sequence[T], prefix: str = "must be one of") -> None:
        self.values = values
        self.prefix = prefix

    def __call__(self, value: object) -> T:
        for valid in self.values:
            if valid == value:
                return valid
        raise ValueError(f"{self.prefix}: {', '.join(map(str, self.values))}")


class Whole:
    """Check for a whole number from `minimum` to `maximum`.

    The error contains `what` the number counts, and a `note`.
    """

    def __init__(
        self, minimum: int, maximum: int, what: str = "whole number", note: str = ""
    ) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.what = what
        self.note = note

    def __call__(self, value: object) -> int:
        is_bool = isinstance(value, bool)
        if isinstance(value, int) and not is_bool and self.minimum <= value <= self.maximum:
            return int(value)
        raise ValueError(f"must be a {self.what} from {self.minimum} to {self.maximum}{self.note}")


class Number:
    """Check for a number from 0 (or, with `is_above_0`, above 0) to `maximum`."""

    minimum = 0

    def __init__(
        self, maximum: float, what: str = "number", note: str = "", *, is_above_0: bool = False
    ) -> None:
        self.maximum = maximum
        self.what = what
        self.note = note
        self.is_above_0 = is_above_0

    def __call__(self, value: object) -> float:
        if isinstance(value, (int, float)) and self._is_valid(value):
            return float(value)
        bound = "above" if self.is_above_0 else "from"
        raise ValueError(f"must be a {self.what} {bound} 0{self.note}")

    def _is_valid(self, number: float) -> bool:
        if isinstance(number, bool) or (self.is_above_0 and number == 0):
            return False
        return 0 <= number <= self.maximum


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
