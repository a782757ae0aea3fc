"""The paths and routes of rules."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import include, path, resolve
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.rules import compile
from django_ratelimit_lua.rules.conditions import MAX_PATH_LENGTH, PathPattern
from django_ratelimit_lua.rules.rule import Rule
from django_ratelimit_lua.rules.ruleset import PathIndex, Ruleset, compile_rules
from django_ratelimit_lua.views import exempt
from django_ratelimit_lua.views.exempt import is_exempt


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
    """A star matches no slash, two stars match slashes too, and no other character is special."""
    assert PathPattern(pattern).matches(path) is matches


def test_a_pattern_without_a_star_is_a_prefix() -> None:
    """A pattern without a star matches every path that begins with it, and the pattern itself."""
    assert [
        PathPattern("/api/").matches(path) for path in ("/api/", "/api/v1", "/ap", "/v1/api/")
    ] == [True, True, False, False]


def test_the_worst_glob_takes_linear_time() -> None:
    """Hundreds of stars and 10,000 characters take less than a second."""
    started = time.process_time()
    assert not PathPattern("/" + "*a" * 500).matches("/" + "a" * 9_998 + "b")
    assert not PathPattern("/" + "**a" * 333).matches("/" + "a" * 9_998 + "b")
    assert time.process_time() - started < 1


@pytest.mark.parametrize("undecided", [True, False])
def test_a_glob_reads_a_bounded_number_of_characters(undecided: bool) -> None:
    """If the beginning of a path decides nothing, the result is the caller's default."""
    long = "/a/" + "b" * MAX_PATH_LENGTH
    assert PathPattern("/a/**").matches(long, undecided=undecided) is undecided
    assert PathPattern("/a/*/c").matches(long, undecided=undecided) is False
    assert PathPattern("/a/").matches(long, undecided=undecided) is True


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
    for where in [*paths, *paths]:
        assert list(index.matching(where)) == [rule for rule in rules if rule.matches_path(where)]


def test_a_path_too_long_for_a_glob_is_limited_and_not_exempt(rf: RequestFactory) -> None:
    """A glob that cannot be ruled out matches for limits only."""
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
    found = [rule.name for rule in rules.matching(rf.get(within))]
    assert found == ["limit", "one segment", "exempt"]
    found = [rule.name for rule in rules.matching(rf.get(within + ".php"))]
    assert found == ["limit", "one segment"]
    assert [rule.name for rule in rules.matching(rf.get("/a/b/" + "x" * 60_000 + ".php"))] == [
        "limit"
    ]
    assert rules.matching(rf.get("/a/b/" + "x" * 60_000)) == [], (
        "its end is seen, however long it is"
    )
    assert PathPattern("/a**").matches("/a" + "x" * 60_000)


def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse()


api = ([path("things/<int:pk>/", view, name="thing"), path("things/new/", view, name="new")], "api")


urlpatterns = [
    path("api/", include(api, namespace="v1")),
    *i18n_patterns(path("account/", view, name="account"), prefix_default_language=False),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__


def rule(**words: Any) -> Rule:
    return compile({"name": "x", "key": "ip", "rate": "5/m", **words})


@pytest.mark.parametrize(
    ("route", "where", "applies"),
    [
        ("v1:thing", "/api/things/7/", True),
        ("v1:thing", "/api/things/new/", False),
        ("thing", "/api/things/7/", False),
        ("v1:thing", "/nowhere/", False),
        ("account", "/account/", True),
        ("account", "/de/account/", True),
        ("account", "/xx/account/", False),
    ],
)
def test_a_route_is_named_with_its_namespaces(
    route: str, where: str, applies: bool, rf: RequestFactory
) -> None:
    """A route matches with its namespaces, for any arguments and in each language of the path."""
    assert rule(route=route).matches(rf.get(where)) is applies


def test_a_route_and_a_path_both_have_to_match(rf: RequestFactory) -> None:
    """If a rule has a route and a path, it applies only to requests that match both."""
    both = rule(route="v1:thing", path="/api/things/7*")
    found = [both.matches(rf.get(f"/api/things/{pk}/")) for pk in (7, 77, 8)]
    assert found == [False, False, False]
    both = rule(route="v1:thing", path="/api/things/7")
    assert [both.matches(rf.get(f"/api/things/{pk}/")) for pk in (7, 77, 8)] == [True, True, False]


def test_the_route_that_django_resolved_precedes_the_early_one(rf: RequestFactory) -> None:
    """A middleware may have chosen another URLconf."""
    request = rf.get("/nowhere/")
    request.resolver_match = resolve("/api/things/7/")
    assert rule(route="v1:thing").matches(request)


def test_without_exempt_views_no_path_is_resolved(
    rf: RequestFactory, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """The URLconf is searched once for exempt views."""
    settings.ROOT_URLCONF = "django.contrib.auth.urls"
    monkeypatch.setattr(exempt, "_has_marked_view", False)
    monkeypatch.setattr(exempt, "resolve_route", lambda request: pytest.fail("it was looked for"))
    assert not is_exempt(rf.get("/account/"))
