"""Breakers as rows: thresholds that override those of the code, and a forced state."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ...extension import require
from ...models.audit import AuditedModel, AuditedQuerySet, Declared
from ...models.override import microseconds
from ...models.rate_fields import problem_text
from .rows import TUNED, row_problems

require("breakers")


class RateLimitBreaker(AuditedModel):
    """The values for the breaker of this name, in place of those of the code.

    An empty field leaves the value of the code.
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
        """Options of Django."""

        verbose_name = _("breaker")
        verbose_name_plural = _("breakers")
        ordering = ("name",)
        permissions = (("force_breaker", "May force breakers open or closed"),)

    def __str__(self) -> str:
        return self.name

    def declared(self) -> Declared:
        """Return the row as the history keeps it."""
        declared = {"name": self.name, **self.thresholds_declared()}
        if self.forced:
            declared |= self._values("forced", "until", "why")
            if self.until is not None:
                declared["until"] = self.until.isoformat()
        return declared

    def published(self) -> Declared:
        """Return the row as processes read it: the end as microseconds since 1970."""
        until = self.until and microseconds(self.until)
        return {"name": self.name, **self.thresholds(), "forced": self.forced, "until": until}

    def is_forced(self) -> bool:
        """Return whether a forced state is in force now."""
        return bool(self.forced) and (self.until is None or self.until > timezone.now())

    def clean(self) -> None:
        problems = row_problems(self.published())
        if wrong := {problem.field: problem_text(problem) for problem in problems}:
            raise ValidationError(wrong)

    def thresholds_declared(self) -> Declared:
        """Return the row as YAML has it: description and thresholds."""
        return self._values("description", *TUNED)

    def thresholds(self) -> Declared:
        """Return the thresholds of the row, by name."""
        return self._values(*TUNED)

    def _values(self, *names: str) -> Declared:
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, "")}
