"""From Redis to the database: what was counted each hour of rules and limiters whose statistics are to be kept.

One of all processes does it, every few minutes, beside comparing the rules, until there is nothing new for a while.
Numbers are absolute and only ever raise what is there, so it makes no difference how often they are written, by how
many, or where somebody was killed. The last two days are looked at each time; all that Redis has, once a day, and after
whatever has failed.
"""

from __future__ import annotations

import time

from ..conf import conf
from ..models import RateLimitHour, RateLimitRule
from ..models.hour import Numbers
from ..rules.rule import UNWRITABLE
from ..rules.ruleset import settings_rules
from ..stats import results
from ..stats.keys import DAY, HOURS_KEPT
from ..stats.reading import Hour, durable_names, hours
from ..store import get_store, rules_key, take_turn
from .cleanup import sweep
from .publish import primary

KEEP_SECONDS = 300.0
LAST_LOOKS = 3
"""After so many looks in a row that have found nothing new, the next request starts them again."""
LONGEST_NAME = 200
COLUMNS = {
    results.ALLOWED: "allowed",
    results.REFUSED: "refused",
    results.ALLOWED_ADVISING: "advised_allowed",
    results.ADVISED: "advised_refused",
    results.ALLOWED_IN_SHADOW: "shadow_allowed",
    results.SHADOW: "shadow_refused",
    results.EXEMPT: "exempt",
    results.BLOCKED: "blocked",
    results.POLICY: "policy",
    results.FAILED: "failed",
}
"""The column of each result; who is banned is refused."""


def names_to_keep(using: str) -> dict[str, int | None]:
    """The rules and limiters whose statistics are to be kept, and until when (seconds since 1970; None: no end)."""
    names: dict[str, int | None] = dict(durable_names())
    if conf.RULES:
        names |= dict.fromkeys(rule.name for rule in settings_rules() if (rule.given or {}).get("durable"))
    rules = RateLimitRule._base_manager.using(using).filter(durable=True)
    names |= dict.fromkeys(rules.values_list("name", flat=True))
    return {name: until for name, until in names.items() if len(name) <= LONGEST_NAME and not UNWRITABLE.search(name)}


def keep_hours(*, everything: bool = False) -> int:
    """Write to the database what it does not have yet of the last two days, or of everything that Redis has; but
    nothing that is older than `RATELIMIT_HISTORY_DAYS`. Returns how many rows were made or raised. Raises `StoreError`,
    and whatever the database raises."""
    using, today = primary(), int(time.time()) // DAY
    since = 0 if conf.HISTORY_DAYS is None else int(time.time() - conf.HISTORY_DAYS * DAY)
    days = range(max(since // DAY, today - (HOURS_KEPT // DAY if everything else 1)), today + 1)
    written = 0
    for name, until in sorted(names_to_keep(using).items()):
        found = {
            hour.moment: _numbers(hour)
            for hour in hours(name, days)
            if hour.moment >= since and (until is None or hour.moment < until)
        }
        written += RateLimitHour.keep(using, name, found)
    return written


def _numbers(hour: Hour) -> Numbers:
    counts = {COLUMNS[result]: number for result, number in hour.counts.items() if result in COLUMNS}
    if hour.counts[results.BANNED]:
        counts["refused"] = results.refused_of(hour.counts)
    return {**counts, "units": hour.units, "near": hour.near, "people_refused": hour.people_refused}


_looks_left = 0
"""How many more looks this process makes that find nothing new, also if there are no requests."""


def keep_in_turn() -> bool:
    """Write hours if that is due; whether to look again also if there are no requests. Raises what `keep_hours` does,
    and then it stays due."""
    global _looks_left
    if take_turn(_key(b"turn"), KEEP_SECONDS):
        left = _looks_left or LAST_LOOKS
        _looks_left = LAST_LOOKS if _keep() else left - 1
        if not _looks_left:
            get_store(background=True).execute(b"DEL", _key(b"turn"))  # The next request starts again.
    return _looks_left > 0


def _key(word: bytes) -> bytes:
    return rules_key() + b":hours:" + word


def _keep() -> int:
    """Returns how many rows were made or raised."""
    store, today = get_store(background=True), b"%d" % (int(time.time()) // DAY)
    try:
        is_done_today = store.execute(b"GET", _key(b"all")) == today
        found = keep_hours(everything=not is_done_today)
        if not is_done_today:
            sweep(primary())
            store.execute(b"SET", _key(b"all"), today, b"EX", b"%d" % DAY)
        return found
    except BaseException:
        # What was missed is looked for by whichever process is next.
        store.execute(b"DEL", _key(b"all"), _key(b"turn"))
        raise
