"""Records every change of a rule or override, and raises the revision.

Both happen in the transaction of the change. Signals report rows that are saved or deleted, also by
fixtures and cascades. `AuditedQuerySet` records a call that affects many rows as one change.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from django.apps import apps
from django.db import models, router, transaction
from django.db.models import F
from django.db.models.signals import post_delete, post_save, pre_delete, pre_save
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..rules.snapshot import section_number
from ..signals import rules_changed
from .change import KINDS, RateLimitChange, RateLimitRevision

MAX_RECORDED = 1000
"""Maximum number of rows of a bulk change that are recorded one by one. If there are more, only
their number is recorded.
"""
BATCH = 500
"""Rows of history that are written by one statement."""
AUDITED: dict[str, type[AuditedModel]] = {}
"""The audited models of all installed apps, by the kind of their changes. `connect` fills it."""
BEFORE = "_ratelimit_before"

M = TypeVar("M", bound="AuditedModel")


class Conflict(Exception):  # noqa: N818 - an answer to the second of two editors
    """Another change has replaced the revision that was to be changed.

    `stored` is the row as it is now, or None if it was deleted.
    """

    def __init__(self, stored: AuditedModel | None) -> None:
        super().__init__("the row was changed since it was read")
        self.stored: Any = stored


Spec = dict[str, Any]


_actor: contextvars.ContextVar[str] = contextvars.ContextVar("ratelimit_actor", default="")
_batches: contextvars.ContextVar[Mapping[str, list[RateLimitChange]] | None] = (
    contextvars.ContextVar("ratelimit_batches", default=None)
)
_deleting: contextvars.ContextVar[type[AuditedModel] | None] = contextvars.ContextVar(
    "ratelimit_deleting", default=None
)
"""The model whose rows a queryset deletes, which records them itself."""


@contextmanager
def acting(user: object) -> Iterator[None]:
    """Record changes as made by a user, or by anything with a name, such as a command."""
    token = _actor.set(str(user))
    try:
        yield
    finally:
        _actor.reset(token)


def current_actor() -> str:
    """Return the user that makes changes at the moment, or an empty string if it is not known."""
    return _actor.get()


@contextmanager
def one_change(using: str) -> Iterator[None]:
    """Record all changes in the block as one change, in one transaction, with one revision."""
    batches = _batches.get() or {}
    if using in batches:
        yield
        return
    with transaction.atomic(using):
        entries: list[RateLimitChange] = []
        token = _batches.set({**batches, using: entries})
        try:
            yield
        finally:
            _batches.reset(token)
        _write_history(using, _merge_by_row(entries))


class AuditedQuerySet(models.QuerySet[M]):
    """Records bulk changes: one change for each call, however many rows.

    It reads from the database for writes, even if a router sends other reads to a replica, which
    lags: a process that published from the replica would publish the rows as they were before the
    edit.
    """

    @property
    def db(self) -> str:
        return self._db or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]

    def update(self, **changes: object) -> int:
        """Set fields of all rows, and record that as one change."""
        with one_change(self.db):
            keys = list(self.order_by().values_list("pk", flat=True))
            rows = self.model._base_manager.using(self.db).in_bulk(keys).values()
            for row in rows:
                for name, value in changes.items():
                    setattr(row, name, value)
            return self.bulk_update(rows, changes)

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the rows, and record that as one change.

        Signals do not record it, because that would cost queries for each row.
        """
        with one_change(self.db):
            rows = list(self)
            before = specs_of(self.model, rows, self.db)
            token = _deleting.set(self.model)
            try:
                deleted = super().delete()
            finally:
                _deleting.reset(token)
            record_changes(self.db, before, {})
            return deleted

    delete.queryset_only = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable[M], batch_size: int | None = None) -> list[M]:  # type: ignore[override]
        """Create rows, without options for conflicts, because their effect cannot be recorded."""
        rows = list(objs)
        for row in rows:
            row.prepare()
        with one_change(self.db):
            created = super().bulk_create(rows, batch_size)
            record_changes(self.db, {}, specs_of(self.model, created, self.db))
        return created

    def bulk_update(
        self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None
    ) -> int:
        """Save fields of many rows, and record that as one change.

        The fields that `prepare` fills in are saved too.
        """
        rows = list(objs)
        for row in rows:
            row.prepare()
        with one_change(self.db):
            self._raise_revisions([row.pk for row in rows])
            before = specs_of(self.model, rows, self.db)
            stored = {row.pk: row for row in before}
            saved_fields = set(fields)
            for row in rows:
                if row.pk in stored:
                    row.revision = stored[row.pk].revision
                    saved_fields |= _different_fields(stored[row.pk], row)
            manager = self.model._base_manager.using(self.db)
            count = manager.bulk_update(rows, saved_fields, batch_size or BATCH)
            record_changes(self.db, before, specs_of(self.model, rows, self.db))
        return count

    def _raise_revisions(self, keys: Sequence[object]) -> None:
        """Raise the revisions of the rows with these keys, and lock them."""
        stored = self.model._base_manager.using(self.db)
        for start in range(0, len(keys), BATCH):
            rows = stored.filter(pk__in=keys[start : start + BATCH])
            rows.update(revision=F("revision") + 1)


def _different_fields(stored: AuditedModel, row: AuditedModel) -> set[str]:
    """Return the fields filled in by `prepare` that differ from those of the stored row."""
    return {name for name in row.PREPARED if getattr(stored, name) != getattr(row, name)}


class AuditedModel(models.Model):
    """The base class of all audited models."""

    CHANGE_KIND = ""
    """The `RateLimitChange.kind` of its changes."""
    PREPARED: tuple[str, ...] = ()
    """The fields that `prepare` fills in."""

    revision = models.PositiveIntegerField(gettext_lazy("revision"), default=1, editable=False)
    """Raised by each change of the row."""

    class Meta:
        """Options of the model."""

        abstract = True

    def save(self, *args: Any, expected: int | None = None, **kwargs: Any) -> None:
        """Save the row and record the change, in one transaction.

        Raises `Conflict` if the stored revision is not the expected one; None: any is expected.
        """
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        with one_change(using):
            if expected is not None:
                self._lock_at_revision(using, expected)
            super().save(*args, **kwargs)

    def _lock_at_revision(self, using: str, expected: int) -> None:
        """Lock the stored row until the transaction ends.

        Raises `Conflict` if the stored revision differs, or the row was deleted.
        """
        stored = type(self)._base_manager.using(using).filter(pk=self.pk)
        # An update that changes nothing compares the revision and locks the row in one statement.
        is_locked = stored.filter(revision=expected).update(revision=expected)
        if not is_locked:
            raise Conflict(stored.first())

    def delete(
        self, using: str | None = None, keep_parents: bool = False
    ) -> tuple[int, dict[str, int]]:
        """Delete the row and those that depend on it, and record that, in one transaction."""
        with one_change(using or router.db_for_write(type(self), instance=self)):
            return super().delete(using, keep_parents)

    @property
    def spec(self) -> Spec:
        """Return the row as the history records it, without defaults."""
        raise NotImplementedError

    @classmethod
    def load_related(cls, rows: Sequence[Self], using: str) -> None:
        """Load the data from other tables that `spec` needs, for all of these rows at once."""

    def prepare(self) -> None:
        """Set the fields that are computed from other fields."""

    def update_references(self, before: Spec, after: Spec, using: str) -> None:
        """Change the rows that refer to this one, which has changed."""


def specs_of(model: type[M], rows: Sequence[M], using: str) -> dict[AuditedModel, Spec]:
    """Return the stored rows with the keys of these rows, each with its spec."""
    keys = [row.pk for row in rows if row.pk is not None]
    stored = list(model._base_manager.using(using).in_bulk(keys).values())
    for start in range(0, len(stored), BATCH):
        model.load_related(stored[start : start + BATCH], using)
    return {row: row.spec for row in stored}


def record_changes(
    using: str, before: Mapping[AuditedModel, Spec], after: Mapping[AuditedModel, Spec]
) -> None:
    """Record the rows that differ, and raise the revision when `one_change` ends."""
    with one_change(using):
        entries = (_batches.get() or {})[using]
        for row in {**before, **after}:
            old, new = before.get(row), after.get(row)
            if old == new:
                continue
            entry = RateLimitChange(
                by=current_actor(), kind=row.CHANGE_KIND, object_id=row.pk, name=str(row)[:300]
            )
            _set_specs(entry, old, new)
            entries.append(entry)
            if old is not None and new is not None:
                row.update_references(old, new, using)


def _write_history(using: str, changes: Sequence[RateLimitChange]) -> None:
    """Write the history, and raise the revision.

    If there are too many changes to record one by one, one entry stands for all of them.
    """
    if not changes:
        return
    overrides = [entry for entry in changes if entry.kind == RateLimitChange.Kind.OVERRIDE]
    sections = {
        section_number(entry.object_id) for entry in overrides if entry.object_id is not None
    }
    has_rules = len(overrides) < len(changes)
    raised = RateLimitRevision.increment(using, rules=has_rules, sections=sections)
    entries = changes
    if len(changes) > MAX_RECORDED:
        name = _("%(number)d rows") % {"number": len(changes)}
        entries = [
            RateLimitChange(
                by=changes[0].by,
                kind=changes[0].kind,
                action=RateLimitChange.Action.BULK,
                name=name,
            )
        ]
    for entry in entries:
        entry.revision = raised.revision
    RateLimitChange.objects.using(using).bulk_create(entries, batch_size=BATCH)
    rules_changed.send(RateLimitRevision, using=using)


def _merge_by_row(entries: Sequence[RateLimitChange]) -> list[RateLimitChange]:
    """Change the first entry of each row to end with the row's last version, and return it.

    Rows that are in the end as they were before have no entry.
    """
    merged: dict[tuple[str, int | None], RateLimitChange] = {}
    for entry in entries:
        first = merged.setdefault((entry.kind, entry.object_id), entry)
        first.name = entry.name
        _set_specs(first, first.before, entry.after)
    return [entry for entry in merged.values() if entry.before != entry.after]


def _set_specs(entry: RateLimitChange, before: Spec | None, after: Spec | None) -> None:
    """Set the versions of an entry, and the action that follows from them."""
    entry.before = before
    entry.after = after
    if before is None:
        entry.action = RateLimitChange.Action.CREATED
    elif after is None:
        entry.action = RateLimitChange.Action.DELETED
    else:
        entry.action = RateLimitChange.Action.CHANGED


def _keep_before(sender: type[M], instance: M, using: str) -> None:
    """Keep the stored version of a row on the instance, until the row is saved or deleted."""
    vars(instance)[BEFORE] = specs_of(sender, [instance], using)


def _record_after(sender: type[M], instance: M, using: str, **kwargs: object) -> None:
    """Record the change of a row that was saved or deleted."""
    before = vars(instance).pop(BEFORE)
    record_changes(using, before, specs_of(sender, [instance], using))


def _before_save(sender: type[M], instance: M, using: str, **kwargs: object) -> None:
    """Raise the revision of a row that will be saved, and keep its stored version."""
    instance.prepare()  # Fixtures do not come through `save`.
    stored = sender._base_manager.using(using).filter(pk=instance.pk)
    if stored.update(revision=F("revision") + 1):
        instance.revision = stored.values_list("revision", flat=True).get()
    _keep_before(sender, instance, using)


def _before_delete(sender: type[M], instance: M, using: str, **kwargs: object) -> None:
    if _deleting.get() is not sender:
        _keep_before(sender, instance, using)


def _after_delete(sender: type[M], instance: M, using: str, **kwargs: object) -> None:
    if _deleting.get() is not sender:
        _record_after(sender, instance, using)


def watch(model: type[AuditedModel]) -> None:
    """Record the changes of a model's rows."""
    # Never without a sender: that would run this code for every saved row of the site, and disable
    # fast deletes for every model, because Django has to load each row that a receiver gets.
    pre_save.connect(_before_save, model)
    post_save.connect(_record_after, model)
    pre_delete.connect(_before_delete, model)
    post_delete.connect(_after_delete, model)
    AUDITED.setdefault(model.CHANGE_KIND, model)
    KINDS.setdefault(model.CHANGE_KIND, model._meta.verbose_name)


def connect() -> None:
    """Start recording changes."""
    for model in apps.get_models():
        if issubclass(model, AuditedModel):
            watch(model)
