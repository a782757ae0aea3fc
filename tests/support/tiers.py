"""Tiers of rules."""

from __future__ import annotations

from django_ratelimit_lua.models import RateLimitRule


def add_tier(rule: RateLimitRule, group: str, rate: str | list[str], **options: int) -> None:
    """Save a rule with another tier."""
    tiers = [*rule.options.get("tiers", ()), {"group": group, "rate": rate, **options}]
    rule.options = {**rule.options, "tiers": tiers}
    rule.save()
