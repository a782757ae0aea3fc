"""What notes each row that is saved or deleted, also by fixtures, cascades and migrations."""

from __future__ import annotations

from typing import Any

from django.db.models.signals import post_delete, post_save, pre_delete, pre_save

from ..signals import rules_changed
from .change import RateLimitRevision
from .rule import RateLimitRule
from .tracked import Tracked, note

TRACKED = {f"django_ratelimit_lua.{name}" for name in ("ratelimitrule", "ratelimittier", "ratelimitoverride")}


def _owner(instance: Any, using: str) -> Any:
    """The row whose change this is, as it is in the database; None if it is not there."""
    row = type(instance)._base_manager.using(using).filter(pk=instance.pk).first() if instance.pk else None
    owners = instance.owners([instance if row is None else row]) if isinstance(instance, Tracked) else []
    return next((owner for owner in owners if row is not None or type(owner) is not type(instance)), None)


def _before(sender: Any, instance: Any, using: str, **kwargs: Any) -> None:
    if sender._meta.label_lower not in TRACKED:
        return
    if isinstance(instance, Tracked):
        instance.prepare()  # Fixtures do not come through `save`.
        owner = _owner(instance, using)
        vars(instance)["_ratelimit_before"] = None if owner is None else owner.declared()


def _after(sender: Any, instance: Any, using: str, origin: Any = None, **kwargs: Any) -> None:
    if sender._meta.label_lower not in TRACKED:
        return
    if not isinstance(instance, Tracked):  # A migration's model.
        RateLimitRevision.rise(using, rebuild=True)
        rules_changed.send(RateLimitRevision, using=using)
        return
    model = getattr(origin, "model", type(origin))
    if model is RateLimitRule and not isinstance(instance, RateLimitRule) and instance.owners([instance]) != [instance]:
        return  # A tier that goes with its rule.
    before = vars(instance).pop("_ratelimit_before", None)
    owner = _owner(instance, using)
    after = None if owner is None else owner.declared()
    note(using, [(owner if owner is not None else instance, before, after)])


def connect() -> None:
    """Start noting."""
    for signal in (pre_save, pre_delete):
        signal.connect(_before, dispatch_uid="django_ratelimit_lua.before")
    for signal in (post_save, post_delete):
        signal.connect(_after, dispatch_uid="django_ratelimit_lua.after")
