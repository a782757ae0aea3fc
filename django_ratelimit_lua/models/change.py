"""The history, and the revision of rules and overrides that every process compares."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any, NamedTuple

from django.db import models
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils.translation import gettext_lazy as _

from ..limits.call import NO_RULES, Revision
from ..rules.snapshot import EVERY_SECTION, SECTIONS, split_tags


def new_tag() -> str:
    """Return a random tag, so that two histories with the same number differ."""
    return secrets.token_hex(4)


def new_tags() -> str:
    """Return the tags of all sections."""
    return new_tag() * SECTIONS


def new_database() -> str:
    """Return an id that no other database has."""
    return secrets.token_hex(16)


KINDS: dict[str, object] = {
    "rule": _("rule"),
    "override": _("override"),
    "identity": _("client"),
}
"""What changes can be about: the kind of a change, and its name. `audit.connect` adds the models of
optional apps.
"""


def kind_choices() -> list[tuple[str, Any]]:
    """Return the kinds of changes, for forms and filters."""
    return list(KINDS.items())


class RevisionRow(NamedTuple):
    """The values of the row of `RateLimitRevision` when it was read."""

    revision: int = 0
    rules: str = ""
    overrides: str = ""
    sections: str = ""
    database: str = ""

    @property
    def text(self) -> bytes:
        """Return the revision as it is published and compared: its number and the tags."""
        if not self.revision:
            return NO_RULES.text
        return Revision.of(self.revision, self.rules, self.overrides).text


class RateLimitRevision(models.Model):
    """One row: the number of changes of rules and overrides.

    It is raised in the transaction of the change. The number alone does not identify the state: a
    database that was restored from a backup, or whose replica has taken over without the last edit,
    reaches the same number again with other rules. So each change replaces the random tag of what
    it changes: `rules`, `overrides`, or both, and those of the `sections` with a changed override,
    which are one text (see `rules.snapshot.section_number`). `database` is set once, and
    identifies the database of published rules.
    """

    ROW = 1

    revision = models.BigIntegerField(_("revision"), default=0)
    rules = models.CharField(_("tag of the rules"), max_length=8, default=new_tag)
    overrides = models.CharField(_("tag of the overrides"), max_length=8, default=new_tag)
    sections = models.CharField(_("tags of the sections"), max_length=512, default=new_tags)
    database = models.CharField(_("id of the database"), max_length=32, default=new_database)

    class Meta:
        """Options of the model."""

        verbose_name = _("revision")
        verbose_name_plural = _("revisions")

    def __str__(self) -> str:
        return str(self.revision)

    @classmethod
    def read(cls, using: str) -> RevisionRow:
        """Return the row's values, or the defaults if no rule was ever saved."""
        row = cls.objects.using(using).filter(pk=cls.ROW).values_list(*RevisionRow._fields).first()
        return RevisionRow(*(row or ()))

    @classmethod
    def increment(
        cls,
        using: str,
        *,
        rules: bool = True,
        sections: Collection[int] = EVERY_SECTION,
        beyond: int = 0,
        seen: RevisionRow | None = None,
    ) -> RevisionRow:
        """Raise the number by one (or beyond another number), in the open transaction.

        The tags of what has changed are replaced: the `rules`, and overrides in some `sections`.
        The row is locked until the transaction ends. With `seen`, the number is raised only if the
        row is unchanged since it was read, so that only one of many processes raises it.
        """
        rows = cls.objects.using(using).filter(pk=cls.ROW)
        number = Greatest(F("revision"), beyond) + 1
        unchanged = rows
        if seen is not None:
            unchanged = rows.filter(
                revision=seen.revision, rules=seen.rules, overrides=seen.overrides
            )
        if not unchanged.update(revision=number):
            if seen is not None and rows.exists():
                return cls.read(using)  # Another process has raised it.
            rows.get_or_create(pk=cls.ROW)
            rows.update(revision=number)
        raised = cls.read(using)
        changes = cls._new_tags(raised, rules=rules, sections=sections)
        if changes:
            rows.update(**changes)
        return raised._replace(**changes)

    @classmethod
    def _new_tags(
        cls, row: RevisionRow, *, rules: bool, sections: Collection[int]
    ) -> dict[str, Any]:
        """Return new values of the tags of what has changed, by field."""
        tag = new_tag()
        changes: dict[str, Any] = {}
        if rules:
            changes["rules"] = tag
        if sections:
            changes["overrides"] = tag
            tags = split_tags(row.sections)
            for section in sections:
                tags[section] = tag
            changes["sections"] = "".join(tags)
        return changes

    @classmethod
    def lock(cls, using: str) -> None:
        """Lock the row until the open transaction ends, without changing it."""
        rows = cls.objects.using(using).filter(pk=cls.ROW)
        if not rows.update(revision=F("revision")):
            rows.get_or_create(pk=cls.ROW)
            rows.update(revision=F("revision"))

    @classmethod
    def rename(cls, using: str) -> str:
        """Give the database a new id, if it is a copy of another one. Return the id."""
        cls.increment(using)
        database = new_database()
        cls.objects.using(using).filter(pk=cls.ROW).update(database=database)
        return database


class RateLimitChange(models.Model):
    """One change of a rule (with its tiers) or an override: its declarations before and after."""

    class Action(models.TextChoices):
        """The action that was performed."""

        CREATED = "created", _("created")
        CHANGED = "changed", _("changed")
        DELETED = "deleted", _("deleted")
        BULK = "bulk", _("bulk change")
        ENDED = "reset", _("reset")
        UNBANNED = "unbanned", _("ban lifted")

    class Kind:
        """The kinds of changes in the core, as in `KINDS`."""

        RULE = "rule"
        OVERRIDE = "override"
        IDENTITY = "identity"

    revision = models.BigIntegerField(_("revision"), db_index=True)
    at = models.DateTimeField(_("when"), auto_now_add=True, db_index=True)
    by = models.CharField(_("by"), max_length=254, blank=True)
    kind = models.CharField(_("kind"), max_length=10, choices=kind_choices)
    object_id = models.BigIntegerField(_("row"), null=True, db_index=True)
    name = models.CharField(_("name"), max_length=300)
    action = models.CharField(_("action"), max_length=10, choices=Action.choices)
    before = models.JSONField(_("before"), null=True)
    after = models.JSONField(_("after"), null=True)

    class Meta:
        """Options of the model."""

        verbose_name = _("change")
        verbose_name_plural = _("changes")
        ordering = ("-revision", "-pk")

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.name}: {self.get_action_display()}"
