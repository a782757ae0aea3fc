"""What rules, tiers and overrides have in common: so many units per period; and the names of choices for people."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..limits.rate import LimitError, Rate
from ..rules.rule import UNWRITABLE

MOST = Rate.MOST_UNITS
_NAMES = {
    "enforce": _("enforce"), "shadow": _("shadow"), "off": _("off"),
    "everyone": _("everyone"), "anonymous": _("who is not logged in"), "authenticated": _("who is logged in"),
    "staff": _("staff"), "groups": _("members of the groups below"),
    "open": _("let requests through"), "closed": _("refuse requests"), "local": _("each process its share"),
    "clock": _("with the clock"), "day": _("with each day"),
    "week": _("with each week (Monday)"), "month": _("with each month"),
    "equal": _("in equal parts"), "weighted": _("by the weights of the processes"),
    "token_bucket": _("token bucket: a steady rate, with bursts"),
    "leaky_bucket": _("leaky bucket: evenly spaced, the others wait"),
    "fixed_window": _("fixed window: so many in each window"),
    "sliding_window": _("sliding window: never more in any such time"),
    "sliding_log": _("sliding log: the same, exact to the microsecond"),
}  # fmt: skip


def named(values: Any) -> list[tuple[str, Any]]:
    """Choices, with the names they have for people."""
    return [(value, _NAMES[value]) for value in values]


class RateFields(models.Model):
    """So many units per period, and what a bucket holds."""

    class Unit(models.TextChoices):
        """Of time."""

        SECOND = "s", _("seconds")
        MINUTE = "m", _("minutes")
        HOUR = "h", _("hours")
        DAY = "d", _("days")
        WEEK = "w", _("weeks")

    limit = models.BigIntegerField(
        _("limit"), null=True, blank=True, validators=[MinValueValidator(0), MaxValueValidator(MOST)]
    )
    period = models.PositiveIntegerField(_("per"), default=1, validators=[MinValueValidator(1)])
    unit = models.CharField(_("time"), max_length=1, choices=Unit.choices, default=Unit.MINUTE)
    burst = models.BigIntegerField(
        _("burst"), null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(MOST)],
        help_text=_("Token bucket: how many may go at once. Empty: as many as the limit."),
    )  # fmt: skip

    class Meta:
        abstract = True

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        """Raises `ValidationError`, also for text that no database takes: else it would fail while it is compared."""
        problems: dict[str, Any] = {}
        try:
            super().clean_fields(exclude)
        except ValidationError as error:
            problems = error.update_error_dict({})
        for field in self._meta.concrete_fields:
            value = getattr(self, field.attname)
            if field.name not in (exclude or ()) and isinstance(value, str) and UNWRITABLE.search(value):
                problems.setdefault(field.name, []).append(ValidationError(_("Write text without control characters.")))
        if problems:
            raise ValidationError(problems)

    @property
    def rate(self) -> str | None:
        """The rate as rules write it: "100/m"."""
        if self.limit is None:
            return None
        return f"{self.limit}/{self.period if self.period != 1 else ''}{self.unit}"

    @rate.setter
    def rate(self, value: Any) -> None:
        rate = Rate.parse(value)
        text = str(value) if isinstance(value, str) else str(rate)
        count, _, rest = text.partition("/")
        times = rest.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = str(Rate(1, rate.period_us // int(times or 1))).removeprefix("1/")
        if unit not in self.Unit.values:
            raise LimitError(
                f"Rate {value!r}: a rule's period is a whole number of seconds, minutes, hours, days or weeks"
            )
        self.limit, self.period, self.unit = int(count), int(times or 1), unit
