"""Models whose every change is noted and raises the revision, in the same transaction, however it is made."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import models, router, transaction
from django.utils.translation import gettext as _

from ..signals import rules_changed
from .change import RateLimitChange, RateLimitRevision

MOST_NOTED = 1000
"""Rows of one bulk change that are noted one by one; of more, only that there were many."""

_by: contextvars.ContextVar[str] = contextvars.ContextVar("ratelimit_by", default="")
M = TypeVar("M", bound="Tracked")
Declared = dict[str, Any]


@contextmanager
def acting(user: Any) -> Iterator[None]:
    """Note changes as made by a user, or whoever is named."""
    token = _by.set(str(user))
    try:
        yield
    finally:
        _by.reset(token)


def who() -> str:
    """By whom changes are made at the moment; empty: not known."""
    return _by.get()


class TrackedQuerySet(models.QuerySet[M]):
    """Notes bulk changes; deletions and `bulk_update` come through signals and `update`."""

    def update(self, **changes: Any) -> int:
        """`QuerySet.update`, noted."""
        with transaction.atomic(self.db):
            rows = self.model._base_manager.using(self.db)
            keys = list(self.order_by().values_list("pk", flat=True))
            before = {owner.pk: owner.declared() for owner in self.model.owners(rows.in_bulk(keys).values())}
            count = super().update(**changes)
            changed = rows.in_bulk(keys).values()
            for row in changed:
                if row.prepare():
                    rows.filter(pk=row.pk).update(**row.prepared())
            note(self.db, [(one, before.get(one.pk), one.declared()) for one in self.model.owners(changed)])
        return count

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable[M], *args: Any, **kwargs: Any) -> list[M]:
        """`QuerySet.bulk_create`, noted."""
        rows = list(objs)
        for row in rows:
            row.prepare()
        with transaction.atomic(self.db):
            before = {owner.pk: owner.declared() for owner in self.model.owners(rows) if type(owner) is not self.model}
            created = super().bulk_create(rows, *args, **kwargs)
            blind = bool(kwargs.get("ignore_conflicts") or kwargs.get("update_conflicts"))
            owners = self.model.owners([row for row in created if row.pk is not None and not blind])
            note(self.db, [(one, before.get(one.pk), one.declared()) for one in owners], blind=blind)
        return created

    bulk_create.alters_data = True  # type: ignore[attr-defined]


class Tracked(models.Model):
    """What all tracked models share."""

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save, and note it, in one transaction."""
        self.prepare()
        with transaction.atomic(kwargs.get("using") or router.db_for_write(type(self), instance=self)):
            super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Delete, and note it, in one transaction."""
        with transaction.atomic(kwargs.get("using") or router.db_for_write(type(self), instance=self)):
            return super().delete(*args, **kwargs)

    def declared(self) -> Declared:
        """The row in the words of rules."""
        raise NotImplementedError

    @classmethod
    def owners(cls, rows: Iterable[Any]) -> list[Any]:
        """Of which rows a change of these is a change: of themselves."""
        return list(rows)

    def subject_digest(self) -> str:
        """Whom it is about, if it is about somebody."""
        return ""

    def prepare(self) -> bool:
        """Fill in what follows from other fields; returns whether that changed anything."""
        return False

    def prepared(self) -> Declared:
        """The fields that `prepare` fills in."""
        return {}


def note(using: str, changes: Sequence[tuple[Any, Declared | None, Declared | None]], *, blind: bool = False) -> None:
    """Note changes (row, before, after) and raise the revision, in the transaction that is open.

    Where they are too many to note one by one, or it is not known what they were (`blind`), all overrides are
    published anew.
    """
    real = [change for change in changes if change[1] != change[2]]
    blind = blind or len(real) > MOST_NOTED
    if not real and not blind:
        return
    revision = RateLimitRevision.rise(using, rebuild=blind)
    noted = RateLimitChange.objects.using(using)
    if blind:
        kind = real[0][0].CHANGE_KIND if real else RateLimitChange.Kind.RULE
        name = _("%(number)d rows") % {"number": len(real)} if real else _("rows, it is not known which")
        noted.create(revision=revision, by=who(), kind=kind, action=RateLimitChange.Action.BULK, name=name)
    else:
        noted.bulk_create(_change(revision, *change) for change in real)
    rules_changed.send(RateLimitRevision, using=using)


def _change(revision: int, row: Any, before: Declared | None, after: Declared | None) -> RateLimitChange:
    actions = RateLimitChange.Action
    action = actions.CREATED if before is None else actions.DELETED if after is None else actions.CHANGED
    subjects = {row.subject_digest(), (before or {}).get("subject", "")} - {""}
    return RateLimitChange(
        revision=revision, by=who(), kind=row.CHANGE_KIND, object_id=row.pk, name=str(row)[:300], action=action,
        before=before, after=after, subjects=",".join(sorted(subjects)),
    )  # fmt: skip
