"""Rules that name a route, and exempt views, resolved by a URLconf alone."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import include, path, resolve
from django.views import View

from django_ratelimit_lua.rules import compile
from django_ratelimit_lua.rules.rule import Rule
from django_ratelimit_lua.views import exempt
from django_ratelimit_lua.views.exempt import is_exempt, ratelimit_exempt


def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse()


@ratelimit_exempt
def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@ratelimit_exempt
class Health(View):
    pass


api = ([path("things/<int:pk>/", view, name="thing"), path("things/new/", view, name="new")], "api")
urlpatterns = [
    path("api/", include(api, namespace="v1")),
    path("health/", health),
    path("health/class/", Health.as_view()),
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
    """A route matches with its namespaces, for any arguments and in each language of the path. A
    path that resolves to no view has no route.
    """
    assert rule(route=route).matches(rf.get(where)) is applies


def test_a_route_and_a_path_both_have_to_match(rf: RequestFactory) -> None:
    """If a rule has a route and a path, it applies only to requests that match both."""
    both = rule(route="v1:thing", path="/api/things/7*")
    assert [both.matches(rf.get(f"/api/things/{pk}/")) for pk in (7, 77, 8)] == [
        False,
        False,
        False,
    ]
    both = rule(route="v1:thing", path="/api/things/7")
    assert [both.matches(rf.get(f"/api/things/{pk}/")) for pk in (7, 77, 8)] == [True, True, False]


def test_the_route_that_django_resolved_precedes_the_early_one(rf: RequestFactory) -> None:
    """If Django has resolved the request, its route is used, because a middleware may have chosen
    another URLconf.
    """
    request = rf.get("/nowhere/")
    request.resolver_match = resolve("/api/things/7/")
    assert rule(route="v1:thing").matches(request)


@pytest.mark.parametrize(
    ("where", "is_one"),
    [("/health/", True), ("/health/class/", True), ("/account/", False), ("/nowhere/", False)],
)
def test_views_can_be_exempt_from_rules(where: str, is_one: bool, rf: RequestFactory) -> None:
    """Exempt functions and classes are found by resolving the path of the request."""
    assert is_exempt(rf.get(where)) is is_one


def test_without_exempt_views_no_path_is_resolved(
    rf: RequestFactory, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """The URLconf is searched once for exempt views. If it has none, no request's path is
    resolved.
    """
    settings.ROOT_URLCONF = "tests.unit.rules.urls_without_exempt"
    monkeypatch.setattr(exempt, "_any_view_is", False)
    monkeypatch.setattr(exempt, "resolved", lambda request: pytest.fail("it was looked for"))
    assert not is_exempt(rf.get("/account/"))
