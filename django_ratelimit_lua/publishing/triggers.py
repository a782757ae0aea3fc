"""The events after which rules are published.

They are published after each change, after migrations, and when Redis was emptied. A publication
that fails is repeated until it succeeds.
"""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError, Future
from functools import partial

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from ..extension import extensions
from ..models import RateLimitRevision
from ..models.rule import rules_database
from ..process.tasks import Task
from ..rules import provider
from ..rules.snapshot import Snapshot
from ..rules.status import problems
from ..signals import rules_changed
from ..store import acquire_lock, get_store, rules_key
from . import publish
from .publisher import (
    DatabaseJobRunner,
    OwnerError,
    is_in_memory,
    is_private,
    restoring,
    snapshot_of,
)

logger = logging.getLogger("django_ratelimit_lua")
RETRY_SECONDS = 2.0
UNMIGRATED = (
    "django_ratelimit_lua is installed, but not migrated: rules cannot be edited, and "
    "only the rules of the settings and of Redis apply. Run `manage.py migrate`."
)


def restore_rules(seconds: float, rebuild: bool = False) -> bool:
    """Publish the rules of the database if they are not published, or to `rebuild` them.

    Return whether the published rules are those of the database. If the database cannot be read, a
    background task keeps trying. The rules are published in another thread, because its connection
    sees only committed rows, and a request waits for that for at most `seconds` seconds. If no
    other thread can see the rows, as in the transaction of a test case, the calling thread
    publishes.
    """
    failure = "The rules in the database cannot be read or published: %s"
    restore = partial(_publish_or_retry, failure, rebuild=rebuild)
    if is_private(rules_database()):
        return restore()
    if publishing.is_running or restoring.is_busy:
        return False  # Another request does it. Requests in between use the known rules.
    restored = restoring.submit(restore)
    if restored is None:
        return False
    try:
        return restored.result(max(0.0, seconds))
    except (TimeoutError, CancelledError):  # It takes longer, or the process ends.
        return False


def _publish_or_retry(failure: str, *, rebuild: bool = False) -> bool:
    """Publish the rules of the database, and return whether that succeeded.

    A failure is reported. If another try may succeed, it is made in the background.
    """
    global unpublished, _pause
    try:
        publish(rebuild=rebuild)
    except OwnerError as error:  # Trying again does not help.
        problems.unpublished = unpublished = str(error)
        if not problems.owner:  # Otherwise it is logged.
            _warn("A change of the rules is saved, but not published by this process: %s", error)
    except Exception as error:
        unpublished = str(error)
        if _report_failure(failure, error):
            _pause = RETRY_SECONDS
            _start_publishing()
    else:
        _clear_problems()
        return True
    return False


def read_database(seconds: float, begin: provider.Begin) -> Snapshot | None:
    """Return the rules of the database, as this version would publish them.

    None if they cannot be read within `seconds` seconds. `begin` is called with them, however
    late.
    """
    using = rules_database()
    if is_private(using):
        return _read_or_warn(using)
    result: Future[Snapshot | None] = Future()

    def read() -> None:
        snapshot = _read_or_warn(using)
        result.set_result(snapshot)
        if snapshot is not None:
            begin(snapshot)

    if reading.is_busy or reading.submit(read) is None:
        return None
    try:
        return result.result(max(0.0, seconds))
    except TimeoutError:
        return None


def _read_or_warn(using: str) -> Snapshot | None:
    """Return the rules of a database. If they cannot be read, log a warning, and return None."""
    try:
        return snapshot_of(using)
    except Exception as error:
        _warn("The rules in the database cannot be read: %s", error)
        return None


def check_published() -> None:
    """Start to compare the published rules with the database, and to publish if they differ.

    Without an edit, they differ if the database was restored from a backup, if its replica has
    taken over without the last edits, or if the published rules are lost or old and no process has
    newer ones. Only one of all processes publishes.
    """
    if not problems.database:  # There is nothing to see before it is migrated.
        _start_publishing()


def _start_publishing() -> None:
    """Start the background task that publishes, unless no other thread sees the rows."""
    if not is_in_memory(rules_database()):
        publishing.start()


def _compare_and_publish() -> None:
    """Publish the rules if it is due: after a failure, or if no other process has compared them."""
    failure = "The published rules cannot be compared with those of the database: %s"
    try:
        # While the id of this database is unknown, each process has to find out.
        is_due = _pause or provider.database is None or problems.unpublished
        if is_due or acquire_lock(_lock_key(), provider.COMPARE_SECONDS):
            _publish_or_retry(failure, rebuild=_pause > 0)
    except Exception as error:
        _report_failure(failure, error)
    finally:
        connections[rules_database()].close()


_pause = 0.0
"""Seconds until the next try, after one that has failed."""
publishing = Task(
    "publishing",
    _compare_and_publish,
    delay=lambda: _pause,
    meanwhile="the rules that were published last stay in force",
)
reading = DatabaseJobRunner()


def _lock_key() -> bytes:
    """Return the key of the lock by which one process compares for all."""
    return rules_key() + b":" + (provider.database or "").encode() + b":compared"


def before_migration() -> None:
    """Report no problem of the database until the migration ends: tables may be missing."""
    global _is_migrating
    _is_migrating = True


def after_migration(using: str, *, has_changed: bool) -> None:
    """Publish the rules after a migration that `has_changed` anything.

    If they removed the tables, delete the published rules.
    """
    global _is_migrating
    _is_migrating = False
    if using != rules_database() or not has_changed:
        return
    try:
        tables = connections[using].introspection.table_names()
        if RateLimitRevision._meta.db_table not in tables:
            get_store(background=True).execute(b"DEL", rules_key())
            return
        row = RateLimitRevision.read(using)
        provider.set_database(row.database)
        if row.revision:
            publish(rebuild=True)
        _clear_problems()
    except Exception as error:  # Whatever it is, the migration is done.
        logger.error(
            "The rules are migrated, but not published: %s. Run `manage.py ratelimit publish`.",
            error,
        )


_warned = False
_is_migrating = False
unpublished = ""
"""Why the last change that this process has made is not live yet; empty: it is."""


def _warn(message: str, error: Exception) -> None:
    """Log a warning once, until the problem is resolved, but none during a migration."""
    global _warned
    if not (_warned or _is_migrating):
        _warned = True
        logger.warning(message, error)


def migration_problem(*, with_annexes: bool = False) -> str:
    """Return what to do if the app, or one of its optional apps, is installed but not migrated.

    The result is empty if all are migrated, or if the database is unavailable.
    """
    from django.db.migrations.loader import MigrationLoader  # Used for reports only.

    try:
        loader = MigrationLoader(connections[rules_database()])
    except Exception:
        return ""

    def is_behind(label: str) -> bool:
        return any(node not in loader.applied_migrations for node in loader.graph.leaf_nodes(label))

    if is_behind(RateLimitRevision._meta.app_label):
        return UNMIGRATED
    apps = ", ".join(
        f"django_ratelimit_lua.contrib.{extension.name}"
        for extension in extensions
        if with_annexes and is_behind(f"ratelimit_{extension.name}")
    )
    if not apps:
        return ""
    return f"apps are installed, but not migrated: {apps}. Run `manage.py migrate`."


def _report_failure(message: str, error: Exception) -> bool:
    """Report a failure, and return whether to try again: not if a migration is missing."""
    problem = migration_problem()
    if _is_migrating or not problem:
        _warn(message, error)
        return True
    if not problems.database:
        problems.database = problem
        logger.error("%s", problem)
    return False


def _clear_problems() -> None:
    """Record that the rules are published, and log it if a warning was logged before."""
    global _warned, unpublished, _pause
    problems.database = problems.unpublished = unpublished = ""
    _pause = 0.0
    if _warned:
        _warned = False
        logger.warning("The rules are published again")


def _publish_committed() -> None:
    """Publish a change that is committed now. `when_committed` recognises this function."""
    _publish_or_retry("A change of the rules is saved, but not published yet: %s")


def when_committed(using: str = DEFAULT_DB_ALIAS, **kwargs: object) -> None:
    """Publish once when the transaction is committed, however many changes it has.

    The publication runs before other callbacks: if one of them fails, Django runs none of those
    after it.
    """
    database = connections[using]
    if any(callback[1] is _publish_committed for callback in database.run_on_commit):
        return
    transaction.on_commit(_publish_committed, using=using)
    pending = database.run_on_commit
    # A test case never commits. `captureOnCommitCallbacks` recognises new callbacks by their
    # position.
    is_test = any(getattr(block, "_from_testcase", False) for block in database.atomic_blocks)
    if not is_test and pending and pending[-1][1] is _publish_committed:
        pending.insert(0, pending.pop())


def connect() -> None:
    """Publish when rules change, and when a process finds Redis empty."""
    rules_changed.connect(when_committed, dispatch_uid="django_ratelimit_lua.publishing.publish")
    provider.connect(restore_rules, read_database, check_published)
