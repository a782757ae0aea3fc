"""From the database to Redis: the snapshot of the rules, and the overrides of each subject.

Only committed rows are published, and older rules never replace newer ones: a process sends the
revision that was published when it read the database. If another process has published since then,
it reads the database again. Only subjects with changed overrides are written, or all subjects if it
is unknown which have changed. The snapshot contains the id of its database. The rules of another
database are never replaced, unless an operator requests it.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple, TypeVar

from django.conf import settings
from django.db import DatabaseError, connections, models, router, transaction
from django.utils import timezone

from ..conf import conf
from ..engine.deny_cache import deny_cache
from ..exceptions import LimitError, StoreError
from ..extension import extensions
from ..identity import key_id, key_ids, secrets_by_id
from ..limits import program
from ..limits.call import Revision
from ..models import (
    RateLimitChange,
    RateLimitHost,
    RateLimitOverride,
    RateLimitRevision,
    RateLimitRule,
)
from ..models.change import Risen
from ..models.override import OverrideQuerySet, microseconds
from ..process.tasks import Errand
from ..rules import provider
from ..rules.freshness import freshness
from ..rules.overrides import Override, is_field, write_record
from ..rules.problems import problems
from ..rules.ruleset import EVERY_RULE
from ..rules.snapshot import FORMAT, Snapshot
from ..store import PATIENCE, get_store, rules_key
from .cleanup import ended, sweep

logger = logging.getLogger("django_ratelimit_lua")
T = TypeVar("T")
SCRIPT = program.source("publishing/publish").encode()
ATTEMPTS = 50
MAX_SUBJECTS = 5000
"""Maximum number of changed subjects that are written one by one; beyond that, all are written."""
BATCH = 1000
STAGED_SECONDS = 600
SWEPT = b"swept"
"""The field with the moment until which ended overrides were removed, in microseconds since 1970.
"""


class DatabaseErrand(Errand):
    """One-off work in a thread with its own database connections, which see only committed rows."""

    def give(self, work: Callable[[], T]) -> Future[T] | None:
        def close_after() -> T:
            try:
                return work()
            finally:
                connections.close_all()

        return super().give(close_after)


healing = DatabaseErrand()
committed = DatabaseErrand()


class Published(NamedTuple):
    """The state of the published snapshot.

    - `database`: the id of its database, or empty;
    - `keys`: the ids of the keys with which subjects were digested;
    - `swept`: the moment up to which ended overrides were removed, if that is known.
    """

    revision: Revision
    database: str
    keys: str
    format: int
    swept: datetime | None

    @property
    def tag(self) -> str:
        return self.revision.text.partition(b"-")[2].decode()


class OwnerError(StoreError):
    """Another database, or a newer version of this package, has published its rules.

    They are not replaced.
    """


def _newer_problem(form: int) -> str:
    return (
        "a newer version of django_ratelimit_lua has published the rules in format "
        f"{form}; this version writes format {FORMAT}. A process of the newer version "
        "will publish the change. If none is running any more, run `manage.py ratelimit "
        "rules adopt`"
    )


def read_published() -> Published:
    """Read the state of the published snapshot. Raises `StoreError`."""
    fields = (provider.REVISION, provider.DATABASE, provider.KEYS, provider.FORMAT, SWEPT)
    text, database, keys, form, swept = get_store(background=True).execute(
        b"HMGET", rules_key(), *fields
    )
    moment = None
    if swept is not None:
        # As the database has moments: without a zone if `USE_TZ` is off.
        zone = None
        if settings.USE_TZ:
            zone = UTC
        moment = datetime.fromtimestamp(int(swept) / 1_000_000, zone)
    owner = (database or b"").decode()
    digested_by = (keys or b"").decode()
    return Published(Revision.read(text or b"0"), owner, digested_by, int(form or 0), moment)


def primary() -> str:
    """Return the alias of the database that rules are written to, and published from."""
    return router.db_for_write(RateLimitRule)


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
            return False
    except RuntimeError:
        return True


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

    With `rebuild`, publish all overrides again. With `take_over`, also replace the snapshot of
    another database. If Redis has a revision that the database does not have, the database
    continues from that number. That is so if the database is an older copy, even if rows were
    changed in it afterwards. Inside a transaction, a thread publishes, because it sees only
    committed rows.

    Return the number of the revision. Raises `StoreError` (`OwnerError` if another database owns
    the prefix), and errors of the database.
    """
    using = primary()
    if is_in_transaction(using):
        return _in_a_thread(rebuild=rebuild, take_over=take_over)
    for _ in range(ATTEMPTS):
        # Redis first: what is there was committed before, so the database can only be level or
        # ahead.
        published = read_published()
        with transaction.atomic(using, durable=True):
            row = RateLimitRevision.read(using)
            provider.note_database(row.database)
            if not take_over and not provider.note_owner(published.database):
                raise OwnerError(problems.owner)
            if published.format > FORMAT and not take_over:
                if row.text == published.revision.text:
                    return row.number
                raise OwnerError(_newer_problem(published.format))
            if _has_to_rise(row, published, rebuild):
                RateLimitRevision.rise(
                    using, rebuild=True, beyond=published.revision.number, seen=row
                )
                continue
            if row.text == published.revision.text:
                return row.number
            moment = timezone.now()
            changed = None
            if not rebuild:
                changed = _changed_since(using, row, published, moment)
            if changed is None:
                _digest_anew(using)
            snapshot = _snapshot(using, row)
            overrides = RateLimitOverride.objects.using(using).lasting()
            keys = [rules_key()]
            written: dict[bytes, bytes] = {}
            if changed is None:
                keys.append(stage(overrides, row))
            else:
                written.update(_records(overrides.filter(subject__in=changed)))
            removed = {digest.encode() for digest in changed or ()} - written.keys()
            written[SWEPT] = b"%d" % microseconds(moment)
            # If each statement sees later commits, these may be the rules of two revisions.
            if RateLimitRevision.read(using) != row:
                continue
        arguments = (
            published.revision.text,
            row.text,
            _written(snapshot),
            row.database.encode(),
            key_ids().encode(),
            b"%d" % take_over,
            b"%d" % FORMAT,
            get_store().channel(conf.CACHE_PREFIX),
            b"%d" % len(removed),
            *removed,
            *(part for pair in written.items() for part in pair),
        )
        provider.written.add(keys[0])
        store = get_store(background=True)
        # Unless another process has published since.
        if store.execute(b"EVAL", SCRIPT, b"%d" % len(keys), *keys, *arguments) == row.text:
            provider.note_owner(row.database)
            deny_cache.clear()
            freshness.expire()
            _sweep(using)
            return row.number
    raise StoreError("rules are being changed too fast to be published")


def _sweep(using: str) -> None:
    try:
        sweep(using)
    except DatabaseError as error:  # The rules are published. The next publication removes it.
        logger.warning("Ended overrides could not be deleted: %s", error)


def _has_to_rise(row: Risen, published: Published, rebuild: bool) -> bool:
    """Return whether the revision must become one that Redis has never had."""
    if row.text != published.revision.text:
        return row.number <= published.revision.number
    # An older version may have left something out; and by a key that no subject was digested with,
    # none is found.
    is_lacking = published.format != FORMAT or key_id() not in published.keys.split(",")
    return rebuild or (row.number > 0 and is_lacking)


def _in_a_thread(**options: bool) -> int:
    """Publish in another thread: its connection sees only committed rows."""
    published = committed.give(partial(publish, **options))
    if published is None:
        raise StoreError("no thread can be started to publish the rules")
    try:
        return published.result(PATIENCE)
    except TimeoutError:
        if published.done():
            raise
        raise StoreError("the rules are still being published") from None


def snapshot_of(using: str) -> Snapshot:
    """Return the snapshot of a database, as it would be published."""
    row = RateLimitRevision.read(using)
    snapshot: Snapshot = json.loads(_written(_snapshot(using, row)))
    return snapshot


def _written(snapshot: Mapping[str, object]) -> bytes:
    return json.dumps(snapshot, separators=(",", ":")).encode()


def _snapshot(using: str, row: Risen) -> Mapping[str, object]:
    overrides = RateLimitOverride.objects.using(using).lasting().order_by()
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for name, kind in overrides.order_by("kind").values_list("rule__name", "kind").distinct():
        kinds[name or EVERY_RULE].append(kind)
    of_all = overrides.filter(rule=None, effect=RateLimitOverride.Effects.BLOCK)
    field_keys: defaultdict[str, list[str]] = defaultdict(list)
    by_key = overrides.exclude(field="").order_by("digested_by")
    for kind, key in by_key.values_list("kind", "digested_by").distinct():
        if is_field(kind):
            field_keys[kind].append(key)
    return {
        "format": FORMAT,
        "revision": row.text.decode(),
        "database": row.database,
        "rules": _rules(using),
        "weights": dict(RateLimitHost.objects.using(using).values_list("name", "weight")),
        "kinds": kinds,
        "blocks": sorted(of_all.values_list("kind", flat=True).distinct()),
        "keys": list(secrets_by_id()),
        "field_keys": field_keys,
        "parts": _parts(using),
    }


def _rules(using: str) -> list[dict[str, object]]:
    stored = RateLimitRule.objects.using(using).all_declared()
    return [{**declared, "id": rule.pk} for rule, declared in stored]


def _parts(using: str) -> dict[str, object]:
    """Return the parts of the optional apps of this process, by name.

    Rules are published even if an optional app is not migrated.
    """
    parts = {}
    for extension in extensions:
        try:
            with transaction.atomic(using):
                part = extension.snapshot(using)
        except DatabaseError as error:
            text = "Skipped: the data of the app %r cannot be read from the database: %s"
            logger.error(text, extension.name, error)
        else:
            if part is not None:
                parts[extension.name] = part
    return parts


def _changed_since(
    using: str, row: Risen, published: Published, moment: datetime
) -> list[str] | None:
    """Return the digests of subjects whose overrides have changed or ended since the snapshot.

    None if they are unknown. They are known only if the published snapshot is of this database's
    history and of this format, and if the changes were recorded with the current keys.
    """
    number = published.revision.number
    if (
        number < max(row.rebuilt, 1)
        or published.swept is None
        or (published.database, published.keys, published.format)
        != (row.database, key_ids(), FORMAT)
    ):
        return None
    changes = RateLimitChange.objects.using(using)
    is_ours = (number, published.tag) == (row.rebuilt, row.rebuilt_tag) or (
        number > row.rebuilt and changes.filter(revision=number, tag=published.tag).exists()
    )
    if not is_ours or _by_forgotten_keys(using).exists():
        return None
    noted = changes.filter(revision__gt=number).exclude(subjects="")
    over = ended(using, published.swept, moment)
    if over is None or noted.exclude(digested_by=published.keys).exists():
        return None
    digests = {digest for override in over for digest in override.digests()}
    for subjects in noted.values_list("subjects", flat=True):
        digests.update(subjects.split(","))
    if len(digests) > MAX_SUBJECTS:
        return None
    return sorted(digests)


def values_by_key(using: str) -> dict[str, int]:
    """Return the number of overrides whose value was digested with an earlier key, by key."""
    overrides = RateLimitOverride.objects.using(using).lasting().order_by().exclude(field="")
    counted = overrides.exclude(digested_by=key_id()).values_list("digested_by")
    return dict(counted.annotate(models.Count("pk")))


def _by_forgotten_keys(using: str) -> models.QuerySet[RateLimitOverride]:
    """Return overrides for users, networks and client digests whose key is unknown.

    They are read without recording changes, because their content does not change.
    """
    return (
        RateLimitOverride._base_manager.using(using)
        .filter(field="")
        .exclude(digested_by__in=secrets_by_id())
    )


def _digest_anew(using: str) -> None:
    """Recompute the digests of users and networks that were made with a removed key.

    The digests of field values cannot be recomputed, because the values are not stored. A system
    check reports them.
    """
    forgotten = _by_forgotten_keys(using)
    rows = forgotten.iterator(chunk_size=BATCH)
    while chunk := list(islice(rows, BATCH)):
        for row in chunk:
            row.prepare()
        RateLimitOverride._base_manager.using(using).bulk_update(chunk, ["subject", "digested_by"])


def _records(overrides: OverrideQuerySet) -> Iterator[tuple[bytes, bytes]]:
    """Yield the record of each subject, under each of its digests.

    A field is of one kind if it is case-sensitive, and of another if not. Subjects of both kinds
    may have the same digest.
    """
    digest_of_values = models.Case(
        models.When(field="", then=models.Value("")), default=models.F("subject")
    )
    about = ("user_id", "network", "client_digest")
    ordered = overrides.alias(of_values=digest_of_values).order_by(*about, "of_values", "pk")
    rows: Iterable[RateLimitOverride] = ordered.iterator(chunk_size=BATCH)
    identify = attrgetter(*about)
    for _, of in groupby(rows, key=lambda row: (*identify(row), row.field and row.subject)):
        together = list(of)
        written = write_record([override for row in together for override in _override(row)])
        try:
            digests = together[0].digests()
        except ValueError as error:  # A row was edited by hand.
            logger.error("Skipped: the override of row %d is invalid: %s", together[0].pk, error)
            continue
        for digest in digests:
            yield digest.encode(), written


def first_records(using: str) -> dict[bytes, bytes]:
    """Return the records of all subjects or, if there are many, of a number of blocked ones.

    They are for a process that starts while Redis is unavailable.
    """
    overrides = RateLimitOverride.objects.using(using).lasting()
    if overrides.count() > MAX_SUBJECTS:
        overrides = overrides.filter(effect=RateLimitOverride.Effects.BLOCK)
    return dict(islice(_records(overrides), MAX_SUBJECTS))


def _override(row: RateLimitOverride) -> list[Override]:
    try:
        return [row.override()]
    except LimitError as error:
        logger.error("Skipped: the override of row %d is invalid: %s", row.pk, error)
        return []


def stage(overrides: OverrideQuerySet, row: Risen) -> bytes:
    """Write all overrides to a hash that expires unless it is renamed. Return its key.

    The hash contains its revision first: if Redis is emptied while the hash is written, that field
    is missing, and the hash is not used.
    """
    key = rules_key() + b":" + uuid.uuid4().hex.encode()
    store = get_store(background=True)
    records = _records(overrides)
    chunk: list[tuple[bytes, bytes]] = [(provider.REVISION, row.text)]
    while chunk:
        store.execute(b"HSET", key, *(part for pair in chunk for part in pair))
        store.execute(b"EXPIRE", key, b"%d" % STAGED_SECONDS)
        chunk = list(islice(records, BATCH))
    return key
