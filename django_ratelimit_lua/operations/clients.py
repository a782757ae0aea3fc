"""One client, known by the digest of its identity: its limits, bans and overrides."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..conf import conf
from ..engine.decide import decide, now_us, peeking
from ..engine.decided_charge import DecidedCharge
from ..engine.run import Wait, run
from ..identity import Identity
from ..identity import digest as digest_of
from ..identity.address import address_as
from ..identity.forwarded import network_words, parse_address, parse_network
from ..identity.keys import field_identity, split_field
from ..identity.names import Name, Part
from ..limits.call import Call, Charge
from ..limits.limit import Limit
from ..models import RateLimitOverride
from ..rules.callsite import LIMITER, known_call_sites
from ..rules.describe import key_label
from ..rules.overrides import DIGEST, EVERY_RULE, USER, Override, is_field, strongest
from ..rules.ruleset import Ruleset
from ..web.overrides import override_fields
from ..web.plan import Party, Planner
from .bans import ActiveBan, active_bans
from .explain import (
    ExplainedLimit,
    Explanation,
    explained_limits,
    override_row,
    with_tier,
    without_shared_bans,
)
from .reference import KnownLimit, known_limits
from .request_builder import find_user
from .subjects import NetworkOverride, Subject

MAX_EXAMINED = 2000
"""Maximum number of limits to read the counts of a client of."""
AT_ONCE = 100
"""Limits of one call to Redis."""
MAX_LISTED = 50
"""Maximum number of limits, bans or overrides that are listed for a client."""
_PREFIX = re.compile(r"[0-9a-f]{8,32}")
"""The part of a digest that a search needs. A reference contains 8 digits."""


class ExplainedClient(NamedTuple):
    """What is known of one client.

    - `digest`: of the identity that limits count; `name`: its parts, as far as they are recorded
      and `RATELIMIT_SHOW_IDENTITIES` allows;
    - `found`: the limits that have counted it, and those of the requested name. They are decided
      as if it was not blocked; `found.block` is the override that blocks it. Overrides about a
      network cannot be found by a digest;
    - `bans` and `overrides`: those that have not ended;
    - `is_complete`: every limit of the site was examined.
    """

    digest: str
    name: Name
    found: Explanation
    bans: Sequence[ActiveBan] = ()
    overrides: Sequence[RateLimitOverride] = ()
    is_complete: bool = True


def explain_client(digest: str, name: str = "", address: str = "") -> ExplainedClient:
    """Return what is known of the client with this digest. Counts nothing.

    Args:
        digest: 32 hexadecimal digits.
        name: The name of a rule, call site or limiter whose limits are always included.
        address: The address or network that the digest is of, if it is known.

    Raises:
        StoreError: Redis is unavailable.
    """
    limits = _limits_by_place()
    named = [found for found in limits.get(name, ()) if not found[1].variant]
    others = [found for place in limits.values() for found in place if found not in named]
    every = _sharing_nothing([*named, *others])
    named, others = every[: len(named)], every[len(named) :]
    examined = [*named, *others][:MAX_EXAMINED]
    overrides = overrides_of([digest])[digest]
    about: Sequence[NetworkOverride] = ()
    if address:
        about = Subject(address=address).network_overrides()
        overrides += [each.override for each in about if each.part != "part"]
    counted = _counted(others[:MAX_EXAMINED], digest.encode(), overrides)
    listed = [*named, *counted][:MAX_LISTED]
    planner = _ClientPlanner(digest.encode(), listed)
    decision = decide(planner)
    met = [_as_known(explained, overrides) for explained in explained_limits(planner)]
    found = Explanation(decision, met)
    strongest = planner.strongest()
    bans = active_bans(MAX_LISTED, identity=digest)
    names = [active.who for active in bans]
    if strongest is None:
        strongest = next((each.override for each in about if each.blocks_all), None)
    if strongest is not None and strongest.effect == "block":
        found.block = strongest
    return ExplainedClient(
        digest,
        next(filter(None, names), []),
        found,
        bans,
        overrides[:MAX_LISTED],
        len(examined) == len(named) + len(others),
    )


_Place = tuple[KnownLimit, Limit]


def _limits_by_place() -> dict[str, list[_Place]]:
    """Return the limits under each name: those of its rule, if any, or else those in the code."""
    places: dict[str, dict[bytes, _Place]] = {}
    for known in known_limits():  # Rules come first. A tier counts in the same place.
        is_off = known.rule is not None and known.rule.mode == "off"
        if known.limit is not None and not is_off:
            limits = places.setdefault(known.place, {})
            limits.setdefault(known.limit.key_part, (known, known.limit))
    return {
        name: [(known, limit) for known, limit in limits.values() if known.rule is not None]
        or [*limits.values()]
        for name, limits in places.items()
    }


def _sharing_nothing(limits: Sequence[_Place]) -> list[_Place]:
    """Return the limits in a form that one call can decide: no two of them share a ban.

    If several limits share a ban, only the first of them keeps it.
    """
    bans: set[bytes] = set()
    found: list[_Place] = []
    for known, limit in limits:
        ban = limit.ban
        if ban is not None and ban.key_part in bans:
            limit = limit.without_bans()
        elif ban is not None:
            bans.add(ban.key_part)
        found.append((known, limit))
    return found


def _as_known(explained: ExplainedLimit, overrides: Sequence[RateLimitOverride]) -> ExplainedLimit:
    """Return the limit with its sentence, which may be in code, and its counts by overrides."""
    planned = explained.planned
    known = planned.owner
    assert isinstance(known, KnownLimit)
    return explained._replace(
        reading=with_tier(known.reading, planned.charge.limit),
        counts=[count for each in explained.counts for count in _counts((known, each), overrides)],
    )


def _counted(
    limits: Sequence[_Place], digest: bytes, overrides: Sequence[RateLimitOverride]
) -> Iterator[_Place]:
    """Yield the limits that have counted units of the client, or ban it.

    That includes the counts by these overrides.
    """
    for start in range(0, len(limits), AT_ONCE):
        counts = [
            Charge(limit, digest)
            for place in limits[start : start + AT_ONCE]
            for limit in _counts(place, overrides)
        ]
        charges = [DecidedCharge(charge, "") for charge in without_shared_bans(counts)]
        run(peeking(charges))
        used = {
            decided.charge.limit.key_part
            for decided in charges
            if decided.state.used or decided.state.reset_after or not decided.state.allowed
        }
        for place in limits[start : start + AT_ONCE]:
            if any(limit.key_part in used for limit in _counts(place, overrides)):
                yield place


def _counts(place: _Place, overrides: Sequence[RateLimitOverride]) -> list[Limit]:
    """Return a limit, and the same at the rate of each of these overrides that is about it."""
    known, limit = place
    own = [row.override() for row in overrides if row.rule in (EVERY_RULE, known.place)]
    return [limit, *(override.limit(limit) for override in own)]


class _ClientPlanner(Planner):
    """Plans a peek at limits for one identity, as if no override blocked it."""

    ignores_blocks = True

    def __init__(self, digest: bytes, limits: Sequence[_Place]) -> None:
        super().__init__("peek")
        self._digest = digest
        self._listed = [
            DecidedCharge(Charge(limit, digest), known.place, known.rule, known)
            for known, limit in limits
        ]

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        # A RateLimiter uses no overrides.
        own = [planned for planned in self._listed if not _is_limiter(planned.name)]
        rest = [planned for planned in self._listed if _is_limiter(planned.name)]
        overrides: list[Override] = []
        for field in override_fields(ruleset.overrides, own, True):
            if field == DIGEST:
                overrides += ruleset.overrides.of_client(self._digest)
            elif field == USER or is_field(field):
                overrides += ruleset.overrides.of_digest(field, self._digest)
        self.ruleset = ruleset
        self.parties = [Party(own, overrides, False), Party(rest, (), False)]
        return ()

    def plan(self, ruleset: Ruleset) -> Call:
        """Plan the charges. An override with a rate is one limit, instead of a rule's tiers."""
        listed: dict[bytes, DecidedCharge] = {}
        for planned in self._listed:
            override = strongest(self.parties[0].overrides, planned.name, now_us())
            limit = planned.charge.limit
            if override is not None:
                limit = override.limit(limit)
            listed.setdefault(limit.key_part, planned)
        kept = [*listed.values()]
        self.take(
            [
                party._replace(charges=[planned for planned in party.charges if planned in kept])
                for party in self.parties
            ]
        )
        return super().plan(ruleset)

    def strongest(self) -> RateLimitOverride | None:
        """Return the override of the client that applies to all rules."""
        if not self.parties:
            return None
        return override_row(strongest(self.parties[0].overrides, EVERY_RULE, now_us()))


def _is_limiter(name: str) -> bool:
    return any(site.kind == LIMITER for site in known_call_sites.of(name))


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

    If the name is a single user or address with this digest, that field is returned. Otherwise, for
    example if the name is masked or hidden, the override has to name the digest.
    """
    parts = list(name)
    if len(parts) == 1:
        ((kind, value),) = parts
        if kind == "user" and digest_of(("user", value)).decode() == digest:
            return "user", value
        address = parse_address(value.partition("/")[0])
        if kind == "ip" and address and digest_of(("ip", str(address))).decode() == digest:
            bits = {4: conf.IPV4_MASK, 6: conf.IPV6_MASK}[address.version]
            return "network", network_words(parse_network(f"{address}/{bits}"))
    return "client_digest", digest


class FoundClient(NamedTuple):
    """A client that a search has found.

    - `digest`: the digest that a limit counts;
    - `label`: the key of that limit with its values, in words;
    - `name`: the parts of the identity.
    """

    digest: str
    label: str = ""
    name: tuple[Part, ...] = ()


def find_clients(text: str) -> list[FoundClient]:
    """Return the clients that match a user, an address or a value, as limits in force count them.

    The same user or address is another client for each kind of key, with another digest.

    Args:
        text: An address, a user, or a value of a field; several are separated by blanks, for keys
            such as `ip+post:username`.
    """
    words = text.split()
    if not words:
        return []
    addresses = [word for word in words if parse_address(word) is not None]
    address = next(iter(addresses), "")
    value = " ".join(word for word in words if word not in addresses)
    keys = dict.fromkeys(["user", "ip", *(known.key for known in known_limits() if known.key)])
    found: dict[str, FoundClient] = {}
    for key in keys:
        kinds = key.split("+")
        identities = [_find_identity(kind, address, value) for kind in kinds]
        if not all(identities):
            continue
        parts: tuple[Part, ...] = ()
        identity: Identity = tuple(identities)
        if len(identities) == 1:
            identity = identities[0]
            if key in ("user", "ip"):
                parts = ((key, str(identities[0][-1])),)
        digest = digest_of(identity).decode()
        texts = [address if kind == "ip" else value or address for kind in kinds]
        label = f"{key_label(kinds)}: {' '.join(dict.fromkeys(texts))}"
        found.setdefault(digest, FoundClient(digest, label, parts))
    return list(found.values())


def _find_identity(key: str, address: str, value: str) -> tuple[str | None, ...]:
    """Return the identity that a key would read; empty if this text has no value for the key."""
    if key == "user" or (key == "user_or_ip" and value):
        user = find_user(value)
        if user is None:
            return ()
        return ("user", str(user.pk))
    if key in ("ip", "user_or_ip"):
        if not address:
            return ()
        return ("ip", address_as(address, "").network)
    if split_field(key) is None or not value:
        return ()
    return field_identity(key, value)


def is_prefix(text: str) -> bool:
    """Return whether a text is a digest, or a prefix of one that is long enough for a search."""
    return _PREFIX.fullmatch(text) is not None


def clients_by_prefix(prefix: str) -> Mapping[str, Name]:
    """Return banned clients with digests of this prefix, and their names.

    Raises:
        StoreError: Redis is unavailable.
    """
    found = {active.identity: active.who for active in active_bans(identity=prefix)}
    about = RateLimitOverride.objects.filter(client_digest__startswith=prefix)
    for digest in about.values_list("client_digest", flat=True)[:MAX_LISTED]:
        found.setdefault(digest, [])
    return {digest: name for digest, name in found.items() if digest.startswith(prefix)}
