"""Rules match the paths that Django resolves, in every language, URLconf and spelling."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.http import Http404, HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import Resolver404, include, path, re_path, register_converter, resolve
from django.utils import translation
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua import middleware, ratelimit_exempt
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.rules.ruleset import Ruleset, compile_rules
from tests.examples import examples
from tests.urls import LIMITS

LOCALE = "django.middleware.locale.LocaleMiddleware"


def ok(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse(translation.get_language())


@ratelimit_exempt
def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


class Refusing:
    """A converter that raises `Http404`."""

    regex = "[0-9]+"

    def to_python(self, value: str) -> int:
        raise Http404

    def to_url(self, value: int) -> str:
        return str(value)


register_converter(Refusing, "refusing")
account = path("account/", ok, name="account")
plain = [path("plain/", ok, name="plain"), path("health/", health), path("none/<refusing:pk>/", ok)]
# Translated by Django itself: Montag, lundi.
monday = path(gettext_lazy("Monday"), ok, name="monday")
urlpatterns = [*plain, *i18n_patterns(account, monday)]


class Unprefixed:
    """URL patterns without a prefix for the default language."""

    urlpatterns = [*plain, *i18n_patterns(account, monday, prefix_default_language=False)]  # noqa: RUF012


class Elsewhere:
    """Another URLconf that a later middleware selects, with the same paths and other views."""

    urlpatterns = [  # noqa: RUF012
        path("plain/", ok, name="account"),
        path("health/", ok, name="unhealthy"),
        path("only-there/<slug:who>/", ok, name="there"),
        path("now-exempt/", health, name="exempt"),
    ]


def elsewhere(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    def middleware(request: HttpRequest) -> Any:
        request.urlconf = Elsewhere  # type: ignore[assignment]
        return get_response(request)

    return middleware


seen: list[Any] = []


def looking(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    def middleware(request: HttpRequest) -> Any:
        seen.append(request.resolver_match)
        return get_response(request)

    return middleware


@pytest.fixture(autouse=True)
def site(settings: Any) -> Any:
    settings.ROOT_URLCONF = __name__
    settings.LANGUAGE_CODE = "en"
    settings.LANGUAGES = [("en", "English"), ("de", "German"), ("fr", "French")]
    settings.MIDDLEWARE = [LIMITS, LOCALE]
    seen.clear()
    yield
    translation.deactivate()


def asked(
    paths: list[str], kind: str, before: list[str] | None = None, **headers: str
) -> list[int]:
    """Return statuses, each after the thread or event loop has served another language."""

    steps = list(zip(paths, itertools.cycle(before or [""]), strict=False))

    def sync() -> list[int]:
        client, found = Client(), []
        for where, language in steps:
            if language:
                translation.activate(language)
            found.append(client.get(where, headers=headers).status_code)
        return found

    async def coroutine() -> list[int]:
        client, found = AsyncClient(), []
        for where, language in steps:
            if language:
                translation.activate(language)
            found.append((await client.get(where, headers=headers)).status_code)
        return found

    if kind == "async":
        return asyncio.run(coroutine())
    with ThreadPoolExecutor(1) as one:
        return one.submit(sync).result()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("middleware", [[LIMITS, LOCALE], [LOCALE, LIMITS]])
@pytest.mark.parametrize("conf", [__name__, Unprefixed])
def test_alternating_languages_share_a_limit(
    conf: Any, middleware: list[str], kind: str, settings: Any
) -> None:
    """Neither the place of the middleware nor the language served before matters."""
    settings.ROOT_URLCONF, settings.MIDDLEWARE = conf, middleware
    settings.RATELIMIT_RULES = [{"name": "account", "route": "account", "key": "ip", "rate": "6/h"}]
    english = "/account/" if conf is Unprefixed else "/en/account/"
    paths = [english, "/de/account/", "/fr/account/"] * 3
    assert asked(paths, kind, ["fr", "en", "de", "fr"]) == [200] * 6 + [429] * 3


PREFIXES = st.sampled_from(["/", "/en/", "/de/", "/fr/"])
LANGUAGES = st.sampled_from(["en", "de", "fr", "it"])


@given(
    data=st.lists(st.tuples(PREFIXES, LANGUAGES), min_size=4, max_size=8),
    unprefixed=st.booleans(),
    accept=st.sampled_from(["en", "de", "fr", "*"]),
)
@hypothesis_settings(max_examples=examples(40), deadline=None)
def test_every_request_that_reaches_the_view_counts_in_any_order_of_languages(
    data: list[tuple[str, str]], unprefixed: bool, accept: str
) -> None:
    """The number of requests that reach the view is the limit, and later ones are refused."""
    rules = [{"name": f"account{next(_numbers)}", "route": "account", "key": "ip", "rate": "2/h"}]
    with override_settings(ROOT_URLCONF=Unprefixed if unprefixed else __name__, RATELIMIT_RULES=()):
        paths = [f"{prefix}account/" for prefix, _ in data]
        leads = [status == 200 for status in asked(paths, "sync", accept_language=accept)]
        with override_settings(RATELIMIT_RULES=rules):
            found = asked(paths, "sync", [language for _, language in data], accept_language=accept)
    reached = [status for status, there in zip(found, leads, strict=True) if there]
    assert reached == ([200] * 2 + [429] * 8)[: len(reached)]
    assert 200 not in [status for status, there in zip(found, leads, strict=True) if not there]


_numbers = itertools.count()
"""Each example has a rule with a name of its own."""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_urlconf_that_is_chosen_later_decides_the_rules(kind: str, settings: Any) -> None:
    """Rules by route, keys by route and argument, and exemptions use the view that Django finds."""
    settings.MIDDLEWARE = [LIMITS, f"{__name__}.elsewhere"]
    settings.RATELIMIT_RULES = [
        {"name": "account", "route": "account", "key": "ip", "rate": "1/h"},
        {"name": "unhealthy", "route": "unhealthy", "key": "ip", "rate": "2/h"},
        {"name": "who", "route": "there", "key": "kwarg:who", "rate": "1/h"},
        {"name": "exempted", "route": "exempt", "key": "ip", "rate": "0/s"},
    ]
    assert asked(["/plain/"] * 2, kind) == [200, 429]
    assert asked(["/health/"] * 3, kind) == [200, 200, 429], "exempt here, not there"
    paths = [f"/only-there/{name}/" for name in ("ada", "bob", "ada")]
    assert asked(paths, kind) == [200, 200, 429]
    assert asked(["/now-exempt/"] * 2, kind) == [200, 200]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_early_resolution_does_not_set_resolver_match(kind: str, settings: Any) -> None:
    """It is unset until the view, and for a 404, as in Django."""
    settings.MIDDLEWARE = [LIMITS, f"{__name__}.looking"]
    settings.RATELIMIT_RULES = [
        {"name": "x", "route": "plain", "key": ("ip", "route"), "rate": "9/h"}
    ]
    assert asked(["/plain/", "/nowhere/", "/health/"], kind) == [200, 404, 200]
    assert seen == [None, None, None]


def test_a_correctly_predicted_view_is_decided_once(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules by path and by route are decided in one call."""
    calls: list[Any] = []
    deciding = middleware.deciding
    monkeypatch.setattr(middleware, "deciding", lambda *given: calls.append(1) or deciding(*given))
    settings.RATELIMIT_RULES = [
        {"name": "x", "route": "account", "key": ("ip", "route"), "rate": "9/h"},
        {"name": "y", "path": "/de/", "key": "ip", "rate": "9/h"},
    ]
    assert asked(["/de/account/"], "sync", ["fr"]) == [200]
    assert len(calls) == 1


def test_a_converter_that_raises_404_is_a_404(settings: Any) -> None:
    """Rules by path count such a request."""
    settings.RATELIMIT_RULES = [
        {"name": "x", "route": "plain", "key": "ip", "rate": "9/h"},
        {"name": "y", "path": "/none/", "key": "ip", "rate": "2/h"},
    ]
    assert asked(["/none/1/"] * 3, "sync") == [404, 404, 429]


def passed(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse("api")


class Paths:
    """URL patterns of every kind for one view."""

    urlpatterns = [  # noqa: RUF012
        path("api/", include([path("", passed, name="v"), path("<str:a>/", passed, name="v")])),
        path("api/files/<path:rest>", passed, name="v"),
        re_path(r"^api/re/(?P<a>[^/]*)/?$", passed, name="v"),
        re_path(r"^api//double/", passed, name="v"),
        path("api/%2e/", passed, name="v"),
        path("api/ä ö/", passed, name="v"),
    ]


WHERE = {"route": {"route": "v"}, "prefix": {"path": "/api/"}, "glob": {"path": "/a*/**"}}
PLACES = Ruleset(
    compile_rules([{"name": name, "key": "ip", "rate": "1/h", **WHERE[name]} for name in WHERE])
)
PIECES = [
    *("/", "//", "api", "API", "%61pi", "%2e", "%2E", ".", "..", "%2f", "files", "re", "double"),
    *("ä ö", "%C3%A4%20%C3%B6", "%0a", "\n", ";", "?", "#", "%00", "%", "%25", "%ff", "x", " "),
    *("%E2%80%AE", "zz"),
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=7),
    st.sampled_from(["", "/zz", "/api", "/zz/"]),
    st.booleans(),
)
@hypothesis_settings(max_examples=examples(400), deadline=None)
def test_every_path_that_django_resolves_to_the_view_matches_its_rules(
    pieces: list[str], script: str, quoted: bool
) -> None:
    """Neither the spelling of a path nor its `SCRIPT_NAME` matters."""
    tail = "".join(pieces)
    raw = "/api" + (quote(tail) if quoted else tail)
    with override_settings(ROOT_URLCONF=Paths):
        for where in (raw, raw.split("?")[0].split("#")[0] or "/"):
            request = RequestFactory().get(where, SCRIPT_NAME=script)
            names = [rule.name for rule in PLACES.matching(request)]
            try:
                resolve(request.path_info)
            except Resolver404:
                assert "route" not in names
            else:
                assert names == ["route", "prefix", "glob"]


def test_the_key_path_is_the_resolved_path(settings: Any) -> None:
    """The `SCRIPT_NAME` of a request does not change its count."""
    settings.ROOT_URLCONF = Paths
    settings.RATELIMIT_RULES = [{"name": "x", "path": "/", "key": "path", "rate": "3/h"}]
    middleware = RateLimitMiddleware(passed)
    requests = [RequestFactory().get("/api/", SCRIPT_NAME=f"/z{number}") for number in range(4)]
    assert [middleware(request).status_code for request in requests] == [200, 200, 200, 429]
