"""`RateLimitMiddleware`: rules from the settings on every request, under both handlers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import AsyncToSync, SyncToAsync, async_to_sync, iscoroutinefunction
from django.contrib.auth.models import AnonymousUser, Group, User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from django.urls import include, path

from django_ratelimit_lua import RateLimiter, ratelimit, ratelimit_exempt
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.rules import compile
from django_ratelimit_lua.rules.ruleset import compile_rules
from tests.urls import AUTHENTICATION, LIMITS, SESSIONS, aok, ok

USERS = [SESSIONS, AUTHENTICATION]


@ratelimit_exempt
def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


@ratelimit("search", "ip", "100/m")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str([state.name for state in request.ratelimit.limits]))


things = ([path("<int:pk>/", ok, name="detail")], "things")
urlpatterns = [
    path("ok", ok, name="ok"),
    path("aok", aok, name="aok"),
    path("health", health),
    path("search", search),
    path("things/", include(things)),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [LIMITS]


def get(address: str, times: int = 1, kind: str = "sync", **headers: str) -> list[int]:
    send = async_to_sync(AsyncClient().get) if kind == "async" else Client().get
    return [send(address, headers=headers).status_code for _ in range(times)]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("address", ["/ok", "/aok", "/nowhere"])
def test_a_rule_limits_matching_requests(kind: str, address: str, settings: Any) -> None:
    """The rule limits sync and async views, and paths without a view."""
    settings.RATELIMIT_RULES = [{"name": "all", "path": "/", "key": "ip", "rate": "2/m"}]
    fine = 404 if address == "/nowhere" else 200
    assert get(address, 3, kind) == [fine, fine, 429]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_rules_match_paths_methods_and_routes(kind: str, settings: Any) -> None:
    """Paths are prefixes, globs or lists. Routes have namespaces. Each rule has its count."""
    settings.RATELIMIT_RULES = [
        {"name": "prefix", "path": "/o", "key": "ip", "rate": "1/m"},
        {"name": "glob", "path": ["/nothing/", "/a*k"], "key": "ip", "rate": "2/m"},
        {"name": "route", "route": "things:detail", "key": ("ip", "kwarg:pk"), "rate": "1/m"},
        {"name": "posts", "path": "/", "method": "POST", "key": "ip", "rate": "0/s"},
        {"name": "off", "path": "/", "mode": "off", "key": "ip", "rate": "0/s"},
    ]
    assert get("/ok", 2, kind) == [200, 429]
    assert get("/aok", 3, kind) == [200, 200, 429]
    assert get("/things/1/", 2, kind) == [200, 429]
    assert get("/things/2/", 1, kind) == [200]
    assert get("/health", 5, kind) == [200] * 5
    assert Client().post("/health").status_code == 200, "exempt"
    assert Client().post("/search").status_code == 429


def test_rules_and_decorators_can_exempt_requests(settings: Any) -> None:
    """A rule exempts a path or a route, and a decorator exempts a view."""
    settings.RATELIMIT_RULES = [
        {"name": "all", "path": "/", "key": "ip", "rate": "1/m"},
        {"name": "static", "path": "/static/", "exempt": True},
        {"name": "ok", "route": "ok", "exempt": True},
    ]
    assert get("/ok", 5) == [200] * 5
    assert get("/static/x.css", 5) == [404] * 5
    assert get("/health", 5) == [200] * 5
    assert get("/aok", 2) == [200, 429]


def test_a_rule_and_a_decorator_of_one_name_count_once(settings: Any) -> None:
    """The numbers of the rule apply."""
    settings.RATELIMIT_RULES = [{"name": "search", "path": "/search", "key": "ip", "rate": "2/m"}]
    client = Client()
    responses = [client.get("/search") for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert responses[0].content == b"['search']"


def test_rules_with_colliding_names_have_separate_counts(settings: Any) -> None:
    """A rule may have the name of a rate of another rule. No call contains the same key twice."""
    settings.RATELIMIT_RULES = [
        {"name": "all", "path": "/", "key": "ip", "rate": ["3/m", "30/h"]},
        {"name": "all:m", "path": "/", "key": "ip", "rate": "2/m"},
    ]
    assert get("/ok", 3) == [200, 200, 429]


def test_other_exceptions_are_not_handled(rf: RequestFactory) -> None:
    """They are raised unchanged."""
    assert RateLimitMiddleware(ok).process_exception(rf.get("/"), ValueError()) is None


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_headers_are_on_the_final_response(kind: str, settings: Any) -> None:
    """They contain the limits of rules and of decorators."""
    settings.RATELIMIT_HEADERS = "ietf"
    settings.RATELIMIT_RULES = [{"name": "all", "path": "/", "key": "ip", "rate": "5/m"}]

    response = (async_to_sync(AsyncClient().get) if kind == "async" else Client().get)("/search")
    assert response["RateLimit-Policy"] == '"all";q=5;w=60, "search";q=100;w=60'


def status(user: Any, kind: str) -> int:
    """Return the status for a user that an earlier middleware has found."""

    async def auser() -> Any:
        return user

    async def request() -> int:
        request = AsyncRequestFactory().get("/ok")
        request.user, request.auser = user, auser
        return (await RateLimitMiddleware(aok)(request)).status_code

    if kind == "async":
        return asyncio.run(request())
    plain = RequestFactory().get("/ok")
    plain.user = user
    return RateLimitMiddleware(ok)(plain).status_code


def test_an_asynchronous_request_never_goes_through_a_thread(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules and a decorated view are decided on the event loop."""

    def adapted(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("adapted")

    monkeypatch.setattr(SyncToAsync, "__call__", adapted)
    monkeypatch.setattr(AsyncToSync, "__call__", adapted)
    settings.RATELIMIT_RULES = [
        {"name": "ip", "path": "/", "key": "ip", "rate": "5/m"},
        {"name": "user", "path": "/", "key": "user", "audience": "authenticated", "rate": "1/m"},
    ]

    async def auser() -> Any:
        return SimpleNamespace(pk=7, is_authenticated=True, is_staff=False)

    async def requests() -> list[Any]:
        middleware = RateLimitMiddleware(ratelimit(key="user", rate="5/m")(aok))
        assert iscoroutinefunction(middleware)
        assert iscoroutinefunction(middleware.process_view)
        found = []
        for _ in range(2):
            request = AsyncRequestFactory().get("/ok")
            request.auser = auser
            found.append((await middleware(request)).status_code)
            late = await middleware.process_view(request, aok, (), {})
            found.append(late and late.status_code)
        return found

    assert asyncio.run(requests()) == [200, None, 200, 429]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_django_group_is_an_audience(kind: str, settings: Any) -> None:
    """The groups are read from the database, under WSGI and ASGI."""
    settings.RATELIMIT_RULES = [
        {"name": "free", "path": "/", "audience": "group:free", "key": "user", "rate": "0/s"}
    ]
    free, paying = (User.objects.create(username=name) for name in ("free", "paying"))
    free.groups.add(Group.objects.create(name="free"))
    assert [status(user, kind) for user in (free, paying, AnonymousUser())] == [429, 200, 200]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("order", ["in front", "behind"])
def test_rules_work_before_and_after_the_authentication_middleware(
    kind: str, order: str, settings: Any
) -> None:
    """Each rule counts a request once, as soon as its user is known."""
    settings.MIDDLEWARE = [LIMITS, *USERS] if order == "in front" else [*USERS, LIMITS]
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    settings.RATELIMIT_RULES = [
        {"name": "ip", "path": "/", "key": "ip", "rate": "3/m"},
        {"name": "user", "path": "/", "key": "user_or_ip", "rate": "2/m"},
    ]
    assert get("/ok", 3, kind) == [200, 200, 429]
    left = RateLimiter("ip", "3/m").peek(("ip", "127.0.0.1")).remaining
    assert left == (0 if order == "in front" else 1), "behind, all or nothing"


def test_a_disabled_site_applies_no_rule(settings: Any) -> None:
    """With `RATELIMIT_ENABLE = False`, rules are not loaded."""
    settings.RATELIMIT_ENABLE = False
    settings.RATELIMIT_RULES = "nonsense"
    assert get("/ok", 2) == [200, 200]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("text", "is not a rule"),
        ({"key": "ip"}, "needs a name"),
        ({"name": "x", "exempt": True}, "all requests would be exempt"),
        ({"name": "x", "key": "ip", "rate": "5/m", "route": 7}, "name of a URL pattern"),
    ],
)
def test_an_invalid_rule_is_an_error(rule: Any, message: str) -> None:
    """The error names what is missing or invalid."""
    with pytest.raises(ImproperlyConfigured, match=message):
        compile(rule)


def test_rules_are_checked_together(settings: Any, no_others: None) -> None:
    """The checks report equal names and a missing or misplaced middleware."""
    with pytest.raises(ImproperlyConfigured, match="list of rules"):
        compile_rules({"name": "x"})
    rule = {"name": "x", "path": "/", "key": "user", "rate": "5/m"}
    with pytest.raises(ImproperlyConfigured, match="two rules have the name x"):
        compile_rules([rule, rule])
    settings.RATELIMIT_RULES = [rule]
    assert [found.id for found in run_checks(tags=["caches"])] == ["django_ratelimit_lua.E005"]
    settings.MIDDLEWARE = []
    assert [found.id for found in run_checks(tags=["caches"])] == ["django_ratelimit_lua.W026"]
