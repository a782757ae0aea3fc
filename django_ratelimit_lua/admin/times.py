"""Moments as lists show them: short, and in the time zone of the site."""

import datetime

from ..limits.rate import SECOND
from ..operations.formatting import moment_element

__all__ = ["moment_element", "moment_of"]


def moment_of(microseconds: float) -> datetime.datetime:
    """Return the datetime of a number of microseconds since 1970."""
    return datetime.datetime.fromtimestamp(microseconds / SECOND, datetime.UTC)
