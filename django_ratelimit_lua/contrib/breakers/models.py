"""The states that operators have forced on breakers."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ...extension import require_annex
from ...models.audit import AuditedModel, AuditedQuerySet, Spec

require_annex("breakers")


class RateLimitBreaker(AuditedModel):
    """The state that an operator has forced on the breaker of this name."""

    CHANGE_KIND = "breaker"

    class Forced(models.TextChoices):
        """What an operator may force. Automatic: the breaker's own state applies."""

        AUTOMATIC = "", _("automatic")
        OPEN = "open", _("open")
        CLOSED = "closed", _("closed")

    name = models.CharField(_("name"), max_length=200, unique=True)
    forced = models.CharField(_("forced"), max_length=8, blank=True, choices=Forced.choices)

    objects = AuditedQuerySet.as_manager()

    class Meta:
        """Options of the model."""

        verbose_name = _("breaker")
        verbose_name_plural = _("breakers")
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> Spec:
        return {"name": self.name, "forced": self.forced or "automatic"}
