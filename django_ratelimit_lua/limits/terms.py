"""The terms of a limit: its rate, its algorithm and its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from .rate import Rate

Align = Literal["clock", "day", "week", "month"]
Mode = Literal["enforce", "advise", "shadow"]
Policy = Literal["open", "closed", "local"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


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
