"""One client, known by the digest of its identity: its limits, bans and overrides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..conf import conf
from ..engine import DecidedCharge
from ..engine.decide import decide, now_us, peeking
from ..engine.run import Wait, run
from ..identity import Identity, secrets_by_id
from ..identity import digest as digest_of
from ..identity.address import Address, network_words, parse_address, parse_network
from ..identity.keys import split_prefix
from ..identity.names import NOTHING, Part, supplied_identity, unmark_identity
from ..limits.call import Charge
from ..models import RateLimitOverride
from ..operations.bans import ActiveBan, active_bans
from ..operations.explain import (
    Explanation,
    counter_of,
    explained_limits,
    find_row,
    unique_charges,
)
from ..operations.known_limits import IDENT, KnownLimit, known_limits
from ..operations.subjects import network_overrides
from ..rules.overrides import EVERY_RULE, Override, find_strongest
from ..rules.ruleset import Ruleset
from ..views.call_sites import LIMITER, known_call_sites
from ..web.plan import Party, Planner

AT_ONCE = 100
"""Limits of one call to Redis."""
MAX_LISTED = 50
"""Maximum number of limits, bans or overrides that are listed for a client."""
Identities = Mapping[str, Identity]
"""The identity of each part of a client, by its key: `{"ip": ("ip", "203.0.113.9")}`."""


class ExplainedClient(NamedTuple):
    """What is known of one client.

    - `digest`: of the identity that limits count;
    - `found`: the limits that have counted it or a part of it, and those of the requested name.
      They are decided as if it was not blocked; `found.block` is the override that blocks it;
    - `bans` and `overrides`: those that have not ended, of the client and of its parts.
    """

    digest: str
    found: Explanation
    bans: Sequence[ActiveBan]
    overrides: Sequence[RateLimitOverride]


def explain_client(digest: str, name: str = "", parts: Iterable[Part] = ()) -> ExplainedClient:
    """Return what is known of the client with this digest. Counts nothing.

    If its parts are known, a limit that counts by one of them is read with the count of that part:
    for the client `203.0.113.9 + ada`, a limit by address has the count of the address.

    Args:
        digest: 32 hexadecimal digits.
        name: The name of a rule, call site or limiter whose limits are included without a count.
        parts: The parts of the client, as far as they are known.

    Raises:
        StoreError: Redis is unavailable.
    """
    identities = part_identities(digest, parts)
    charges = _charges(digest, identities)
    charges.sort(key=lambda charge: charge.name != name)
    digests = {digest, *(charge.charge.digest.decode() for charge in charges)}
    for secret in secrets_by_id().values():  # An override may be from before a new key.
        digests |= {digest_of(each, secret).decode() for each in identities.values()}
    rows = [row for found in overrides_of(digests).values() for row in found]
    address = _address(identities)
    if address is not None:
        rows += network_overrides(str(address))
    overrides = [row.override() for row in rows]
    counted = _counted(charges, overrides)
    listed = [*counted, *_unused(charges, counted, name, bool(identities))]
    planner = _ClientPlanner(listed[:MAX_LISTED], overrides)
    found = Explanation(decide(planner))
    found.limits = explained_limits(planner, lambda charge: _known(charge).reading)
    block = find_strongest(overrides, EVERY_RULE, now_us())
    if block is not None and block.effect == "block":
        found.block = find_row(block)
    bans = active_bans(MAX_LISTED, digests)
    return ExplainedClient(digest, found, bans, rows[:MAX_LISTED])


def part_identities(digest: str, parts: Iterable[Part]) -> Identities:
    """Return the identities of the parts of a client.

    The result is empty if the parts are masked or shortened: then they have another digest.
    """
    identities = {kind: _part_identity(kind, value) for kind, value in parts}
    whole: Identity = tuple(identities.values())
    if len(identities) == 1:
        (whole,) = identities.values()
    if _digest(whole) != digest:
        return {}
    return identities


def _part_identity(kind: str, value: str) -> Identity:
    if not kind:
        return value
    field, _colon, name = kind.partition(":")
    known = None if value == NOTHING else value
    if name:
        return (field, name, known)
    return (kind, known)


def _digest(identity: Identity) -> str:
    return digest_of(identity).decode()


def counted_identity(key: str, identities: Identities) -> Identity:
    """Return the identity that a limit with this key counts for a client with these parts.

    It is None if the key needs more than these parts.
    """
    found = [_of_kind(kind, identities) for kind in key.split("+")]
    if not all(found):
        return None
    if len(found) == 1:
        return found[0]
    return tuple(found)


def _of_kind(kind: str, identities: Identities) -> Identity:
    if kind == "user_or_ip":
        return identities.get("user", identities.get("ip"))
    return identities.get(split_prefix(kind)[1])


def _address(identities: Identities) -> Address | None:
    identity = identities.get("ip")
    if not isinstance(identity, tuple):
        return None
    return parse_address(str(identity[-1]))


def counted_digests(digest: str, parts: Iterable[Part]) -> set[str]:
    """Return the digests that the page of a client includes, such as those of throttles."""
    charges = _charges(digest, part_identities(digest, parts))
    return {charge.charge.digest.decode() for charge in charges}


def _charges(digest: str, identities: Identities) -> list[DecidedCharge]:
    """Return a charge for each limit in force: of the client, or of the part that it counts.

    Limits in code that a rule replaces are left out.
    """
    charges: dict[tuple[bytes, bytes], DecidedCharge] = {}
    limits = [known for known in known_limits() if not known.rule or known.rule.mode != "off"]
    ruled = {known.place for known in limits if known.rule is not None}
    throttles = {known.place: known for known in limits if known.identity_form}
    for known in limits:
        if known.rule is None and known.place in ruled:
            continue
        if not known.key and known.place in throttles:  # A rule in place of a throttle.
            throttle = throttles[known.place]
            known = known._replace(key=throttle.key, identity_form=throttle.identity_form)
        identity = counted_identity(known.key, identities)
        if identities and known.key and identity is None and not known.limit.rate.limit:
            continue  # It refuses every client that it counts, but not this one.
        if known.identity_form and isinstance(identity, tuple):
            text = known.identity_form.replace(IDENT, str(identity[-1]))
            identity = supplied_identity(text, identity)
        counted = digest
        if identity is not None:
            counted = _digest(unmark_identity(identity))
        charge = Charge(known.limit, counted.encode())
        decided = DecidedCharge(charge, known.place, known.rule, known, identity)
        charges.setdefault(counter_of(charge), decided)
    return [*charges.values()]


def _counted(
    charges: Sequence[DecidedCharge], overrides: Sequence[Override]
) -> list[DecidedCharge]:
    """Return the charges whose limits have counted units of the client, or ban it.

    That includes the counts by these overrides.
    """
    counts = [(charge, each) for charge in charges for each in _counts(charge, overrides)]
    found: dict[DecidedCharge, None] = {}
    for start in range(0, len(counts), AT_ONCE):
        part = counts[start : start + AT_ONCE]
        peeked = unique_charges([count for _charge, count in part])
        decided = [DecidedCharge(count, "") for count in peeked]
        run(peeking(decided))
        states = {counter_of(each.charge): each.state for each in decided}
        for charge, count in part:
            state = states[counter_of(count)]
            if state.used or state.reset_after or not state.allowed:
                found[charge] = None
    return [*found]


def counted_clients(keys: Mapping[str, str]) -> set[str]:
    """Return those of these clients that have a count or a ban under a limit of their key.

    Args:
        keys: The key of each client, by its digest.

    Raises:
        StoreError: Redis is unavailable.
    """
    charges = [
        DecidedCharge(Charge(known.limit, digest.encode()), known.place)
        for known in known_limits()
        for digest, key in keys.items()
        if known.key == key
    ]
    return {charge.charge.digest.decode() for charge in _counted(charges, ())}


def _counts(charge: DecidedCharge, overrides: Sequence[Override]) -> list[Charge]:
    """Return a charge, and the same at the rate of each of these overrides that is about it."""
    limit = charge.charge.limit
    own = [each for each in overrides if each.rule in (EVERY_RULE, charge.name)]
    limits = [limit, *(override.limit(limit) for override in own)]
    return [charge.charge._replace(limit=each) for each in limits]


def _unused(
    charges: Sequence[DecidedCharge], counted: Sequence[DecidedCharge], name: str, is_known: bool
) -> list[DecidedCharge]:
    """Return the limits that the client has not used, but that belong to the others.

    If the parts of the client are known, these are its limits in all places that have counted it,
    and those of the given name. Otherwise, a limit that counts by something else is left out,
    because its count is unknown.
    """
    names = {name}
    keys = {_known(charge).key for charge in counted if charge.name == name}
    if is_known:
        names |= {charge.name for charge in counted}
    found = []
    for charge in charges:
        is_counted = charge in counted or charge.charge.limit.variant
        key = _known(charge).key
        is_own = not keys or key in keys
        if is_known:
            is_own = charge.identity is not None or not key
        if charge.name in names and is_own and not is_counted:
            found.append(charge)
    return found


def _known(charge: DecidedCharge) -> KnownLimit:
    assert isinstance(charge.owner, KnownLimit)
    return charge.owner


class _ClientPlanner(Planner):
    """Plans a peek at limits for one client and its parts, as if no override blocked it.

    An override with a rate is one limit, instead of a rule's tiers.
    """

    ignores_blocks = True

    def __init__(self, charges: Sequence[DecidedCharge], overrides: Sequence[Override]) -> None:
        super().__init__("peek")
        listed: dict[tuple[bytes, bytes], DecidedCharge] = {}
        for planned in charges:
            override = find_strongest(overrides, planned.name, now_us())
            charge = planned.charge
            if override is not None:
                charge = charge._replace(limit=override.limit(charge.limit))
            listed.setdefault(counter_of(charge), planned)
        kept = [*listed.values()]
        apart = unique_charges([planned.charge for planned in kept])
        for planned, charge in zip(kept, apart, strict=True):
            planned.charge = charge
        # A RateLimiter uses no overrides.
        own = [planned for planned in kept if not _is_limiter(planned.name)]
        rest = [planned for planned in kept if _is_limiter(planned.name)]
        self.take([Party(own, overrides, False), Party(rest, (), False)])

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        self.ruleset = ruleset
        return ()


def _is_limiter(name: str) -> bool:
    return any(site.kind == LIMITER for site in known_call_sites.get(name))


def overrides_of(digests: Collection[str]) -> dict[str, list[RateLimitOverride]]:
    """Return the overrides of each of these clients that have not ended.

    An override may name a client by its digest, its user name or the value of a field.
    """
    rows = RateLimitOverride.objects.lasting().filter(subject__in=digests)
    found: dict[str, list[RateLimitOverride]] = {digest: [] for digest in digests}
    for row in rows.select_related("user"):
        found[row.subject].append(row)
    return found


def override_subject(digest: str, name: Iterable[Part]) -> tuple[str, str]:
    """Return the field of an override that names exactly this client, and its value.

    If the client is a single user or address, that field is returned. Otherwise, for example if
    the name is masked or hidden, the override has to name the digest.
    """
    identities = part_identities(digest, name)
    if len(identities) == 1:
        if "user" in identities:
            return "user", str(identities["user"][-1])  # type: ignore[index]
        address = _address(identities)
        if address is not None:
            bits = {4: conf.IPV4_MASK, 6: conf.IPV6_MASK}[address.version]
            return "network", network_words(parse_network(f"{address}/{bits}"))
    return "client_digest", digest
