"""What rules, tiers and overrides have in common: so many units per period; and the names of choices for people."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..limits.options import OPTIONS
from ..limits.rate import LimitError, Rate
from ..limits.values import Number, Whole
from ..rules.rule import UNWRITABLE

MOST = Rate.MOST_UNITS
_TRIMMED = ("name", "route", "group")
_NAMES = {
    "enforce": _("enforce"), "shadow": _("shadow mode"), "off": _("off"),
    "everyone": _("everyone"), "anonymous": _("not logged in"), "authenticated": _("logged in"),
    "staff": _("staff"), "groups": _("members of the groups below"),
}  # fmt: skip


def named(values: Any) -> list[tuple[str, Any]]:
    """Choices, with the names they have for people."""
    return [(value, _NAMES[value]) for value in values]


def column(option: str) -> dict[str, Any]:
    """What a field takes from the row of the option that it keeps: label, help, choices and bounds."""
    row = OPTIONS[option]
    arguments: dict[str, Any] = {"verbose_name": _(row.label), "help_text": _(row.help)}
    if row.names:
        arguments["choices"] = [(value, _(name)) for value, name in row.names.items()]
    if isinstance(row.check, (Whole, Number)):
        arguments["validators"] = [MinValueValidator(row.check.least), MaxValueValidator(row.check.most)]
    return arguments


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
    unit = models.CharField(_("unit"), max_length=1, choices=Unit.choices, default=Unit.MINUTE)
    burst = models.BigIntegerField(null=True, blank=True, **column("burst"))

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
            if field.name in (exclude or ()) or not isinstance(value, str):
                continue
            if UNWRITABLE.search(value):
                problems.setdefault(field.name, []).append(ValidationError(_("Enter text without control characters.")))
            elif field.name in _TRIMMED and value != value.strip():  # As forms trim it, it would be another name.
                problems.setdefault(field.name, []).append(ValidationError(_("Enter it without spaces around it.")))
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
