"""What is said of one subject."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
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
    combined_kind,
    is_kind,
    kind_parts,
    read_record,
    split_fields,
    strength,
    write_record,
)  # fmt: skip

NOW = 1_000_000
ROWS = (
    Override(1, None, "block"),
    Override(2, 7, "limit", Rate(5, 60_000_000), burst=9, starts=5, ends=NOW + 1),
    Override(3, 7, "exempt", kind="all:user & exact:get:q"),
)


def known(**by_kind: list[Override]) -> KnownOverrides:
    refs = tuple(SubjectRef(kind.replace("_", "/"), kind.encode()) for kind in by_kind)
    return KnownOverrides(refs, tuple((b"", tuple(rows)) for rows in by_kind.values()))


def test_a_record_says_what_was_written() -> None:
    """All of it, behind a tag that is another for other overrides."""
    assert read_record(write_record(ROWS)) == ROWS
    forbidding = (Override(4, None, "block", block=Block(True, "Write to us.")),)
    assert read_record(write_record(forbidding)) == forbidding
    assert write_record(ROWS)[:TAG_SIZE] != write_record(ROWS[:2])[:TAG_SIZE]


@pytest.mark.parametrize(
    "words",
    [
        {"effect": "slow"}, {"rate": [5]}, {"rate": "5/m"}, {"rate": [5, -1]}, {"rate": [5.0, 60]}, {"burst": 0},
        {"starts": "now"}, {"id": None}, {"rule": True}, {"weekday": 5}, {"kind": "exact"}, {"kind": ["user"]},
    ],
)  # fmt: skip
def test_what_is_not_understood_goes_on_as_it_was(words: Any) -> None:
    """If it was understood before; else it is skipped, and the others hold."""
    tagged = write_record(ROWS[1:])
    one, other = json.loads(tagged[16:])
    text = tagged[:16] + json.dumps([{**one, **words}, other]).encode()
    assert read_record(text) == (ROWS[2],)
    assert read_record(text, ROWS) == (ROWS[2:] if "id" in words else ROWS[1:])
    assert read_record(tagged[:16] + b"?", ROWS) == ROWS


def test_a_block_with_unknown_words_is_a_block() -> None:
    """It may have been meant for less, and lifts nothing."""
    (given,) = json.loads(write_record(ROWS[:1])[16:])
    assert read_record(b"t" * 16 + json.dumps([{**given, "weekday": 5}]).encode()) == ROWS[:1]


def test_the_strongest_override_counts() -> None:
    """That of the most particular subject; then what names the rule; then by effect; then the newer."""
    block, exempt, limit = (Override(n, None, effect) for n, effect in enumerate(("block", "exempt", "limit"), 1))
    assert known(user=[exempt], ip4_24=[block]).strongest_for(7, NOW) is exempt
    assert known(ip4_24=[exempt], ip4_32=[limit]).strongest_for(7, NOW) is limit
    of_rule = Override(3, 7, "exempt")
    assert known(user=[block, of_rule]).strongest_for(7, NOW) is of_rule
    assert known(user=[block, of_rule]).strongest_for(8, NOW) is block
    assert known(user=[limit, exempt, block]).strongest_for(7, NOW) is block
    newer = Override(9, None, "block")
    assert known(user=[block, newer]).strongest_for(None, NOW) is newer
    assert known(user=[]).strongest_for(7, NOW) is None
    assert known(user=[replace(block, kind="exact:get:q")]).strongest_for(7, NOW) is None


def test_an_override_holds_from_its_start_to_its_end() -> None:
    """The start belongs to it, the end does not; until then it is told how long."""
    row = ROWS[1]
    assert [row.is_active(now) for now in (4, 5, NOW, NOW + 1)] == [False, True, True, False]
    assert (row.retry_after(NOW - 1_000_000), ROWS[0].retry_after(NOW)) == (1.000001, None)


def test_other_numbers_are_for_algorithms_that_take_them() -> None:
    """A burst is only a bucket's; what cannot be kept leaves the limit as it is."""
    bucket, window = Limit("a", "1/s", algorithm="token_bucket"), Limit("a", "1/s", algorithm="sliding_window")
    assert ROWS[1].limit(bucket) == Limit("a", "5/m", algorithm="token_bucket", burst=9)
    assert ROWS[1].limit(window) == Limit("a", "5/m", algorithm="sliding_window")
    assert ROWS[0].limit(bucket) is bucket
    log = Limit("a", "1/s", algorithm="sliding_log")
    assert Override(1, None, "limit", Rate(10**6, 1_000_000)).limit(log) is log


def test_a_process_knows_what_it_was_told() -> None:
    """By digest; whose record is gone is nobody again, and goes with an empty tag."""
    cache, ref = OverrideCache(), SubjectRef("user", b"u")
    assert not cache.get_many([ref])
    record = write_record(ROWS)
    cache.put_many([b"u"], [record])
    assert cache.get_many([ref]).call_subjects() == [Subject(b"u", record[:16])]
    assert cache.get_many([ref]).records[0][1] == ROWS
    cache.put_many([b"u"], [None])
    assert cache.get_many([ref]).call_subjects() == [Subject(b"u", b"")]


@pytest.mark.parametrize(
    ("kind", "is_one"),
    [("user", True), ("ip4/32", True), ("ip4/33", False), ("ip6/128", True), ("header:X-Key", True), ("moon", False),
     (5, False), ("exact:json:a.b", True)],
)  # fmt: skip
def test_kinds_of_subjects(kind: object, is_one: bool) -> None:
    """Users, networks that there can be, and the fields that a key can name."""
    assert is_kind(kind) is is_one


def test_the_smaller_a_network_the_more_particular() -> None:
    """A user, a field, an address, its networks."""
    kinds = ["ip4/8", "ip4/24", "ip4/32", "header:X-Key", "user"]
    assert sorted(kinds, key=strength) == kinds


def test_more_parts_are_more_particular_than_fewer() -> None:
    """Of as many, the most particular part is compared first; every combination of parts has its place."""
    kinds = [
        "user", "all:ip4/24 & post:a", "all:ip4/32 & post:a", "all:header:X & post:a", "all:user & ip4/8",
        "all:user & ip4/32", "all:user & post:a", "all:ip4/32 & header:X & post:a", "all:user & ip4/32 & post:a",
        "all:user & ip4/32 & header:X & post:a",
    ]  # fmt: skip
    assert all(map(is_kind, kinds))
    assert sorted(kinds, key=strength) == kinds


@pytest.mark.parametrize(
    "kind",
    [
        "all:", "all:user", "all:user & ", "all:user & user", "all:ip4/32 & user", "all:user & ip4/32 & ip4/24",
        "all:ip4/24 & ip6/64", "all:user & moon", "all:post:b & post:a", "all:post:a & post:a", "all:user & ip4/33",
        "all:user&post:a", "all:post:a & post:b & post:c & post:d", "user & post:a", "all:all:user & post:a",
    ],
)  # fmt: skip
def test_a_combination_that_is_none_is_no_kind(kind: str) -> None:
    """Its parts have one order, are there once, and are kinds; there are not more fields than can be looked for."""
    assert not is_kind(kind)


def test_a_combination_has_one_kind_in_whatever_order_its_parts_are_named() -> None:
    """And the parts of that kind are found again, also where a name is odd."""
    parts = ("user", "ip6/64", "exact:post:a,b", "header:X&Y")
    for order in itertools.permutations(parts):
        assert kind_parts(combined_kind(order)) == parts
    assert combined_kind(["user"]) == "user"
    assert combined_kind([]) == ""


def test_a_text_lists_fields() -> None:
    """Apart where a comma stands before one; other commas are part of a name."""
    assert split_fields("header:X-Tenant,post:a ,  exact:get:b") == ["header:X-Tenant", "post:a", "exact:get:b"]
    assert split_fields("get:a,b") == ["get:a,b"]
    assert split_fields("get:a, b, ip") == ["get:a, b, ip"]
    assert split_fields("moon, post:a") == ["moon", "post:a"]
    assert split_fields("") == []
