"""The requests that each group of clients gets under a rule: everyone, tiers and overrides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from django.utils.translation import gettext as _

from ..limits.limit import TIER, Limit
from ..models import RateLimitOverride, RateLimitRule
from ..rules.describe import rate_words
from ..views.call_sites import constant_limits
from .formatting import number_words

MAX_OVERRIDES = 50
"""Maximum number of overrides to list."""


class Allowance(NamedTuple):
    """The clients that a limit applies to, and what they get, in words."""

    clients: str
    words: str


def allowances(
    row: RateLimitRule, client_of: Callable[[RateLimitOverride], str] = str
) -> list[Allowance]:
    """Return what everyone gets under a rule, then each tier, then each override with a rate.

    Args:
        row: The rule, which may be unsaved.
        client_of: Returns the name of the client of an override.

    Raises:
        RuleError: The rule is invalid.
    """
    limits: dict[str, list[Limit]] = defaultdict(list)
    for limit in constant_limits(row.compiled()):
        limits[limit.variant.removeprefix(f"{TIER}:")].append(limit)
    if not limits:
        return []
    found = [Allowance(name or _("everyone"), limit_words(each)) for name, each in limits.items()]
    for override in rate_overrides(row):
        limit = override.override().limit(limits[""][0])
        words = limit_words([limit])
        if limit is limits[""][0]:
            words = _("skipped: does not fit this limit")
        found.append(Allowance(client_of(override), words))
    return found


def rate_overrides(row: RateLimitRule) -> Iterable[RateLimitOverride]:
    """Return the overrides with a rate that name a rule, by its present or its new name."""
    stored = RateLimitRule.objects.filter(pk=row.pk).values_list("name", flat=True)
    names = {row.name, *stored}
    overrides = RateLimitOverride.objects.lasting().filter(effect="limit", rule__in=names)
    return overrides.select_related("user")[:MAX_OVERRIDES]


def limit_words(limits: Iterable[Limit]) -> str:
    """Return the rates of limits that apply together, and how many requests they allow at once.

    >>> limit_words([Limit("api", "60/m", algorithm="token_bucket", burst=20), Limit("day", "9/d")])
    '60 per minute, up to 20 at once and 9 per day'
    """
    return _(" and ").join(dict.fromkeys(map(_one_limit, limits)))


def _one_limit(limit: Limit) -> str:
    rate = rate_words(str(limit.rate))
    if not limit.kind.is_bucket:
        return rate
    words = _("%(rate)s, up to %(number)s at once")
    number = limit.capacity
    if limit.kind.waits_anyway:
        words = _("%(rate)s, one at a time, and up to %(number)s wait")
        number -= 1
    return words % {"rate": rate, "number": number_words(number)}
