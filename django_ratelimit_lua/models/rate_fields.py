"""The fields of rates that rules, tiers and overrides share, and the labels of choices."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..limits import algorithms
from ..limits.options import OPTIONS
from ..limits.rate import LimitError, Rate
from ..limits.values import Number, Whole
from ..rules.template import as_rates

MAX_ENTRIES = Rate.MAX_UNITS
_OWN = ("limit", "period", "unit", "more_rates", "burst")
_TRIMMED = ("name", "route", "group")
_NAMES = {
    "enforce": _("enforce"),
    "shadow": _("shadow mode"),
    "off": _("off"),
    "everyone": _("everyone"),
    "anonymous": _("not logged in"),
    "authenticated": _("logged in"),
    "staff": _("staff"),
    "groups": _("members of the groups below"),
}


def named(values: Iterable[str]) -> list[tuple[str, Any]]:
    """Return choices with their labels."""
    return [(value, _NAMES[value]) for value in values]


def column(option: str, *, blank: bool = True) -> dict[str, Any]:
    """Return the arguments of a field for an option: label, help, choices and bounds.

    Algorithms are not choices of the field, so that another one needs no migration.
    """
    row = OPTIONS[option]
    arguments: dict[str, Any] = {
        "verbose_name": _(row.label),
        "help_text": _(row.help),
        "blank": blank,
    }
    if row.names and option != "algorithm":
        arguments["choices"] = [(value, _(name)) for value, name in row.names.items()]
    if isinstance(row.check, (Whole, Number)):
        arguments["validators"] = [
            MinValueValidator(row.check.least),
            MaxValueValidator(row.check.most),
        ]
    return arguments


class RateFields(models.Model):
    """The fields of a rate: units per period, and the burst of a bucket."""

    class Unit(models.TextChoices):
        """The unit of a period; or none, for the slots of a concurrency limit."""

        SECOND = "s", _("seconds")
        MINUTE = "m", _("minutes")
        HOUR = "h", _("hours")
        DAY = "d", _("days")
        WEEK = "w", _("weeks")
        AT_ONCE = "x", _("at once")

    limit = models.BigIntegerField(
        _("limit"),
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(MAX_ENTRIES)],
    )
    period = models.PositiveIntegerField(_("per"), default=1, validators=[MinValueValidator(1)])
    unit = models.CharField(_("unit"), max_length=1, choices=Unit.choices, default=Unit.MINUTE)
    burst = models.BigIntegerField(null=True, **column("burst"))

    more_rates: Any = []  # noqa: RUF012 - a field of `RatesFields`

    class Meta:
        """Options of the model."""

        abstract = True

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        """Check the fields. Raises `ValidationError`."""
        problems: dict[str, Any] = {}
        for field in self._meta.concrete_fields:
            value = getattr(self, field.attname)
            if field.name in (exclude or ()) or not isinstance(value, str):
                continue
            if field.name in _TRIMMED and (value != value.strip() or not value.isprintable()):
                text = _(
                    "Enter the text without spaces at its ends, and without invisible characters."
                )
                problems[field.name] = [text]
        try:
            super().clean_fields(exclude)
        except ValidationError as error:
            problems = error.update_error_dict(problems)
        if problems:
            raise ValidationError(problems)

    def numbers(self) -> dict[str, object]:
        """Return the values of the fields of a rate, by name."""
        return {
            field.name: getattr(self, field.attname)
            for field in self._meta.concrete_fields
            if field.name in _OWN
        }

    @property
    def rate(self) -> Any:
        """Return the rate in the notation of rules, "100/m".

        It is a list if there are several, and None if there is no limit.
        """
        if self.limit is None:
            return None
        first = rate_text(self.limit, self.period, self.unit)
        if self.more_rates == []:
            return first
        return [first, *as_rates(self.more_rates)]

    @rate.setter
    def rate(self, value: object) -> None:
        first, *others = as_rates(value)
        self.limit, self.period, self.unit = _parts(first)
        self.more_rates = [written(rate) for rate in others]


class RatesFields(RateFields):
    """The fields of a rate, and further limits that apply as well."""

    more_rates = models.JSONField(
        _("further limits"),
        default=list,
        db_default=models.Value([], models.JSONField()),
        blank=True,
        help_text=_(
            "One per line, for example 500/h. A request must be within all of them and the limit "
            "above."
        ),
    )

    class Meta:
        """Options of the model."""

        abstract = True

    def rate_field(self) -> str:
        """Return the field of the form that shows errors about the rates."""
        if self.more_rates:
            return "more_rates"
        return "limit"


def written(rate: str | tuple[int, float] | Rate) -> str:
    """Return a rate in the notation of rules, keeping its unit. Raises `LimitError`.

    >>> written("500/hour"), written("5/60s"), written("5 per 60 seconds")
    ('500/h', '5/60s', '5/60s')
    """
    return rate_text(*_parts(rate))


def problem_text(problem: LimitError) -> str:
    """Return an error in the language of the operator, with labels instead of field names.

    >>> text = "%(option)s needs %(other)s as well"
    >>> problem_text(LimitError(text, option="ban_after", other="ban_for"))
    '“Ban after” needs “Ban for” as well.'
    """
    text = gettext(problem.text)
    if problem.params:
        text %= {name: _label(name, value) for name, value in problem.params.items()}
    return text.removesuffix(".") + "."


def _label(name: str, value: Any) -> object:
    if name in ("option", "other"):
        return f"“{capfirst(_(OPTIONS[value].label))}”"
    if name in ("algorithm", "algorithms"):
        return gettext(" or ").join(
            gettext(algorithms.find(each).label).partition(":")[0] for each in value.split(", ")
        )
    if name in OPTIONS and isinstance(value, str) and value in OPTIONS[name].names:
        return gettext(OPTIONS[name].names[value])
    return value


def rate_text(limit: int, period: int, unit: str) -> str:
    """Return units per number of periods in the notation of rules.

    >>> rate_text(5, 15, "m"), rate_text(5, 1, "x")
    ('5/15m', '5')
    """
    if unit == RateFields.Unit.AT_ONCE:
        return str(limit)
    if period == 1:
        return f"{limit}/{unit}"
    return f"{limit}/{period}{unit}"


def _parts(value: str | tuple[int, float] | Rate) -> tuple[int, int, str]:
    """Return the limit, the number of time units in the period, and the time unit."""
    rate = Rate.parse(value)
    if rate.is_slots:
        return rate.limit, 1, RateFields.Unit.AT_ONCE
    text = value if isinstance(value, str) else str(rate)
    times = int([*re.findall("[0-9]+", text), 1][1])
    unit = Rate(1, rate.period_us // times).per
    if unit not in RateFields.Unit.values:
        raise LimitError(
            f"Rate {value!r}: a rule's period is a whole number of seconds, minutes, hours, days "
            "or weeks"
        )
    return rate.limit, times, unit
