"""The rules of this process, and the source of newer ones: Redis, or the database, or its own
memory.

The published snapshot names its database. One database owns a prefix: a process of another database
uses the rules that its own database had when they were loaded, publishes nothing, and reports which
setting to change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from django.apps import apps

from ..conf import conf
from ..conf.changes import on_change
from ..exceptions import StoreError
from ..limits.call import NO_RULES, Revision, StaleRules
from ..process.forks import renew_after_fork
from ..process.tasks import Errand
from ..store import PATIENCE, Patience, get_store, rules_key
from .freshness import freshness
from .overrides import override_cache
from .problems import problems
from .rule import Rule
from .ruleset import Ruleset, settings_rules
from .snapshot import UnreadableError, is_of_older_format, parse_snapshot

logger = logging.getLogger("django_ratelimit_lua")
T = TypeVar("T")
APP = "django_ratelimit_lua"
"""Whether rules can be edited: the app is installed. Then every call compares its rules."""
REVISION, SNAPSHOT, DATABASE, KEYS, FORMAT = b"revision", b"rules", b"database", b"keys", b"format"
COMPARE_SECONDS = 10.0
"""How often it is looked whether what is published is what the database has, while there are
requests.
"""

ASK_SECONDS = 1.0
"""For how long the background waits for the answer whether there are other rules."""

MANY = 1000
"""More rules than these are loaded by a thread of their own, while the old ones go on."""

republish: Callable[[float, bool], bool] | None = None
"""Publishes the rules of the database, and is waited for at most this number of seconds; also if
they are published already but unreadable. Returns whether the published rules are those of the
database. `publishing` sets itself here.
"""

Begin = Callable[[Mapping[str, Any]], None]
read_database: Callable[[float, Begin | None], Mapping[str, Any] | None] | None = None
"""The rules of the database, as this version would publish them; None if that takes too long, or
fails. A caller that needs rules to begin with passes a function that is called with them, however
late, and overrides are cached too. `publishing` sets itself here.
"""

on_new_rules: list[Callable[[], None]] = []
"""Functions that are called whenever this process has new rules, or may have to load some, so that
caches are cleared.
"""

compare: Callable[[], None] | None = None
"""Looks in the background whether what is published is what the database has; `publishing` puts
itself here.
"""

database: str | None = None
"""The id of this process's database; empty: no rule was ever saved in it; None: it could not be
read yet.
"""

REMEDY = (
    "Set RATELIMIT_CACHE_PREFIX to another value for each site. If the other database is gone, run "
    "`manage.py ratelimit rules adopt`."
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

_snapshot: Mapping[str, Any] | None = None
_changes = 0
"""How often the settings have changed: rules that were read by others are not gone by."""
_lock = Lock()
_loading = Errand()
_unread: tuple[bytes, bytes | None] | None = None
_unanswered_at = float("-inf")
_compare_at = float("-inf")


@renew_after_fork
def _renew() -> None:
    global _lock
    _lock = Lock()


def is_others(owner: object) -> bool:
    """Whether that is known to be the id of another database than this process's."""
    return database is not None and owner not in ("", database)


def owner_problem(owner: str) -> str:
    """Return the problem of a prefix that another database owns."""
    return (
        f"RATELIMIT_CACHE_PREFIX {conf.CACHE_PREFIX.decode()!r} belongs to the database {owner}, "
        "which is not this "
        f"site's; so this site's rules are not published. {REMEDY}"
    )


def note_database(database_id: str) -> None:
    """Note the id of this process's database, once it could be read."""
    global database, _ruleset, _snapshot
    if database == database_id:
        return
    database = database_id
    # Until now the process used the published rules, whichever database they are of.
    if _ruleset is not None and is_others(_ruleset.snapshot.get("database", "")):
        _ruleset = _snapshot = None


def note_owner(owner: str) -> bool:
    """Record and log whether another database owns the prefix.

    Return whether this process's database may publish.
    """
    problem = owner_problem(owner) if is_others(owner) else ""
    if problem and problem != problems.owner:
        logger.error("%s", problem)
    problems.owner = problem
    return not problem


def current() -> Ruleset | None:
    """The rules of this process; None before it has loaded any. Raises `ImproperlyConfigured`."""
    if time.monotonic() >= _compare_at:
        _compare_now_and_then()
    if _ruleset is None and _snapshot is not None:
        # Only the settings have changed.
        _go_by(
            Ruleset(settings_rules(), _snapshot, rules_key() if apps.is_installed(APP) else None),
            _changes,
        )
    return _ruleset


def _compare_now_and_then() -> None:
    global _compare_at
    is_first, _compare_at = _compare_at < 0, time.monotonic() + COMPARE_SECONDS
    if compare is not None and not is_first and _ruleset is not None and _ruleset.fence is not None:
        compare()
    if _blind is not None and _ruleset is _blind and read_database is not None:
        read_database(0.0, partial(_begin_with, _blind.revision))


def in_force() -> Ruleset | None:
    """The same for background work: it starts nothing, and raises nothing."""
    return _ruleset


def load(stale: StaleRules | None = None, patience: Patience | None = None) -> Ruleset:
    """Load the rules, the first time or because a call used stale ones.

    If that takes longer than the patience (None: as long as a decision may take), return the known
    ones. Blocks. Raises `ImproperlyConfigured` only for the rules of the settings.
    """
    patience = patience or Patience(conf.TIMEOUT)
    ruleset = _ruleset
    if ruleset is None or len(ruleset.rules) <= MANY:
        return _load(stale, patience)
    # A large number takes a while to read. A thread does that, and the request waits only as long
    # as leaves time to decide.
    if not _loading.is_busy and _loading.give(partial(_load_beside, stale)) is None:
        return _load(stale, patience)  # There is no thread for it.
    turn = patience.share(2)
    if not turn.wait(_loading.wait):
        patience.take_back(turn)
    return _ruleset or ruleset


def _load_beside(stale: StaleRules | None) -> None:
    try:
        _load(stale, Patience(PATIENCE), PATIENCE)  # No other request waits for the lock.
    except Exception:  # This is its only report. Requests that use the old rules compare again.
        logger.exception("The rules cannot be loaded")
        raise


def _load(stale: StaleRules | None, patience: Patience, most: float | None = None) -> Ruleset:
    """`most`: for how long the database may be asked, by default no longer than a request may take,
    as others may wait for their turn.
    """
    global _unanswered_at, is_answered
    most = conf.TIMEOUT if most is None else most
    lock = _lock
    if not (lock.acquire(blocking=False) or _waited_for(lock, patience)):
        return _ruleset if _ruleset is not None else Ruleset(settings_rules())
    try:
        older, is_of, changes = _ruleset, database, _changes
        if older is not None and (stale is None or older.published == stale.current):
            return older  # Another thread was faster.
        declared = settings_rules() if older is None else older.declared
        if not apps.is_installed(APP):
            return _go_by(Ruleset(declared), changes)
        try:
            fence, snapshot, is_blind = _published_or_best(older, patience, most)
            is_answered = True
        except StoreError:
            _unanswered_at, is_answered = time.monotonic(), False
            if (
                older is not None
                and older.fence is not None
                and (older is not _blind or older.snapshot)
            ):
                return older
            fence, snapshot = rules_key(), _from_database(patience, most)
            is_blind = not snapshot
        ruleset = _after(older, declared, snapshot, fence)
        if is_answered and older is not None and snapshot is older.snapshot:
            ruleset.published = NO_RULES
        _go_by(ruleset, changes, is_blind=is_blind)
        if is_answered and database != is_of and is_others(snapshot.get("database", "")):
            # The id of our own database became known in between, see `note_database`.
            with suppress(StoreError):  # The next comparison finds it, too.
                fence, snapshot, is_blind = _published_or_best(None, patience, most)
                ruleset = _go_by(Ruleset(declared, snapshot, fence), changes, is_blind=is_blind)
        return ruleset
    finally:
        lock.release()


def _go_by(ruleset: Ruleset, changes: int, *, is_blind: bool = False) -> Ruleset:
    """Use these rules from now on, unless settings have changed since `changes` was read.

    Report their problems, and clear caches that depend on earlier rules.
    """
    global _ruleset, _blind
    if changes != _changes:
        return ruleset
    _ruleset, _blind = ruleset, ruleset if is_blind else None
    if ruleset.snapshot:
        problems.in_force(
            {name: rule.given for name, rule in ruleset.by_name.items()}, ruleset.problems
        )
    for hear in on_new_rules:
        hear()
    return ruleset


def _waited_for(lock: Lock, patience: Patience) -> bool:
    """Whether a lock was acquired within half of the remaining time: only one request waits for a
    database that does not answer, and the others continue with the known rules.
    """
    turn, began = patience.share(2), time.monotonic()
    is_got = turn.wait(lambda seconds: lock.acquire(timeout=seconds))
    if _unanswered_at > began or not (is_got or get_store().heard_at > began):
        patience.take_back(turn)  # The wait for a turn counts only while Redis answers no request.
    return is_got


def _within_half(patience: Patience, most: float, ask: Callable[..., T], *arguments: object) -> T:
    """The answer of a function that gets a timeout: half of the remaining time, or of `most`, so
    that there is time left to decide by the known rules.
    """
    began, most = time.monotonic(), max(0.0, min(patience.left, most) / 2)
    answer = ask(most, *arguments)
    patience.spend(began, most)
    return answer


def _from_database(patience: Patience, most: float) -> Mapping[str, Any]:
    """The rules that a process begins with while Redis is unavailable: those of the database, or
    none if that takes too long.
    """
    if read_database is None:
        return {}
    return _within_half(patience, most, read_database, partial(_begin_with, NO_RULES)) or {}


def _begin_with(as_of: Revision, snapshot: Mapping[str, Any]) -> None:
    """Use the rules of the database, if it has not answered until now, unless it was read before
    the revision that these stand for.
    """
    with _lock:
        before, changes = _blind, _changes
        if before is not None and _ruleset is before and before.revision == as_of:
            if before.snapshot:  # As of the revision that cannot be read.
                snapshot = {**snapshot, "revision": as_of}
            _go_by(_after(before, before.declared, snapshot, before.fence), changes)


def _after(
    older: Ruleset | None,
    declared: Sequence[Rule],
    snapshot: Mapping[str, Any],
    fence: bytes | None,
) -> Ruleset:
    """The rules of a snapshot, following those given.

    Following none if they are of another database.
    """
    before = (
        older
        if older is not None and older.snapshot.get("database") == snapshot.get("database")
        else None
    )
    return Ruleset(declared, snapshot, fence, before)


def _published_or_best(
    ruleset: Ruleset | None, patience: Patience, most: float
) -> tuple[bytes, Mapping[str, Any], bool]:
    """The key for comparing rules; the snapshot to use, which is that of `ruleset` if nothing is
    published and it cannot be restored now; and whether the database still has to answer.

    Raises `StoreError`.
    """
    key, snapshot, unread = _fetch(patience)
    is_garbage = unread is not None and not unread.is_kept
    if republish is not None and (
        is_garbage or (unread is None and _may_be_wrong(snapshot, ruleset))
    ):
        is_right = _within_half(patience, most, republish, is_garbage)
        key, snapshot, unread = _fetch(patience)
        is_missing = unread is None and not snapshot["revision"].number
        if not is_right and is_missing and ruleset is not None and ruleset.fence is not None:
            return key, ruleset.snapshot, False  # No time, or no database: use the known rules.
    if unread is None:
        return key, snapshot, False
    best: Mapping[str, Any] | None = None
    is_late = False
    if unread.is_kept and read_database is not None:
        best = _within_half(
            patience, most, read_database, partial(_begin_with, snapshot["revision"])
        )
        is_late = best is None
    if best is None:
        is_usable = ruleset is not None and not is_others(ruleset.snapshot.get("database", ""))
        best = ruleset.snapshot if ruleset is not None and is_usable else {}
    # As of that revision: it is not asked for again until something is published that may be
    # understood.
    return key, {**best, "revision": snapshot["revision"]}, is_late


def reload() -> Ruleset:
    """The rules as they are published now. Blocks; raises as `load` does."""
    return load(StaleRules(Revision(-1, b"")))


def compare_with_published(*, loads: bool) -> bool:
    """Compare the rules of this process with the published ones, and return whether they are the
    same.

    If not, caches are cleared, so that the next request notices, and loads the others; `loads`: or
    they are loaded here. For background work. Raises `StoreError`.
    """
    for may_load in (loads, False):
        ruleset = in_force()
        if ruleset is None or ruleset.fence is None:
            return True
        asked_at = time.monotonic()
        patience = Patience(ASK_SECONDS)
        text = b""
        # Otherwise they are of another database, or were loaded before the settings changed.
        if ruleset.fence == rules_key() and not is_others(ruleset.snapshot.get("database", "")):
            text = (
                get_store(background=True).execute(
                    b"HGET", ruleset.fence, REVISION, patience=patience
                )
                or b"0"
            )
        if text == ruleset.published.text:
            freshness.confirm(ruleset.fence, ruleset.published, asked_at)
            return True
        doubt()
        if not may_load:
            break
        try:
            revision = Revision.read(text)
        except ValueError:
            revision = Revision(-1, text)
        load(StaleRules(revision), Patience(ASK_SECONDS))
    return False


def doubt() -> None:
    """Record that the rules of this process may be stale: the next request has to compare."""
    freshness.expire()
    for hear in on_new_rules:
        hear()


def start_fresh() -> None:
    """Use the settings alone, until Redis has other rules; for tests, which use new keys."""
    global _ruleset, _snapshot, _compare_at, _changes
    _ruleset, _snapshot, _compare_at = None, {}, float("-inf")
    _changes += 1
    freshness.expire()
    problems.clear()
    override_cache.clear()


def take_back(prefix: bytes) -> None:
    """Delete the rules that this process has published under a prefix from Redis; for tests."""
    keys = [key for key in tuple(written) if key.startswith(prefix)]
    written.difference_update(keys)
    try:
        if keys:
            get_store(background=True).execute(b"DEL", *keys)
    except StoreError as error:
        logger.warning("What a test has published is still in Redis: %s", error)


def _may_be_wrong(snapshot: Mapping[str, Any], ruleset: Ruleset | None) -> bool:
    """Whether what is published may not be what the database has, so that this has to be asked.

    It is not yet known which database that is; or Redis is new, or was emptied, or restored from an
    older copy; or two histories of one database have come to the same number; or an older version
    has published what may lack something.
    """
    revision: Revision = snapshot["revision"]
    if database is None or not revision.number or is_of_older_format(snapshot):
        return True
    return (
        ruleset is not None
        and revision.number <= ruleset.revision.number
        and revision != ruleset.revision
    )


class _Fetched(NamedTuple):
    """The snapshot published under a key, or why it cannot be read, with its other fields."""

    key: bytes
    snapshot: Mapping[str, Any]
    unread: UnreadableError | None = None


def _fetch(patience: Patience) -> _Fetched:
    """Read the published rules; those of another database cannot be used. Raises `StoreError`."""
    key = rules_key()
    text = get_store().execute(b"HGET", key, SNAPSHOT, patience=patience)
    try:
        fetched = _Fetched(key, parse_snapshot(text or b"{}"))
    except UnreadableError:
        fetched = _fetch_unreadable(key, patience)
    owner = str(fetched.snapshot.get("database", ""))
    if (owner == database and not problems.owner) or note_owner(owner):
        return fetched
    snapshot = {"revision": fetched.snapshot["revision"], "database": owner}
    return _Fetched(key, snapshot, UnreadableError(problems.owner, is_kept=True))


def _fetch_unreadable(key: bytes, patience: Patience) -> _Fetched:
    global _unread
    number, text, owner = get_store().execute(
        b"HMGET", key, REVISION, SNAPSHOT, DATABASE, patience=patience
    )
    try:
        return _Fetched(key, parse_snapshot(text or b"{}"))  # There is another by now.
    except UnreadableError as error:
        unread = error
    if _unread != (key, number):
        _unread = (key, number)
        logger.error("The rules in Redis cannot be read, the last that could be go on: %s", unread)
    try:
        revision = Revision.read(number or b"0")
    except ValueError:
        revision = NO_RULES
    return _Fetched(
        key, {"revision": revision, "database": (owner or b"").decode(errors="replace")}, unread
    )


def _reread_settings() -> None:
    global _ruleset, _snapshot, _changes
    _changes += 1
    _snapshot = _snapshot if _ruleset is None else _ruleset.snapshot
    _ruleset = None


def _go_elsewhere() -> None:
    global _ruleset, _snapshot, _changes
    _changes += 1
    _ruleset = _snapshot = None


on_change(("RATELIMIT_*", "SECRET_KEY", "SECRET_KEY_FALLBACKS"), _reread_settings)
on_change(
    ("RATELIMIT_CACHE_PREFIX", "RATELIMIT_USE_CACHE", "CACHES", "INSTALLED_APPS"), _go_elsewhere
)
