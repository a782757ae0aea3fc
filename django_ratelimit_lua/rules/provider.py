"""The rules of this process, and where newer ones come from: Redis, the database, or memory.

The published snapshot names its database. One database owns a prefix: a process of another database
uses the rules that its own database had when they were loaded, publishes nothing, and reports which
setting to change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from types import NoneType
from typing import TypeVar

from django.apps import apps

from ..conf import conf, on_change
from ..exceptions import StoreError
from ..limits.call import NO_RULES, UNKNOWN, Revision, StaleRules
from ..limits.program import Program, source
from ..process import Clock
from ..process.forks import renew_after_fork
from ..process.tasks import JobRunner
from ..store import BACKGROUND_SECONDS, Deadline, get_store, rules_key
from .rule import Rule
from .ruleset import Ruleset, settings_rules
from .snapshot import (
    NO_SNAPSHOT,
    RULES_MEMBERS,
    SECTIONS,
    Snapshot,
    UnreadableError,
    check_format,
    join_tags,
    parse_part,
    parse_sections,
)
from .status import freshness, problems

logger = logging.getLogger("django_ratelimit_lua")
T = TypeVar("T")
APP = "django_ratelimit_lua"
"""Whether rules can be edited: the app is installed. Then every call compares its rules."""
REVISION = b"revision"
NOT_INSTALLED = (
    f"{APP} is not in INSTALLED_APPS: only the limits of the code and of the settings apply, not "
    f'the rules of the admin, and no system check runs. Add "{APP}".'
)
_READ = Program.of(source("rules/read"))
COMPARE_SECONDS = 10.0
"""Seconds between two comparisons of the published rules with the database, during requests."""

ASK_SECONDS = 1.0
"""For how long the background waits for the answer whether there are other rules."""

MANY = 1000
"""If there are more rules or overrides, a thread of its own loads newer ones, while the old ones
stay in force.
"""

republish: Callable[[float, bool], bool]
"""Publishes the rules of the database, and is waited for at most this number of seconds; also if
they are published already but unreadable. Returns whether the published rules are those of the
database.
"""

Begin = Callable[[Snapshot], None]
read_database: Callable[[float, Begin], Snapshot | None]
"""Reads the rules of the database, as this version would publish them; None if that takes too long,
or fails. The function is called with them, however late.
"""

on_new_rules: list[Callable[[], None]] = []
"""Functions that are called whenever this process has new rules, or may have to load some, so that
caches are cleared.
"""

compare: Callable[[], None]
"""Checks in the background whether the published rules are those of the database."""

database: str | None = None
"""The id of this process's database; empty: no rule was ever saved in it; None: it could not be
read yet.
"""

REMEDY = (
    "Set RATELIMIT_CACHE_PREFIX to another value for each site. If the other database is gone, run "
    "`manage.py ratelimit publish --take-over`."
)

written: set[bytes] = set()
"""The keys under which this process has published."""

is_answered = True
"""Whether Redis has answered when rules were loaded last."""

_ruleset: Ruleset | None = None
_blind: Ruleset | None = None
"""The rules to begin with, if the database has not answered yet: those of the settings alone, while
Redis is unavailable; or the last known ones, at the revision of newer ones that cannot be read.
"""

_snapshot: Snapshot | None = None
_changes = 0
"""How often the settings have changed: rules that were read by others are not gone by."""
_lock = Lock()
_loading = JobRunner()
_unread: tuple[bytes, bytes | None] | None = None
_unanswered_at = float("-inf")
_compare_at = float("-inf")


@renew_after_fork
def _renew() -> None:
    global _lock
    _lock = Lock()


def connect(
    restore: Callable[[float, bool], bool],
    read: Callable[[float, Begin], Snapshot | None],
    check: Callable[[], None],
) -> None:
    """Set the functions that read and publish the database's rules; `publishing` calls this."""
    global republish, read_database, compare
    republish = restore
    read_database = read
    compare = check


def is_foreign(owner: object) -> bool:
    """Return whether a snapshot with this `owner` is known to be of another database."""
    return database is not None and owner not in ("", database)


def set_database(database_id: str) -> None:
    """Record the id of this process's database, once it could be read."""
    global database, _ruleset, _snapshot
    if database == database_id:
        return
    database = database_id
    # Until now the process used the published rules, whichever database they are of.
    if _ruleset is not None and is_foreign(_ruleset.snapshot.database):
        _ruleset = _snapshot = None


def check_owner(owner: str) -> bool:
    """Record and log whether another database owns the prefix.

    Return whether this process's database may publish.
    """
    problem = ""
    if is_foreign(owner):
        problem = (
            f"RATELIMIT_CACHE_PREFIX {conf.CACHE_PREFIX.decode()!r} belongs to the "
            f"database {owner}, which is not this site's database: the rules of this site "
            f"are not published. {REMEDY}"
        )
    if problem and problem != problems.owner:
        logger.error("%s", problem)
    problems.owner = problem
    return not problem


def get_ruleset() -> Ruleset | None:
    """Return the rules of this process, or None if none are loaded.

    Raises `ImproperlyConfigured`.
    """
    if Clock.monotonic() >= _compare_at:
        _compare_now_and_then()
    if _ruleset is None and _snapshot is not None:
        # Only the settings have changed.
        fence = None
        if apps.is_installed(APP):
            fence = rules_key()
        _put_in_force(Ruleset(settings_rules(), _snapshot, fence), _changes)
    return _ruleset


def _compare_now_and_then() -> None:
    global _compare_at
    _compare_at = Clock.monotonic() + COMPARE_SECONDS
    ruleset = _ruleset
    if ruleset is None or ruleset.fence is None:
        return
    compare()
    if ruleset is _blind:
        read_database(0.0, partial(_begin_with, ruleset.revision))


def loaded_ruleset() -> Ruleset | None:
    """Return the rules of this process, or None; for background work, as it loads nothing."""
    return _ruleset


def load_ruleset(stale: StaleRules | None = None, deadline: Deadline | None = None) -> Ruleset:
    """Load the rules, for the first time or because a call used stale ones.

    If that takes longer than `deadline` (default: the time of a decision), return the known ones.
    This function blocks. It raises `ImproperlyConfigured` only for the rules of the settings.
    """
    deadline = deadline or Deadline(conf.TIMEOUT)
    ruleset = _ruleset
    if ruleset is None or max(len(ruleset.rules), ruleset.overrides.number) <= MANY:
        return _load(stale, deadline)
    # A large number takes a while to read. A thread does that, and the request waits only as long
    # as leaves time to decide.
    if not _loading.is_busy and _loading.submit(partial(_load_beside, stale)) is None:
        return _load(stale, deadline)  # There is no thread for it.
    half = deadline.share(2)
    if not half.wait(_loading.wait):
        deadline.spend_share(half)
    return _ruleset or ruleset


def _load_beside(stale: StaleRules | None) -> None:
    try:
        _load(stale, Deadline(BACKGROUND_SECONDS))
    except Exception:  # This is its only report. Requests that use the old rules compare again.
        logger.exception("The rules cannot be loaded")
        raise


def _load(stale: StaleRules | None, deadline: Deadline) -> Ruleset:
    global _unanswered_at, is_answered
    lock = _lock
    if not (lock.acquire(blocking=False) or _waited_for(lock, deadline)):
        return _ruleset or Ruleset(settings_rules())
    try:
        older = _ruleset
        changes = _changes
        if older is not None and (stale is None or older.published == stale.current):
            return older  # Another thread was faster.
        declared: Sequence[Rule] = settings_rules() if older is None else older.declared
        if not apps.is_installed(APP):
            logger.warning("%s", NOT_INSTALLED)
            return _put_in_force(Ruleset(declared), changes)
        try:
            snapshot, is_blind = _published_or_best(older, deadline)
            is_answered = True
        except StoreError:
            _unanswered_at = Clock.monotonic()
            is_answered = False
            if older is not None:
                return older
            snapshot = _from_database(deadline, NO_RULES) or NO_SNAPSHOT
            is_blind = snapshot is NO_SNAPSHOT
        if older is not None and snapshot.rules is older.snapshot.rules:
            ruleset = older.renewed(snapshot, rules_key())
        else:
            ruleset = Ruleset(declared, snapshot, rules_key(), older)
        if older is not None and snapshot is older.snapshot:
            ruleset.published = NO_RULES
        return _put_in_force(ruleset, changes, is_blind=is_blind)
    finally:
        lock.release()


def _put_in_force(ruleset: Ruleset, changes: int, *, is_blind: bool = False) -> Ruleset:
    """Use these rules from now on, unless settings have changed since `changes` was read.

    Report their problems, and clear the caches that depend on earlier rules.
    """
    global _ruleset, _blind
    if changes != _changes:
        return ruleset
    _ruleset = ruleset
    _blind = None
    if is_blind:
        _blind = ruleset
    if is_foreign(ruleset.snapshot.database):
        _ruleset = None  # The id of our own database became known meanwhile, see `set_database`.
    if ruleset.snapshot is not NO_SNAPSHOT:
        problems.record_ruleset(
            {name: rule.spec for name, rule in ruleset.by_name.items()}, ruleset.problems
        )
    for function in on_new_rules:
        function()
    return ruleset


def _waited_for(lock: Lock, deadline: Deadline) -> bool:
    """Return whether a lock was acquired within half of the remaining time.

    So only one request waits for a database that does not reply, and the others continue with the
    known rules.
    """
    half = deadline.share(2)
    began = Clock.monotonic()
    is_got = half.wait(lambda seconds: lock.acquire(timeout=seconds))
    if _unanswered_at > began or not (is_got or get_store().replied_at > began):
        deadline.spend_share(half)  # The wait counts only while Redis answers no request.
    return is_got


def _within_half(deadline: Deadline, ask: Callable[..., T], argument: object) -> T:
    """Call a function with a timeout of half of the remaining time.

    That leaves time to decide by the known rules. The timeout is at most half of the time of a
    request, because others may wait for the lock.
    """
    began = Clock.monotonic()
    most = max(0.0, min(deadline.left, conf.TIMEOUT) / 2)
    answer = ask(most, argument)
    deadline.spend(began, most)
    return answer


def _from_database(deadline: Deadline, as_of: Revision) -> Snapshot | None:
    """Return the rules of the database, or None if that takes too long.

    In that case they are used as soon as the database has replied.
    """
    return _within_half(deadline, read_database, partial(_begin_with, as_of))


def _begin_with(as_of: Revision, snapshot: Snapshot) -> None:
    """Use the rules of the database, which has replied late.

    Do nothing if other rules are in use by now, or if the rules were read before the revision that
    they would replace.
    """
    with _lock:
        before = _blind
        if before is not None and _ruleset is before and before.revision == as_of:
            if before.snapshot is not NO_SNAPSHOT:  # As of the revision that cannot be read.
                snapshot = snapshot._replace(revision=as_of)
            _put_in_force(Ruleset(before.declared, snapshot, before.fence, before), _changes)


def _published_or_best(ruleset: Ruleset | None, deadline: Deadline) -> tuple[Snapshot, bool]:
    """Return the snapshot to use, and whether the database still has to reply.

    The snapshot is that of `ruleset` if nothing is published and it cannot be restored now. Raises
    `StoreError`.
    """
    snapshot, unread = _fetch(deadline, ruleset)
    is_garbage = unread is not None and not unread.is_kept
    if is_garbage or (unread is None and _may_be_wrong(snapshot, ruleset)):
        is_right = _within_half(deadline, republish, is_garbage)
        snapshot, unread = _fetch(deadline, ruleset)
        is_missing = unread is None and not snapshot.revision.number
        if is_missing and not is_right and ruleset is not None:
            return ruleset.snapshot, False  # No time, or no database: use the known rules.
    if unread is None:
        return snapshot, False
    best = _from_database(deadline, snapshot.revision)
    is_late = best is None
    if best is None:
        best = NO_SNAPSHOT
        if ruleset is not None and not is_foreign(ruleset.snapshot.database):
            best = ruleset.snapshot
    # As of that revision: it is not asked for again until something is published that may be
    # understood.
    return best._replace(revision=snapshot.revision), is_late


def reload_ruleset(deadline: Deadline | None = None) -> Ruleset:
    """Load the published rules again. Like `load`, this function blocks and may raise."""
    return load_ruleset(StaleRules(UNKNOWN), deadline)


def refresh_ruleset(deadline: Deadline | None = None) -> Ruleset:
    """Return the published rules, which are loaded only if they have changed.

    Like `load`, this function blocks and may raise.
    """
    ruleset = _ruleset
    if ruleset is None or ruleset.fence is None or not compare_with_published(loads=False):
        return reload_ruleset(deadline)
    return ruleset


def compare_with_published(*, loads: bool) -> bool:
    """Return whether the rules of this process are the published ones.

    If not, caches are cleared. With `loads`, the new rules are loaded here; otherwise the next
    request loads them. It is for background work. Raises `StoreError`.
    """
    for may_load in (loads, False):
        ruleset = _ruleset
        if ruleset is None or ruleset.fence is None:
            return True
        asked_at = Clock.monotonic()
        deadline = Deadline(ASK_SECONDS)
        text = b""
        # Otherwise they are of another database, or were loaded before the settings changed.
        if ruleset.fence == rules_key() and not is_foreign(ruleset.snapshot.database):
            store = get_store(background=True)
            text = store.execute(b"HGET", ruleset.fence, REVISION, deadline=deadline) or b"0"
        if text == ruleset.published.text:
            freshness.confirm(ruleset.fence, ruleset.published, asked_at)
            return True
        mark_stale()
        if may_load:
            reload_ruleset(Deadline(ASK_SECONDS))
    return False


def mark_stale() -> None:
    """Record that the rules of this process may be stale: the next request has to compare."""
    freshness.expire()
    for function in on_new_rules:
        function()


def reset_rules() -> None:
    """Use only the rules of the settings until Redis has others; for tests, which use new keys."""
    global _compare_at
    _drop_rules(NO_SNAPSHOT)
    _compare_at = float("-inf")
    freshness.expire()
    problems.clear()


def delete_published(prefix: bytes) -> None:
    """Delete the rules that this process has published under a prefix from Redis; for tests."""
    keys = [key for key in tuple(written) if key.startswith(prefix)]
    written.difference_update(keys)
    try:
        if keys:
            get_store(background=True).execute(b"DEL", *keys)
    except StoreError as error:
        logger.warning("Rules published by a test are still in Redis: %s", error)


def _may_be_wrong(snapshot: Snapshot, ruleset: Ruleset | None) -> bool:
    """Return whether the published rules may differ from those in the database.

    That is so if the id of the database is not yet known; if Redis is new, was emptied, or was
    restored from an older copy; or if two histories of one database have reached the same number.
    """
    revision = snapshot.revision
    if database is None or not revision.number:
        return True
    return (
        ruleset is not None
        and revision.number <= ruleset.revision.number
        and revision != ruleset.revision
    )


def _fetch(deadline: Deadline, ruleset: Ruleset | None) -> tuple[Snapshot, UnreadableError | None]:
    """Return the published snapshot, and None.

    The parts that `ruleset` has already are not read again. If the snapshot cannot be read or
    belongs to another database, return only its revision and database, and the reason. Raises
    `StoreError`.
    """
    global _unread
    known = NO_SNAPSHOT
    if ruleset is not None:
        known = ruleset.snapshot
    tags = [known.rules.get("tag", "").encode(), join_tags(known.overrides)]
    found = get_store().run(_READ, [rules_key()], tags, deadline)
    if len(found) != 4 + SECTIONS or not {*map(type, found)} <= {bytes, NoneType}:
        raise StoreError(f"unexpected reply to a request for the rules: {found!r:.80}")
    number, owner, form, rules, *sections = found
    snapshot = Snapshot(NO_RULES, (owner or b"").decode(errors="replace"))
    unread = None
    try:
        snapshot = snapshot._replace(revision=Revision.read(number or b"0"))
        check_format(form or b"0")
        snapshot = snapshot._replace(
            rules=parse_part(rules, RULES_MEMBERS, known.rules),
            overrides=parse_sections(sections, known.overrides),
        )
    except UnreadableError as error:
        unread = error
    except ValueError as error:
        unread = UnreadableError(f"{type(error).__name__}: {str(error)[:200]}")
    if unread is not None and _unread != (rules_key(), number):
        _unread = (rules_key(), number)
        logger.error(
            "The rules in Redis cannot be read; the last valid rules stay in force: %s", unread
        )
    owner = snapshot.database
    if (owner == database and not problems.owner) or check_owner(owner):
        return snapshot, unread
    return snapshot, UnreadableError(problems.owner, is_kept=True)


def _drop_rules(snapshot: Snapshot | None) -> None:
    """Drop the rules of this process. With a snapshot, its rules are used next."""
    global _ruleset, _snapshot, _changes
    _changes += 1
    _ruleset = None
    _snapshot = snapshot


def _reread_settings() -> None:
    snapshot = _snapshot
    if _ruleset is not None:
        snapshot = _ruleset.snapshot
    _drop_rules(snapshot)


def _forget_published() -> None:
    _drop_rules(None)


on_change(("RATELIMIT_*", "SECRET_KEY", "SECRET_KEY_FALLBACKS"), _reread_settings)
on_change(
    ("RATELIMIT_CACHE_PREFIX", "RATELIMIT_USE_CACHE", "CACHES", "INSTALLED_APPS"), _forget_published
)
