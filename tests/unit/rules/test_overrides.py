"""Overrides: how those of one client are found, and which one applies."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from django_ratelimit_lua import Limit, Rate
from django_ratelimit_lua.identity import digest, key_id
from django_ratelimit_lua.limits.decision import Block
from django_ratelimit_lua.rules.overrides import (
    Override,
    Overrides,
    find_strongest,
    is_kind,
    lookup_field,
    strength,
    value_key,
)

NOW = 1_000_000
BLOCK = Override(1)
FASTER = Override(2, "api", "limit", Rate(5, 60_000_000), burst=9, starts=5, ends=NOW + 1)


def of(kind: str, *overrides: Override) -> list[Override]:
    """Return the overrides as those of a client of that kind."""
    return [override._replace(strength=strength(kind)) for override in overrides]


def section(**members: Any) -> dict[str, Any]:
    return {"keys": [key_id()], "value_keys": [key_id()], **members}


def test_the_overrides_of_an_address_are_found_by_prefix() -> None:
    """They are those of all networks that contain it, the smallest first."""
    some = {
        "ip4/8:cb": [[1, "", "block"]],
        "ip4/24:cb0071": [[2, "", "exempt"]],
        "ip4/24:cb0072": [[3, "", "block"]],
    }
    others = {"ip4/32:cb007109": [[4, "", "block"]], "ip6/48:20010db80000": [[5, "", "block"]]}
    overrides = Overrides(
        [
            section(networks=["ip4/8", "ip4/24"], entries=some),
            section(networks=["ip4/32", "ip6/48"], entries=others),
        ]
    )

    def found(address: str) -> list[int]:
        return [override.pk for override in overrides.find_by_address(ip_address(address))]

    assert found("203.0.113.9") == [4, 2, 1]
    assert found("203.0.113.8") == [2, 1]
    assert found("198.51.100.7") == []
    assert found("2001:db8::1") == [5]
    (network,) = overrides.find_by_address(ip_address("2001:db8::1"))
    assert network.subject == digest(("network", "2001:db8::/48"))


def test_a_client_is_found_by_its_user_its_values_and_its_digest() -> None:
    """A value of a field that compares letter case differs from that of one that does not."""
    user, value = digest(("user", "7")).decode(), digest(("get", "q", "ada")).decode()
    entries = {
        user: [[1, "", "block", None, 9, {"forbids": True, "message": "Write to us."}]],
        value: [[2, "api", "limit", None, None, {"rate": "5/m", "burst": 9}]],
        f"exact:{value}": [[3, "", "exempt"]],
        f"digest:{user}": [[4, "", "exempt", 5]],
    }
    overrides = Overrides([section(entries=entries)])
    (blocked,) = overrides.find_by_identity("user", ("user", "7"))
    assert blocked == Override(
        1, ends=9, block=Block(True, "Write to us."), subject=user.encode(), strength=130
    )
    (limited,) = overrides.find_by_identity("get:q", ("get", "q", "ada"))
    found = (limited.pk, limited.rule, limited.rate, limited.burst)
    assert found == (2, "api", Rate.parse("5/m"), 9)
    assert [one.pk for one in overrides.find_by_identity("exact:get:q", ("get", "q", "ada"))] == [3]
    assert [one.pk for one in overrides.find_by_client(user.encode())] == [4]
    assert list(overrides.find_by_identity("user", ("user", "8"))) == []


def test_the_overrides_of_a_client_in_several_sections_are_found_together() -> None:
    """A key with which only some sections were digested finds nothing by itself."""
    subject = digest(("user", "7")).decode()
    keys = [["old", key_id()], [key_id()], [key_id()]]
    overrides = Overrides(
        [
            section(keys=each, entries={subject: [[number, "", "block"]]})
            for number, each in enumerate(keys)
        ]
    )
    assert [one.pk for one in overrides.find_by_identity("user", ("user", "7"))] == [0, 1, 2]
    assert overrides.number == 1


@pytest.mark.parametrize(
    "entry",
    [
        [1, "", "slow"],
        [1, "api", "limit"],
        [1, "", "limit", None, None, {"rate": "5/m"}],
        [1, "api", "limit", None, None, {"rate": 5}],
        [1, "", "block", None, None, {}, 7],
        [1, "", "block", "soon"],
        [1, "", "block", None, float("inf")],
        ["1", "", "block"],
        [1, ["api"], "block"],
        [1, "api", "limit", None, None, {"rate": "5/m", "burst": [9]}],
        5,
    ],
)
def test_an_invalid_entry_is_skipped_and_logged_once(entry: Any, caplog: Any) -> None:
    """The other overrides of the client apply."""
    overrides = Overrides([section(entries={"digest:ada": [entry, [2, "", "block"]]})])
    for _ in range(2):
        assert [one.pk for one in overrides.find_by_client(b"ada")] == [2]
    assert len(caplog.records) == 1


def test_members_that_were_edited_by_hand_break_no_look_up() -> None:
    """Unknown sizes of networks and values are skipped, and other overrides apply."""
    odd = section(
        networks=["ip4/99", "ip4/24"],
        fields={"": ["network", "zz", 1, None, {}]},
        entries={"ip4/99:cb": [[1, "", "block"]], "ip4/24:cb0071": [[2, "", "block"]]},
    )
    overrides = Overrides([odd])
    assert [one.pk for one in overrides.find_by_address(ip_address("203.0.113.9"))] == [2]
    assert list(overrides.fields[""]) == ["network"]
    assert len(overrides.problems) == 4


def test_a_field_that_reads_numbers_differs_from_one_that_reads_text() -> None:
    """They have the same digest of "7", but only the first one is found by "07"."""
    subject = digest(("get", "n", "7")).decode()
    as_text, as_number = [value_key(kind, subject) for kind in ("get:n", "int:get:n")]
    overrides = Overrides([section(entries={as_text: [[1]], as_number: [[2, "", "block"]]})])
    found = overrides.find_by_identity("int:get:n", ("get", "n", "7"))
    assert [one.pk for one in found] == [2]
    assert list(overrides.find_by_identity("get:n", ("get", "n", "7"))) == []


def test_only_fields_that_may_matter_are_looked_up() -> None:
    """They are those of overrides for the charged rules and for all rules."""
    fields = {"": ["network", "user"], "x": ["network", "get:q"], "y": ["post:name", "moon"]}
    overrides = Overrides([section(fields=fields), section(blocks=True)])
    assert list(overrides.fields_for(["x"], False)) == ["network", "user", "get:q"]
    assert list(overrides.fields_for([], True)) == ["network", "user"]
    assert list(overrides.fields_for([], False)) == []
    assert list(Overrides([section(fields=fields)]).fields_for([], True)) == []
    assert list(overrides.fields["y"]) == ["post:name"]
    assert "'moon'" in overrides.problems[0]


def test_an_override_applies_from_its_start_to_its_end() -> None:
    """The start is inclusive and the end is exclusive."""
    assert [FASTER.is_active(now) for now in (4, 5, NOW, NOW + 1)] == [False, True, True, False]
    assert find_strongest([FASTER], "api", NOW + 1) is None
    assert (FASTER.retry_after(NOW - 1_000_000), BLOCK.retry_after(NOW)) == (1.000001, None)


def test_another_burst_applies_only_to_algorithms_with_bursts() -> None:
    """An override's burst applies only to a token bucket."""
    bucket, window = (
        Limit("a", "1/s", algorithm="token_bucket"),
        Limit("a", "1/s", algorithm="sliding_window"),
    )
    variant = f"override:{FASTER.pk}"
    other = Limit("a", "5/m", algorithm="token_bucket", burst=9, variant=variant)
    assert FASTER.apply_to(bucket) == other
    assert FASTER.apply_to(window) == Limit("a", "5/m", algorithm="sliding_window", variant=variant)
    assert other.key_part != bucket.key_part
    assert BLOCK.apply_to(bucket) is bucket
    log = Limit("a", "1/s", algorithm="sliding_log")
    assert Override(1, "a", "limit", Rate(10**6, 1_000_000)).apply_to(log) is log


@pytest.mark.parametrize(
    ("kind", "is_one"),
    [
        ("user", True),
        ("network", True),
        ("header:X-Key", True),
        ("moon", False),
        (5, False),
        ("exact:json:a.b", True),
        ("digest", True),
        ("all:user & ip4/32", False),
    ],
)
def test_the_values_that_overrides_refer_to_are_recognized(kind: object, is_one: bool) -> None:
    """They are users, networks, digests, and the fields that a key can name."""
    assert is_kind(kind) is is_one
    assert lookup_field("ip6/48") == "network"
