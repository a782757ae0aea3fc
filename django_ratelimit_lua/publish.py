"""From the database to Redis: the snapshot of the rules, and what overrides say of each subject.

Only ever forward: whoever publishes names the revision that was there when it read the database, and where somebody
else has published since, it reads again. Subjects whose overrides have changed are written one by one; all are
written anew where nobody knows which changed.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from django.db import router, transaction

from . import lua
from .deny import denials
from .exceptions import LimitError, StoreError
from .models import RateLimitChange, RateLimitOverride, RateLimitRevision, RateLimitRule
from .models.override import OverrideQuerySet
from .rules import current
from .rules.overrides import Override, record
from .rules.ruleset import EVERY_RULE
from .store import get_store

logger = logging.getLogger("django_ratelimit_lua")
SCRIPT = lua.source("publish").encode()
ATTEMPTS = 50
MOST_SUBJECTS = 5000
"""Changed subjects that are written one by one; where there are more, all are written anew."""
BATCH = 1000
STAGED_SECONDS = 600


def publish(*, rebuild: bool = False, may_rise: bool = True) -> int:
    """Publish what the database has, unless it is published; with `rebuild`, all overrides anew in any case.

    Where Redis has a revision that the database has never had, because another database or an older copy of it has
    taken over, the database goes on from there, if it `may_rise`.

    Returns the revision. Raises `StoreError`, and whatever the database raises.
    """
    using = router.db_for_write(RateLimitRule)
    for _ in range(ATTEMPTS):
        # Redis first: what is there was committed before, so the database can only be level or ahead.
        published = published_revision()
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
        if send(published, revision, snapshot, staged, removed, written) == revision:
            denials.clear()
            return revision
    raise StoreError("rules are being changed too fast to be published")


def published_revision() -> int:
    """The revision that is published; 0: none. Raises `StoreError`."""
    return int(get_store(patient=True).ask(b"HGET", current.fence_key(), current.REVISION) or 0)


def send(
    base: int,
    revision: int,
    snapshot: bytes,
    staged: bytes | None,
    removed: Sequence[bytes],
    written: dict[bytes, bytes],
) -> int:
    """Publish, if `base` is what is published; returns what is published then. Raises `StoreError`."""
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
