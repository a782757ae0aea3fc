"""Overrides: another limit, an exemption or a block for one subject.

A subject is a user, a network, the value of a field, or the client with a digest. There may be a
hundred thousand of them, so no process loads all. The overrides of each subject are one field of
the rules' hash in Redis. A call names its subjects, with the tag of the overrides that this process
knows (mostly none). If a tag differs from the stored one, the call decides nothing and returns the
stored overrides, which are then cached. See `limits/program.lua`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from ..identity import Identity, digest
from ..identity.forwarded import Address
from ..identity.keys import split_field
from ..limits import algorithms
from ..limits.call import TAG_SIZE, Subject
from ..limits.decision import PLAIN_BLOCK, Block
from ..limits.limit import Limit
from ..limits.rate import SECOND, LimitError, Rate
from ..process.bounded_map import BoundedMap

logger = logging.getLogger("django_ratelimit_lua")
Effect = Literal["limit", "exempt", "block"]
EFFECTS: tuple[Effect, ...] = ("block", "exempt", "limit")
_REMEMBERED = 10_000
_REMEMBERED_BYTES = 64 * 2**20
USER = "user"
DIGEST = "digest"
_NETWORK = re.compile(r"ip([46])/([0-9]{1,3})")


class Override(NamedTuple):
    """An override for one subject.

    - `pk`: the id of its row;
    - `rule`: the id of the rule that it applies to (None: all rules);
    - `starts`, `ends`: its beginning and end in microseconds since 1970 (None: unlimited);
    - `block`: how a block is answered;
    - `kind`: the kind of its subject, if that is a case-sensitive field. There "ada" has the same
      digest that "ADA" has in a field that ignores case, so the kind is compared as well.
    """

    pk: int
    rule: int | None = None
    effect: Effect = "block"
    rate: Rate | None = None
    burst: int | None = None
    starts: int | None = None
    ends: int | None = None
    block: Block = PLAIN_BLOCK
    kind: str = ""

    def is_active(self, now: int) -> bool:
        """Return whether the override is in force at a time in microseconds."""
        return (self.starts is None or self.starts <= now) and (
            self.ends is None or now < self.ends
        )

    def retry_after(self, now: int) -> float | None:
        """Return the seconds until the override ends; None if it has no end."""
        if self.ends is None:
            return None
        return max(self.ends - now, 1) / SECOND

    def limit(self, limit: Limit) -> Limit:
        """Return a limit with this override's numbers, or the limit itself if they do not fit.

        It has a count of its own, which all tiers of a rule share. An override may apply to rules
        of all algorithms: if an algorithm has no burst, only the rate is changed. Numbers that do
        not fit are logged.
        """
        if self.rate is None:
            return limit
        return _retuned(limit, self.rate, self.burst, f"override:{self.pk}")


@lru_cache(maxsize=4096)
def _retuned(limit: Limit, rate: Rate, burst: int | None, variant: str) -> Limit:
    if "burst" not in algorithms.find(limit.algorithm).options:
        burst = None
    try:
        return limit.at(rate, burst, variant)
    except LimitError as error:
        logger.error("An override is skipped: %s", error)
        return limit


def network_kind(version: int, prefix_length: int) -> str:
    """Return the kind of subject for networks of that size.

    >>> network_kind(4, 24)
    'ip4/24'
    """
    return f"ip{version}/{prefix_length}"


def network_identity(address: Address, kind: str) -> Identity | None:
    """Return the identity of an address's network, for a kind of network subjects.

    None if the address has another IP version.

    >>> network_identity(ipaddress.ip_address("203.0.113.9"), "ip4/24")
    ('network', '203.0.113.0/24')
    """
    version, _, prefix_length = kind.removeprefix("ip").partition("/")
    if address.version != int(version):
        return None
    return ("network", str(ipaddress.ip_network(f"{address}/{prefix_length}", strict=False)))


def client_identity(client: str) -> Identity:
    """Return the identity of the subject of an override about a client's digest.

    It differs from the identity that limits count, because the digest of that identity may already
    be the subject of an override about a user or a value.
    """
    return (DIGEST, client)


@lru_cache(maxsize=1024)
def strength(kind: str) -> int:
    """Return how specific a kind of subject is.

    From the most to the least specific: a client's digest, a user, the value of a field, an
    address, a network.
    """
    network = _NETWORK.fullmatch(kind)
    if network:
        return int(network[2])
    return {USER: 130, DIGEST: 131}.get(kind, 129)


class SubjectRef(NamedTuple):
    """A subject that a request matches."""

    kind: str
    digest: bytes


Record = tuple[bytes, tuple[Override, ...]]
"""A tag, and the overrides that are written behind it."""


@lru_cache(maxsize=16_384)
def network_digest(address: Address, kind: str, secret: str | bytes) -> bytes | None:
    """Return the digest of an address's network under a secret, or None; see `network_identity`."""
    identity = network_identity(address, kind)
    if identity is None:
        return None
    return digest(identity, secret)


class KnownOverrides(NamedTuple):
    """The overrides of a request's subjects, as they were known at one moment.

    - `records`: each subject, with the tag of its record and its overrides.
    """

    records: tuple[tuple[SubjectRef, Record], ...]

    def __bool__(self) -> bool:
        return any(overrides for _ref, (_tag, overrides) in self.records)

    def call_subjects(self) -> list[Subject]:
        """Return the subjects for a call that uses these overrides."""
        return [Subject(ref.digest, tag) for ref, (tag, _overrides) in self.records]

    def strongest_for(self, rule: int | None, now: int) -> Override | None:
        """Return the override in force for a rule: that of the most specific subject.

        For the same subject, an override of the rule precedes one of all rules, a block precedes an
        exemption, an exemption another limit, and a newer override an older one.
        """
        matching = [
            (ref.kind, override)
            for ref, (_tag, overrides) in self.records
            for override in overrides
            if override.rule in (None, rule)
            and override.kind in ("", ref.kind)
            and override.is_active(now)
        ]
        if not matching:
            return None
        return max(matching, key=_rank)[1]

    def with_rates(self, rule: int | None) -> list[Override]:
        """Return all overrides of a rule that have a rate, in force or not."""
        each = [override for _ref, (_tag, overrides) in self.records for override in overrides]
        return [one for one in each if one.rate is not None and one.rule in (None, rule)]

    def subject_of(self, override: Override) -> bytes:
        """Return the digest of the subject of one of these overrides."""
        return next(ref.digest for ref, (_tag, overrides) in self.records if override in overrides)


def _rank(match: tuple[str, Override]) -> tuple[int, bool, int, int]:
    kind, override = match
    effect = -EFFECTS.index(override.effect)
    return strength(kind), override.rule is not None, effect, override.pk


_NOBODY = KnownOverrides(())


class OverrideCache:
    """An LRU cache of the overrides of subjects."""

    def __init__(self) -> None:
        # However heavy a record is, it has to be known, or a call about it would never be decided.
        self._known: BoundedMap[bytes, Record] = BoundedMap(
            _REMEMBERED,
            _REMEMBERED_BYTES,
            lambda subject, record: 500 * len(record[1]),
            _REMEMBERED_BYTES,
        )

    def get_many(self, subjects: Sequence[SubjectRef]) -> KnownOverrides:
        """Return the known overrides of these subjects.

        A call and its plan have to use the same result.
        """
        if not subjects:
            return _NOBODY
        return KnownOverrides(tuple([(ref, self._record(ref.digest)) for ref in subjects]))

    def _record(self, subject: bytes) -> Record:
        return self._known.get(subject) or (b"", ())

    def get_each(
        self, groups: Sequence[Sequence[SubjectRef]]
    ) -> tuple[list[KnownOverrides], Sequence[Subject]]:
        """Return the known overrides of each group of subjects, as of one moment.

        The second result contains all these subjects, for the call that uses the overrides.
        """
        if not any(groups):
            return [_NOBODY] * len(groups), ()
        known = self.get_many(tuple(dict.fromkeys(ref for refs in groups for ref in refs)))
        records = dict(known.records)
        each = [KnownOverrides(tuple([(ref, records[ref]) for ref in refs])) for refs in groups]
        return each, known.call_subjects()

    def put_many(self, digests: Sequence[bytes], records: Sequence[bytes | None]) -> None:
        """Cache the records of subjects."""
        for subject, written in zip(digests, records, strict=True):
            if written is None:
                self._known.pop(subject)
            else:
                overrides = read_record(written, self._record(subject)[1])
                self._known.put(subject, (written[:TAG_SIZE], overrides))

    def clear(self) -> None:
        self._known.clear()


override_cache = OverrideCache()
_NUMBERS = ("rule", "burst", "starts", "ends")
_WORDS = {"id", "effect", "rate", *_NUMBERS, *Block._fields, "kind"}


def write_record(overrides: Sequence[Override]) -> bytes:
    """Return the record of a subject: a tag, and its overrides as JSON, without empty values."""
    declared = []
    for row in overrides:
        given: dict[str, object] = {"id": row.pk, "effect": row.effect, "kind": row.kind}
        given |= {word: getattr(row, word) for word in _NUMBERS} | row.block._asdict()
        if row.rate is not None:
            given["rate"] = [row.rate.limit, row.rate.period_us]
        declared.append({word: value for word, value in given.items() if value})
    text = json.dumps(declared, separators=(",", ":")).encode()
    return hashlib.blake2b(text, digest_size=TAG_SIZE // 2).hexdigest().encode() + text


def read_record(written: bytes, before: Sequence[Override] = ()) -> tuple[Override, ...]:
    """Return the overrides of a record; `before` if this version cannot parse it, which is logged.

    A block with unknown fields stays a block. An exemption or another limit with unknown fields may
    apply to fewer requests, so it cannot be parsed.
    """
    try:
        return tuple([_read(given) for given in json.loads(written[TAG_SIZE:])])
    except Exception as error:  # Anything, edited by hand.
        logger.error("Overrides cannot be read: %s: %s", error, str(written)[:200])
        return tuple(before)


def _read(given: dict[str, Any]) -> Override:
    effect = given["effect"]
    kind = given.get("kind", "")
    if effect not in EFFECTS or (kind and not is_kind(kind)):
        raise ValueError("unknown effect or kind")
    if effect != "block" and given.keys() - _WORDS:
        raise ValueError("unknown fields")
    numbers = {word: given[word] for word in _NUMBERS if given.get(word) is not None}
    rate = given.get("rate")
    if not all(map(_is_whole, [given["id"], *numbers.values(), *(rate or ())])):
        raise ValueError("not a whole number")
    if numbers.get("burst", 1) < 1:
        raise ValueError("burst is less than 1")
    if rate is not None:
        rate = Rate(*rate)
    block = Block(given.get("forbids") is True, str(given.get("message") or ""))
    return Override(given["id"], effect=effect, rate=rate, block=block, kind=kind, **numbers)


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < 2**63


def is_field(kind: str) -> bool:
    """Return whether a kind of subject is the value of a field."""
    return split_field(kind) is not None


def is_kind(kind: object) -> bool:
    """Return whether the value is a kind of subject.

    Kinds are a user, a network, a field, a registered key, and a client's digest.

    >>> (
    ...     is_kind("ip4/24"),
    ...     is_kind("header:X-API-Key"),
    ...     is_kind("exact:get:q"),
    ...     is_kind("os.system"),
    ...     is_kind("ip4/99"),
    ... )
    (True, True, True, False, False)
    """
    if not isinstance(kind, str):
        return False
    network = _NETWORK.fullmatch(kind)
    if network:
        return int(network[2]) <= {"4": 32, "6": 128}[network[1]]
    return kind in (USER, DIGEST) or is_field(kind)
