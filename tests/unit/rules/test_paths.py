"""Paths as rules write them."""

from __future__ import annotations

import time

import pytest
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.rules import compile
from django_ratelimit_lua.rules.conditions import MAX_PATH_LENGTH, PathPattern
from django_ratelimit_lua.rules.rule import Rule
from django_ratelimit_lua.rules.ruleset import PathIndex, Ruleset, compile_rules


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/a/*", "/a/b", True),
        ("/a/*", "/a/", True),
        ("/a/*", "/a/b/c", False),
        ("/a/**", "/a/b/c", True),
        ("/a/*/c", "/a/b/c", True),
        ("/a/*/c", "/a//c", True),
        ("/a/*/c", "/a/b/b/c", False),
        ("**", "", True),
        ("**/x", "/a/b/x", True),
        ("**/x", "/a/b/xy", False),
        ("/*a*b*", "/aab", True),
        ("/*a*b*", "/ba", False),
        ("/***x", "/a/x", True),
        ("/é*", "/éa", True),
        ("/a.c*", "/abc", False),
        ("/[ab]*", "/[ab]", True),
        ("*", "/a", False),
    ],
)
def test_globs_match_paths(pattern: str, path: str, matches: bool) -> None:
    """One star matches any characters except a slash, two stars match slashes too, and no other
    character is special.
    """
    assert PathPattern(pattern).matches(path) is matches


def test_a_pattern_without_a_star_is_a_prefix() -> None:
    """A pattern without a star matches every path that begins with it, and the pattern itself."""
    assert [
        PathPattern("/api/").matches(path) for path in ("/api/", "/api/v1", "/ap", "/v1/api/")
    ] == [
        True,
        True,
        False,
        False,
    ]


def test_the_worst_glob_takes_linear_time() -> None:
    """A pattern with hundreds of stars is compared with 10,000 characters in less than a second,
    without backtracking.
    """
    started = time.process_time()
    assert not PathPattern("/" + "*a" * 500).matches("/" + "a" * 9_998 + "b")
    assert not PathPattern("/" + "**a" * 333).matches("/" + "a" * 9_998 + "b")
    assert time.process_time() - started < 1


@pytest.mark.parametrize("undecided", [True, False])
def test_a_glob_reads_a_bounded_number_of_characters(undecided: bool) -> None:
    """For a path that is longer than the maximum, the result is the caller's default, unless the
    beginning of the path already decides it.
    """
    long = "/a/" + "b" * MAX_PATH_LENGTH
    assert PathPattern("/a/**").matches(long, undecided) is undecided
    assert PathPattern("/a/*/c").matches(long, undecided) is False
    assert PathPattern("/a/").matches(long, undecided) is True


parts = st.sampled_from(["/", "a", "b", "*", "**", "/a/"])
patterns = (
    st.lists(parts, min_size=1, max_size=5)
    .map("".join)
    .map(lambda text: text if text.startswith(("**", "*/")) else "/" + text)
)
rules = st.lists(st.lists(patterns, max_size=3), max_size=6).map(
    lambda lists: [
        compile({"name": f"r{number}", "path": paths, "key": "ip", "rate": "1/s"})
        for number, paths in enumerate(lists)
    ]
)


@given(rules, st.lists(st.text("/ab", max_size=6).map("/".__add__), max_size=5))
def test_the_path_index_gives_the_same_result_as_comparing_each_rule(
    rules: list[Rule], paths: list[str]
) -> None:
    """The index returns the same rules in the same order, each once, also from its cache."""
    index = PathIndex(rules)
    for path in [*paths, *paths]:
        assert list(index.matching(path)) == [rule for rule in rules if rule.matches_path(path)]


def test_a_path_too_long_for_a_glob_is_limited_and_not_exempt(rf: RequestFactory) -> None:
    """If a glob cannot be ruled out within the maximum length, a limit applies and an exemption
    does not.
    """
    rules = Ruleset(
        compile_rules(
            [
                {"name": "limit", "path": "/a/**.php", "key": "ip", "rate": "1/h"},
                {"name": "elsewhere", "path": "/b/**.php", "key": "ip", "rate": "1/h"},
                {"name": "one segment", "path": "/a/*.php", "key": "ip", "rate": "1/h"},
                {"name": "exempt", "path": "/a/**.php", "exempt": True},
            ]
        )
    )
    within = "/a/" + "x" * (MAX_PATH_LENGTH - 7) + ".php"
    assert [rule.name for rule in rules.matching(rf.get(within))] == [
        "limit",
        "one segment",
        "exempt",
    ]
    assert [rule.name for rule in rules.matching(rf.get(within + ".php"))] == [
        "limit",
        "one segment",
    ]
    assert [rule.name for rule in rules.matching(rf.get("/a/b/" + "x" * 60_000 + ".php"))] == [
        "limit"
    ]
    assert rules.matching(rf.get("/a/b/" + "x" * 60_000)) == [], (
        "its end is seen, however long it is"
    )
    assert PathPattern("/a**").matches("/a" + "x" * 60_000)
