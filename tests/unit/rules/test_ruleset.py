"""All rules in force, and which of them apply to a request or a call site."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory

from django_ratelimit_lua.rules.ruleset import Ruleset, compile_rules
from django_ratelimit_lua.rules.snapshot import RULES_MEMBERS, SECTION_MEMBERS, Snapshot, parse_part
from django_ratelimit_lua.views.call_sites import compile_call_site
from tests.tools.walk import Walk

HOME = RequestFactory().get("/")
HERE = compile_call_site("search", "ip", "5/m", None, 1, {})
OTHER = compile_call_site(None, "ip", "9/m", None, 1, {})


def ruleset(*given: dict[str, Any]) -> Ruleset:
    words = {"key": "ip", "rate": "100/m"}
    return Ruleset(compile_rules([{**words, **rule} for rule in given]))


def published(*rules: dict[str, Any], before: Ruleset | None = None) -> Ruleset:
    given = [
        {"id": number, "key": "ip", "rate": "100/m", **rule}
        for number, rule in enumerate(rules, start=1)
    ]
    return Ruleset((), Snapshot(rules={"rules": given}), before=before)


def names(rules: Any) -> list[str]:
    return [rule.name for rule in rules]


def test_matching_rules_are_returned_in_order() -> None:
    """Rules that are off and rules for call sites are not returned. Exemptions are."""
    rules = ruleset(
        {"name": "late", "path": "/", "order": 9},
        {"name": "home", "path": "/"},
        {"name": "api", "path": "/api/"},
        {"name": "off", "path": "/", "mode": "off"},
        {"name": "site", "group": "search"},
        {"name": "bare"},
        {"name": "free", "path": "/", "rate": None, "exempt": True},
    )
    assert names(rules.matching(HOME)) == ["home", "free", "late"]


def test_two_rules_of_one_name_are_an_error() -> None:
    """A rule's name identifies its count, so no two rules may have the same name."""
    with pytest.raises(ImproperlyConfigured, match="two rules have the name twice"):
        ruleset({"name": "twice"}, {"name": "twice"})


def test_a_call_site_without_a_rule_is_unchanged() -> None:
    """Rules with other names do not change a call site."""
    rules = ruleset({"name": "api", "path": "/api/"})
    assert rules.for_call_sites((HERE, OTHER), "app.view", HOME) == [HERE, OTHER]


def test_a_rule_with_the_name_of_a_call_site_replaces_it() -> None:
    """The rule replaces all call sites with its name by one limit."""
    rules = ruleset({"name": "search", "group": "search"}, {"name": "beside", "group": "search"})
    chosen = rules.for_call_sites((HERE, OTHER, HERE), "app.view", HOME)
    assert names(chosen) == ["search", "beside", ""]
    assert chosen[0].replaces == (HERE, HERE)
    assert chosen[2] is OTHER
    by_view = ruleset({"name": "app.view"}).for_call_sites((HERE, OTHER), "app.view", HOME)
    assert names(by_view) == ["", "app.view"]


@pytest.mark.parametrize("words", [{"mode": "off"}, {"rate": None, "exempt": True, "path": "/"}])
def test_a_rule_can_lift_the_limit_of_a_call_site(words: dict[str, Any]) -> None:
    """A rule that is off, or that exempts, leaves no limit at the call site."""
    assert ruleset({"name": "search", **words}).for_call_sites((HERE,), "", HOME) == []


def test_a_rule_for_another_path_does_not_replace_the_call_site() -> None:
    """If the rule's path does not match, the limit of the call site applies."""
    assert ruleset({"name": "search", "path": "/x"}).for_call_sites((HERE,), "", HOME) == [HERE]


def test_a_rule_of_the_admin_precedes_one_of_the_settings() -> None:
    """If both sources have a rule with the same name, the one from the admin applies."""
    given = {"id": 1, "name": "api", "key": "ip", "rate": "2/s"}
    rules = Ruleset(
        compile_rules([{"name": "api", "key": "ip", "rate": "1/s"}]),
        Snapshot(rules={"rules": [given]}),
    )
    assert [(rule.source, rule.pk) for rule in rules.rules] == [("admin", 1)]
    assert rules.rule_of("api") is rules.by_name["api"]


def test_an_invalid_rule_keeps_its_last_valid_version() -> None:
    """An invalid rule keeps its last valid version and is reported."""
    first = published({"name": "a"})
    for words in ({"rate": "5/moon"}, {"moon": 1}):
        second = published({"name": "a", **words}, before=first)
        assert second.by_name["a"] is first.by_name["a"]
        assert "moon" in second.problems[0]
        assert not published({"name": "a", **words}).rules


@pytest.mark.parametrize(
    "text",
    [b"[]", b"{", b"[" * 10**5, b'{"rules": {}}', b'{"fields": {"": "user"}}', b'{"networks": {}}'],
)
def test_an_invalid_part_is_not_read(text: bytes) -> None:
    """A member of a wrong type raises an error."""
    with pytest.raises(ValueError, match=r"."):
        parse_part(text, {**RULES_MEMBERS, **SECTION_MEMBERS}, {})


def test_an_edit_calls_no_function_for_unchanged_rules() -> None:
    """Unchanged rules are taken over from the previous set."""
    frames = []
    for count in (1, 100):
        given = [{"name": f"rule {number}", "path": f"/{number}"} for number in range(count)]
        before, walk = published(*given), Walk()
        after = walk.of(
            lambda given=given, before=before: published(*given, {"name": "new"}, before=before)
        )
        assert all(after.by_name[name] is rule for name, rule in before.by_name.items())
        frames.append(walk.frames)
    assert frames[0] == frames[1]
