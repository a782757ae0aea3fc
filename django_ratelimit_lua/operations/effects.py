"""The effect of an override that is not saved yet, on each limit that it concerns."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.translation import gettext as _

from ..limits.limit import Limit
from ..limits.rate import LimitError, Rate
from ..rules.describe import reading
from ..rules.overrides import EVERY_RULE
from .explain import with_tier
from .reference import KnownLimit, known_limits


class LimitEffect(NamedTuple):
    """A limit without and with an override, in words."""

    name: str
    before: str
    after: str


def override_effects(rule: str, effect: str, rate: str, burst: int | None) -> list[LimitEffect]:
    """Return what a client gets under each limit that an override concerns.

    Args:
        rule: The name of the rule or of the limit in the code; empty: all of them.
        effect: The effect of the override: "limit", "exempt" or "block".
        rate: The rate of another limit.
        burst: Its burst; None: that of the rule.

    Raises:
        LimitError: The rate is invalid.
    """
    parsed = None
    if effect == "limit":
        parsed = Rate.parse(rate)
    effects: dict[LimitEffect, None] = {}
    for known in known_limits():
        if known.limit is None or rule not in (EVERY_RULE, known.place):
            continue
        before = with_tier(known.reading, known.limit)
        after = _("every request is refused")
        if parsed is not None:
            after = _limit_words(known, known.limit, parsed, burst)
        elif effect == "exempt":
            after = _("no limit")
        effects[LimitEffect(known.place, before, after)] = None
    return [*effects]


def _limit_words(known: KnownLimit, limit: Limit, rate: Rate, burst: int | None) -> str:
    """Return a limit at another rate in words."""
    has_burst = "burst" in limit.kind.options
    try:
        changed = limit.at(rate, burst if has_burst else None, "override")
    except LimitError as error:
        return _("unchanged, because the override does not fit: %s") % error
    given: dict[str, object] = {"rate": str(rate), "key": known.key.split("+")}
    if has_burst:
        given["burst"] = changed.capacity
    return reading(given)
