"""What was changed, and how often: the revision that every process compares its rules with."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F
from django.utils.translation import gettext_lazy as _


class RateLimitRevision(models.Model):
    """One row: how often rules and overrides were changed. Raised in the transaction of the change."""

    ROW = 1

    revision = models.BigIntegerField(_("revision"), default=0)
    rebuilt = models.BigIntegerField(_("revision before which all overrides have to be published anew"), default=0)

    class Meta:
        verbose_name = _("revision")
        verbose_name_plural = _("revisions")

    def __str__(self) -> str:
        return str(self.revision)

    @classmethod
    def read(cls, using: str) -> tuple[int, int]:
        """The revision, and that before which all overrides have to be published anew."""
        row = cls.objects.using(using).filter(pk=cls.ROW).values_list("revision", "rebuilt").first()
        return row if row is not None else (0, 0)

    @classmethod
    def rise(cls, using: str, *, rebuild: bool = False, beyond: int = 0) -> int:
        """Raise it by one (or beyond a number), in the transaction that is open; its row is locked until that ends."""
        rows = cls.objects.using(using)
        rows.get_or_create(pk=cls.ROW)
        raised: dict[str, Any] = {"revision": F("revision") + 1}
        if beyond:
            rows.filter(pk=cls.ROW, revision__lt=beyond).update(revision=beyond)
        if rebuild:
            raised["rebuilt"] = F("revision") + 1
        rows.filter(pk=cls.ROW).update(**raised)
        return cls.read(using)[0]


class RateLimitChange(models.Model):
    """One change of a rule (with its tiers) or an override: what was declared before and after."""

    class Action(models.TextChoices):
        """What was done."""

        CREATED = "created", _("created")
        CHANGED = "changed", _("changed")
        DELETED = "deleted", _("deleted")
        BULK = "bulk", _("many at once")
        ENDED = "reset", _("reset")

    class Kind(models.TextChoices):
        """To what."""

        RULE = "rule", _("rule")
        OVERRIDE = "override", _("override")
        IDENTITY = "identity", _("identity")

    revision = models.BigIntegerField(_("revision"), db_index=True)
    at = models.DateTimeField(_("when"), auto_now_add=True)
    by = models.CharField(_("by whom"), max_length=254, blank=True)
    kind = models.CharField(_("what"), max_length=10, choices=Kind.choices)
    object_id = models.BigIntegerField(_("row"), null=True, db_index=True)
    name = models.CharField(_("name"), max_length=300)
    action = models.CharField(_("action"), max_length=10, choices=Action.choices)
    before = models.JSONField(_("before"), null=True)
    after = models.JSONField(_("after"), null=True)
    subjects = models.CharField(_("digests of whom it is about"), max_length=80, blank=True)

    class Meta:
        verbose_name = _("change")
        verbose_name_plural = _("changes")
        ordering = ("-revision", "-pk")

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.name}: {self.get_action_display()}"
