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
    - `explanation`: the limits that have counted it or a part of it, and those of the requested
      name. They are decided as if it was not blocked; its `block` is the override that blocks it;
    - `bans` and `overrides`: those that have not ended, of the client and of its parts.
    """

    digest: str
    explanation: Explanation
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
    charges = _charges_in_force(digest, identities)
    charges.sort(key=lambda charge: charge.name != name)
    digests = {digest, *(charge.charge.digest.decode() for charge in charges)}
    for secret in secrets_by_id().values():  # An override may have been made under an earlier one.
        digests |= {digest_of(identity, secret).decode() for identity in identities.values()}
    rows = _overrides_of_client(digests, _address_of(identities))
    overrides = [row.override() for row in rows]
    counted = _counted_charges(charges, overrides)
    unused = _unused_charges(charges, counted, name, has_parts=bool(identities))
    planner = _ClientPlanner([*counted, *unused][:MAX_LISTED], overrides)
    decision = decide(planner)
    limits = explained_limits(planner, lambda charge: _known_limit(charge).reading)
    explanation = Explanation(decision, limits)
    block = find_strongest(overrides, EVERY_RULE, now_us())
    if block is not None and block.effect == "block":
        explanation.block = find_row(block)
    bans = active_bans(MAX_LISTED, digests)
    return ExplainedClient(digest, explanation, bans, rows[:MAX_LISTED])


def _overrides_of_client(
    digests: Collection[str], address: Address | None
) -> list[RateLimitOverride]:
    """Return the overrides of these digests, and those of the networks of an address."""
    rows = [row for rows in overrides_of(digests).values() for row in rows]
    if address is not None:
        rows += network_overrides(str(address))
    return rows


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
    """Return the identity of a part from the name of its key and its value, as pages show it."""
    if not kind:
        return value
    stored = None if value == NOTHING else value
    return (*kind.split(":", 1), stored)


def _digest(identity: Identity) -> str:
    return digest_of(identity).decode()


def counted_identity(key: str, identities: Identities) -> Identity:
    """Return the identity that a limit with this key counts for a client with these parts.

    It is None if the key needs more than these parts.
    """
    parts: list[Identity] = []
    for kind in key.split("+"):
        if kind == "user_or_ip":
            parts.append(identities.get("user", identities.get("ip")))
        else:
            parts.append(identities.get(split_prefix(kind)[1]))
    if not all(parts):
        return None
    if len(parts) == 1:
        return parts[0]
    return tuple(parts)


def _address_of(identities: Identities) -> Address | None:
    """Return the address of a client; None if it is unknown or no valid address."""
    identity = identities.get("ip")
    if not isinstance(identity, tuple):
        return None
    return parse_address(str(identity[-1]))


def counted_digests(digest: str, parts: Iterable[Part]) -> set[str]:
    """Return the digests that the page of a client includes, such as those of throttles."""
    charges = _charges_in_force(digest, part_identities(digest, parts))
    return {charge.charge.digest.decode() for charge in charges}


def _charges_in_force(digest: str, identities: Identities) -> list[DecidedCharge]:
    """Return a charge for each limit in force: of the client, or of the part that it counts."""
    charges: dict[tuple[bytes, bytes], DecidedCharge] = {}
    for known in _limits_in_force():
        identity = counted_identity(known.key, identities)
        is_of_others = identities and known.key and identity is None
        if is_of_others and not known.limit.rate.limit:
            continue  # It refuses every client that it counts, but not this one.
        planned = _plan_charge(known, digest, identity)
        charges.setdefault(counter_of(planned.charge), planned)
    return list(charges.values())


def _limits_in_force() -> list[KnownLimit]:
    """Return the limits without rules that are off, and without code that a rule replaces.

    A rule in place of a throttle counts by the key of the throttle.
    """
    limits = [known for known in known_limits() if known.rule is None or known.rule.mode != "off"]
    ruled = {known.place for known in limits if known.rule is not None}
    throttles = {known.place: known for known in limits if known.identity_form}
    in_force = []
    for known in limits:
        if known.rule is None and known.place in ruled:
            continue
        if not known.key and known.place in throttles:
            throttle = throttles[known.place]
            known = known._replace(key=throttle.key, identity_form=throttle.identity_form)
        in_force.append(known)
    return in_force


def _plan_charge(known: KnownLimit, digest: str, identity: Identity) -> DecidedCharge:
    """Return the charge of an identity under a limit. If it is None, the digest is charged."""
    counted = identity
    if known.identity_form and isinstance(identity, tuple):
        text = known.identity_form.replace(IDENT, str(identity[-1]))
        counted = supplied_identity(text, identity)
    counted_digest = digest
    if counted is not None:
        counted_digest = _digest(unmark_identity(counted))
    charge = Charge(known.limit, counted_digest.encode())
    return DecidedCharge(charge, known.place, known.rule, known, counted)


def _counted_charges(
    charges: Sequence[DecidedCharge], overrides: Sequence[Override]
) -> list[DecidedCharge]:
    """Return the charges whose limits have counted units of the client, or ban it.

    That includes the counts by these overrides.
    """
    counts = [
        (planned, charge) for planned in charges for charge in _charges_by_rate(planned, overrides)
    ]
    counted = []
    for start in range(0, len(counts), AT_ONCE):
        part = counts[start : start + AT_ONCE]
        peeked = [
            DecidedCharge(charge, "")
            for charge in unique_charges([charge for _planned, charge in part])
        ]
        run(peeking(peeked))
        states = {counter_of(decided.charge): decided.state for decided in peeked}
        for planned, charge in part:
            state = states[counter_of(charge)]
            if state.used or state.reset_after or not state.allowed:
                counted.append(planned)
    return list(dict.fromkeys(counted))


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
    return {charge.charge.digest.decode() for charge in _counted_charges(charges, ())}


def _charges_by_rate(planned: DecidedCharge, overrides: Sequence[Override]) -> list[Charge]:
    """Return a charge, and the same at the rate of each of these overrides that is about it."""
    limit = planned.charge.limit
    matching = [override for override in overrides if override.rule in (EVERY_RULE, planned.name)]
    changed = [override.apply_to(limit) for override in matching]
    return [planned.charge, *(planned.charge._replace(limit=limit) for limit in changed)]


def _unused_charges(
    charges: Sequence[DecidedCharge],
    counted: Sequence[DecidedCharge],
    name: str,
    *,
    has_parts: bool,
) -> list[DecidedCharge]:
    """Return the charges that have no count, but belong to the counted ones.

    If the parts of the client are known, these are its limits in all places that have counted it,
    and those of the given name. Otherwise, these are the limits of the name, without those that
    count by another key, because their counts are unknown.
    """
    names = {name}
    if has_parts:
        names |= {charge.name for charge in counted}
    keys = {_known_limit(charge).key for charge in counted if charge.name == name}
    unused = []
    for charge in charges:
        if charge.name not in names or charge in counted or charge.charge.limit.variant:
            continue
        key = _known_limit(charge).key
        if has_parts:
            counts_client = charge.identity is not None or not key
        else:
            counts_client = not keys or key in keys
        if counts_client:
            unused.append(charge)
    return unused


def _known_limit(charge: DecidedCharge) -> KnownLimit:
    assert isinstance(charge.owner, KnownLimit)
    return charge.owner


class _ClientPlanner(Planner):
    """Plans a peek at limits for one client and its parts, as if no override blocked it.

    An override with a rate is one limit, instead of a rule's tiers.
    """

    ignores_blocks = True

    def __init__(self, charges: Sequence[DecidedCharge], overrides: Sequence[Override]) -> None:
        """Plan one charge for each counter, at the rates of these overrides."""
        super().__init__("peek")
        by_counter: dict[tuple[bytes, bytes], DecidedCharge] = {}
        for planned in charges:
            override = find_strongest(overrides, planned.name, now_us())
            charge = planned.charge
            if override is not None:
                charge = charge._replace(limit=override.apply_to(charge.limit))
            by_counter.setdefault(counter_of(charge), planned)
        listed = list(by_counter.values())
        unique = unique_charges([planned.charge for planned in listed])
        for planned, charge in zip(listed, unique, strict=True):
            planned.charge = charge
        # A RateLimiter uses no overrides.
        limiters = [planned for planned in listed if _is_limiter(planned.name)]
        others = [planned for planned in listed if not _is_limiter(planned.name)]
        self.set_parties([Party(others, overrides, False), Party(limiters, (), False)])

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        """Keep the ruleset. The charges do not depend on it."""
        self.ruleset = ruleset
        return ()


def _is_limiter(name: str) -> bool:
    return any(site.kind == LIMITER for site in known_call_sites.get(name))


def overrides_of(digests: Collection[str]) -> dict[str, list[RateLimitOverride]]:
    """Return the overrides of each of these clients that have not ended.

    An override may name a client by its digest, its user name or the value of a field.
    """
    rows = RateLimitOverride.objects.lasting().filter(subject__in=digests)
    overrides: dict[str, list[RateLimitOverride]] = {digest: [] for digest in digests}
    for row in rows.select_related("user"):
        overrides[row.subject].append(row)
    return overrides


def override_subject(digest: str, name: Iterable[Part]) -> tuple[str, str]:
    """Return the field of an override that names exactly this client, and its value.

    If the client is a single user or address, that field is returned. Otherwise, for example if
    the name is masked or hidden, the override has to name the digest.
    """
    identities = part_identities(digest, name)
    if len(identities) == 1:
        if "user" in identities:
            return "user", str(identities["user"][-1])  # type: ignore[index]
        address = _address_of(identities)
        if address is not None:
            bits = {4: conf.IPV4_MASK, 6: conf.IPV6_MASK}[address.version]
            return "network", network_words(parse_network(f"{address}/{bits}"))
    return "client_digest", digest
