"""The bans in force, for operators: the client, the limit, the times, and lifting a ban."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..conf import conf
from ..engine.bans import clock_of_bans, details_key
from ..engine.decide import PlannedCharge, unbanning
from ..engine.evidence import Offence, evidence_of
from ..engine.run import run
from ..identity.names import Name, masked
from ..limits.ban import Ban
from ..limits.call import REGISTER, Charge
from ..limits.limit import Limit
from ..models import RateLimitChange
from ..store import get_store
from .history_names import history_names, record_change
from .reference import known_limits

MAX_ENTRIES = 1000
"""Default number of listed bans: those that end last."""
AT_ONCE = 100
"""Bans that are lifted by one call."""


@dataclass(frozen=True, slots=True)
class ActiveBan:
    """A ban in force.

    - `limit`, `rule`: the names of the limit and its rule, if known; `identity`: the digest of the
      banned identity, and `who` in words, as `RATELIMIT_SHOW_IDENTITIES` allows, but with the whole
      address if it is "masked"; empty: unknown;
    - `ban`: its end, its offences and the number of bans so far; `why`: the reason of a manual ban;
    - `key`: the key of the ban in Redis; `known`: the limit as it is now; None: unknown here.
    """

    limit: str
    rule: str
    identity: str
    who: Name
    ban: Ban
    why: str
    key: bytes
    known: Limit | None

    @property
    def is_shadow(self) -> bool:
        """Return whether the limit is currently in shadow mode, so that it refuses no request."""
        return self.known is not None and self.known.mode == "shadow"

    @property
    def next_us(self) -> int | None:
        """Return the length of the next ban, in microseconds; None if it is not known."""
        if self.known is None or self.known.ban is None:
            return None
        return self.known.ban.duration_us(self.ban.times)


def active_bans(most: int = MAX_ENTRIES) -> list[ActiveBan]:
    """Return the bans in force, in the order of their ends.

    Args:
        most: The maximum number of bans. If there are more, those that end last are returned.

    Raises:
        StoreError: Redis is unavailable.
    """
    now = clock_of_bans()
    register = conf.CACHE_PREFIX + REGISTER
    newest = (b"ZREVRANGEBYSCORE", register, b"+inf", b"(%d" % now, b"LIMIT", b"0", b"%d" % most)
    return bans_by_key(get_store(background=True).execute(*newest))


def bans_by_key(keys: Iterable[bytes]) -> list[ActiveBan]:
    """Return those bans in force that have these keys, in the order of their ends.

    Raises:
        StoreError: Redis is unavailable.
    """
    keys = list(keys)
    store = get_store(background=True)
    now = clock_of_bans()
    states = store.execute_all([(b"GET", key) for key in keys])
    details = store.execute_all([(b"GET", details_key(key)) for key in keys])
    limits: dict[bytes, Limit] = {}
    for each in known_limits():
        if each.limit is not None and each.limit.ban is not None:  # A rule's come first.
            limits.setdefault(each.limit.ban.key_part, each.limit)
    found = []
    for key, state, detail in zip(keys, states, details, strict=True):
        parsed = Ban.of_state(state or b"", now)
        if parsed is None:
            continue
        ban, why = parsed
        identity, _separator, part = key.removeprefix(conf.CACHE_PREFIX + b"{").partition(b"}:")
        known = limits.get(part)
        if known is not None and known.ban is not None and not ban.by_hand:  # As the limit is now.
            until = ban.last + known.ban.duration_us(ban.times - 1)
            ban = ban._replace(until=min(ban.until, until))
        if ban.until > now:
            name, rule, who = _details(detail)
            name = name or part.removesuffix(b":ban").decode(errors="replace")
            found.append(ActiveBan(name, rule, identity.decode(), who, ban, why, key, known))
    return sorted(found, key=lambda active: active.ban.until)


def _details(text: bytes | None) -> tuple[str, str, Name]:
    try:
        details = json.loads(text or b"{}")
        who = [(str(kind), str(value)) for kind, value in details["who"]]
        return str(details.get("limit") or ""), str(details.get("rule") or ""), who
    except (ValueError, TypeError, KeyError, AttributeError):  # Written by hand, or not at all.
        return "", "", []


def evidence_of_bans(bans: Sequence[ActiveBan]) -> list[tuple[Offence, ...]]:
    """Return the latest offences of each of these bans. Raises `StoreError`."""
    return evidence_of([(active.key, active.ban) for active in bans])


def lift_bans(bans: Sequence[ActiveBan], *, forget: bool = False) -> None:
    """Lift bans now, in all processes. The user in `acting` is recorded.

    Args:
        bans: The bans.
        forget: Whether earlier bans are forgotten, so that the next one is as short as the first.

    Raises:
        StoreError: Redis is unavailable.
    """
    lifted: list[ActiveBan] = []
    try:
        for start in range(0, len(bans), AT_ONCE):
            part = bans[start : start + AT_ONCE]
            run(unbanning([_unban(active) for active in part], forget=forget))
            lifted += part
    finally:  # If Redis stops answering, some of them are lifted.
        if lifted:
            after = history_names({active.identity: masked(active.who) for active in lifted})
            if forget:
                after["forget"] = True
            names = [active.limit for active in lifted]
            record_change(RateLimitChange.Action.UNBANNED, names, after)


def _unban(active: ActiveBan) -> PlannedCharge:
    """Return the charge that lifts a ban, by its key.

    If this process does not have the limit, earlier bans are still remembered.
    """
    limit = active.known or Limit("lifted", "1/s", ban_after=1, ban_for="3650d")
    assert limit.ban is not None
    part = active.key.partition(b"}:")[2]
    limit = limit.with_ban(limit.ban._replace(key_part=part))
    return PlannedCharge(Charge(limit, active.identity.encode()), active.limit)
