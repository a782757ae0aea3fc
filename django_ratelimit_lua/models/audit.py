"""Every change of a rule, tier or override is recorded and raises the revision, in the transaction of the change.

Signals report rows that are saved or deleted one by one, also by fixtures and cascades. Bulk changes come through
`AuditedQuerySet`. The models of a migration only report that something has changed.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.apps import apps
from django.db import DatabaseError, models, router, transaction
from django.db.models.signals import class_prepared, post_delete, post_save, pre_delete, pre_save
from django.utils.translation import gettext as _

from ..signals import rules_changed
from .change import KINDS, RateLimitChange, RateLimitRevision

MOST_RECORDED = 1000
"""Rows of one bulk change that are recorded one by one; of more, only that there were many."""
BATCH = 500
"""Rows of history that are written by one statement."""
AUDITED: dict[str, type[AuditedModel]] = {}
"""The audited models of all installed apps, by label. `connect` fills it."""
BEFORE, DELETION = "_ratelimit_before", "_ratelimit_deletion"

M = TypeVar("M", bound="AuditedModel")
Declared = dict[str, Any]
Change = tuple[Any, Declared | None, Declared | None]
"""What was changed: the row, and how it was declared before and after."""


@dataclass(slots=True)
class _Batch:
    """Changes that are recorded as one. `is_blind`: there are others, of which it is not known what they were."""

    changes: list[RateLimitChange] = field(default_factory=list)
    is_blind: bool = False


_actor: contextvars.ContextVar[str] = contextvars.ContextVar("ratelimit_actor", default="")
_batches: contextvars.ContextVar[Mapping[str, _Batch] | None] = contextvars.ContextVar(
    "ratelimit_batches", default=None
)


@contextmanager
def acting(user: Any) -> Iterator[None]:
    """Record changes as made by a user, or by whatever is named."""
    token = _actor.set(str(user))
    try:
        yield
    finally:
        _actor.reset(token)


def current_actor() -> str:
    """The user that makes changes at the moment; empty: unknown."""
    return _actor.get()


@contextmanager
def one_change(using: str) -> Iterator[None]:
    """Record what is changed inside as one change, in one transaction: one revision, however many rows."""
    batches = _batches.get() or {}
    if using in batches:
        yield
        return
    with transaction.atomic(using):
        batch = _Batch()
        token = _batches.set({**batches, using: batch})
        try:
            yield
        finally:
            _batches.reset(token)
        _write(using, _merged(batch.changes), is_blind=batch.is_blind)


class AuditedQuerySet(models.QuerySet[M]):
    """Records bulk changes. Deletions come through signals.

    Reads from the database that is written to, even if a router sends other reads to a replica, which lags: a process
    that published from it would publish the rows before the edit.
    """

    @property
    def db(self) -> str:
        return self._db or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]

    def update(self, **changes: Any) -> int:
        with transaction.atomic(self.db):
            stored = self.model._base_manager.using(self.db)
            keys = list(self.order_by().values_list("pk", flat=True))
            before = declare(self.model.owners(list(stored.in_bulk(keys).values()), self.db), self.db)
            count = super().update(**changes)
            rows = list(stored.in_bulk(keys).values())
            if prepared := [row for row in rows if row.prepare()]:
                stored.bulk_update(prepared, list(prepared[0].prepared()), batch_size=BATCH)
            record_changes(self.db, _between(before, declare(self.model.owners(rows, self.db), self.db)))
        return count

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable[M], *args: Any, **kwargs: Any) -> list[M]:
        rows = list(objs)
        for row in rows:
            row.prepare()
        with transaction.atomic(self.db):
            before = declare(_parents(rows, self.db), self.db)
            created = super().bulk_create(rows, *args, **kwargs)
            keys = [row.pk for row in created if row.pk is not None]
            if kwargs.get("ignore_conflicts") or kwargs.get("update_conflicts") or len(keys) > MOST_RECORDED:
                record_changes(self.db, [(row, None, {}) for row in created], is_blind=True)
            else:
                # As they are in the database, so that what is read about them here is not kept with the caller's rows.
                stored = list(self.model._base_manager.using(self.db).in_bulk(keys).values())
                record_changes(self.db, _between(before, declare(self.model.owners(stored, self.db), self.db)))
        return created

    bulk_create.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(self, *args: Any, **kwargs: Any) -> int:
        """`QuerySet.bulk_update`, recorded: one change, in however many statements Django makes it."""
        with one_change(self.db):
            return super().bulk_update(*args, **kwargs)

    bulk_update.alters_data = True  # type: ignore[attr-defined]


class AuditedModel(models.Model):
    """What all audited models share."""

    class Meta:
        abstract = True

    CHANGE_KIND = ""
    """The `RateLimitChange.kind` of its changes."""

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save and record in one transaction."""
        self.prepare()
        with transaction.atomic(kwargs.get("using") or router.db_for_write(type(self), instance=self)):
            super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Delete and record in one transaction."""
        with transaction.atomic(kwargs.get("using") or router.db_for_write(type(self), instance=self)):
            return super().delete(*args, **kwargs)

    def declared(self) -> Declared:
        """The row in the words of rules."""
        raise NotImplementedError

    @classmethod
    def owners(cls, rows: Sequence[Any], using: str) -> list[Any]:
        """The rows whose declarations include these: these themselves."""
        return list(rows)

    @classmethod
    def complete(cls, rows: Sequence[Any], using: str) -> None:
        """Read what `declared` needs of other tables, for all of these rows at once."""

    @classmethod
    def deleted(cls, rows: Sequence[Any], deletion: Deletion, using: str) -> list[Change]:
        """What was changed by deleting these rows, which the database no longer has."""
        return [(row, before, None) for row, before in declare(rows, using).items()]

    def prepare(self) -> bool:
        """Fill in what follows from other fields; returns whether that changed anything."""
        return False

    def prepared(self) -> Declared:
        """The fields that `prepare` fills in."""
        return {}


def declare(rows: Sequence[Any], using: str) -> dict[Any, Declared]:
    """Rows of one model, each with its declaration; in as many statements for many as for one."""
    for start in range(0, len(rows), BATCH):
        rows[start].complete(rows[start : start + BATCH], using)
    return {row: row.declared() for row in rows}


def _parents(rows: Sequence[Any], using: str) -> list[Any]:
    """The saved rows that these, which are not saved yet, will be a part of."""
    return [owner for owner in rows[0].owners(rows, using) if type(owner) is not type(rows[0])] if rows else []


def _between(before: Mapping[Any, Declared], after: Mapping[Any, Declared]) -> list[Change]:
    return [(row, before.get(row), declared) for row, declared in after.items()]


def record_changes(using: str, changes: Sequence[Change], *, is_blind: bool = False) -> None:
    """Record changes and raise the revision, in the open transaction, or when `one_change` ends.

    If they are too many to record one by one, or unknown (`is_blind`), all overrides are published again.
    """
    real = [change for change in changes if change[1] != change[2]]
    if len(real) <= MOST_RECORDED:
        lines = [_line(*change) for change in real]
    else:  # It is only recorded that there were many: nothing need be read about them.
        lines = [RateLimitChange(kind=change[0].CHANGE_KIND) for change in real]
    batch = (_batches.get() or {}).get(using)
    if batch is None:
        _write(using, lines, is_blind=is_blind)
    else:
        batch.changes += lines
        batch.is_blind = batch.is_blind or is_blind


def _write(using: str, lines: Sequence[RateLimitChange], *, is_blind: bool) -> None:
    if not lines and not is_blind:
        return
    is_blind = is_blind or len(lines) > MOST_RECORDED
    raised = RateLimitRevision.rise(using, rebuild=is_blind)
    if is_blind:
        kind = lines[0].kind if lines else RateLimitChange.Kind.RULE
        name = _("%(number)d rows") % {"number": len(lines)} if lines else _("unknown rows")
        lines = [RateLimitChange(by=current_actor(), kind=kind, action=RateLimitChange.Action.BULK, name=name)]
    for line in lines:
        line.revision, line.tag = raised.revision, raised.tag
    RateLimitChange.objects.using(using).bulk_create(lines, batch_size=BATCH)
    rules_changed.send(RateLimitRevision, using=using)


def _merged(lines: Sequence[RateLimitChange]) -> list[RateLimitChange]:
    """One line for each row, from what it was before the first to what it was after the last."""
    merged: dict[Any, RateLimitChange] = {}
    for number, line in enumerate(lines):
        first = merged.setdefault((line.kind, number if line.object_id is None else line.object_id), line)
        if first is not line:
            first.name = line.name
            _set_words(first, first.before, line.after)
    return list(merged.values())


def _line(row: Any, before: Declared | None, after: Declared | None) -> RateLimitChange:
    line = RateLimitChange(by=current_actor(), kind=row.CHANGE_KIND, object_id=row.pk, name=str(row)[:300])
    _set_words(line, before, after)
    return line


def _set_words(line: RateLimitChange, before: Declared | None, after: Declared | None) -> None:
    actions = RateLimitChange.Action
    line.before, line.after = before, after
    line.action = actions.CREATED if before is None else actions.DELETED if after is None else actions.CHANGED
    # The subjects of a change are at most two: what was in between was never published.
    line.subjects = ",".join(sorted({(before or {}).get("subject", ""), (after or {}).get("subject", "")} - {""}))


class Deletion:
    """What one deletion takes along, with everything that goes because of it: one change."""

    def __init__(self) -> None:
        self._rows: dict[type[AuditedModel], dict[Any, AuditedModel]] = {}
        self._changes: list[Change] = []
        self._pending: set[type[AuditedModel]] = set()

    @classmethod
    def of(cls, origin: Any, row: AuditedModel) -> Deletion:
        """The deletion that began at `origin` and has yet to take this row."""
        begun: Deletion | None = vars(origin).get(DELETION)
        # An attempt that failed half-way has left one behind.
        if begun is None or begun._changes or row.pk in begun._rows.get(type(row), ()):
            begun = vars(origin)[DELETION] = cls()
        return begun

    def add(self, row: AuditedModel, using: str, *, is_origin: bool) -> None:
        """A row that is about to go."""
        kind, pk = type(row), row.pk
        if is_origin or row.get_deferred_fields():  # It may have been changed since, or only a part of it was read.
            row = kind._base_manager.using(using).filter(pk=pk).first() or row
        self._rows.setdefault(kind, {})[pk] = row
        self._pending.add(kind)

    def rows(self, model: type[models.Model]) -> dict[Any, Any]:
        """The rows of a model that go, by primary key."""
        return {pk: row for kind, rows in self._rows.items() if issubclass(kind, model) for pk, row in rows.items()}

    def done(self, kind: type[AuditedModel], origin: Any, using: str) -> None:
        """The rows of a kind are gone. What was changed is recorded when all are."""
        if kind not in self._pending:
            return
        self._pending.remove(kind)
        rows = list(self._rows[kind].values())
        # So many are not recorded one by one, and need not be read about.
        is_bulk = len(rows) > MOST_RECORDED
        self._changes += [(row, {}, None) for row in rows] if is_bulk else kind.deleted(rows, self, using)
        if not self._pending:
            vars(origin).pop(DELETION, None)
            record_changes(using, self._changes)


def _stored(instance: Any, using: str) -> dict[Any, Declared]:
    """The declarations that saving a row changes, as the database has them."""
    rows = type(instance)._base_manager.using(using).filter(pk=instance.pk) if instance.pk is not None else ()
    saved = list(rows)
    return declare(instance.owners(saved, using) if saved else _parents([instance], using), using)


def _before_save(sender: Any, instance: Any, using: str, **kwargs: Any) -> None:
    instance.prepare()  # Fixtures do not come through `save`.
    vars(instance)[BEFORE] = _stored(instance, using)


def _after_save(sender: Any, instance: Any, using: str, **kwargs: Any) -> None:
    record_changes(using, _between(vars(instance).pop(BEFORE, {}), _stored(instance, using)))


def _before_deletion(sender: Any, instance: Any, using: str, origin: Any = None, **kwargs: Any) -> None:
    # Django signals every row before it deletes the first; `origin` is the object of the `delete` call, for all of
    # them.
    start = instance if origin is None else origin
    Deletion.of(start, instance).add(instance, using, is_origin=instance is origin)


def _after_deletion(sender: Any, instance: Any, using: str, origin: Any = None, **kwargs: Any) -> None:
    start = instance if origin is None else origin
    deletion = vars(start).get(DELETION)
    if deletion is not None:
        deletion.done(sender, start, using)


def _changed_blindly(sender: Any, using: str, **kwargs: Any) -> None:
    """A migration's model was saved or deleted, which cannot do what our own can."""
    try:
        with transaction.atomic(using):
            RateLimitRevision.rise(using, rebuild=True)
    except DatabaseError:
        return  # Our own tables are not complete yet. When all migrations are done, all is published.
    rules_changed.send(RateLimitRevision, using=using)


def _watch(sender: Any, **kwargs: Any) -> None:
    """Hear of what happens to a model, if it is one of ours (also by proxy), or a migration's picture of one."""
    # Never without a sender: that would run this code for every saved row of the site, and disable fast deletes for
    # every model, because Django has to load each row that a receiver gets.
    if issubclass(sender, AuditedModel) and not sender._meta.abstract:
        pre_save.connect(_before_save, sender)
        post_save.connect(_after_save, sender)
        pre_delete.connect(_before_deletion, sender)
        post_delete.connect(_after_deletion, sender)
        AUDITED[sender._meta.label_lower] = sender
        KINDS.setdefault(sender.CHANGE_KIND, sender._meta.verbose_name)
    elif sender._meta.label_lower in AUDITED:
        post_save.connect(_changed_blindly, sender)
        post_delete.connect(_changed_blindly, sender)


def model_of(kind: str) -> type[AuditedModel] | None:
    """The model of a kind of change; None if its annex is not installed."""
    return next((model for model in AUDITED.values() if kind == model.CHANGE_KIND), None)


def connect() -> None:
    """Start to receive changes."""
    for model in apps.get_models():
        _watch(model)
    class_prepared.connect(_watch, dispatch_uid="django_ratelimit_lua.watch")
