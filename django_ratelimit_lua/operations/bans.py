"""The bans in force, for operators: who is banned by which limit, since when and until when, and how to end it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..conf import conf
from ..engine.bans import told_key
from ..engine.decide import PlannedCharge, banning, unbanning
from ..engine.evidence import Evidence, evidence_of
from ..engine.neighbours import neighbours_at
from ..engine.run import run
from ..limits.ban import Ban, BanTerms
from ..limits.call import REGISTER, Charge
from ..limits.limit import Limit
from ..models import RateLimitChange, RateLimitRevision
from ..models.audit import current_actor
from ..publishing.publish import primary
from ..stats.names import Name
from ..store import get_store
from .reference import known_limits

MOST = 1000
"""Bans that are listed, unless told otherwise: those that end last."""
_KEY = re.compile(rb"\{([0-9a-f]{32})\}:(.+:ban)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ActiveBan:
    """A ban in force.

    - `limit`, `rule`: the names of the limit and its rule, as far as they are known; `identity`: the digest of who is
      banned, and `who` in words, as `RATELIMIT_SHOW_IDENTITIES` allows; empty: not known;
    - `ban`: its end, its offences and how often there was one; `why`: of a ban by hand;
    - `terms`: by what the limit bans; None: it is not known here; `key`: where the ban is kept in Redis;
    - `address`: the digest of the address that the identity has in it; `sealed`: the identity, see `identity.sealed`;
      empty: not known.
    """

    limit: str
    rule: str
    identity: str
    who: Name
    ban: Ban
    why: str
    terms: BanTerms | None
    key: bytes
    address: str = ""
    sealed: str = ""

    @property
    def next_us(self) -> int | None:
        """How long the next one would be, in microseconds; None: that is not known here."""
        return None if self.terms is None else self.terms.duration_us(self.ban.times)


def active_bans(most: int = MOST) -> list[ActiveBan]:
    """The bans in force, those that end first before the others. Raises `StoreError`."""
    store, now = get_store(background=True), time.time_ns() // 1000
    register = conf.CACHE_PREFIX + REGISTER
    keys: list[bytes] = store.execute(
        b"ZREVRANGEBYSCORE", register, b"+inf", b"(%d" % now, b"LIMIT", b"0", b"%d" % most
    )
    commands = [(b"GET", key) for ban_key in keys for key in (ban_key, told_key(ban_key))]
    replies = store.execute_all(commands)
    known = [limit.ban for *_, limit in known_limits() if limit is not None and limit.ban is not None]
    by_part = {terms.key_part: terms for terms in reversed(known)}  # A rule's go before those of a call site.
    found = []
    for place, key in enumerate(keys):
        state, told = replies[2 * place : 2 * place + 2]
        parsed, match = Ban.of_state(state or b"", now), _KEY.search(key)
        if parsed is None or match is None:
            continue
        ban, why = parsed
        terms = by_part.get(match[2])
        if terms is not None and not ban.by_hand:  # As the limit is now.
            ban = ban._replace(until=min(ban.until, ban.last + terms.duration_us(ban.times - 1)))
        if ban.until > now:
            name, rule, who, address, sealed = _told(told)
            name = name or match[2].removesuffix(b":ban").decode(errors="replace")
            found.append(ActiveBan(name, rule, match[1].decode(), who, ban, why, terms, key, address, sealed))
    return sorted(found, key=lambda active: active.ban.until)


def _told(text: bytes | None) -> tuple[str, str, Name, str, str]:
    try:
        told = json.loads(text or b"{}")
        name, rule, address, sealed = (str(told.get(word) or "") for word in ("limit", "rule", "address", "sealed"))
        return name, rule, [(str(a), str(b)) for a, b in told["who"]], address, sealed
    except (ValueError, TypeError, KeyError, AttributeError):  # Written by hand, or not at all.
        return "", "", [], "", ""


def number_of_bans() -> int:
    """How many bans are in force; of more than 10,000, those that end last. Raises `StoreError`."""
    now = time.time_ns() // 1000
    return int(get_store(background=True).execute(b"ZCOUNT", conf.CACHE_PREFIX + REGISTER, b"(%d" % now, b"+inf"))


def evidence_of_bans(bans: Sequence[ActiveBan]) -> list[Evidence]:
    """Why they are banned: the last offences of each, and how many signed-in users were seen lately at the address.
    Raises `StoreError`."""
    offences = evidence_of([(active.key, active.ban) for active in bans])
    addresses = sorted({active.address for active in bans if active.address})
    users = dict(zip(addresses, neighbours_at([address.encode() for address in addresses]), strict=True))
    return [Evidence(each, users.get(active.address)) for active, each in zip(bans, offences, strict=True)]


def lift_bans(bans: Sequence[ActiveBan], *, forget: bool = False) -> None:
    """Lift bans now, in all processes; with `forget`, the next one is as short as the first. It is recorded as done by
    who is `acting`. Raises `StoreError`."""
    for active in bans:
        match = _KEY.search(active.key)
        assert match is not None
        # By its key, as nobody here may know the limit any more; then what it would forget is known on.
        limit = Limit("lifted", "1/s", ban_after=1, ban_for="1s", ban_forget="3650d")
        terms = active.terms or limit.ban
        assert terms is not None
        charge = Charge(limit.with_ban(replace(terms, key_part=match[2])), match[1])
        run(unbanning([PlannedCharge(charge, active.limit)], forget=forget))
    if bans:
        _record(RateLimitChange.Action.UNBANNED, [active.limit for active in bans], [a.identity for a in bans])


def ban(charges: Sequence[PlannedCharge], length: str | None = None, why: str = "") -> list[Ban]:
    """Ban whom these charges are about, by hand; otherwise as `RateLimiter.ban`. It is recorded as done by who is
    `acting`."""
    decision = run(banning(charges, length, why))
    names = [planned.charge.limit.name for planned in charges]
    _record(RateLimitChange.Action.BANNED, names, [planned.charge.ban_digest.decode() for planned in charges], why)
    return [state.ban for state in decision.limits if state.ban is not None]


def _record(action: RateLimitChange.Action, names: Sequence[str], digests: Sequence[str], why: str = "") -> None:
    after: dict[str, object] = {"digests": sorted(set(digests))}
    if why:
        after["why"] = why
    RateLimitChange.objects.create(
        revision=RateLimitRevision.read(primary()).revision,
        by=current_actor(), kind=RateLimitChange.Kind.IDENTITY, action=action,
        name=", ".join(dict.fromkeys(names))[:300], after=after,
    )  # fmt: skip
