"""From the database to Redis: the snapshot of the rules, and what overrides say of each subject.

Only ever forward: whoever publishes names the revision that was there when it read the database, and where somebody
else has published since, it reads again. Subjects whose overrides have changed are written one by one; all are
written anew where nobody knows which changed.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, router, transaction

from . import lua
from .exceptions import LimitError, StoreError
from .models import RateLimitChange, RateLimitOverride, RateLimitRevision, RateLimitRule
from .models.override import OverrideQuerySet
from .rules import current
from .rules.overrides import Override, record
from .rules.ruleset import EVERY_RULE
from .signals import rules_changed
from .store import get_store

logger = logging.getLogger("django_ratelimit_lua")
SCRIPT = lua.source("publish").encode()
ATTEMPTS = 50
MOST_SUBJECTS = 5000
"""Changed subjects that are written one by one; where there are more, all are written anew."""
BATCH = 1000
STAGED_SECONDS = 600
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


def publish(*, rebuild: bool = False, may_rise: bool = True) -> int:
    """Publish what the database has, unless it is published; with `rebuild`, all overrides anew in any case.

    Where Redis has a revision that the database has never had, because another database or an older copy of it has
    taken over, the database goes on from there, if it `may_rise`.

    Returns the revision. Raises `StoreError`, and whatever the database raises.
    """
    using = router.db_for_write(RateLimitRule)
    for _ in range(ATTEMPTS):
        # Redis first: what is there was committed before, so the database can only be level or ahead.
        published = _published()
        with transaction.atomic(using):
            revision, rebuilt = RateLimitRevision.read(using)
            if may_rise and (revision < published or (rebuild and revision == published)):
                RateLimitRevision.rise(using, rebuild=True, beyond=published)
                continue
            if revision <= published:
                return revision
            snapshot = _snapshot(using, revision)
            anew = rebuild or published == 0 or published < rebuilt
            subjects = [] if anew else _changed_since(using, published)
            anew = anew or len(subjects) > MOST_SUBJECTS
            overrides = RateLimitOverride.objects.using(using).lasting()
            if anew:
                staged = _stage(overrides)
                written: dict[bytes, bytes] = {}
            else:
                staged = None
                written = dict(_records(overrides.filter(subject__in=subjects)))
        removed = [] if anew else [who.encode() for who in subjects if who.encode() not in written]
        if _send(published, revision, snapshot, staged, removed, written) == revision:
            return revision
    raise StoreError("rules are being changed too fast to be published")


def _published() -> int:
    return int(get_store(patient=True).ask(b"HGET", current.fence_key(), current.REVISION) or 0)


def _send(
    base: int,
    revision: int,
    snapshot: bytes,
    staged: bytes | None,
    removed: Sequence[bytes],
    written: dict[bytes, bytes],
) -> int:
    keys = [current.fence_key()] if staged is None else [current.fence_key(), staged]
    pairs = [part for pair in written.items() for part in pair]
    arguments = [b"%d" % base, b"%d" % revision, snapshot, b"%d" % len(removed), *removed, *pairs]
    return int(get_store(patient=True).ask(b"EVAL", SCRIPT, b"%d" % len(keys), *keys, *arguments))


def _snapshot(using: str, revision: int) -> bytes:
    overrides = RateLimitOverride.objects.using(using).lasting().order_by()
    kinds: dict[str, list[str]] = {}
    for name, kind in overrides.values_list("rule__name", "kind").distinct():
        kinds.setdefault(EVERY_RULE if name is None else name, []).append(kind)
    blocks = (
        overrides.filter(rule=None, effect=RateLimitOverride.Effects.BLOCK).values_list("kind", flat=True).distinct()
    )
    snapshot = {
        "revision": revision,
        "rules": _rules(using),
        "kinds": {name: sorted(of) for name, of in sorted(kinds.items())},
        "blocks": sorted(blocks),
    }
    return json.dumps(snapshot, separators=(",", ":")).encode()


def _rules(using: str) -> list[dict[str, Any]]:
    """All rules as declared; those that cannot even be read are skipped, and the log says so."""
    rows = RateLimitRule.objects.using(using).prefetch_related("tiers")
    try:
        with transaction.atomic(using):
            return [{**rule.declared(), "id": rule.pk} for rule in rows]
    except Exception:  # Somebody wrote to a row by hand: find out which.
        return [
            rule for pk in RateLimitRule.objects.using(using).values_list("pk", flat=True) for rule in _one(using, pk)
        ]


def _one(using: str, pk: int) -> list[dict[str, Any]]:
    try:
        with transaction.atomic(using):
            return [{**RateLimitRule.objects.using(using).get(pk=pk).declared(), "id": pk}]
    except Exception as error:
        logger.error("Skipped: the rule of row %d cannot be read: %s: %s", pk, type(error).__name__, error)
        return []


def _changed_since(using: str, revision: int) -> list[str]:
    changes = RateLimitChange.objects.using(using).filter(revision__gt=revision).exclude(subjects="")
    return sorted({who for subjects in changes.values_list("subjects", flat=True) for who in subjects.split(",")})


def _records(overrides: OverrideQuerySet) -> Iterator[tuple[bytes, bytes]]:
    rows: Iterable[RateLimitOverride] = overrides.order_by("subject", "pk").iterator(chunk_size=BATCH)
    for subject, of in groupby(rows, key=lambda row: row.subject):
        yield subject.encode(), record([override for row in of for override in _override(row)])


def _override(row: RateLimitOverride) -> list[Override]:
    try:
        return [row.override()]
    except LimitError as error:
        logger.error("Skipped: the override of row %d cannot be understood: %s", row.pk, error)
        return []


def _stage(overrides: OverrideQuerySet) -> bytes:
    """All overrides, in a hash that goes away by itself if nobody takes it."""
    key = current.fence_key() + b":" + uuid.uuid4().hex.encode()
    store = get_store(patient=True)
    records = _records(overrides)
    while chunk := list(islice(records, BATCH)):
        store.ask(b"HSET", key, *(part for pair in chunk for part in pair))
        store.ask(b"EXPIRE", key, b"%d" % STAGED_SECONDS)
    return key


def heal(snapshot: Mapping[str, Any] | None) -> None:
    """Fill a Redis that was emptied: from the database, or where that cannot be read, with this snapshot.

    Whoever has to publish what the database has does so as soon as it can be read.
    """
    try:
        # In the middle of somebody's transaction nothing is written: it may be rolled back.
        using = router.db_for_write(RateLimitRule)
        publish(may_rise=not connections[using].in_atomic_block)
    except Exception as error:
        _warn("The rules in the database cannot be read or published: %s", error)
        _publish_memory(snapshot)
        soon()


def after_migration(using: str) -> None:
    """Publish what migrations may have done to the rules; where they took the tables away, that there are none."""
    if using != router.db_for_write(RateLimitRule):
        return
    try:
        if RateLimitRevision._meta.db_table in connections[using].introspection.table_names():
            if RateLimitRevision.read(using) == (0, 0):
                return
            publish(rebuild=True)
        elif published := _published():
            revision = published + 1
            _send(published, revision, json.dumps({"revision": revision}).encode(), current.fence_key() + b":", [], {})
    except StoreError as error:
        logger.error(
            "The rules are migrated, but not published: %s; `manage.py ratelimit_rules publish` does it", error
        )


def _publish_memory(snapshot: Mapping[str, Any] | None) -> None:
    """Publish what this process knows. Overrides are in the database alone: they are missing until that answers."""
    if snapshot is None:
        return
    try:
        published, revision = _published(), snapshot["revision"]
        if published < revision:
            _send(published, revision, json.dumps(snapshot).encode(), None, [], {})
    except StoreError as error:
        _warn("The rules cannot be published: %s", error)


_retrying = threading.Lock()
_warned = False


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
            _sleep.wait(pause)
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


_sleep = threading.Event()


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
