"""The bans in force, for operators: the client, the limit, the times, and lifting a ban."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..conf import conf
from ..engine import DecidedCharge
from ..engine.bans import MAX_LISTED, ListedBan, ban_list, read_descriptions
from ..engine.decide import peeking, unbanning
from ..engine.run import run
from ..identity.names import Name
from ..limits.call import Charge
from ..limits.limit import Limit
from ..models import RateLimitChange
from ..store import get_store
from .history import history_names, record_change
from .known_limits import known_limits

AT_ONCE = 100
"""Bans that are read or lifted by one call."""


@dataclass(frozen=True, slots=True)
class ActiveBan:
    """A ban in force.

    - `limit`, `rule`: the names of the limit and its rule, if known; `identity`: the digest of the
      banned identity, and `who` in words, as `RATELIMIT_SHOW_IDENTITIES` allows; empty: unknown;
    - `offences`: the number of refusals that led to it, 0 if it was made by hand; `times`: the
      number of bans so far; `why`: the reason of a ban that was made by hand;
    - `key`: the key of the ban in Redis; `known`: the limit as it is now; None: unknown here.
    """

    limit: str
    rule: str
    identity: str
    who: Name
    since: datetime
    until: datetime
    offences: int
    times: int
    why: str
    key: bytes
    known: Limit | None

    @property
    def name(self) -> str:
        """Return the name of the rule, or of the place in the code."""
        return self.rule or self.limit.partition(":")[0]

    @property
    def is_shadow(self) -> bool:
        """Return whether the limit is currently in shadow mode, so that it refuses no request."""
        return self.known is not None and self.known.mode == "shadow"


def active_bans(most: int = MAX_LISTED, identities: Collection[str] = ("",)) -> list[ActiveBan]:
    """Return the bans in force, in the order of their ends.

    Args:
        most: The maximum number of bans. If there are more, those that end last are returned.
        identities: Only bans of identities whose digests begin with one of these texts.

    Raises:
        StoreError: Redis is unavailable.
    """
    begins = tuple(b"%b{%b" % (conf.CACHE_PREFIX, each.encode()) for each in identities)
    listed = {key: until for key, until in ban_list.read().items() if key.startswith(begins)}
    keys = list(listed)[:most][::-1]
    limits = _banning_limits()
    found = []
    texts = read_descriptions(keys)
    for key in keys:
        digest, part = _digest_and_part(key)
        entry = json.loads(texts.get(key, b"{}"))
        found.append(
            ActiveBan(
                limit=entry.get("limit") or part.removesuffix(b":ban").decode(errors="replace"),
                rule=entry.get("rule") or "",
                identity=digest.decode(),
                who=[(kind, value) for kind, value in entry.get("who", ())],
                since=_datetime(entry.get("since", 0)),
                until=_datetime(listed[key]),
                offences=entry.get("offences", 0),
                times=entry.get("times", 0),
                why=entry.get("why", ""),
                key=key,
                known=limits.get(part),
            )
        )
    return found


def _datetime(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def _digest_and_part(key: bytes) -> tuple[bytes, bytes]:
    """Return the digest of the banned identity, and the end of the key, from the key of a ban."""
    digest, _separator, part = key.removeprefix(conf.CACHE_PREFIX + b"{").partition(b"}:")
    return digest, part


def _banning_limits() -> dict[bytes, Limit]:
    """Return the limits of this site that ban, by the ends of the keys of their bans."""
    limits: dict[bytes, Limit] = {}
    for each in known_limits():
        if each.limit.ban is not None:  # A rule's come first.
            limits.setdefault(each.limit.ban.key_part, each.limit)
    return limits


def _charge(key: bytes, limits: dict[bytes, Limit]) -> Charge:
    """Return the charge of the ban with this key.

    If this process does not have the limit, another stands for it, under which earlier bans are
    remembered for longer.
    """
    digest, part = _digest_and_part(key)
    limit = limits.get(part)
    if limit is None:
        name = f"unknown {part.decode(errors='replace')}"
        limit = Limit(name, "1/s", ban_after=1, ban_for="3650d")
        assert limit.ban is not None
        limit = limit.with_ban(limit.ban._replace(key_part=part))
    return Charge(limit, digest)


def scan_bans() -> None:
    """Repair the list: read all bans in Redis, add those that are missing, and remove others.

    Raises:
        StoreError: Redis is unavailable.
    """
    listed = ban_list.read()
    keys = get_store(background=True).find_keys(conf.CACHE_PREFIX + b"{", b"*}:*:ban")
    limits = _banning_limits()
    every = sorted(keys | listed.keys())
    for start in range(0, len(every), AT_ONCE):
        part = every[start : start + AT_ONCE]
        charges = {key: DecidedCharge(_charge(key, limits), "") for key in part}
        decision = run(peeking([*charges.values()]))
        bans = [(key, decided.state.ban) for key, decided in charges.items()]
        held = {key: ban for key, ban in bans if ban is not None and ban.until}
        found = {}
        texts = read_descriptions(held)
        for key, ban in held.items():
            listed_ban = ListedBan.of(ban, decision.moment)
            found[key] = listed_ban._replace(description=texts.get(key, listed_ban.description))
        if found:
            ban_list.write(found)
        gone = [key for key in part if key not in held]
        if gone:
            ban_list.remove(gone)


def lift_bans(bans: Sequence[ActiveBan], *, forget: bool = False) -> None:
    """Lift bans now, in all processes. The user in `acting` is recorded.

    Args:
        bans: The bans.
        forget: Whether earlier bans are forgotten, so that the next one is as short as the first.

    Raises:
        StoreError: Redis is unavailable.
    """
    lifted: list[ActiveBan] = []
    limits = _banning_limits()
    try:
        for start in range(0, len(bans), AT_ONCE):
            part = bans[start : start + AT_ONCE]
            charges = [DecidedCharge(_charge(each.key, limits), each.limit) for each in part]
            run(unbanning(charges, forget=forget))
            lifted += part
    finally:  # If Redis stops answering, some of them are lifted.
        if lifted:
            after = history_names({active.identity: active.who for active in lifted})
            if forget:
                after["forget"] = True
            names = [active.limit for active in lifted]
            record_change(RateLimitChange.Action.UNBANNED, names, after)
