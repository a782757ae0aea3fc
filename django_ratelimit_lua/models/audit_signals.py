"""What notes each row that is saved or deleted, also by fixtures, cascades and migrations."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import DatabaseError, transaction
from django.db.models.signals import class_prepared, post_delete, post_save, pre_delete, pre_save

from ..signals import rules_changed
from .audit import DELETION, AuditedModel, Deletion, record_changes
from .change import RateLimitRevision

TRACKED = {f"django_ratelimit_lua.{name}" for name in ("ratelimitrule", "ratelimittier", "ratelimitoverride")}


def _owner(instance: Any, using: str) -> Any:
    """The row whose change this is, as it is in the database; None if it is not there."""
    row = type(instance)._base_manager.using(using).filter(pk=instance.pk).first() if instance.pk else None
    owners = instance.owners([instance if row is None else row], using)
    return next((owner for owner in owners if row is not None or type(owner) is not type(instance)), None)


def _before_save(sender: Any, instance: Any, using: str, **kwargs: Any) -> None:
    instance.prepare()  # Fixtures do not come through `save`.
    owner = _owner(instance, using)
    vars(instance)["_ratelimit_before"] = None if owner is None else owner.declared()


def _after_save(sender: Any, instance: Any, using: str, **kwargs: Any) -> None:
    before = vars(instance).pop("_ratelimit_before", None)
    owner = _owner(instance, using)
    after = None if owner is None else owner.declared()
    record_changes(using, [(owner if owner is not None else instance, before, after)])


def _before_deletion(sender: Any, instance: Any, using: str, origin: Any = None, **kwargs: Any) -> None:
    # Django tells of every row before the first one goes; `origin` is what `delete` was called on, for all of them.
    start = instance if origin is None else origin
    Deletion.begun(start, instance).add(instance, using, is_origin=instance is origin)


def _after_deletion(sender: Any, instance: Any, using: str, origin: Any = None, **kwargs: Any) -> None:
    start = instance if origin is None else origin
    deletion = vars(start).get(DELETION)
    if deletion is not None:
        deletion.gone(sender, start, using)


def _changed_blindly(sender: Any, using: str, **kwargs: Any) -> None:
    """A migration's model was saved or deleted, which knows nothing of what our own can do."""
    try:
        with transaction.atomic(using):
            RateLimitRevision.rise(using, rebuild=True)
    except DatabaseError:
        return  # The tables are not yet as this version knows them. All is published when the migrations are done.
    rules_changed.send(RateLimitRevision, using=using)


def _watch(sender: Any, **kwargs: Any) -> None:
    """Note what happens to a model, if it is one of ours (also by proxy), or a migration's picture of one."""
    # Never without a sender: that would run our code for every row of the site that is saved, and take away the fast
    # deletes of every model, because Django has to load each row that somebody wants to hear about.
    if issubclass(sender, AuditedModel) and not sender._meta.abstract:
        pre_save.connect(_before_save, sender)
        post_save.connect(_after_save, sender)
        pre_delete.connect(_before_deletion, sender)
        post_delete.connect(_after_deletion, sender)
    elif sender._meta.label_lower in TRACKED:
        post_save.connect(_changed_blindly, sender)
        post_delete.connect(_changed_blindly, sender)


def connect() -> None:
    """Start noting."""
    for model in apps.get_models():
        _watch(model)
    class_prepared.connect(_watch, dispatch_uid="django_ratelimit_lua.watch")
