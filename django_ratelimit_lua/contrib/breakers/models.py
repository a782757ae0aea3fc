"""Breakers as rows: other thresholds than the code has, and what an operator has forced, until
when.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ...extension import require
from ...models.audit import AuditedModel, AuditedQuerySet, Declared
from ...models.override import microseconds
from ...models.rate_fields import problem_text
from .rows import (
    BREAKER_FIELDS,
    TUNED,
    BreakerError,
    Thresholds,
    row_problems,
    thresholds,
)

require("breakers")


class RateLimitBreaker(AuditedModel):
    """The values for the breaker of this name, in place of those of the code.

    Empty fields are as in the code.
    """

    CHANGE_KIND = "breaker"

    class Forced(models.TextChoices):
        """What an operator may force."""

        OPEN = "open", _("open: nothing is asked")
        CLOSED = "closed", _("closed: everything is asked")

    name = models.CharField(
        _("name"),
        max_length=200,
        unique=True,
        help_text=_("The name of a CircuitBreaker in the code."),
    )
    description = models.TextField(
        _("description"), blank=True, help_text=_("For colleagues: why these numbers.")
    )
    failure_ratio = models.FloatField(
        _("ratio of failures"),
        null=True,
        blank=True,
        help_text=_(
            "It opens when so many of the calls fail: 0.5 is half of them. Empty: as in the code."
        ),
    )
    failures = models.PositiveIntegerField(
        _("failures"),
        null=True,
        blank=True,
        help_text=_(
            "It opens at so many failures, however many calls there were. Empty: as in the code."
        ),
    )
    slow = models.CharField(
        _("slow from"),
        max_length=20,
        blank=True,
        help_text=_("A call that takes so long is slow, for example 2s. Empty: as in the code."),
    )
    slow_ratio = models.FloatField(
        _("ratio of slow calls"),
        null=True,
        blank=True,
        help_text=_("It opens when so many of the calls are slow. Empty: as in the code."),
    )
    minimum = models.PositiveIntegerField(
        _("least calls"),
        null=True,
        blank=True,
        help_text=_("Ratios count from so many calls on. Empty: as in the code."),
    )
    window = models.CharField(
        _("window"),
        max_length=20,
        blank=True,
        help_text=_("Calls of so long are judged, for example 30s. Empty: as in the code."),
    )
    open_for = models.CharField(
        _("open for"),
        max_length=20,
        blank=True,
        help_text=_(
            "So long nothing is asked, for example 10s; then it is tried. Empty: as in the code."
        ),
    )
    open_max = models.CharField(
        _("longest pause"),
        max_length=20,
        blank=True,
        help_text=_(
            "Where it fails again, it is open twice as long, up to this. Empty: as in the code."
        ),
    )
    probes = models.PositiveIntegerField(
        _("probes"),
        null=True,
        blank=True,
        help_text=_("So many calls at a time try whether it is well again. Empty: as in the code."),
    )
    forced = models.CharField(
        _("forced"), max_length=8, blank=True, choices=Forced.choices, editable=False
    )
    until = models.DateTimeField(_("until"), null=True, blank=True, editable=False)
    why = models.CharField(_("reason"), max_length=300, blank=True, editable=False)

    objects = AuditedQuerySet.as_manager()

    class Meta:
        verbose_name = _("breaker")
        verbose_name_plural = _("breakers")
        ordering = ("name",)
        permissions = (("force_breaker", "May force breakers open or closed"),)

    def __str__(self) -> str:
        return self.name

    def declared(self) -> Declared:
        """The row in words that history and YAML can keep."""
        values = {field: getattr(self, field) for field in BREAKER_FIELDS}
        values["until"] = None if self.until is None else self.until.isoformat()
        if not self.forced:
            values |= {"until": None, "why": None}
        return {field: value for field, value in values.items() if value not in (None, "")}

    def published(self) -> Declared:
        """The row as processes read it: the end as microseconds since 1970."""
        published = {
            field: value
            for field, value in self.declared().items()
            if field not in ("description", "why")
        }
        if "until" in published and self.until is not None:
            published["until"] = microseconds(self.until)
        return published

    def is_forced(self) -> bool:
        """Whether anything is forced now."""
        return bool(self.forced) and (self.until is None or self.until > timezone.now())

    def clean(self) -> None:
        """Raises `ValidationError` that names all fields that are wrong."""
        wrong: dict[str, list[str]] = {}
        for problem in row_problems(self.published()):
            wrong.setdefault(problem.field or NON_FIELD_ERRORS, []).append(problem_text(problem))
        if wrong:
            raise ValidationError(wrong)

    def contradiction(self, base: Thresholds) -> tuple[str, str] | None:
        """The field that contradicts the code, and why; None: there is no contradiction."""
        try:
            thresholds(self.name, self.thresholds(), base)
        except BreakerError as error:
            return error.field, problem_text(error)
        return None

    def thresholds_declared(self) -> Declared:
        """The row without the forced state: description and thresholds."""
        return {
            field: value
            for field, value in self.declared().items()
            if field in ("description", *TUNED)
        }

    def thresholds(self) -> dict[str, Any]:
        """The thresholds of the row, by name."""
        return {field: value for field, value in self.declared().items() if field in TUNED}
