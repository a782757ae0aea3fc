"""The bans in force, for operators: the client, the limit, the times, and lifting a ban."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from ..conf import conf
from ..engine.bans import clock_of_bans, details_key
from ..engine.decide import PlannedCharge, banning, unbanning
from ..engine.evidence import Offence, evidence_of
from ..engine.run import run
from ..identity import Identity, digest
from ..identity.address import address_as
from ..identity.keys import field_identity, split_field
from ..identity.names import Name, shown
from ..limits.ban import Ban, BanTerms
from ..limits.call import REGISTER, Charge
from ..limits.limit import Limit
from ..models import RateLimitChange
from ..store import get_store
from ..web.plan import is_spared
from .history_names import history_names, record_change
from .reference import KnownLimit, known_limits
from .request_builder import find_user

MAX_ENTRIES = 1000
"""Default number of listed bans: those that end last."""
_KEY = re.compile(rb"\{([0-9a-f]{32})\}:(.+:ban)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ActiveBan:
    """A ban in force.

    - `limit`, `rule`: the names of the limit and its rule, if known;
    - `identity`: the digest of the banned identity; empty if unknown;
    - `who`: the parts of the identity that `RATELIMIT_SHOW_IDENTITIES` allows;
    - `ban`: its end, its offences and the number of bans so far;
    - `why`: the reason of a ban by hand;
    - `key`: the key of the ban in Redis;
    - `known`: the current limit; None if this process does not have it.
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
    def terms(self) -> BanTerms | None:
        """Return the ban options of the limit; None if this process does not have the limit."""
        if self.known is None:
            return None
        return self.known.ban

    @property
    def next_us(self) -> int | None:
        """Return the length of the next ban, in microseconds; None if it is not known."""
        if self.terms is None:
            return None
        return self.terms.duration_us(self.ban.times)


def active_bans(most: int = MAX_ENTRIES) -> list[ActiveBan]:
    """Return the bans in force, in the order of their ends.

    Args:
        most: Maximum number of bans; of more, those that end last.

    Raises:
        StoreError: Redis is unavailable.
    """
    store = get_store(background=True)
    now = clock_of_bans()
    register = conf.CACHE_PREFIX + REGISTER
    keys: list[bytes] = store.execute(
        b"ZREVRANGEBYSCORE", register, b"+inf", b"(%d" % now, b"LIMIT", b"0", b"%d" % most
    )
    states = store.execute_all([(b"GET", key) for key in keys])
    details = store.execute_all([(b"GET", details_key(key)) for key in keys])
    limits: dict[bytes, Limit] = {}
    for each in known_limits():
        if each.limit is not None and each.limit.ban is not None:  # A rule's come first.
            limits.setdefault(each.limit.ban.key_part, each.limit)
    found = []
    for key, state, detail in zip(keys, states, details, strict=True):
        parsed = Ban.of_state(state or b"", now)
        match = _KEY.search(key)
        if parsed is None or match is None:
            continue
        ban, why = parsed
        known = limits.get(match[2])
        if known is not None and known.ban is not None and not ban.by_hand:  # As the limit is now.
            until = ban.last + known.ban.duration_us(ban.times - 1)
            ban = ban._replace(until=min(ban.until, until))
        if ban.until > now:
            name, rule, who = _details(detail)
            name = name or match[2].removesuffix(b":ban").decode(errors="replace")
            found.append(ActiveBan(name, rule, match[1].decode(), who, ban, why, key, known))
    return sorted(found, key=lambda active: active.ban.until)


def _details(text: bytes | None) -> tuple[str, str, Name]:
    try:
        details = json.loads(text or b"{}")
        who = [(str(kind), str(value)) for kind, value in details["who"]]
        return str(details.get("limit") or ""), str(details.get("rule") or ""), who
    except (ValueError, TypeError, KeyError, AttributeError):  # Written by hand, or not at all.
        return "", "", []


def number_of_bans() -> int:
    """Return the number of bans in force, at most 10,000.

    Raises:
        StoreError: Redis is unavailable.
    """
    lowest = b"(%d" % clock_of_bans()
    counted = (b"ZCOUNT", conf.CACHE_PREFIX + REGISTER, lowest, b"+inf")
    return int(get_store(background=True).execute(*counted))


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
        for active in bans:
            match = _KEY.search(active.key)
            # By its key. If this process does not have the limit, earlier bans are still
            # remembered.
            limit = active.known or Limit("lifted", "1/s", ban_after=1, ban_for="3650d")
            assert match is not None
            assert limit.ban is not None
            charge = Charge(limit.with_ban(replace(limit.ban, key_part=match[2])), match[1])
            run(unbanning([PlannedCharge(charge, active.limit)], forget=forget))
            lifted.append(active)
    finally:  # If Redis stops answering, some of them are lifted.
        if lifted:
            after = history_names({active.identity: active.who for active in lifted})
            if forget:
                after["forget"] = True
            names = [active.limit for active in lifted]
            record_change(RateLimitChange.Action.UNBANNED, names, after)


def ban(charges: Sequence[PlannedCharge], length: str | None = None, why: str = "") -> list[Ban]:
    """Ban the identities of these charges by hand, like `RateLimiter.ban`.

    The user in `acting` is recorded.
    """
    decision = run(banning(charges, length, why))
    after = history_names(
        {planned.charge.ban_digest.decode(): _name(planned) for planned in charges}
    )
    after["why"] = why
    names = [planned.charge.limit.name for planned in charges]
    record_change(RateLimitChange.Action.BANNED, names, after)
    return [state.ban for state in decision.limits if state.ban is not None]


def banning_limits() -> dict[str, KnownLimit]:
    """Return the limits that ban and have a known key, with that key.

    They are listed by the name of their rule, or by their own name if they are in the code. A rule
    with several limits is listed with the first.
    """
    found: dict[str, KnownLimit] = {}
    ruled = set()
    for known in known_limits():
        limit = known.limit
        name = known.place
        if known.rule is not None:
            ruled.add(name)
        elif name in ruled:
            continue
        elif limit is not None:
            name = limit.name
        if limit is not None and limit.ban is not None and known.key:
            found.setdefault(name, known._replace(key=limit.ban_key or known.key))
    return found


def ban_client(
    banning: KnownLimit,
    address: str,
    user: str,
    value: str,
    *,
    length: str | None,
    why: str,
    spared: Collection[str] = (),
) -> Ban:
    """Ban a client by hand, like `ban`.

    Args:
        banning: One of `banning_limits`.
        address: The address, if any.
        user: The name or primary key of a user, if any.
        value: The value of the field, if any.
        length: As of `ban`.
        why: As of `ban`.
        spared: Digests that are not banned.

    Raises:
        ValidationError: The client is not named, or its digest is one of `spared`.
    """
    identity, *others = (
        _part(part, address, user.strip(), value) for part in banning.key.split("+")
    )
    if others:
        identity = (identity, *others)
    assert banning.limit is not None
    charge = Charge(banning.limit, digest(identity))
    if charge.digest.decode() in spared:
        raise ValidationError(_("This includes your own account: you would lock yourself out."))
    name = banning.limit.name
    if banning.rule is not None:
        name = banning.rule.name
    return ban([PlannedCharge(charge, name, banning.rule, identity=identity)], length, why)[0]


def _part(part: str, address: str, user: str, value: str) -> Identity:
    if part == "user" or (part == "user_or_ip" and user):
        found = user and find_user(user)
        if not found:
            raise ValidationError(_("Enter a user: this limit counts by users."))
        return ("user", str(found.pk))
    if part in ("ip", "user_or_ip"):
        client = address_as(address, "")
        if client.address is None:
            raise ValidationError(_("Enter an address: this limit counts by addresses."))
        if is_spared(client.address):
            raise ValidationError(
                _("RATELIMIT_NEVER_BAN names this address: no client there is banned.")
            )
        return ("ip", client.network)
    if split_field(part) is None:
        text = _("This limit counts by %(key)s, which cannot be entered here.")
        raise ValidationError(text % {"key": part})
    identity = field_identity(part, value)
    if identity[-1] is None:
        raise ValidationError(_("Enter the value of %(field)s.") % {"field": part})
    return identity


def _name(planned: PlannedCharge) -> Name:
    identity = planned.banned or planned.identity
    if identity is None:
        return []
    return shown(identity)
