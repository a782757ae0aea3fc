"""Overrides: another limit, an exemption or a block for one client.

The overrides of all clients are published with the rules (see `snapshot.Snapshot`), in a
form that needs no further preparation: a look-up parses only the overrides that it finds. A client
is a user, a network, the value of a field, or the client with a digest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_network
from types import NoneType
from typing import Any, Literal, NamedTuple

from ..conf.values import Network
from ..identity import Identity, digest, secrets_by_id
from ..identity.address import Address
from ..identity.keys import PREFIXES, split_field
from ..limits import algorithms
from ..limits.decision import PLAIN_BLOCK, Block
from ..limits.limit import Limit
from ..limits.rate import SECOND, LimitError, Rate

logger = logging.getLogger("django_ratelimit_lua")
Effect = Literal["limit", "exempt", "block"]
EFFECTS: tuple[Effect, ...] = ("block", "exempt", "limit")
EVERY_RULE = ""
"""The rule of an override that applies to all rules."""
USER = "user"
DIGEST = "digest"
NETWORK = "network"
_NETWORK = re.compile(r"ip([46])/([0-9]{1,3})")
Entry = Sequence[Any]
"""An override as it is published, see `Override.parse`."""


class Override(NamedTuple):
    """An override for one client.

    - `pk`: the id of its row;
    - `rule`: the name of the rule or call site that it applies to; `EVERY_RULE`: to all;
    - `starts`, `ends`: its beginning and end in microseconds since 1970 (None: unlimited);
    - `block`: how a block is answered;
    - `subject`: the digest of its client;
    - `strength`: how specific its client is, see `strength`.
    """

    pk: int
    rule: str = EVERY_RULE
    effect: Effect = "block"
    rate: Rate | None = None
    burst: int | None = None
    starts: int | None = None
    ends: int | None = None
    block: Block = PLAIN_BLOCK
    subject: bytes = b""
    strength: int = 0

    @classmethod
    def parse(cls, entry: Entry, kind: str, subject: bytes) -> Override:
        """Return the override of an entry. Raises an error if it is invalid.

        An entry is a list: the id of the row, the rule, the effect, beginning and end in
        microseconds, and a mapping with the options "rate", "burst", "forbids" and "message". Empty
        values at its end are left out.
        """
        pk, rule, effect, starts, ends, options = [*entry, *_EMPTY[len(entry) :]]
        if effect not in EFFECTS:
            raise ValueError(f"unknown effect {effect!r}")
        if type(pk) is not int or not isinstance(rule, str):
            raise ValueError("the id must be a number, and the rule must be text")
        burst = options.get("burst")
        if not all(type(number) in (int, NoneType) for number in (starts, ends, burst)):
            raise ValueError("beginning, end and burst must be whole numbers")
        rate = None
        if effect == "limit":
            rate = _parse_rate(rule, options.get("rate", ""), burst)
        if starts and ends and starts >= ends:
            raise ValueError("the end is before the start")
        return cls(
            pk=pk,
            rule=rule,
            effect=effect,
            rate=rate,
            burst=burst,
            starts=starts or None,
            ends=ends or None,
            block=Block(options.get("forbids", False) is True, str(options.get("message", ""))),
            subject=subject,
            strength=strength(kind),
        )

    def is_active(self, now: int) -> bool:
        """Return whether the override is in force at a time in microseconds."""
        if self.starts is not None and now < self.starts:
            return False
        return self.ends is None or now < self.ends

    def retry_after(self, now: int) -> float | None:
        """Return the seconds until the override ends; None if it has no end."""
        if self.ends is None:
            return None
        return max(self.ends - now, 1) / SECOND

    def apply_to(self, limit: Limit) -> Limit:
        """Return a limit with the rate and burst of this override.

        It has a count of its own, which all tiers of a rule share. If its algorithm has no burst,
        only the rate is changed. If the override has no rate, or they do not fit, the limit is
        returned as it is.
        """
        if self.rate is None:
            return limit
        return _with_rate(limit, self.rate, self.burst, f"override:{self.pk}")


_ADDRESS_BITS = {4: 32, 6: 128}
_EMPTY: Entry = (0, EVERY_RULE, "", None, None, {})


def _parse_rate(rule: str, text: str, burst: int | None) -> Rate:
    """Return the rate of another limit. Raises `ValueError` if it or the burst is invalid."""
    if rule == EVERY_RULE:
        raise ValueError("another limit is for one rule")
    rate = Rate.parse(text)
    if burst is not None and not 1 <= burst <= Rate.MAX_UNITS:
        raise ValueError(f"burst is {burst}: must be from 1 to {Rate.MAX_UNITS}")
    return rate


@lru_cache(maxsize=4096)
def _with_rate(limit: Limit, rate: Rate, burst: int | None, variant: str) -> Limit:
    """Return a limit with another rate and burst, or the limit if they do not fit; cached.

    The burst is ignored if the algorithm of the limit has none. An error is logged.
    """
    has_burst = "burst" in algorithms.find(limit.algorithm).options
    try:
        return limit.at_rate(rate, burst if has_burst else None, variant)
    except LimitError as error:
        logger.error("An override is skipped: %s", error)
        return limit


def network_kind(version: int, prefix_length: int) -> str:
    """Return the kind of client for networks of that size.

    >>> network_kind(4, 24)
    'ip4/24'
    """
    return f"ip{version}/{prefix_length}"


def network_key(kind: str, prefix: int) -> str:
    """Return the key under which the overrides of a network are published, by its prefix.

    >>> network_key("ip4/24", 0xCB0071)
    'ip4/24:cb0071'
    """
    return f"{kind}:{prefix:x}"


def client_key(subject: str) -> str:
    """Return the key under which the overrides of the client with a digest are published."""
    return f"{DIGEST}:{subject}"


def network_identity(network: Network) -> Identity:
    """Return the identity of a network."""
    return (NETWORK, str(network))


@lru_cache(maxsize=1024)
def strength(kind: str) -> int:
    """Return how specific a kind of client is.

    From the most to the least specific: a client's digest, a user, the value of a field, an
    address, a network.
    """
    network = _NETWORK.fullmatch(kind)
    if network:
        return int(network[2])
    return {USER: 130, DIGEST: 131}.get(kind, 129)


def find_strongest(overrides: Iterable[Override], rule: str, now: int) -> Override | None:
    """Return the override in force for a rule: that of the most specific client; None: no override.

    For the same client, an override of the rule precedes one of all rules, a block precedes an
    exemption, an exemption another limit, and a newer override an older one.
    """
    matching = [
        override
        for override in overrides
        if override.rule in (EVERY_RULE, rule) and override.is_active(now)
    ]
    return max(matching, key=_precedence, default=None)


def _precedence(override: Override) -> tuple[int, bool, int, int]:
    """Return the sort key of an override: that of the strongest one is the greatest."""
    effect = -EFFECTS.index(override.effect)
    return override.strength, override.rule != EVERY_RULE, effect, override.pk


class Overrides:
    """The overrides of a snapshot, and how to find those of one client.

    - `number`: how many clients they are about;
    - `is_blocking`: whether any of them blocks a client for all rules;
    - `fields`: by rule (or `EVERY_RULE`), which values of a request overrides refer to: `USER`,
      `NETWORK`, `DIGEST`, and fields;
    - `problems`: why some of them are not applied.
    """

    def __init__(self, sections: Sequence[Mapping[str, Any]]) -> None:
        """Index the sections of overrides of a published snapshot."""
        self.is_blocking = any(section.get("blocks", False) for section in sections)
        self.fields: dict[str, dict[str, None]] = {}
        self._entries: dict[str, Sequence[Entry]] = {}
        self._parsed: dict[str, Sequence[Override]] = {}
        unknown: set[str] = set()
        for section in sections:
            if section.get("entries"):
                self._add_entries(section["entries"])
            if section.get("fields"):
                unknown |= self._add_fields(section["fields"])
        self.problems = [
            f"overrides by {field!r} match no request: the key is not registered"
            for field in sorted(unknown)
        ]
        for section in sections:
            self.problems += section.get("problems", ())
        self.number = len(self._entries)
        self._set_secrets(sections)
        self._networks = _networks_by_version(
            {kind for section in sections for kind in section.get("networks", ())}
        )

    def _add_fields(self, fields_by_rule: Mapping[str, Sequence[object]]) -> set[str]:
        """Add the fields of a section, by rule. Return those that are not registered."""
        unknown = set()
        for rule, fields in fields_by_rule.items():
            registered = self.fields.setdefault(rule, {})
            for field in fields:
                if is_kind(field):
                    registered[str(field)] = None
                else:
                    unknown.add(str(field))
        return unknown

    def _add_entries(self, entries: Mapping[str, Sequence[Entry]]) -> None:
        """Add the entries of a section. A client may have overrides in several sections."""
        in_both = self._entries.keys() & entries.keys()
        merged = {key: [*self._entries[key], *entries[key]] for key in in_both}
        self._entries.update(entries)
        self._entries.update(merged)

    def _set_secrets(self, sections: Sequence[Mapping[str, Any]]) -> None:
        """Choose the keys with which clients are digested to find their overrides.

        All digests that can be made again are published with each key, so one key finds all of
        them. The digests of field values are not: each key that made one is needed.
        """
        secrets = secrets_by_id()
        usable = set(secrets).intersection(*(section.get("keys", ()) for section in sections))
        self._secrets = [secrets[key] for key in secrets if key in usable][:1]
        of_values = {key for section in sections for key in section.get("value_keys", ())}
        self._value_secrets = [secrets[key] for key in secrets if key in of_values]

    def fields_for(self, rules: Collection[str], blocks_uncharged: bool) -> Collection[str]:
        """Return the fields to look up for a request that these rules charge.

        With `blocks_uncharged`, they include the fields by which blocks may refuse the request even
        if nothing is charged.
        """
        may_block = blocks_uncharged and self.is_blocking
        if not self.fields or not (rules or may_block):
            return ()
        # An exemption lifts a block, also if nothing is charged.
        names = [EVERY_RULE, *rules]
        return dict.fromkeys(field for rule in names for field in self.fields.get(rule, ()))

    def find_by_identity(self, kind: str, identity: Identity) -> Iterator[Override]:
        """Yield the overrides of a user, or of the value of a field.

        The overrides of all users are published by their digest with one key. A value is not
        stored, so its overrides are published by the digest with the key of that time.
        """
        secrets = self._secrets if kind == USER else self._value_secrets
        for secret in secrets:
            subject = digest(identity, secret)
            yield from self._parse_entries(value_key(kind, subject.decode()), kind, subject)

    def find_by_client(self, subject: bytes) -> Sequence[Override]:
        """Return the overrides of the client with a digest."""
        return self._parse_entries(client_key(subject.decode()), DIGEST, subject)

    def find_by_address(self, address: Address) -> Iterator[Override]:
        """Yield the overrides of the networks that contain an address, the smallest first."""
        number = int(address)
        for network in self._networks.get(address.version, ()):
            key = network_key(network.kind, number >> network.host_bits)
            if key in self._parsed:
                yield from self._parsed[key]
            elif key in self._entries:
                prefix_length = address.max_prefixlen - network.host_bits
                subject = ip_network(f"{address}/{prefix_length}", strict=False)
                yield from self._parse_entries(key, network.kind, digest(network_identity(subject)))

    def _parse_entries(self, key: str, kind: str, subject: bytes) -> Sequence[Override]:
        """Return the overrides under a key, parsed once; those that cannot be parsed are logged."""
        if key not in self._entries:
            return ()
        if key not in self._parsed:
            overrides = []
            for entry in self._entries[key]:
                try:
                    overrides.append(Override.parse(entry, kind, subject))
                except Exception as error:  # Anything, edited by hand.
                    logger.error("An override cannot be read: %s: %s", error, str(entry)[:200])
            self._parsed[key] = overrides
        return self._parsed[key]


class _NetworkKind(NamedTuple):
    """A size of networks, and the number of bits that an address has after their prefix."""

    host_bits: int
    kind: str


def _networks_by_version(kinds: Iterable[str]) -> dict[int, list[_NetworkKind]]:
    """Return the kinds of networks, the smallest first, by the version of IP."""
    networks: dict[int, list[_NetworkKind]] = {}
    for kind in kinds:
        match = _NETWORK.fullmatch(kind)
        if match is not None:
            version, length = map(int, match.groups())
            host_bits = max(_ADDRESS_BITS[version] - length, 0)
            networks.setdefault(version, []).append(_NetworkKind(host_bits, kind))
    for of_version in networks.values():
        of_version.sort()
    return networks


def value_key(kind: str, subject: str) -> str:
    """Return the key under which the overrides of a user or of a field's value are published.

    Fields with a prefix have keys of their own: "ada" has the same digest by a field that compares
    letter case as "ADA" has by one that ignores it.
    """
    for prefix in PREFIXES:
        if kind.startswith(prefix):
            return prefix + subject
    return subject


@lru_cache(maxsize=1024)
def lookup_field(kind: str) -> str:
    """Return the value of a request by which overrides of this kind are looked up.

    >>> lookup_field("ip4/24"), lookup_field("header:X-API-Key")
    ('network', 'header:X-API-Key')
    """
    if _NETWORK.fullmatch(kind):
        return NETWORK
    return kind


def is_kind(kind: object) -> bool:
    """Return whether overrides can be published by this value of a request.

    >>> is_kind("header:X-API-Key"), is_kind("exact:get:q"), is_kind("os.system"), is_kind("user")
    (True, True, False, True)
    """
    if not isinstance(kind, str):
        return False
    return kind in (USER, NETWORK, DIGEST) or split_field(kind) is not None
