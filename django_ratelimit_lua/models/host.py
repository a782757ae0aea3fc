"""Hosts as rows: the weights by which split limits are divided."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..conf import MAX_WEIGHT
from .audit import AuditedModel, AuditedQuerySet, Spec


class RateLimitHost(AuditedModel):
    """The weight of a host. Without a row, the `RATELIMIT_WEIGHT` of its processes applies."""

    CHANGE_KIND = "host"

    name = models.CharField(_("name"), max_length=253, unique=True)
    weight = models.PositiveIntegerField(
        _("weight"), validators=[MinValueValidator(1), MaxValueValidator(MAX_WEIGHT)]
    )

    objects = AuditedQuerySet.as_manager()

    class Meta:
        """Options of the model."""

        verbose_name = _("host")
        verbose_name_plural = _("hosts")
        ordering = ("name",)
        default_permissions = ()

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> Spec:
        return {"name": self.name, "weight": self.weight}
