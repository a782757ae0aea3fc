"""The bans in force, for operators: the client, the limit, the times, and lifting a ban."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

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
from .formatting import moment_of
from .history import record_action
from .known_limits import known_limits

AT_ONCE = 100
"""Maximum number of bans that one call reads or lifts."""


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


def active_bans(number: int = MAX_LISTED, identities: Collection[str] = ("",)) -> list[ActiveBan]:
    """Return the bans in force, in the order of their ends.

    Args:
        number: The maximum number of bans. If there are more, those that end last are returned.
        identities: Only bans of identities whose digests begin with one of these texts.

    Raises:
        StoreError: Redis is unavailable.
    """
    prefixes = tuple(b"%b{%b" % (conf.CACHE_PREFIX, digest.encode()) for digest in identities)
    ends = {key: until for key, until in ban_list.read().items() if key.startswith(prefixes)}
    keys = list(ends)[:number]
    keys.reverse()  # The list begins with the latest end.
    texts = read_descriptions(keys)
    limits = _banning_limits()
    return [_read_ban(key, ends[key], texts.get(key, b"{}"), limits) for key in keys]


def _read_ban(key: bytes, until: int, description: bytes, limits: dict[bytes, Limit]) -> ActiveBan:
    """Return the ban with this key from its end, in microseconds, and its description in JSON."""
    digest, part = _digest_and_part(key)
    entry = json.loads(description)
    return ActiveBan(
        limit=entry.get("limit") or part.removesuffix(b":ban").decode(errors="replace"),
        rule=entry.get("rule") or "",
        identity=digest.decode(),
        who=[(kind, value) for kind, value in entry.get("who", ())],
        since=moment_of(entry.get("since", 0)),
        until=moment_of(until),
        offences=entry.get("offences", 0),
        times=entry.get("times", 0),
        why=entry.get("why", ""),
        key=key,
        known=limits.get(part),
    )


def _digest_and_part(key: bytes) -> tuple[bytes, bytes]:
    """Return the digest of the banned identity, and the end of the key, from the key of a ban."""
    digest, _separator, part = key.removeprefix(conf.CACHE_PREFIX + b"{").partition(b"}:")
    return digest, part


def _banning_limits() -> dict[bytes, Limit]:
    """Return the limits of this site that ban, by the ends of the keys of their bans."""
    limits: dict[bytes, Limit] = {}
    for known in known_limits():
        if known.limit.ban is not None:  # Those of rules come first.
            limits.setdefault(known.limit.ban.key_part, known.limit)
    return limits


def _ban_charge(key: bytes, limits: dict[bytes, Limit]) -> Charge:
    """Return the charge that reads or lifts the ban with this key.

    If this process does not know the limit, another stands for it. That one keeps earlier bans for
    ten years, so that the unknown limit loses none.
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
    stored = get_store(background=True).find_keys(conf.CACHE_PREFIX + b"{", b"*}:*:ban")
    limits = _banning_limits()
    keys = sorted(stored | listed.keys())
    for start in range(0, len(keys), AT_ONCE):
        _repair_list(keys[start : start + AT_ONCE], limits)


def _repair_list(keys: Sequence[bytes], limits: dict[bytes, Limit]) -> None:
    """List those of these bans that are in force, and remove the others from the list."""
    charges = {key: DecidedCharge(_ban_charge(key, limits), "") for key in keys}
    decision = run(peeking(list(charges.values())))
    bans = {key: decided.state.ban for key, decided in charges.items()}
    active = {key: ban for key, ban in bans.items() if ban is not None and ban.until}
    texts = read_descriptions(active)
    entries = {}
    for key, ban in active.items():
        entry = ListedBan.of(ban, decision.moment)
        entries[key] = entry._replace(description=texts.get(key, entry.description))
    if entries:
        ban_list.write(entries)
    ended = [key for key in keys if key not in active]
    if ended:
        ban_list.remove(ended)


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
            charges = [DecidedCharge(_ban_charge(ban.key, limits), ban.limit) for ban in part]
            run(unbanning(charges, forget=forget))
            lifted += part
    finally:  # If Redis stops answering, some of them are lifted.
        if lifted:
            names = [ban.limit for ban in lifted]
            clients = {ban.identity: ban.who for ban in lifted}
            details = {"forget": True} if forget else {}
            record_action(RateLimitChange.Action.UNBANNED, names, clients, **details)
