"""The conditions `user_agent`, `network` and `waited` of rules."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import RequestFactory

from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.rules import RuleError, compile
from django_ratelimit_lua.rules.describe import describe_spec
from django_ratelimit_lua.rules.rule import Rule

RULE = {"name": "r", "path": "/", "key": "ip", "rate": "0/s"}


@pytest.fixture(autouse=True)
def _networks(settings: Any) -> None:
    settings.RATELIMIT_TRUSTED_PROXIES = 0
    settings.RATELIMIT_NETWORKS = {
        "google": ["192.0.2.0/24"],
        "bing": ["198.51.100.0/24"],
        "unread": "/nowhere/else.json",
    }


def applies(rule: Rule, address: str = "203.0.113.1", user_agent: str | None = None) -> bool:
    meta = {"REMOTE_ADDR": address}
    if user_agent is not None:
        meta["HTTP_USER_AGENT"] = user_agent
    return rule.matches(RequestFactory().get("/", **meta))


@pytest.mark.parametrize(
    ("patterns", "matching", "others"),
    [
        ("*bot*", ["GoogleBot", "a bot"], ["Firefox", "", None]),
        ("curl/*", ["curl/8", "CURL/8"], ["libcurl/8"]),
        (["*bot*", "*spider*"], ["bot", "Spider"], ["Firefox"]),
        ("!*bot*", ["Firefox", "", None], ["bot"]),
        (["*bot*", "!*google*"], ["bingbot"], ["googlebot", "Firefox"]),
        ("", ["", None], ["Firefox"]),
        (["", "*bot*"], ["", None, "bot"], ["Firefox"]),
        ("!?*", ["", None], ["Firefox"]),
        ("!", ["Firefox"], ["", None]),
        ("*" * 20 + "b" + "*a" * 50, [], ["a" * 8000, "b" * 8000]),
    ],
)
@pytest.mark.parametrize("is_row", [False, True], ids=["settings", "row"])
def test_user_agents_match_globs_without_case(
    patterns: Any, matching: Any, others: Any, is_row: bool
) -> None:
    """An empty pattern matches a missing header, and `!` negates, also in a row of the admin."""
    spec = {**RULE, "user_agent": patterns}
    rule = RateLimitRule.from_spec(spec).compiled() if is_row else compile(spec)
    assert all(applies(rule, user_agent=each) for each in matching)
    assert not any(applies(rule, user_agent=each) for each in others)


@pytest.mark.parametrize(
    ("names", "matching", "others"),
    [
        ("google", ["192.0.2.1"], ["203.0.113.1", "odd"]),
        (["google", "bing"], ["192.0.2.1", "198.51.100.1"], ["203.0.113.1"]),
        ("!google", ["203.0.113.1", "198.51.100.1", "odd"], ["192.0.2.1"]),
        (["!google", "!bing"], ["203.0.113.1"], ["192.0.2.1", "198.51.100.1"]),
        ("unread", [], ["192.0.2.1", "203.0.113.1"]),
        ("!unread", [], ["192.0.2.1", "203.0.113.1"]),
        (["google", "!unread"], [], ["192.0.2.1", "203.0.113.1"]),
    ],
)
def test_networks_match_the_full_address(names: Any, matching: Any, others: Any) -> None:
    """A rule whose network was never read does not apply, negated or not."""
    rule = compile({**RULE, "network": names})
    assert all(applies(rule, each) for each in matching)
    assert not any(applies(rule, each) for each in others)


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"network": "gogle"}, "network", "not a network of RATELIMIT_NETWORKS .google, bing"),
        ({"network": 7}, "network", "must be a list"),
        ({"user_agent": [7]}, "user_agent", "must be a list"),
        ({"waited": "soon"}, "waited", "is not a time"),
        ({"waited": "0s"}, "waited", "above 0"),
        ({"waited": "1s", "ban_after": 3, "ban_for": "1h"}, "waited", "ban_after"),
        ({"waited": "1s", "count_denied": True}, "waited", "count_denied"),
        ({"waited": "1s", "exempt": True}, "waited", "exempt"),
        ({"waited": "1s", "rate": "5", "algorithm": "concurrency"}, "waited", "concurrency"),
        ({"waited": "1s", "path": None}, "waited", "needs a path"),
        ({"waited": "1s", "group": "r"}, "waited", "needs a path"),
    ],
)
def test_an_invalid_condition_names_its_field(changes: Any, field: str, text: str) -> None:
    """The error says what is valid."""
    with pytest.raises(RuleError, match=text) as caught:
        compile({**RULE, **changes})
    assert field in [each.field for each in caught.value.each]


def test_an_exemption_may_have_conditions() -> None:
    """Search engines in their networks pass all rules of a path."""
    rule = compile({"name": "e", "path": "/", "network": "google", "exempt": True})
    assert rule.template is None
    assert applies(rule, "192.0.2.1")
    assert not applies(rule)


def test_the_sentence_of_a_rule_has_its_conditions() -> None:
    """Also an empty pattern is mentioned."""
    rule = {**RULE, "user_agent": ["*bot*", "!x"], "network": "!google", "waited": "500ms"}
    assert describe_spec(rule) == (
        "0 per second per address, on / with the user agents *bot* and !x with the waiting time "
        "above 500ms with the networks !google"
    )
    bans = {**RULE, "rate": "2/h", "ban_after": 2, "ban_for": "10m,1d"}
    assert "banned for 10m,1d after 2 refusals" in describe_spec(bans)
    assert "with the user agents" in describe_spec({**RULE, "user_agent": ""})
