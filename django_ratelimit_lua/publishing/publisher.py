"""From the database to Redis: the snapshot of the rules and overrides.

Only committed rows are published, and an older state never replaces a newer one. A part that has
not changed is not sent again. The snapshot contains the id of its database. The rules of another
database are never replaced, unless an operator requests it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from django.db import DatabaseError, connections, transaction
from django.db.models import Model, QuerySet
from django.utils import timezone

from ..conf import conf
from ..engine.deny_cache import deny_cache
from ..exceptions import StoreError
from ..identity import key_id, key_ids, secrets_by_id
from ..limits import program
from ..limits.call import NO_RULES, Revision
from ..models import RateLimitChange, RateLimitOverride, RateLimitRevision
from ..models.change import RevisionRow
from ..models.rule import rules_database
from ..process.tasks import JobRunner
from ..rules import provider
from ..rules.snapshot import EVERY_SECTION, FORMAT, SECTIONS, Snapshot, split_tags
from ..rules.status import freshness, problems
from ..store import BACKGROUND_SECONDS, get_store, rules_key
from .parts import BATCH, encode_part, read_rules, read_sections

logger = logging.getLogger("django_ratelimit_lua")
T = TypeVar("T")
SCRIPT = program.source("publishing/publish").encode()
ATTEMPTS = 50
MAX_PRUNED = 100_000
"""Maximum number of rows that one publication deletes."""


class DatabaseJobRunner(JobRunner):
    """Runs jobs with their own database connections, which see only committed rows."""

    def submit(self, job: Callable[[], T]) -> Future[T] | None:
        """Run a job in a thread, and close its connections. None: no thread can be started."""

        def close_after() -> T:
            try:
                return job()
            finally:
                connections.close_all()

        return super().submit(close_after)


restoring = DatabaseJobRunner()
"""Publishes what Redis has lost."""
publishing_committed = DatabaseJobRunner()
"""Publishes for a thread that is inside a transaction."""


class Published(NamedTuple):
    """The state of the published snapshot.

    - `database`: the id of its database, or empty;
    - `keys`: the ids of the keys with which overrides were digested;
    - `sections`: the tags of the sections.
    """

    revision: Revision
    database: str
    keys: str
    format: int
    sections: str


class OwnerError(StoreError):
    """Another database, or a newer version of this package, has published its rules.

    They are not replaced.
    """


def _newer_format_problem(form: int) -> str:
    """Return why rules of a newer format are not replaced, and what to do."""
    return (
        "a newer version of django_ratelimit_lua has published the rules in format "
        f"{form}; this version writes format {FORMAT}. A process of the newer version "
        "will publish the change. If none is running any more, run `manage.py ratelimit "
        "publish --take-over`"
    )


def read_published() -> Published:
    """Read the state of the published snapshot. Raises `StoreError`."""
    fields = (b"revision", b"database", b"keys", b"format", b"sections")
    store = get_store(background=True)
    try:
        text, database, keys, form, sections = store.execute(b"HMGET", rules_key(), *fields)
    except StoreError as error:
        if "WRONGTYPE" not in str(error):
            raise
        key = rules_key().decode()
        raise StoreError(f"the key {key!r} is not a hash of rules. Delete it in Redis") from error
    owner = (database or b"").decode(errors="replace")
    ids = (keys or b"").decode(errors="replace")
    tags = (sections or b"").decode(errors="replace")
    try:
        return Published(Revision.read(text or b"0"), owner, ids, int(form or 0), tags)
    except ValueError:  # It was edited by hand, and is replaced.
        return Published(NO_RULES, owner, "", 0, "")


def is_in_transaction(using: str) -> bool:
    """Return whether this thread is inside a transaction, which may be rolled back.

    The transaction of a test case does not count: no other connection can see its rows, so its
    thread has to publish.
    """
    database = connections[using]
    if database.connection is None:
        return False
    if not database.in_atomic_block:
        return not database.get_autocommit()
    try:
        with transaction.atomic(using, durable=True):
            pass
    except RuntimeError:  # Django allows no durable block inside another block.
        return True
    return False


def is_in_memory(using: str) -> bool:
    """Return whether the database is SQLite's in memory, of which each thread has its own."""
    database = connections[using]
    return database.vendor == "sqlite" and database.settings_dict["NAME"] == ":memory:"


def is_private(using: str) -> bool:
    """Return whether no other thread sees the rows of this thread, committed or not."""
    is_test_case = connections[using].in_atomic_block and not is_in_transaction(using)
    return is_test_case or is_in_memory(using)


def publish(*, rebuild: bool = False, take_over: bool = False) -> int:
    """Publish the committed rows of the database, unless they are published already.

    With `rebuild`, publish everything again. With `take_over`, also replace the snapshot of another
    database. If Redis has a revision that the database does not have, the database continues from
    that number. That is so if the database is an older copy, even if rows were changed in it
    afterwards. Inside a transaction, a thread publishes, because it sees only committed rows.

    Return the number of the revision. Raises `StoreError` (`OwnerError` if another database owns
    the prefix), and errors of the database.
    """
    using = rules_database()
    if is_in_transaction(using):
        return _publish_in_thread(rebuild=rebuild, take_over=take_over)
    if rebuild:
        with transaction.atomic(using, durable=True):
            RateLimitRevision.increment(using)
    for _ in range(ATTEMPTS):
        revision = _publish_once(using, take_over=take_over)
        if revision is not None:
            return revision
    raise StoreError("rules are being changed too fast to be published")


def _publish_once(using: str, *, take_over: bool) -> int | None:
    """Publish the rows as they are now, and return the number of the published revision.

    None: the database or Redis was changed, so that the rows have to be read again.
    """
    # Redis first: what it has was committed before, so the database has the same or more.
    published = read_published()
    with transaction.atomic(using, durable=True):
        row = RateLimitRevision.read(using)
        provider.set_database(row.database)
        is_published = row.text == published.revision.text
        has_newer_format = published.format > FORMAT
        if not take_over:
            _check_owner(published, is_published=is_published)
        lacks_digests = (take_over or not has_newer_format) and _lacks_digests(row, published)
        if is_published and not lacks_digests:
            return row.revision
        is_of_other_history = row.revision <= published.revision.number
        if lacks_digests or is_of_other_history:
            # The rows are published at a higher number, with the next try.
            RateLimitRevision.increment(
                using,
                rules=False,
                sections=EVERY_SECTION if lacks_digests else (),
                beyond=published.revision.number,
                seen=row,
            )
            return None
        rules = _read_changed_rules(using, row, published)
        sections = _read_changed_sections(using, row, published)
        # If each statement sees later commits, these may be the rules of two revisions.
        if RateLimitRevision.read(using) != row:
            return None
    if not _write_snapshot(row, rules, sections, take_over=take_over):
        return None
    _prune_or_warn(using)
    return row.revision


def _check_owner(published: Published, *, is_published: bool) -> None:
    """Raise `OwnerError` if another database or a newer version owns the prefix."""
    if not provider.check_owner(published.database):
        raise OwnerError(problems.owner)
    if published.format > FORMAT and not is_published:
        raise OwnerError(_newer_format_problem(published.format))


def _write_snapshot(
    row: RevisionRow, rules: bytes, sections: Sequence[bytes], *, take_over: bool
) -> bool:
    """Write the snapshot to Redis. Return False if another process has published since."""
    provider.written.add(rules_key())
    arguments = (
        row.text,
        row.database.encode(),
        b"%d" % take_over,
        b"%d" % FORMAT,
        key_ids().encode(),
        get_store().channel(conf.CACHE_PREFIX),
        rules,
        row.sections.encode(),
        *sections,
    )
    store = get_store(background=True)
    if store.execute(b"EVAL", SCRIPT, b"1", rules_key(), *arguments) != row.text:
        return False
    provider.check_owner(row.database)
    deny_cache.clear()
    freshness.expire()
    return True


def _prune_or_warn(using: str) -> None:
    """Delete outdated rows. If that fails, the next publication deletes them."""
    try:
        prune_outdated(using)
    except DatabaseError as error:  # The rules are published all the same.
        logger.warning("Ended overrides could not be deleted: %s", error)


def _lacks_digests(row: RevisionRow, published: Published) -> bool:
    """Return whether published sections that would stay lack digests with the current keys."""
    if published.keys == key_ids():
        return False
    if published.revision.tags().overrides == row.overrides.encode():  # All sections would stay.
        return key_id() not in published.keys.split(",")
    return len(_changed_sections(row, published)) < SECTIONS


def _changed_sections(row: RevisionRow, published: Published) -> Collection[int]:
    """Return the numbers of the sections that are not published as they are in the database."""
    known = published.sections if published.database == row.database else ""
    published_tags = dict(enumerate(split_tags(known)))
    tags = enumerate(split_tags(row.sections))
    return [number for number, tag in tags if published_tags.get(number) != tag]


def _read_changed_rules(using: str, row: RevisionRow, published: Published) -> bytes:
    """Return the encoded rules; empty if they are published already."""
    is_same_database = published.database == row.database
    if is_same_database and published.revision.tags().rules == row.rules.encode():
        return b""
    return encode_part(read_rules(using, row))


def _read_changed_sections(using: str, row: RevisionRow, published: Published) -> list[bytes]:
    """Return all encoded sections. Those that are published already are empty.

    If the keys of digests have changed, also store the digests that were made with removed keys
    anew.
    """
    sections = [b""] * SECTIONS
    changed = _changed_sections(row, published)
    for number, section in read_sections(using, row, changed).items():
        sections[number] = encode_part(section)
    if changed and published.keys != key_ids():
        _redigest_subjects(using)
    return sections


def _publish_in_thread(**options: bool) -> int:
    """Publish in another thread: its connection sees only committed rows."""
    published = publishing_committed.submit(partial(publish, **options))
    if published is None:
        raise StoreError("no thread can be started to publish the rules")
    try:
        return published.result(BACKGROUND_SECONDS)
    except TimeoutError:
        if published.done():
            raise
        raise StoreError("the rules are still being published") from None


def snapshot_of(using: str) -> Snapshot:
    """Return the snapshot of a database, as it would be published."""
    row = RateLimitRevision.read(using)
    sections = read_sections(using, row, EVERY_SECTION).values()
    rules, *overrides = [
        json.loads(encode_part(part)) for part in (read_rules(using, row), *sections)
    ]
    return Snapshot(Revision.read(row.text), row.database, rules, overrides)


def _overrides_of_removed_keys(using: str) -> QuerySet[RateLimitOverride]:
    """Return overrides for users and networks whose key is unknown.

    They are read without recording changes, because their content does not change.
    """
    return (
        RateLimitOverride._base_manager.using(using)
        .filter(field="", client_digest="")
        .exclude(digested_by__in=secrets_by_id())
    )


def _redigest_subjects(using: str) -> None:
    """Recompute the digests of users and networks that were made with a removed key.

    The digests of field values cannot be recomputed, because the values are not stored. A system
    check reports them.
    """
    rows = _overrides_of_removed_keys(using).iterator(chunk_size=BATCH)
    while chunk := list(islice(rows, BATCH)):
        for row in chunk:
            row.prepare()
        RateLimitOverride._base_manager.using(using).bulk_update(chunk, ["subject", "digested_by"])


def outdated_rows(using: str, before: datetime) -> dict[str, QuerySet[Model]]:
    """Return the rows from before a moment: ended overrides and changes."""
    return {
        "ended overrides": RateLimitOverride._base_manager.using(using)
        .filter(ends__lt=before)
        .order_by("ends"),
        "changes": RateLimitChange._base_manager.using(using).filter(at__lt=before).order_by("at"),
    }


def prune_outdated(using: str) -> None:
    """Delete the rows that are older than `RATELIMIT_HISTORY_DAYS`.

    Nothing that is in force changes, so no change is recorded.
    """
    if conf.HISTORY_DAYS is not None:
        prune_rows(using, timezone.now() - timedelta(days=conf.HISTORY_DAYS), MAX_PRUNED)


def prune_rows(using: str, before: datetime, maximum: int | None = None) -> dict[str, int]:
    """Delete the rows of `outdated_rows`, a thousand at a time, with a maximum for each kind.

    Return the number of deleted rows of each kind.
    """
    counts = {}
    for name, rows in outdated_rows(using, before).items():
        counts[name] = 0
        while maximum is None or counts[name] < maximum:
            keys = list(rows.values_list("pk", flat=True)[:BATCH])
            if not keys:
                break
            # Without signals, which would record a change.
            rows.filter(pk__in=keys)._raw_delete(using)
            counts[name] += len(keys)
    return counts
