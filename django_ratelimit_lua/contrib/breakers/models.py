"""Breakers as rows: thresholds that override those declared in code, and a forced state."""

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
    """The thresholds for the breaker of this name, which override those in the code.

    An empty field keeps the value in the code.
    """

    CHANGE_KIND = "breaker"

    class Forced(models.TextChoices):
        """The states that an operator may force."""

        OPEN = "open", _("open: calls are stopped")
        CLOSED = "closed", _("closed: calls are allowed")

    name = models.CharField(
        _("name"),
        max_length=200,
        unique=True,
        help_text=_("The name of a CircuitBreaker in the code."),
    )
    description = models.TextField(
        _("description"), blank=True, help_text=_("A note about these values.")
    )
    failure_ratio = models.FloatField(
        _("failure ratio"),
        null=True,
        blank=True,
        help_text=_(
            "The ratio of failed calls at which it opens: 0.5 is half. Empty: as in the code."
        ),
    )
    failures = models.PositiveIntegerField(
        _("failures"),
        null=True,
        blank=True,
        help_text=_("The number of failures at which it opens. Empty: as in the code."),
    )
    slow = models.CharField(
        _("slow after"),
        max_length=20,
        blank=True,
        help_text=_(
            "The duration from which a call is slow, for example 2s. Empty: as in the code."
        ),
    )
    slow_ratio = models.FloatField(
        _("slow call ratio"),
        null=True,
        blank=True,
        help_text=_("The slow call ratio at which it opens. Empty: as in the code."),
    )
    minimum = models.PositiveIntegerField(
        _("minimum calls"),
        null=True,
        blank=True,
        help_text=_("Minimum number of calls before a ratio is evaluated. Empty: as in the code."),
    )
    window = models.CharField(
        _("window"),
        max_length=20,
        blank=True,
        help_text=_("The window that is evaluated, for example 30s. Empty: as in the code."),
    )
    open_for = models.CharField(
        _("open for"),
        max_length=20,
        blank=True,
        help_text=_(
            "How long calls are stopped before a trial call, for example 10s. Empty: as in the "
            "code."
        ),
    )
    open_max = models.CharField(
        _("maximum pause"),
        max_length=20,
        blank=True,
        help_text=_(
            "Each failed trial doubles the pause, up to this maximum. Empty: as in the code."
        ),
    )
    probes = models.PositiveIntegerField(
        _("probes"),
        null=True,
        blank=True,
        help_text=_("The number of concurrent trial calls. Empty: as in the code."),
    )
    forced = models.CharField(
        _("forced"), max_length=8, blank=True, choices=Forced.choices, editable=False
    )
    until = models.DateTimeField(_("until"), null=True, blank=True, editable=False)
    why = models.CharField(_("reason"), max_length=300, blank=True, editable=False)

    objects = AuditedQuerySet.as_manager()

    class Meta:
        """Options of the model."""

        verbose_name = _("breaker")
        verbose_name_plural = _("breakers")
        ordering = ("name",)
        permissions = (("force_breaker", "May force breakers open or closed"),)

    def __str__(self) -> str:
        return self.name

    def declared(self) -> Declared:
        """Return the row as a declaration for the history."""
        declared = {"name": self.name, **self.thresholds_declared()}
        if self.forced:
            declared |= self._values("forced", "until", "why")
            if self.until is not None:
                declared["until"] = self.until.isoformat()
        return declared

    def published(self) -> Declared:
        """Return the row as processes load it, with its end in microseconds since 1970."""
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
        """Return the description and the thresholds, as in YAML."""
        return self._values("description", *TUNED)

    def thresholds(self) -> Declared:
        """Return the thresholds of the row, by name."""
        return self._values(*TUNED)

    def _values(self, *names: str) -> Declared:
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, "")}
