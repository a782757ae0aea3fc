"""When rules are published: after each change, after migrations, when Redis was emptied, and again until it works."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, router, transaction

from .exceptions import StoreError
from .models import RateLimitRevision, RateLimitRule
from .process import renew_after_fork
from .publish import publish, published_revision, send
from .rules import current
from .signals import rules_changed

logger = logging.getLogger("django_ratelimit_lua")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


def heal(snapshot: Mapping[str, Any] | None, patience: float) -> None:
    """Fill a Redis that was emptied: from the database, or where that cannot be read, with this snapshot.

    Whoever has to publish what the database has does so as soon as it can be read. A request waits for that for so many
    seconds, if the database takes longer; unless it is in the middle of a transaction, which is its thread's alone.
    """
    if connections[router.db_for_write(RateLimitRule)].in_atomic_block:
        _heal(snapshot)
        return
    if _healing.acquire(blocking=False):  # Else somebody is at it: who comes meanwhile goes by what is known.
        thread = threading.Thread(target=_heal_and_release, args=(snapshot,), name="ratelimit-heal", daemon=True)
        thread.start()
        thread.join(max(0.0, patience))


def _heal_and_release(snapshot: Mapping[str, Any] | None) -> None:
    try:
        _heal(snapshot)
    finally:
        _healing.release()


def _heal(snapshot: Mapping[str, Any] | None) -> None:
    using = router.db_for_write(RateLimitRule)
    database = connections[using]
    is_ours = database.connection is None
    try:
        # In the middle of somebody's transaction nothing is written: it may be rolled back.
        publish(may_rise=not database.in_atomic_block)
    except Exception as error:
        _warn("The rules in the database cannot be read or published: %s", error)
        _publish_memory(snapshot)
        soon()
    finally:
        if is_ours:  # Nobody else in this thread may ever close it.
            database.close()


def after_migration(using: str) -> None:
    """Publish what migrations may have done to the rules; where they took the tables away, that there are none."""
    if using != router.db_for_write(RateLimitRule):
        return
    try:
        if RateLimitRevision._meta.db_table in connections[using].introspection.table_names():
            if RateLimitRevision.read(using) == (0, 0):
                return
            publish(rebuild=True)
        elif published := published_revision():
            revision = published + 1
            send(published, revision, json.dumps({"revision": revision}).encode(), current.fence_key() + b":", [], {})
    except Exception as error:  # Whatever it is, the migration is done.
        logger.error(
            "The rules are migrated, but not published: %s; `manage.py ratelimit_rules publish` does it", error
        )


def _publish_memory(snapshot: Mapping[str, Any] | None) -> None:
    """Publish what this process knows. Overrides are in the database alone: they are missing until that answers."""
    if snapshot is None:
        return
    try:
        published, revision = published_revision(), snapshot["revision"]
        if published < revision:
            send(published, revision, json.dumps(snapshot).encode(), None, [], {})
    except StoreError as error:
        _warn("The rules cannot be published: %s", error)


_retrying, _healing = threading.Lock(), threading.Lock()
_warned = False


@renew_after_fork
def _renew() -> None:
    global _retrying, _healing
    _retrying, _healing = threading.Lock(), threading.Lock()


def _warn(message: str, error: Exception) -> None:
    """Say it once, until it was mended."""
    global _warned
    if not _warned:
        _warned = True
        logger.warning(message, error)


def soon() -> None:
    """Go on trying to publish, in a thread of its own, until that succeeds."""
    if _retrying.acquire(blocking=False):
        threading.Thread(target=_retry, name="ratelimit-publish", daemon=True).start()


def _retry() -> None:
    global _warned
    pause = FIRST_PAUSE
    try:
        while True:
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            close_old_connections()
            try:
                publish(rebuild=True)
            except Exception as error:
                _warn("The rules cannot be published: %s", error)
            else:
                if _warned:
                    _warned = False
                    logger.info("The rules are published again")
                return
    finally:
        connections.close_all()
        _retrying.release()


def _publish_committed() -> None:
    try:
        publish()
    except Exception as error:
        logger.error("A change of the rules is saved, but not published yet: %s", error)
        soon()


def when_committed(using: str = DEFAULT_DB_ALIAS, **kwargs: Any) -> None:
    """Publish once the transaction is committed; once, however much was changed in it."""
    pending = connections[using].run_on_commit
    if not any(callback[1] is _publish_committed for callback in pending):
        transaction.on_commit(_publish_committed, using=using)


def connect() -> None:
    """Publish whenever rules change, and whenever a process finds Redis empty."""
    rules_changed.connect(when_committed, dispatch_uid="django_ratelimit_lua.publish")
    current.republish = heal
