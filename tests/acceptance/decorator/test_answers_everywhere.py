"""Every 429 has the same headers and content, under WSGI and ASGI, wherever it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler

from django_ratelimit_lua import Decision, Ratelimited, RateLimiter, ratelimit
from django_ratelimit_lua.throttling import SimpleRateThrottle
from django_ratelimit_lua.web.reference import parse_reference, refusal_log
from tests.urls import AUTHENTICATION, LIMITS, SESSIONS, aok, ok

MIDDLEWARE = [SESSIONS, AUTHENTICATION, LIMITS]


limiter = RateLimiter("deep", "1/h")


async def araising(request: Any) -> HttpResponse:
    await limiter.ahit("x")
    raise Ratelimited(await limiter.ahit("x"))


def deep(request: Any) -> Any:
    limiter.hit("x")
    raise Ratelimited(limiter.hit("x"))


@method_decorator(ratelimit("class", "ip", "1/h"), name="dispatch")
class OnClass(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


class Refusing(SimpleRateThrottle):
    rate = "1/h"
    scope = "refusing"

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        return "all"


class Throttled(APIView):
    authentication_classes = ()
    throttle_classes = (Refusing,)

    def get(self, request: Any) -> Response:
        return Response({})


class DeepInDrf(APIView):
    authentication_classes = ()

    def get(self, request: Any) -> Any:
        return deep(request)


class DecoratedInDrf(APIView):
    authentication_classes = ()

    @method_decorator(ratelimit("in drf", "ip", "1/h"))
    def get(self, request: Any) -> Response:
        return Response({})


urlpatterns = [
    path("ruled", ok),
    path("aruled", aok),
    path("decorated", ratelimit("decorated", "ip", "1/h")(ok)),
    path("adecorated", ratelimit("adecorated", "ip", "1/h")(aok)),
    path("class", OnClass.as_view()),
    path("deep", deep),
    path("adeep", araising),
    path("drf/throttled", Throttled.as_view()),
    path("drf/deep", DeepInDrf.as_view()),
    path("drf/decorated", DecoratedInDrf.as_view()),
    path("drf/function", api_view(["GET"])(deep)),
]
DJANGO = ["/ruled", "/aruled", "/decorated", "/adecorated", "/class", "/deep", "/adeep", "/nowhere"]
DRF = ["/drf/throttled", "/drf/deep", "/drf/decorated", "/drf/function"]


def refused_view(request: HttpRequest, exception: Ratelimited) -> HttpResponse:
    return HttpResponse(f"{User.objects.count()} {exception.decision.denied_by}", status=429)


async def arefused_view(request: HttpRequest, exception: Ratelimited) -> HttpResponse:
    return HttpResponse(f"{await User.objects.acount()} {exception.decision.denied_by}", status=429)


class RefusedClass(View):
    async def get(self, request: HttpRequest, exception: Ratelimited) -> HttpResponse:
        return await arefused_view(request, exception)


class Called:
    async def __call__(self, request: HttpRequest, exception: Ratelimited) -> HttpResponse:
        return await arefused_view(request, exception)


def deferred(request: HttpRequest, exception: Ratelimited) -> HttpResponse:
    return TemplateResponse(request, "429.html", {"retry_after": "-"}, status=429)


@api_view(["GET"])
def drf_refused(request: Any, exception: Ratelimited) -> Response:
    return Response({"users": User.objects.count(), "by": exception.decision.denied_by}, status=429)


VIEWS = {
    "sync": refused_view,
    "async": arefused_view,
    "class": RefusedClass.as_view(),
    "callable": Called(),
    "awaitable": lambda request, exception: arefused_view(request, exception),
    "template": deferred,
    "drf": drf_refused,
}


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = MIDDLEWARE
    settings.RATELIMIT_RULES = [
        {"name": "rules", "path": ["/ruled", "/aruled", "/nowhere"], "key": "path", "rate": "1/h"}
    ]
    text = "{{ retry_after }} by {{ user.username }} {{ user.groups.count }}"
    template = dict(settings.TEMPLATES[0], APP_DIRS=False)
    loaders = [("django.template.loaders.locmem.Loader", {"429.html": text})]
    template["OPTIONS"] = {**template["OPTIONS"], "loaders": loaders}
    settings.TEMPLATES = [template]


def last(where: str, kind: str, cookies: Any = None, **headers: str) -> Any:
    """Return the second response."""

    client: Any = AsyncClient() if kind == "asgi" else Client()
    client.cookies.update(cookies or {})
    get = async_to_sync(client.get) if kind == "asgi" else client.get
    get(where, headers=headers)
    return get(where, headers=headers)


def promised(response: Any) -> None:
    assert response.status_code == 429
    assert response["Cache-Control"] == "no-store"
    # An hour from the last hit that was counted: on a busy machine that was up to a minute ago.
    assert 3540 <= int(response["Retry-After"]) <= 3600
    assert len(parse_reference(response["RateLimit-Reference"]).digest_prefix) == 6


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_a_projects_429_page_can_use_session_and_user(kind: str) -> None:
    """The template reads session, user and groups from the database."""
    client = Client()
    client.force_login(User.objects.create(username="ada"))
    for where in DJANGO:
        response = last(where, kind, client.cookies)
        promised(response)
        assert response.content.decode() == f"{response['Retry-After']} by ada 0", where


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("view", VIEWS)
def test_ratelimit_view_may_be_sync_async_or_a_class(view: str, kind: str, settings: Any) -> None:
    """It may query the database, or return a `TemplateResponse`."""
    settings.RATELIMIT_VIEW = VIEWS[view]
    for where in DJANGO:
        response = last(where, kind)
        promised(response)
        assert response.content


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_drf_views_respond_with_429(kind: str, settings: Any) -> None:
    """A throttle, a decorator and a raised exception lead to a 429, never to a 403."""
    for where in DRF:
        promised(last(where, kind))
        settings.RATELIMIT_HEADERS = "ietf"
        assert last(where, kind)["RateLimit-Policy"]
        settings.RATELIMIT_HEADERS = None
    settings.RATELIMIT_EXCEPTION_CLASS = Ratelimited
    for where in DRF:
        promised(last(where, kind))
    body = last("/drf/deep", kind).json()
    assert body["detail"].startswith("Request was throttled. Expected available in 3")


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("where", ["/drf/throttled", "/drf/deep"])
def test_the_drf_body_has_the_members_of_a_problem_document(where: str, kind: str) -> None:
    """Beside DRF's `detail`, it has the type, the violated policies and the reference."""
    response = last(where, kind)
    body = response.json()
    assert body.pop("detail").startswith("Request was throttled. Expected available in 3")
    assert body == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "violated-policies": ["refusing" if where == "/drf/throttled" else "deep"],
        "reference": response["RateLimit-Reference"],
    }


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_the_message_of_a_rule_is_in_every_response(kind: str, settings: Any) -> None:
    """The message is in JSON, HTML and text, and in DRF's body."""
    names = ("decorated", "adecorated", "class", "refusing", "deep")
    rules = [{"name": name, "group": name, "key": "ip", "rate": "1/h"} for name in names]
    rules += settings.RATELIMIT_RULES
    settings.RATELIMIT_RULES = [{**rule, "message": "Ask sales."} for rule in rules]
    settings.TEMPLATES = []
    for where in DJANGO:
        for accept in ("application/json", "text/html", "*/*"):
            response = last(where, kind, accept=accept)
            promised(response)
            assert "Ask sales." in response.content.decode(), (where, accept)
    for where in ("/drf/throttled", "/drf/deep", "/drf/function"):
        response = last(where, kind)
        promised(response)
        assert response.json()["detail"].startswith("Ask sales. Expected available in 3")


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("exception", [None, Ratelimited])
def test_a_refusal_is_logged_once(kind: str, exception: Any, settings: Any, caplog: Any) -> None:
    """The record has the path and the reference. Refusals in the same minute have no record."""
    settings.RATELIMIT_EXCEPTION_CLASS = exception
    for where in ["/decorated", "/adecorated", "/class", "/deep", "/adeep", *DRF]:
        refusal_log.clear()
        caplog.clear()
        response = last(where, kind)
        records = [each for each in caplog.records if each.name == "django_ratelimit_lua.refused"]
        assert [record.path for record in records] == [where]
        # Those that raise were refused the first time, too.
        if "deep" not in where and where != "/drf/function":
            assert records[0].reference == response["RateLimit-Reference"]


def own_handler(exc: Exception, context: Any) -> Response:
    """An exception handler of a project."""
    response = exception_handler(exc, context)
    return Response({"own": True}, status=response.status_code if response is not None else 500)


def test_a_projects_own_exception_handler_is_kept(settings: Any) -> None:
    """The response to a throttled request still forbids caching."""
    settings.REST_FRAMEWORK = {
        **settings.REST_FRAMEWORK,
        "EXCEPTION_HANDLER": f"{__name__}.own_handler",
    }
    assert last("/drf/deep", "wsgi").json() == {"own": True}
    response = last("/drf/throttled", "wsgi")
    assert (response.status_code, response.json()) == (429, {"own": True})
    assert response["Cache-Control"] == "no-store"


def test_other_exceptions_are_left_to_drf(settings: Any) -> None:
    """The package's handler returns what DRF's handler returns."""
    from django_ratelimit_lua.throttling import exception_handler as ours

    for error in (PermissionDenied("no"), ValueError()):
        theirs, found = exception_handler(error, {}), ours(error, {})
        assert (found and (found.status_code, found.data)) == (
            theirs and (theirs.status_code, theirs.data)
        )


def test_a_request_that_can_never_be_allowed_has_no_retry_after_in_drf() -> None:
    """DRF's response has no `Retry-After`."""
    from django_ratelimit_lua.throttling import exception_handler as ours

    response = ours(Ratelimited(Decision(False)), {})
    assert (response.status_code, response["Cache-Control"]) == (429, "no-store")
    assert "Retry-After" not in response


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_cache_headers_of_ratelimit_view_are_kept(kind: str, settings: Any) -> None:
    """`Cache-Control` and `Retry-After` of `RATELIMIT_VIEW` are not replaced."""

    headers = {"Cache-Control": "private, max-age=5", "Retry-After": "7"}
    settings.RATELIMIT_VIEW = lambda *_: JsonResponse({}, status=429, headers=headers)
    response = last("/decorated", kind)
    assert (response["Cache-Control"], response["Retry-After"]) == ("private, max-age=5", "7")


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("where", ["/ruled", "/adecorated"])
def test_a_ratelimit_view_that_returns_none_is_named_in_the_error(
    where: str, kind: str, settings: Any
) -> None:
    """The error names the setting."""
    settings.RATELIMIT_VIEW = lambda request, exception: None
    with pytest.raises(TypeError, match="RATELIMIT_VIEW returned None"):
        last(where, kind)
