"""Tiers as rows: other limits of a rule for Django groups, or for values of registered keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..rules.rule import TIER_FIELDS, RuleError
from .audit import AuditedModel, AuditedQuerySet, Declared
from .change import RateLimitChange
from .rate_fields import RatesFields, problem_text
from .rule import RateLimitRule


class RateLimitTier(RatesFields, AuditedModel):
    """Another limit of a rule for a Django group, or a value of a registered key (`plan:pro`)."""

    CHANGE_KIND = RateLimitChange.Kind.RULE

    rule = models.ForeignKey(
        RateLimitRule, models.CASCADE, related_name="tiers", verbose_name=_("rule")
    )
    group = models.CharField(_("Django group, or KEY:VALUE"), max_length=150)

    objects = AuditedQuerySet.as_manager()

    class Meta:
        """Options of the model."""

        verbose_name = _("tier")
        verbose_name_plural = _("tiers")
        ordering = ("rule", "group")
        constraints = (
            models.UniqueConstraint(
                fields=("rule", "group"), name="ratelimit_one_tier_for_a_group"
            ),
        )

    def __str__(self) -> str:
        return f"{self.rule}: {self.group}"

    @classmethod
    def owners(cls, rows: Sequence[Self], using: str) -> Sequence[RateLimitRule]:
        """Return the rules of these tiers: a change of a tier is a change of its rule."""
        return list(
            RateLimitRule._base_manager.using(using).in_bulk({row.rule_id for row in rows}).values()
        )

    def declared(self) -> Declared:
        """Return the tier as `RATELIMIT_RULES` would declare it."""
        values = {"group": self.group, "rate": self.rate, "burst": self.burst}
        return {field: values[field] for field in TIER_FIELDS if values[field] is not None}

    def clean(self) -> None:
        """Check the row. Raises `ValidationError`, which names the field."""
        if self.limit is None:
            raise ValidationError({"limit": _("A tier needs a limit.")})
        try:
            self.rule.compiled([self.declared()])
        except RateLimitRule.DoesNotExist:
            pass  # Already reported.
        except RuleError as error:
            # Other problems are those of the rule.
            problems = [problem_text(each.problem) for each in error.each if each.field == "tiers"]
            if problems and self.group:
                raise ValidationError({self.rate_field(): problems}) from None
