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
from typing import NamedTuple, TypeVar

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

MAX_INLINE = 1000
"""Maximum number of rules or overrides that a request loads itself. If there are more, a thread
loads newer ones, while the old ones stay in force.
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
_provisional: Ruleset | None = None
"""The rules in use while an answer of the database is awaited: those of the settings alone, if
Redis is unavailable; or the last known ones, at the revision of newer ones that cannot be read.
"""

_snapshot: Snapshot | None = None
_settings_changes = 0
"""How often the settings have changed. Rules that were loaded before are not used."""
_lock = Lock()
_loading = JobRunner()
_unread: tuple[bytes, bytes | None] | None = None
_unanswered_at = float("-inf")
_compare_at = float("-inf")


@renew_after_fork
def _renew_lock() -> None:
    """Replace the lock, which another thread of the parent process may have held."""
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
    """Return whether this process's database may publish, and report it if not."""
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

    If the last comparison with the database is `COMPARE_SECONDS` old, another one starts. Raises
    `ImproperlyConfigured` for the rules of the settings.
    """
    if Clock.monotonic() >= _compare_at:
        _start_comparison()
    if _ruleset is None and _snapshot is not None:
        # Only the settings have changed.
        fence = rules_key() if apps.is_installed(APP) else None
        _put_in_force(Ruleset(settings_rules(), _snapshot, fence), _settings_changes)
    return _ruleset


def _start_comparison() -> None:
    """Compare the published rules with the database, in the background.

    If the database has not replied yet, it is read again.
    """
    global _compare_at
    _compare_at = Clock.monotonic() + COMPARE_SECONDS
    ruleset = _ruleset
    if ruleset is None or ruleset.fence is None:
        return
    compare()
    if ruleset is _provisional:
        read_database(0.0, partial(_use_late_snapshot, ruleset.revision))


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
    if ruleset is None or max(len(ruleset.rules), ruleset.overrides.number) <= MAX_INLINE:
        return _load(stale, deadline)
    # A large number takes a while to read. A thread does that, and the request waits for half of
    # its time, so that it can still decide.
    if not _loading.is_busy and _loading.submit(partial(_load_in_thread, stale)) is None:
        return _load(stale, deadline)  # No thread can be started.
    half = deadline.share(2)
    if not half.wait(_loading.wait):
        deadline.spend_share(half)
    return _ruleset or ruleset


def _load_in_thread(stale: StaleRules | None) -> None:
    """Load the rules, and log an error. Requests that use the old rules compare again."""
    try:
        _load(stale, Deadline(BACKGROUND_SECONDS))
    except Exception:  # No caller reports it.
        logger.exception("The rules cannot be loaded")
        raise


def _load(stale: StaleRules | None, deadline: Deadline) -> Ruleset:
    """Load the rules in this thread, and return the rules to use.

    Those are the known ones if the lock is not free in time, if another thread has loaded the
    current ones, or if Redis is unavailable.
    """
    lock = _lock
    if not _acquire_lock(lock, deadline):
        return _ruleset or Ruleset(settings_rules())
    try:
        older = _ruleset
        settings_changes = _settings_changes
        if older is not None and (stale is None or older.published == stale.current):
            return older  # Another thread was faster.
        declared = settings_rules() if older is None else older.declared
        if not apps.is_installed(APP):
            logger.warning("%s", NOT_INSTALLED)
            ruleset = Ruleset(declared)
            _put_in_force(ruleset, settings_changes)
            return ruleset
        choice = _choose_or_keep(older, deadline)
        if choice is None:
            assert older is not None
            return older
        ruleset = _build_ruleset(declared, choice.snapshot, older)
        _put_in_force(ruleset, settings_changes, is_provisional=choice.is_provisional)
        return ruleset
    finally:
        lock.release()


class _Choice(NamedTuple):
    """The snapshot to use, and whether only until the database replies (`is_provisional`)."""

    snapshot: Snapshot
    is_provisional: bool = False


def _choose_or_keep(older: Ruleset | None, deadline: Deadline) -> _Choice | None:
    """Return the snapshot to use, and record whether Redis has answered.

    None: Redis is unavailable, and `older` stays in force.
    """
    global _unanswered_at, is_answered
    try:
        choice = _choose_snapshot(older, deadline)
        is_answered = True
        return choice
    except StoreError:
        _unanswered_at = Clock.monotonic()
        is_answered = False
    if older is not None:
        return None
    snapshot = _read_from_database(deadline, NO_RULES) or NO_SNAPSHOT
    return _Choice(snapshot, is_provisional=snapshot is NO_SNAPSHOT)


def _build_ruleset(declared: Sequence[Rule], snapshot: Snapshot, older: Ruleset | None) -> Ruleset:
    """Return the ruleset of a snapshot, with those parts of an older one that have not changed."""
    if older is None:
        return Ruleset(declared, snapshot, rules_key())
    if snapshot.rules is older.snapshot.rules:
        ruleset = older.with_overrides_of(snapshot, rules_key())
    else:
        ruleset = Ruleset(declared, snapshot, rules_key(), older)
    if snapshot is older.snapshot:  # Nothing is published.
        ruleset.published = NO_RULES
    return ruleset


def _put_in_force(ruleset: Ruleset, settings_changes: int, *, is_provisional: bool = False) -> None:
    """Use these rules from now on, report their problems, and clear caches of earlier rules.

    Do nothing if the settings have changed since `settings_changes` was read. `is_provisional`: the
    database has not replied yet, and its rules are used as soon as it does.
    """
    global _ruleset, _provisional
    if settings_changes != _settings_changes:
        return
    _provisional = ruleset if is_provisional else None
    # The id of our own database may have become known while the rules were loaded.
    _ruleset = None if is_foreign(ruleset.snapshot.database) else ruleset
    if ruleset.snapshot is not NO_SNAPSHOT:
        problems.record_ruleset(
            {name: rule.spec for name, rule in ruleset.by_name.items()}, ruleset.problems
        )
    for function in on_new_rules:
        function()


def _acquire_lock(lock: Lock, deadline: Deadline) -> bool:
    """Acquire a lock within half of the remaining time. Return whether it was acquired.

    So only one request waits for a database that does not reply, and the others continue with the
    known rules.
    """
    if lock.acquire(blocking=False):
        return True
    half = deadline.share(2)
    began = Clock.monotonic()
    is_acquired = half.wait(lambda seconds: lock.acquire(timeout=seconds))
    has_redis_replied = is_acquired or get_store().replied_at > began
    if _unanswered_at > began or not has_redis_replied:
        deadline.spend_share(half)  # The wait counts only while Redis answers no request.
    return is_acquired


def _call_within_half(deadline: Deadline, function: Callable[..., T], argument: object) -> T:
    """Call a function with a timeout of half of the remaining time.

    That leaves time to decide by the known rules. The timeout is at most half of the time of a
    request, because others may wait for the lock.
    """
    began = Clock.monotonic()
    timeout = max(0.0, min(deadline.left, conf.TIMEOUT) / 2)
    result = function(timeout, argument)
    deadline.spend(began, timeout)
    return result


def _read_from_database(deadline: Deadline, as_of: Revision) -> Snapshot | None:
    """Return the rules of the database, or None if that takes too long.

    In that case they are used as soon as the database has replied.
    """
    return _call_within_half(deadline, read_database, partial(_use_late_snapshot, as_of))


def _use_late_snapshot(as_of: Revision, snapshot: Snapshot) -> None:
    """Use the rules of the database, which has replied late.

    Do nothing if other rules are in use by now, or if the rules were read before the revision that
    they would replace.
    """
    with _lock:
        older = _ruleset
        if older is None or older is not _provisional or older.revision != as_of:
            return
        if older.snapshot is not NO_SNAPSHOT:
            # The published rules cannot be read, and are read again only at another revision.
            snapshot = snapshot._replace(revision=as_of)
        ruleset = Ruleset(older.declared, snapshot, older.fence, older)
        _put_in_force(ruleset, _settings_changes)


def _choose_snapshot(ruleset: Ruleset | None, deadline: Deadline) -> _Choice:
    """Return the published snapshot or, if it cannot be used, the best one that is available.

    That is the snapshot of `ruleset` if nothing is published and it cannot be restored now. Raises
    `StoreError`.
    """
    fetched = _fetch_snapshot(deadline, ruleset)
    if fetched.is_garbage or (fetched.problem is None and _may_be_wrong(fetched.snapshot, ruleset)):
        is_restored = _call_within_half(deadline, republish, fetched.is_garbage)
        fetched = _fetch_snapshot(deadline, ruleset)
        is_missing = fetched.problem is None and not fetched.snapshot.revision.number
        if is_missing and not is_restored and ruleset is not None:
            return _Choice(ruleset.snapshot)  # No time, or no database: use the known rules.
    if fetched.problem is None:
        return _Choice(fetched.snapshot)
    revision = fetched.snapshot.revision
    from_database = _read_from_database(deadline, revision)
    if from_database is not None:
        best = from_database
    elif ruleset is not None and not is_foreign(ruleset.snapshot.database):
        best = ruleset.snapshot
    else:
        best = NO_SNAPSHOT
    # With the published revision, so that it is read again only when another one is published.
    return _Choice(best._replace(revision=revision), is_provisional=from_database is None)


def reload_ruleset() -> Ruleset:
    """Load the published rules again, and return them.

    This function blocks, and raises `ImproperlyConfigured` for the rules of the settings.
    """
    return load_ruleset(StaleRules(UNKNOWN))


def refresh_ruleset(deadline: Deadline | None = None) -> Ruleset:
    """Return the published rules, which are loaded only if they have changed.

    This function blocks. Raises `StoreError`, and `ImproperlyConfigured` for the rules of the
    settings.
    """
    ruleset = _ruleset
    if ruleset is None or ruleset.fence is None or not compare_with_published(loads=False):
        return load_ruleset(StaleRules(UNKNOWN), deadline)
    return ruleset


def compare_with_published(*, loads: bool) -> bool:
    """Compare the rules of this process with the published ones, and return whether they match.

    If not, caches are cleared. With `loads`, the new rules are loaded here and compared again;
    otherwise the next request loads them. It is for background work. Raises `StoreError`.
    """
    if _confirm_published(_ruleset):
        return True
    mark_stale()
    if not loads:
        return False
    load_ruleset(StaleRules(UNKNOWN), Deadline(ASK_SECONDS))
    if _confirm_published(_ruleset):
        return True
    mark_stale()
    return False


def _confirm_published(ruleset: Ruleset | None) -> bool:
    """Compare a ruleset with the revision in Redis. If they match, record when, and return True.

    Rules that are not compared, or not loaded yet (None), always match. Raises `StoreError`.
    """
    if ruleset is None or ruleset.fence is None:
        return True
    if ruleset.fence != rules_key() or is_foreign(ruleset.snapshot.database):
        return False  # It was loaded before the settings changed, or before the id was known.
    asked_at = Clock.monotonic()
    store = get_store(background=True)
    text = store.execute(b"HGET", ruleset.fence, REVISION, deadline=Deadline(ASK_SECONDS)) or b"0"
    if text != ruleset.published.text:
        return False
    freshness.confirm(ruleset.fence, ruleset.published, asked_at)
    return True


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


class _Fetched(NamedTuple):
    """The published snapshot.

    - `problem`: why it cannot be used; the snapshot then has its revision and database only.
    """

    snapshot: Snapshot
    problem: UnreadableError | None = None

    @property
    def is_garbage(self) -> bool:
        """Return whether it is invalid, so that it has to be replaced."""
        return self.problem is not None and not self.problem.is_kept


def _fetch_snapshot(deadline: Deadline, ruleset: Ruleset | None) -> _Fetched:
    """Return the published snapshot, whose unchanged parts are those of `ruleset`.

    If it is unreadable or belongs to another database, report that. Raises `StoreError`.
    """
    known = NO_SNAPSHOT if ruleset is None else ruleset.snapshot
    tags = [known.rules.get("tag", "").encode(), join_tags(known.overrides)]
    reply = get_store().run(_READ, [rules_key()], tags, deadline)
    if len(reply) != 4 + SECTIONS or not all(isinstance(part, (bytes, NoneType)) for part in reply):
        raise StoreError(f"unexpected reply to a request for the rules: {reply!r:.80}")
    fetched = _parse_reply(reply, known)
    if fetched.problem is not None:
        _report_unreadable(reply[0], fetched.problem)
    if check_owner(fetched.snapshot.database):
        return fetched
    return _Fetched(fetched.snapshot, UnreadableError(problems.owner, is_kept=True))


def _parse_reply(reply: Sequence[bytes | None], known: Snapshot) -> _Fetched:
    """Return the snapshot in a reply of `rules/read.lua`, with the unchanged parts of `known`."""
    number, owner, form, rules, *sections = reply
    snapshot = Snapshot(NO_RULES, (owner or b"").decode(errors="replace"))
    try:
        snapshot = snapshot._replace(revision=Revision.read(number or b"0"))
        check_format(form or b"0")
        parsed = snapshot._replace(
            rules=parse_part(rules, RULES_MEMBERS, known.rules),
            overrides=parse_sections(sections, known.overrides),
        )
        return _Fetched(parsed)
    except UnreadableError as error:
        return _Fetched(snapshot, error)
    except ValueError as error:
        return _Fetched(snapshot, UnreadableError(f"{type(error).__name__}: {str(error)[:200]}"))


def _report_unreadable(number: bytes | None, problem: UnreadableError) -> None:
    """Log that the published rules cannot be read, once for each revision."""
    global _unread
    unread = (rules_key(), number)
    if _unread != unread:
        _unread = unread
        logger.error(
            "The rules in Redis cannot be read; the last valid rules stay in force: %s", problem
        )


def _drop_rules(snapshot: Snapshot | None) -> None:
    """Drop the rules of this process, and those that are being loaded.

    The next request uses the rules of the snapshot and of the settings; None: it loads a snapshot.
    """
    global _ruleset, _snapshot, _settings_changes
    _settings_changes += 1
    _ruleset = None
    _snapshot = snapshot


def _reread_settings() -> None:
    """Compile the rules of the settings again. The published ones stay."""
    _drop_rules(_snapshot if _ruleset is None else _ruleset.snapshot)


def _forget_published() -> None:
    """Drop all rules, because the published ones may be those of another key or server."""
    _drop_rules(None)


on_change(("RATELIMIT_*", "SECRET_KEY", "SECRET_KEY_FALLBACKS"), _reread_settings)
on_change(
    ("RATELIMIT_CACHE_PREFIX", "RATELIMIT_USE_CACHE", "CACHES", "INSTALLED_APPS"), _forget_published
)
