"""Which part of a limit is this process's."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Protocol

from ...conf import conf
from ...limits.limit import Limit
from ..heartbeat import ProcessShare, heartbeat


class Share(Protocol):
    """Which part of a limit is this process's."""

    @property
    def is_generous(self) -> bool:
        """Whether one large hit may have more, if it comes alone."""

    def units(self, whole: int) -> int:
        """Of so many units."""

    def speed(self, limit: int) -> float:
        """Of so many units per period."""


@dataclass(frozen=True, slots=True)
class OutageShare:
    """One of so many processes', rounded up, and at least the floor."""

    processes: int
    is_generous = True

    def units(self, whole: int) -> int:
        """See `Share`."""
        return min(whole, max(ceil(whole / self.processes), conf.LOCAL_FLOOR))

    def speed(self, limit: int) -> float:
        """See `Share`."""
        return max(limit / self.processes, min(conf.LOCAL_FLOOR, limit))


@dataclass(frozen=True, slots=True)
class SplitShare:
    """Exactly a part."""

    part: ProcessShare
    is_generous = False

    def units(self, whole: int) -> int:
        """See `Share`."""
        return self.part.units(whole)

    def speed(self, limit: int) -> float:
        """See `Share`."""
        return limit * self.part.fraction


def part_of(limit: Limit) -> ProcessShare | None:
    """This process's part of a split limit; None where it is not known yet."""
    return heartbeat.weighted if limit.split == "weighted" else heartbeat.equal


def share_of(limit: Limit) -> Share:
    """This process's part of a limit that is split, else its share while Redis cannot be asked."""
    part = part_of(limit) if limit.split is not None else None
    return OutageShare(heartbeat.count) if part is None else SplitShare(part)
