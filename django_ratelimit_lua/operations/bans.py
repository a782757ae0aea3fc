"""The bans in force, for operators: the client, the limit, the times, and how to end a ban."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from ..models import RateLimitChange, RateLimitRevision
from ..models.audit import current_actor
from ..publishing.publish import primary
from ..rules.callsite import known_call_sites
from ..rules.describe import key_label
from ..rules.places import look_for_call_sites
from ..rules.provider import reload
from ..rules.rule import Rule
from ..store import get_store
from .history_names import history_names
from .reference import known_limits
from .request_builder import find_user

MAX_ENTRIES = 1000
"""Default number of listed bans: those that end last."""
_KEY = re.compile(rb"\{([0-9a-f]{32})\}:(.+:ban)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ActiveBan:
    """A ban in force.

    - `limit`, `rule`: the names of the limit and its rule, if known; `identity`: the digest of the
      banned identity, and `who` in words, as `RATELIMIT_SHOW_IDENTITIES` allows; empty: unknown;
    - `ban`: its end, its offences and how often there was one; `why`: the reason of a ban by hand;
    - `terms`: the ban options of the limit; None: unknown here; `key`: the key of the ban in Redis;
    - `is_shadow`: its limit is in shadow mode at the moment, so it refuses no request.
    """

    limit: str
    rule: str
    identity: str
    who: Name
    ban: Ban
    why: str
    terms: BanTerms | None
    key: bytes
    is_shadow: bool = False

    @property
    def next_us(self) -> int | None:
        """How long the next one would be, in microseconds; None: that is not known here."""
        return None if self.terms is None else self.terms.duration_us(self.ban.times)


def active_bans(most: int = MAX_ENTRIES) -> list[ActiveBan]:
    """The bans in force, those that end first before the others. Raises `StoreError`."""
    store, now = get_store(background=True), clock_of_bans()
    register = conf.CACHE_PREFIX + REGISTER
    keys: list[bytes] = store.execute(
        b"ZREVRANGEBYSCORE", register, b"+inf", b"(%d" % now, b"LIMIT", b"0", b"%d" % most
    )
    commands = [(b"GET", key) for ban_key in keys for key in (ban_key, details_key(ban_key))]
    replies = store.execute_all(commands)
    limits = [one.limit for one in known_limits() if one.limit is not None]
    known = [(limit, limit.ban) for limit in limits if limit.ban is not None]
    # A rule's go before those of a call site.
    by_part = {terms.key_part: (terms, limit.mode == "shadow") for limit, terms in reversed(known)}
    found = []
    for place, key in enumerate(keys):
        state, details = replies[2 * place : 2 * place + 2]
        parsed, match = Ban.of_state(state or b"", now), _KEY.search(key)
        if parsed is None or match is None:
            continue
        ban, why = parsed
        terms, is_shadow = by_part.get(match[2], (None, False))
        if terms is not None and not ban.by_hand:  # As the limit is now.
            ban = ban._replace(until=min(ban.until, ban.last + terms.duration_us(ban.times - 1)))
        if ban.until > now:
            name, rule, who = _details(details)
            name = name or match[2].removesuffix(b":ban").decode(errors="replace")
            found.append(
                ActiveBan(name, rule, match[1].decode(), who, ban, why, terms, key, is_shadow)
            )
    return sorted(found, key=lambda active: active.ban.until)


def _details(text: bytes | None) -> tuple[str, str, Name]:
    try:
        details = json.loads(text or b"{}")
        name, rule = (str(details.get(word) or "") for word in ("limit", "rule"))
        return name, rule, [(str(a), str(b)) for a, b in details["who"]]
    except (ValueError, TypeError, KeyError, AttributeError):  # Written by hand, or not at all.
        return "", "", []


def number_of_bans() -> int:
    """How many bans are in force; of more than 10,000, those that end last. Raises `StoreError`."""
    now = clock_of_bans()
    return int(
        get_store(background=True).execute(
            b"ZCOUNT", conf.CACHE_PREFIX + REGISTER, b"(%d" % now, b"+inf"
        )
    )


def evidence_of_bans(bans: Sequence[ActiveBan]) -> list[tuple[Offence, ...]]:
    """Why they are banned: the last offences of each. Raises `StoreError`."""
    return evidence_of([(active.key, active.ban) for active in bans])


def lift_bans(bans: Sequence[ActiveBan], *, forget: bool = False) -> None:
    """Lift bans now, in all processes; with `forget`, the next one is as short as the first.

    The user in `acting` is recorded. Raises `StoreError`.
    """
    lifted: list[ActiveBan] = []
    try:
        for active in bans:
            match = _KEY.search(active.key)
            assert match is not None
            # By its key, because this process may not have the limit. Earlier bans are still
            # remembered then.
            limit = Limit("lifted", "1/s", ban_after=1, ban_for="3650d")
            terms = active.terms or limit.ban
            assert terms is not None
            charge = Charge(limit.with_ban(replace(terms, key_part=match[2])), match[1])
            run(unbanning([PlannedCharge(charge, active.limit)], forget=forget))
            lifted.append(active)
    finally:  # If Redis stops answering, some of them are lifted.
        if lifted:
            names = {one.identity: one.who for one in lifted}
            more = {"forget": True} if forget else {}
            _record(
                RateLimitChange.Action.UNBANNED,
                [one.limit for one in lifted],
                {**history_names(names), **more},
            )


def ban(charges: Sequence[PlannedCharge], length: str | None = None, why: str = "") -> list[Ban]:
    """Ban the identities of these charges by hand, as `RateLimiter.ban`.

    The user in `acting` is recorded.
    """
    decision = run(banning(charges, length, why))
    names = {planned.charge.ban_digest.decode(): _name(planned) for planned in charges}
    limits = [planned.charge.limit.name for planned in charges]
    _record(
        RateLimitChange.Action.BANNED,
        limits,
        {**history_names(names), **({"why": why} if why else {})},
    )
    return [state.ban for state in decision.limits if state.ban is not None]


@dataclass(frozen=True, slots=True)
class BanningLimit:
    """A limit that bans, its rule (None: it is in the code), and the name of its ban key."""

    limit: Limit
    rule: Rule | None
    key: str

    @property
    def key_label(self) -> str:
        """Whom it bans, in words."""
        return key_label(self.key.split("+"))


def banning_limits() -> dict[str, BanningLimit]:
    """The limits that ban, by name, if their identities are known.

    Of a rule with several, the first.
    """
    found: dict[str, BanningLimit] = {}
    look_for_call_sites()
    rules = {rule.name: rule for rule in reload().rules if rule.template is not None}
    for name, rule in rules.items():
        key = rule.template.key if rule.template is not None else None
        keys = [key.name] if key is not None else [site.key for site in known_call_sites.of(name)]
        limits = rule.template.limits(name) if rule.template is not None else ()
        for limit in [limit for limit in limits if limit.ban is not None and keys and keys[0]][:1]:
            found[name] = BanningLimit(limit, rule, limit.ban_key or keys[0])
    for name in known_call_sites.names():
        for site in known_call_sites.of(name) if name not in rules else ():
            for limit in site.limits if site.key else ():
                if limit.ban is not None:
                    found.setdefault(
                        limit.name, BanningLimit(limit, None, limit.ban_key or site.key)
                    )
    return found


def ban_client(
    banning: BanningLimit,
    address: str,
    user: str,
    value: str,
    *,
    length: str | None,
    why: str,
    spared: Collection[str] = (),
) -> Ban:
    """Ban by hand: an address, a user (by name or primary key), or a value of the field by which
    the limit bans; as `ban`.

    Raises `ValidationError` if the client is not named, or its digest is one of `spared`.
    """
    parts = [_part(part, address.strip(), user.strip(), value) for part in banning.key.split("+")]
    identity = parts[0] if len(parts) == 1 else tuple(parts)
    charge = Charge(banning.limit, digest(identity))
    if charge.digest.decode() in spared:
        raise ValidationError(_("This includes yourself: you would lock yourself out."))
    name = banning.limit.name if banning.rule is None else banning.rule.name
    return ban([PlannedCharge(charge, name, banning.rule, identity=identity)], length, why)[0]


def _part(part: str, address: str, user: str, value: str) -> Identity:
    if part == "user" or (part == "user_or_ip" and user):
        found = find_user(user) if user else None
        if found is None:
            raise ValidationError(_("Enter a user: this limit counts by users."))
        return ("user", str(found.pk))
    if part in ("ip", "user_or_ip"):
        try:
            own = ipaddress.ip_address(address)
        except ValueError:
            raise ValidationError(_("Enter an address: this limit counts by addresses.")) from None
        if any(own.version == network.version and own in network for network in conf.NEVER_BAN):
            raise ValidationError(
                _("RATELIMIT_NEVER_BAN names this address: no client there is banned.")
            )
        return ("ip", address_as(address, "").network)
    if split_field(part) is None:
        text = _("This limit counts by %(key)s, which cannot be entered here.")
        raise ValidationError(text % {"key": part})
    identity = field_identity(part, value)
    if identity[-1] is None:
        raise ValidationError(_("Enter the value of %(field)s.") % {"field": part})
    return identity


def _name(planned: PlannedCharge) -> Name:
    identity = planned.identity if planned.banned is None else planned.banned
    return [] if identity is None else shown(identity)


def _record(action: RateLimitChange.Action, limits: Sequence[str], after: dict[str, Any]) -> None:
    RateLimitChange.objects.create(
        revision=RateLimitRevision.read(primary()).revision,
        by=current_actor(),
        kind=RateLimitChange.Kind.IDENTITY,
        action=action,
        name=", ".join(dict.fromkeys(limits))[:300],
        after=after,
    )
