"""The effect of an override that is not saved yet, on each limit that it concerns."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.translation import gettext as _

from ..limits.limit import Limit
from ..limits.rate import LimitError, Rate
from ..rules.overrides import EVERY_RULE
from .allowances import limit_words
from .call_sites import place_words
from .explain import with_tier
from .reference import known_limits


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
        if rule not in (EVERY_RULE, known.place):
            continue
        before = with_tier(known.reading, known.limit)
        after = _("every request is refused")
        if parsed is not None:
            after = _changed_words(known.limit, parsed, burst)
        elif effect == "exempt":
            after = _("no limit")
        effects[LimitEffect(place_words(known.place), before, after)] = None
    return [*effects]


def _changed_words(limit: Limit, rate: Rate, burst: int | None) -> str:
    """Return a limit at another rate in words."""
    if "burst" not in limit.kind.options:
        burst = None
    try:
        return limit_words([limit.at_rate(rate, burst, "override")])
    except LimitError as error:
        return _("unchanged, because the override does not fit: %s") % error
