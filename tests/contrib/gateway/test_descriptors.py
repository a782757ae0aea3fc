"""The rule that a descriptor of Envoy matches."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.contrib.gateway.descriptors import DescriptorPattern, find_rule
from django_ratelimit_lua.contrib.gateway.protocol import DescriptorCharge
from django_ratelimit_lua.contrib.gateway.should_rate_limit import DescriptorRequest
from django_ratelimit_lua.identity.keys import compile_key
from django_ratelimit_lua.rules import RuleError, compile
from django_ratelimit_lua.rules.describe import describe_spec
from django_ratelimit_lua.rules.rule import Rule
from django_ratelimit_lua.rules.ruleset import Ruleset, compile_rules

LOGIN = {"name": "login", "descriptor": ["generic_key=login", "remote_address"], "rate": "5/m"}


def met(*given: dict[str, Any], domain: str = "edge", entries: str) -> str | None:
    """Return the name of the rule that a descriptor matches. Entries have commas between them."""
    rules = compile_rules([{"rate": "5/m", **rule} for rule in given])
    parts = [entry.partition("=") for entry in entries.split(",")]
    pairs = tuple((key, value) for key, _, value in parts)
    rule = find_rule(Ruleset(rules), domain, pairs)
    return None if rule is None else rule.name


@pytest.mark.parametrize(
    ("entries", "name"),
    [
        ("generic_key=login,remote_address=203.0.113.9", "one address"),
        ("generic_key=login,remote_address=203.0.113.10", "a network"),
        ("generic_key=login,remote_address=198.51.100.7", "login"),
        ("generic_key=logout,remote_address=203.0.113.9", "anything"),
        ("generic_key=login", None),
        ("remote_address=203.0.113.9,generic_key=login", None),
        ("generic_key=login,remote_address=203.0.113.9,path=/", None),
    ],
)
def test_the_most_specific_rule_wins(entries: str, name: str | None) -> None:
    """A value comes before a pattern, the longest pattern first, and a mere key last."""
    rules = [
        {"name": "anything", "descriptor": ["generic_key", "remote_address"]},
        LOGIN,
        {"name": "a network", "descriptor": ["generic_key=login", "remote_address=203.0.113.*"]},
        {"name": "a large network", "descriptor": ["generic_key=login", "remote_address=203.*"]},
        {"name": "one address", "descriptor": ["generic_key=login", "remote_address=203.0.113.9"]},
    ]
    assert met(*rules, entries=entries) == met(*reversed(rules), entries=entries) == name


def test_entries_are_compared_in_order_and_the_domain_last() -> None:
    """Entries are compared from the first to the last, as in Envoy's configuration."""
    first = {"name": "first", "descriptor": ["a=1", "b"]}
    second = {"name": "second", "descriptor": ["a", "b=1"]}
    here = {"name": "here", "descriptor": ["domain=edge", "a", "b=1"]}
    elsewhere = {"name": "elsewhere", "descriptor": ["domain=ed", "a=1", "b=1"]}
    assert met(second, first, entries="a=1,b=1") == "first"
    assert met(second, here, elsewhere, entries="a=1,b=1") == "here"
    assert met(second, here, elsewhere, domain="ed", entries="a=1,b=1") == "elsewhere"
    twin = {**first, "name": "twin", "order": 1}
    assert met({**first, "order": 2}, twin, entries="a=1,b=1") == "twin"


def test_a_rule_for_descriptors_applies_to_no_django_request() -> None:
    """A rule that also has a path applies to requests. A disabled rule matches no descriptor."""
    both = {**LOGIN, "name": "both", "path": "/login/", "key": "ip"}
    rules = compile_rules([LOGIN, {**both, "method": "GET", "audience": "anonymous"}])
    assert [rule.name for rule in Ruleset(rules)._index.matching("/login/")] == ["both"]
    assert met({**LOGIN, "mode": "off"}, entries="generic_key=login,remote_address=1") is None


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", max_size=12))
def test_a_star_matches_any_text(pattern: str, value: str) -> None:
    """A pattern matches the same texts as `fnmatch`."""
    expected = re.match(fnmatch.translate(pattern), value) is not None
    assert DescriptorPattern.parse([f"a={pattern}"]).matches("", [value]) == expected


def test_matching_a_pattern_is_fast() -> None:
    """The time does not depend on the number of stars."""
    pattern = DescriptorPattern.parse([f"a={'a*' * 200}b"])
    assert not pattern.matches("", ["a" * 100_000])


@pytest.mark.parametrize(
    ("words", "field"),
    [
        *[
            ({"descriptor": [entry]}, "descriptor")
            for entry in ("", "=a", "a=", "domain=a", "a\nb", 5)
        ],
        *[({"descriptor": other}, "descriptor") for other in (5, ["a"] * 21, ["a=" + "b" * 500])],
        ({"descriptor": ["a", "charge=after"]}, "descriptor"),
        *[({"key": key}, "key") for key in ("user", "session", "post:name", "app.key")],
        ({"key": ["ip", "header:X-Tenant"]}, "key"),
        ({"path": "/"}, "key"),
        *[({"rate": rate}, "rate") for rate in (None, "app.rate")],
        ({"cost": "app.cost"}, "cost"),
        ({"method": "POST"}, "method"),
        ({"audience": "staff"}, "audience"),
        ({"user_agent": ["curl/*"]}, "user_agent"),
        ({"network": ["203.0.113.0/24"]}, "network"),
        ({"waited": "500ms"}, "waited"),
        ({"audience": "group:pro", "rate": None, "exempt": True}, "audience"),
        *[({"tiers": [{"group": group, "rate": "9/m"}]}, "tiers") for group in ("pro", "plan:pro")],
        ({"path": "/", "key": "ip", "tiers": [{"group": "pro", "rate": "9/m"}]}, "tiers"),
    ],
)
def test_errors_name_their_field(words: dict[str, Any], field: str, settings: Any) -> None:
    """A key that no entry provides is an error of `key`, and a rule with a path needs a key."""
    settings.RATELIMIT_KEYS = {"plan": lambda request: None}
    with pytest.raises(RuleError) as raised:
        compile({**LOGIN, **words})
    assert raised.value.field == field


def test_a_rule_lists_its_descriptors() -> None:
    """The sentence of the rule has the descriptor's entries."""
    entries = "generic_key=login, remote_address"
    assert describe_spec(LOGIN) == f"5 per minute per descriptor, for Envoy's descriptor {entries}"
    assert isinstance(compile({**LOGIN, "descriptor": "generic_key=login"}), Rule)
    assert compile({**LOGIN, "exempt": True, "rate": None}).template is None


def test_an_entry_provides_the_value_of_a_registered_key(settings: Any) -> None:
    """The entry has the name of the key. A rule without the entry is refused."""
    settings.RATELIMIT_KEYS = {"tenant": lambda request: None}
    descriptor = ["generic_key=api", "tenant"]
    rule = {"name": "tenants", "descriptor": descriptor, "key": "tenant", "rate": "5/m"}
    assert met(rule, entries="generic_key=api,tenant=acme") == "tenants"
    asked = DescriptorCharge("edge", (("generic_key", "api"), ("tenant", "acme")))
    assert compile_key("tenant").read("", DescriptorRequest(asked), None) == ("tenant", "acme")
    with pytest.raises(RuleError, match="needs an entry tenant"):
        compile({**rule, "descriptor": ["generic_key=api"]})


def test_a_descriptor_cannot_hold_a_slot() -> None:
    """Envoy reports no reliable end of a request, so a rule with a concurrency limit is refused."""
    with pytest.raises(RuleError, match="cannot hold slots"):
        compile({**LOGIN, "rate": "5", "algorithm": "concurrency"})
