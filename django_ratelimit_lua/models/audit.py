"""Models whose every change is noted and raises the revision, in the same transaction, however it is made."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db import models, router, transaction
from django.utils.translation import gettext as _

from ..signals import rules_changed
from .change import RateLimitChange, RateLimitRevision
from .primary import PrimaryQuerySet

MOST_NOTED = 1000
"""Rows of one bulk change that are noted one by one; of more, only that there were many."""
BATCH = 500
"""Rows of history that are written by one statement."""

DELETION = "_ratelimit_deletion"
_by: contextvars.ContextVar[str] = contextvars.ContextVar("ratelimit_by", default="")
M = TypeVar("M", bound="AuditedModel")
Declared = dict[str, Any]
Change = tuple[Any, Declared | None, Declared | None]
"""What was changed: the row, and how it was declared before and after."""
_together: contextvars.ContextVar[dict[str, _Together] | None] = contextvars.ContextVar(
    "ratelimit_together", default=None
)


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


@dataclass(slots=True)
class _Together:
    """What is to be noted as one change."""

    changes: list[RateLimitChange] = field(default_factory=list)
    blind: bool = False


@contextmanager
def one_change(using: str) -> Iterator[None]:
    """Note whatever is changed inside as one change, in one transaction: one revision, however many rows."""
    open_ones = _together.get() or {}
    if using in open_ones:
        yield
        return
    with transaction.atomic(using):
        together = _Together()
        token = _together.set({**open_ones, using: together})
        try:
            yield
        finally:
            _together.reset(token)
        _write(using, _merged(together.changes), blind=together.blind)


class AuditedQuerySet(PrimaryQuerySet[M]):
    """Notes bulk changes; deletions come through signals."""

    def update(self, **changes: Any) -> int:
        """`QuerySet.update`, noted."""
        with transaction.atomic(self.db):
            rows = self.model._base_manager.using(self.db)
            keys = list(self.order_by().values_list("pk", flat=True))
            owners = self.model.owners(list(rows.in_bulk(keys).values()), self.db)
            before = {owner.pk: words for owner, words in declared(owners, self.db)}
            count = super().update(**changes)
            changed = list(rows.in_bulk(keys).values())
            if prepared := [row for row in changed if row.prepare()]:
                rows.bulk_update(prepared, list(prepared[0].prepared()), batch_size=BATCH)
            owners = self.model.owners(changed, self.db)
            record_changes(self.db, [(one, before.get(one.pk), after) for one, after in declared(owners, self.db)])
        return count

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable[M], *args: Any, **kwargs: Any) -> list[M]:
        """`QuerySet.bulk_create`, noted."""
        rows = list(objs)
        for row in rows:
            row.prepare()
        with transaction.atomic(self.db):
            known = [owner for owner in self.model.owners(rows, self.db) if type(owner) is not self.model]
            before = {owner.pk: words for owner, words in declared(known, self.db)}
            created = super().bulk_create(rows, *args, **kwargs)
            blind = bool(kwargs.get("ignore_conflicts") or kwargs.get("update_conflicts"))
            keys = [row.pk for row in created if row.pk is not None]
            if blind or len(keys) > MOST_NOTED:
                record_changes(self.db, [(row, None, {}) for row in created], blind=True)
            else:
                # As they are in the database, so that what is read about them here is not kept with the caller's rows.
                owners = self.model.owners(
                    list(self.model._base_manager.using(self.db).in_bulk(keys).values()), self.db
                )
                record_changes(self.db, [(one, before.get(one.pk), after) for one, after in declared(owners, self.db)])
        return created

    bulk_create.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(self, *args: Any, **kwargs: Any) -> int:
        """`QuerySet.bulk_update`, noted: one change, in however many statements Django makes it."""
        with one_change(self.db):
            return super().bulk_update(*args, **kwargs)

    bulk_update.alters_data = True  # type: ignore[attr-defined]


class AuditedModel(models.Model):
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
    def owners(cls, rows: Sequence[Any], using: str) -> list[Any]:
        """Of which rows a change of these is a change: of themselves."""
        return list(rows)

    @classmethod
    def complete(cls, rows: Sequence[Any], using: str) -> None:
        """Read what `declared` needs of other tables, for all of these rows at once."""

    @classmethod
    def gone(cls, rows: Sequence[Any], deletion: Deletion, using: str) -> list[Change]:
        """What was changed by deleting these rows, which the database has no more."""
        return [(row, before, None) for row, before in declared(rows, using)]

    def prepare(self) -> bool:
        """Fill in what follows from other fields; returns whether that changed anything."""
        return False

    def prepared(self) -> Declared:
        """The fields that `prepare` fills in."""
        return {}


def declared(rows: Sequence[Any], using: str) -> list[tuple[Any, Declared]]:
    """Rows of one model, each with its words; in as many statements for many as for one."""
    for start in range(0, len(rows), BATCH):
        rows[start].complete(rows[start : start + BATCH], using)
    return [(row, row.declared()) for row in rows]


class Deletion:
    """What one deletion takes with it, with everything that goes because of it: one change."""

    def __init__(self) -> None:
        self._rows: dict[type[AuditedModel], dict[Any, AuditedModel]] = {}
        self._changes: list[Change] = []
        self._left: set[type[AuditedModel]] = set()

    @classmethod
    def begun(cls, origin: Any, row: AuditedModel) -> Deletion:
        """The one that began at `origin` and has still to take this row."""
        known: Deletion | None = vars(origin).get(DELETION)
        # An attempt that failed half-way has left one behind.
        if known is None or known._changes or row.pk in known._rows.get(type(row), ()):
            known = vars(origin)[DELETION] = cls()
        return known

    def add(self, row: AuditedModel, using: str, *, is_origin: bool) -> None:
        """A row that is about to go."""
        kind, pk = type(row), row.pk
        if is_origin or row.get_deferred_fields():  # Somebody may have changed it, or have read but a part of it.
            row = kind._base_manager.using(using).filter(pk=pk).first() or row
        self._rows.setdefault(kind, {})[pk] = row
        self._left.add(kind)

    def rows(self, model: type[models.Model]) -> dict[Any, Any]:
        """The rows of a model that go, by primary key."""
        return {pk: row for kind, rows in self._rows.items() if issubclass(kind, model) for pk, row in rows.items()}

    def gone(self, kind: type[AuditedModel], origin: Any, using: str) -> None:
        """The rows of a kind are gone. What was changed is noted when all are."""
        if kind not in self._left:
            return
        self._left.remove(kind)
        rows = list(self._rows[kind].values())
        # So many are not noted one by one, and need not be read about.
        self._changes += kind.gone(rows, self, using) if len(rows) <= MOST_NOTED else [(row, {}, None) for row in rows]
        if not self._left:
            vars(origin).pop(DELETION, None)
            record_changes(using, self._changes)


def record_changes(using: str, changes: Sequence[Change], *, blind: bool = False) -> None:
    """Note changes and raise the revision, in the transaction that is open, or when `one_change` ends.

    Where they are too many to note one by one, or it is not known what they were (`blind`), all overrides are
    published anew.
    """
    real = [change for change in changes if change[1] != change[2]]
    # Of so many it is only noted that there were many: nothing need be read about them.
    noted = [
        _change(*change) if len(real) <= MOST_NOTED else RateLimitChange(kind=change[0].CHANGE_KIND) for change in real
    ]
    together = (_together.get() or {}).get(using)
    if together is None:
        _write(using, noted, blind=blind)
    else:
        together.changes += noted
        together.blind = together.blind or blind


def _write(using: str, changes: Sequence[RateLimitChange], *, blind: bool) -> None:
    if not changes and not blind:
        return
    blind = blind or len(changes) > MOST_NOTED
    risen = RateLimitRevision.rise(using, rebuild=blind)
    noted = RateLimitChange.objects.using(using)
    if blind:
        kind = changes[0].kind if changes else RateLimitChange.Kind.RULE
        name = _("%(number)d rows") % {"number": len(changes)} if changes else _("rows, it is not known which")
        noted.create(
            revision=risen.revision, tag=risen.tag, by=who(), kind=kind, action=RateLimitChange.Action.BULK, name=name
        )
    else:
        for change in changes:
            change.revision, change.tag = risen.revision, risen.tag
        noted.bulk_create(changes, batch_size=BATCH)
    rules_changed.send(RateLimitRevision, using=using)


def _merged(changes: Sequence[RateLimitChange]) -> list[RateLimitChange]:
    """One change for each row, from what it was before the first to what it was after the last."""
    merged: dict[Any, RateLimitChange] = {}
    for number, change in enumerate(changes):
        row = (change.kind, number if change.object_id is None else change.object_id)
        first = merged.setdefault(row, change)
        if first is not change:
            first.after, first.name = change.after, change.name
            first.action = _action(first.before, first.after)
            first.subjects = _subjects(first.before, first.after)
    return list(merged.values())


def _action(before: Declared | None, after: Declared | None) -> str:
    actions = RateLimitChange.Action
    return actions.CREATED if before is None else actions.DELETED if after is None else actions.CHANGED


def _change(row: Any, before: Declared | None, after: Declared | None) -> RateLimitChange:
    return RateLimitChange(
        by=who(), kind=row.CHANGE_KIND, object_id=row.pk, name=str(row)[:300],
        action=_action(before, after), before=before, after=after, subjects=_subjects(before, after),
    )  # fmt: skip


def _subjects(before: Declared | None, after: Declared | None) -> str:
    """Whom a change is about: at most two, since what was in between was never published."""
    return ",".join(sorted({(before or {}).get("subject", ""), (after or {}).get("subject", "")} - {""}))
