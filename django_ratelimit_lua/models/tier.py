"""Tiers as rows: other numbers of a rule for Django groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..rules.rule import TIER_FIELDS
from .change import RateLimitChange
from .numbers import Numbers
from .rule import RateLimitRule
from .tracked import Declared, Tracked, TrackedQuerySet


class RateLimitTier(Numbers, Tracked):
    """Other numbers of a rule for the members of a Django group."""

    CHANGE_KIND = RateLimitChange.Kind.RULE

    rule = models.ForeignKey(RateLimitRule, models.CASCADE, related_name="tiers", verbose_name=_("rule"))
    group = models.CharField(_("Django group"), max_length=150)

    objects = TrackedQuerySet.as_manager()

    class Meta:
        verbose_name = _("tier")
        verbose_name_plural = _("tiers")
        ordering = ("rule", "group")
        constraints = (
            models.UniqueConstraint(fields=("rule", "group"), name="ratelimit_one_tier_for_a_group"),
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.rule}: {self.group}"

    @classmethod
    def owners(cls, rows: Iterable[Any]) -> list[Any]:
        """A change of a tier is a change of its rule."""
        return list(RateLimitRule._base_manager.filter(pk__in={row.rule_id for row in rows}))

    def declared(self) -> Declared:
        """The tier as `RATELIMIT_RULES` would have it."""
        values = {"group": self.group, "rate": self.rate, "burst": self.burst}
        return {field: values[field] for field in TIER_FIELDS if values[field] is not None}

    def clean(self) -> None:
        """Raises `ValidationError` that names the field."""
        if self.limit is None:
            raise ValidationError({"limit": _("A tier needs a limit.")})
