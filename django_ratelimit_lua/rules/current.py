"""The rules this process goes by, and where newer ones come from: Redis, else the database, else its own memory."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, cast

from django.apps import apps
from django.core.signals import setting_changed

from ..conf import conf
from ..deny import denials
from ..exceptions import StoreError
from ..limits.call import StaleRules
from ..process import renew_after_fork
from ..store import get_store
from .problems import problems
from .ruleset import Ruleset, admin_rule, settings_rules

logger = logging.getLogger("django_ratelimit_lua")
REVISION, SNAPSHOT = b"revision", b"rules"

republish: Callable[[Mapping[str, Any] | None, float], None] | None = None
"""Publishes from the database, or this snapshot where that cannot be read, and is waited for so many seconds; `healing`
puts itself here."""

_ruleset: Ruleset | None = None
_snapshot: Mapping[str, Any] | None = None
_lock = Lock()
_verified_at = float("-inf")


@renew_after_fork
def _renew() -> None:
    global _lock
    _lock = Lock()


def fence_key() -> bytes:
    """The key of the hash in Redis: the revision, the snapshot, and what overrides say of each subject."""
    return conf.CACHE_PREFIX + b"{rules}"


def _fence() -> bytes | None:
    """That key, where there are rows to edit rules in, so that every call asks whether it goes by the current ones."""
    return fence_key() if apps.is_installed("django_ratelimit_lua") else None


def current() -> Ruleset | None:
    """The rules this process goes by; None before it has loaded any. Raises `ImproperlyConfigured`."""
    global _ruleset
    if _ruleset is None and _snapshot is not None:
        _ruleset = Ruleset(settings_rules(), _snapshot, _fence())  # Only the settings have changed.
    return _ruleset


def load(stale: StaleRules | None = None, until: float | None = None) -> Ruleset:
    """Load the rules, the first time or because a call went by stale ones; those that are known where that takes
    longer than to a moment of the monotonic clock (None: as long as a decision may take). Blocks; raises
    `ImproperlyConfigured` only for the rules of the settings."""
    global _ruleset
    until = time.monotonic() + conf.TIMEOUT if until is None else until
    # Whoever waits for a database that does not answer waits alone: the others go on with what they know.
    lock = _lock
    if not lock.acquire(timeout=max(0.0, until - time.monotonic())):
        return _ruleset if _ruleset is not None else Ruleset(settings_rules())
    try:
        known = _ruleset
        if known is not None and (stale is None or known.revision == stale.current):
            return known  # Another thread was faster.
        declared = settings_rules()
        fence = _fence()
        if fence is None:
            _ruleset = Ruleset(declared)
            return _ruleset
        try:
            snapshot = _fetch(until)
            if republish is not None and (_revision(snapshot) == 0 or _revision(snapshot) < _revision_of(known)):
                # Redis is new, or was emptied, or restored from an older copy.
                memory = known.snapshot if known is not None and known.revision else None
                # Half of the time that is left, so that some is left to ask by what is known.
                republish(memory, (until - time.monotonic()) / 2)
                snapshot = _fetch(until)
                if known is not None and _revision(snapshot) == 0:
                    snapshot = known.snapshot  # It takes longer than there is time: go by what is known.
        except StoreError:
            snapshot = known.snapshot if known is not None else {}
        _ruleset = Ruleset(declared, snapshot, fence)
        denials.clear()
        return _ruleset
    finally:
        lock.release()


def reload() -> Ruleset:
    """The rules as they are published now. Blocks; raises as `load` does."""
    return load(StaleRules(-1))


def is_due(ruleset: Ruleset) -> bool:
    """Whether a request that meets no rule has to ask whether that is still so."""
    age = conf.RULES_MAX_AGE or 0.0
    return ruleset.fence is not None and (age == 0.0 or time.monotonic() - _verified_at >= age)


def verified() -> None:
    """Note that the rules of this process were the current ones just now."""
    global _verified_at
    _verified_at = time.monotonic()


def start_fresh() -> None:
    """Go by the settings alone, until Redis says that there are other rules; for tests, whose keys are new."""
    global _ruleset, _snapshot
    _ruleset, _snapshot = None, {}
    problems.clear()


def _revision(snapshot: Mapping[str, Any]) -> int:
    return int(snapshot.get("revision", 0))


def _revision_of(ruleset: Ruleset | None) -> int:
    return 0 if ruleset is None else ruleset.revision


def _fetch(until: float) -> Mapping[str, Any]:
    """The snapshot in Redis; empty where there is none, or none that can be read. Raises `StoreError`."""
    text = get_store().ask(b"HGET", fence_key(), SNAPSHOT, until=until)
    try:
        snapshot = json.loads(text or b"{}")
        _revision(snapshot)
    except (ValueError, AttributeError, TypeError) as error:
        logger.error("The rules in Redis cannot be read: %s", error)
        return {}
    return cast("Mapping[str, Any]", snapshot)


def _settings_changed(*, setting: str, **kwargs: object) -> None:
    global _ruleset, _snapshot
    if setting in ("RATELIMIT_CACHE_PREFIX", "RATELIMIT_USE_CACHE", "CACHES", "INSTALLED_APPS"):
        _ruleset = _snapshot = None
    elif setting.startswith("RATELIMIT_"):
        _snapshot = _snapshot if _ruleset is None else _ruleset.snapshot
        _ruleset = None
        admin_rule.cache_clear()


setting_changed.connect(_settings_changed, dispatch_uid="django_ratelimit_lua.rules")
