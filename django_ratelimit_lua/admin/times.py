"""Moments as lists show them: in the time zone of the site, and short."""

import datetime

from ..limits.rate import SECOND
from ..operations.formatting import moment_element

__all__ = ["moment_element", "moment_of"]


def moment_of(microseconds: int) -> datetime.datetime:
    """Convert a time of Redis's clock."""
    return datetime.datetime.fromtimestamp(microseconds / SECOND, datetime.UTC)
