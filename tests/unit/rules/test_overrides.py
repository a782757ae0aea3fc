"""Overrides of one subject: their records, and which one applies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_ratelimit_lua import Limit, Rate
from django_ratelimit_lua.limits.call import TAG_SIZE, Subject
from django_ratelimit_lua.limits.decision import Block
from django_ratelimit_lua.rules.overrides import (
    KnownOverrides,
    Override,
    OverrideCache,
    SubjectRef,
    is_kind,
    read_record,
    strength,
    write_record,
)

NOW = 1_000_000
ROWS = (
    Override(1, None, "block"),
    Override(2, 7, "limit", Rate(5, 60_000_000), burst=9, starts=5, ends=NOW + 1),
    Override(3, 7, "exempt", kind="exact:get:q"),
)


def known(**by_kind: list[Override]) -> KnownOverrides:
    refs = [SubjectRef(kind.replace("_", "/"), kind.encode()) for kind in by_kind]
    return KnownOverrides(
        tuple((ref, (b"", tuple(rows))) for ref, rows in zip(refs, by_kind.values(), strict=True))
    )


def test_a_record_can_be_parsed_again() -> None:
    """A record that is written and read again has the same overrides. Its tag differs if the
    overrides differ.
    """
    assert read_record(write_record(ROWS)) == ROWS
    forbidding = (Override(4, None, "block", block=Block(True, "Write to us.")),)
    assert read_record(write_record(forbidding)) == forbidding
    assert write_record(ROWS)[:TAG_SIZE] != write_record(ROWS[:2])[:TAG_SIZE]


@pytest.mark.parametrize(
    "words",
    [
        {"effect": "slow"},
        {"rate": [5]},
        {"rate": "5/m"},
        {"rate": [5, -1]},
        {"rate": [5.0, 60]},
        {"burst": 0},
        {"starts": "now"},
        {"id": None},
        {"rule": True},
        {"weekday": 5},
        {"kind": "exact"},
        {"kind": ["user"]},
    ],
)
def test_an_invalid_entry_keeps_its_previous_version(words: Any) -> None:
    """An invalid entry makes the whole record keep its previous version. Without a previous
    version, there are no overrides.
    """
    tagged = write_record(ROWS[1:])
    one, other = json.loads(tagged[16:])
    text = tagged[:16] + json.dumps([{**one, **words}, other]).encode()
    assert read_record(text) == ()
    assert read_record(text, ROWS) == ROWS
    assert read_record(tagged[:16] + b"?", ROWS) == ROWS


def test_a_block_with_unknown_fields_is_a_block() -> None:
    """A block with an unknown field still blocks, because ignoring it would lift the block."""
    (given,) = json.loads(write_record(ROWS[:1])[16:])
    assert read_record(b"t" * 16 + json.dumps([{**given, "weekday": 5}]).encode()) == ROWS[:1]


def test_the_most_specific_override_applies() -> None:
    """The most specific subject decides, then an override that names the rule, then the effect,
    then the newest override.
    """
    block, exempt, limit = (
        Override(n, None, effect) for n, effect in enumerate(("block", "exempt", "limit"), 1)
    )
    assert known(user=[exempt], ip4_24=[block]).strongest_for(7, NOW) is exempt
    assert known(ip4_24=[exempt], ip4_32=[limit]).strongest_for(7, NOW) is limit
    of_rule = Override(3, 7, "exempt")
    assert known(user=[block, of_rule]).strongest_for(7, NOW) is of_rule
    assert known(user=[block, of_rule]).strongest_for(8, NOW) is block
    assert known(user=[limit, exempt, block]).strongest_for(7, NOW) is block
    newer = Override(9, None, "block")
    assert known(user=[block, newer]).strongest_for(None, NOW) is newer
    assert known(user=[]).strongest_for(7, NOW) is None
    assert known(user=[block._replace(kind="exact:get:q")]).strongest_for(7, NOW) is None


def test_an_override_applies_from_its_start_to_its_end() -> None:
    """The start is inclusive and the end is exclusive. The time to wait ends with the override, and
    is None if the override has no end.
    """
    row = ROWS[1]
    assert [row.is_active(now) for now in (4, 5, NOW, NOW + 1)] == [False, True, True, False]
    assert (row.retry_after(NOW - 1_000_000), ROWS[0].retry_after(NOW)) == (1.000001, None)


def test_another_burst_applies_only_to_algorithms_with_bursts() -> None:
    """An override's burst applies only to a token bucket. A rate that the algorithm cannot keep
    leaves the limit unchanged. Another rate has a count of its own.
    """
    bucket, window = (
        Limit("a", "1/s", algorithm="token_bucket"),
        Limit("a", "1/s", algorithm="sliding_window"),
    )
    variant = f"override:{ROWS[1].pk}"
    other = Limit("a", "5/m", algorithm="token_bucket", burst=9, variant=variant)
    assert ROWS[1].limit(bucket) == other
    assert ROWS[1].limit(window) == Limit("a", "5/m", algorithm="sliding_window", variant=variant)
    assert other.key_part != bucket.key_part
    assert ROWS[0].limit(bucket) is bucket
    log = Limit("a", "1/s", algorithm="sliding_log")
    assert Override(1, None, "limit", Rate(10**6, 1_000_000)).limit(log) is log


def test_a_process_caches_the_overrides_it_received() -> None:
    """Overrides are cached by digest. If a record has been deleted, the subject has no overrides
    and is sent with an empty tag.
    """
    cache, ref = OverrideCache(), SubjectRef("user", b"u")
    assert not cache.get_many([ref])
    record = write_record(ROWS)
    cache.put_many([b"u"], [record])
    assert cache.get_many([ref]).call_subjects() == [Subject(b"u", record[:16])]
    assert cache.get_many([ref]).records == ((ref, (record[:16], ROWS)),)
    cache.put_many([b"u"], [None])
    assert cache.get_many([ref]).call_subjects() == [Subject(b"u", b"")]


@pytest.mark.parametrize(
    ("kind", "is_one"),
    [
        ("user", True),
        ("ip4/32", True),
        ("ip4/33", False),
        ("ip6/128", True),
        ("header:X-Key", True),
        ("moon", False),
        (5, False),
        ("exact:json:a.b", True),
        ("digest", True),
        ("all:user & ip4/32", False),
    ],
)
def test_kinds_of_subjects_are_recognized(kind: object, is_one: bool) -> None:
    """The valid kinds are users, digests, possible networks, and the fields that a key can name."""
    assert is_kind(kind) is is_one


def test_a_smaller_network_is_more_specific() -> None:
    """The order from least to most specific is: large networks, small networks, the address, a
    field, a user, a client's digest.
    """
    kinds = ["ip4/8", "ip4/24", "ip4/32", "header:X-Key", "user", "digest"]
    assert sorted(kinds, key=strength) == kinds
