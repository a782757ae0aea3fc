"""A process that asks Redis nothing but what its one caller has it asked: a line of JSON in, a line
of JSON out.

In: which `face` gets a request, with which `method` and `user`; or `forget`, after which it knows
as little as a process that has just started. Out: the names and numbers of the limits that the
request met, and its status.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

from django.conf import settings

from tests.support.redis_server import url

RATES = {"anon": "500/h", "user": None, "reads": {"GET": None, "*": "600/h"}, "uploads": None}
settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    USE_TZ=True,
    ROOT_URLCONF="__main__",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_ratelimit_lua"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url()}},
    REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": RATES},
    RATELIMIT_TIMEOUT=10,
    RATELIMIT_ON_STORE_ERROR="closed",
    RATELIMIT_DENY_CACHE_SECONDS=0,  # What was refused a moment ago may be refused for a moment.
    RATELIMIT_CACHE_PREFIX=os.environ["RATELIMIT_TEST_PREFIX"],
)

import django  # noqa: E402

django.setup()

from django.contrib.auth.models import AnonymousUser  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.test import RequestFactory  # noqa: E402
from django.test.utils import setup_test_environment  # noqa: E402
from rest_framework.authentication import BaseAuthentication  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from django_ratelimit_lua import RateLimiter, ratelimit  # noqa: E402
from django_ratelimit_lua.core import get_usage  # noqa: E402
from django_ratelimit_lua.middleware import RateLimitMiddleware  # noqa: E402
from django_ratelimit_lua.rules import provider  # noqa: E402
from django_ratelimit_lua.rules.status import freshness  # noqa: E402
from django_ratelimit_lua.throttling import (  # noqa: E402
    AnonRateThrottle,
    RuleThrottle,
    ScopedRateThrottle,
    UserRateThrottle,
)


def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@ratelimit("writes", "ip", "700/h", method="POST")
def writes(request: HttpRequest) -> HttpResponse:
    return answer(request)


@ratelimit("hook", "ip", None)
def hook(request: HttpRequest) -> HttpResponse:
    return answer(request)


@ratelimit("writes", "ip", "700/h", method="POST")
@ratelimit("hook", "user_or_ip", None, method=["GET"])
def both(request: HttpRequest) -> HttpResponse:
    return answer(request)


def old(request: HttpRequest) -> HttpResponse:
    usage = get_usage(request, "writes", key="ip", rate="700/h", method=["POST"], increment=True)
    return HttpResponse(status=200, headers={"X-Limit": str(usage["limit"])} if usage else {})


class Believing(BaseAuthentication):
    """Believes who is said to ask."""

    def authenticate(self, request: Any) -> Any:
        user = request._request.user
        return (user, None) if user.is_authenticated else None


class Reads(UserRateThrottle):
    scope = "reads"


def throttled(*throttles: Any, **attributes: Any) -> Any:
    def handle(self: Any, request: Any) -> Response:
        return Response("ok")

    own = {
        "throttle_classes": throttles,
        "authentication_classes": (Believing,),
        "get": handle,
        "post": handle,
    }
    return type("View", (APIView,), {**own, **attributes}).as_view()


def middleware(*, knows_user: bool) -> Any:
    inner = RateLimitMiddleware(answer)

    def handle(request: HttpRequest) -> Any:
        user = request.user
        if not knows_user:
            del request.user

            def view(request: HttpRequest) -> Any:
                request.user = user
                return inner.process_view(request, answer, (), {}) or answer(request)

            inner.get_response = view
        else:
            inner.get_response = answer
        return inner(request)

    return handle


urlpatterns: list[Any] = []
limiter = RateLimiter("limiter", "800/h")
FACES: dict[str, Any] = {
    "decorator": writes,
    "a decorator without a rate": hook,
    "two decorators": both,
    "get_usage": old,
    "a throttle": throttled(AnonRateThrottle),
    "a throttle without a rate": throttled(UserRateThrottle),
    "throttles": throttled(AnonRateThrottle, UserRateThrottle),
    "a throttle by method": throttled(Reads),
    "a throttle by scope": throttled(ScopedRateThrottle, throttle_scope="uploads"),
    "a throttle for all rules": throttled(RuleThrottle),
    "middleware": middleware(knows_user=True),
    "middleware in front of the user": middleware(knows_user=False),
}


def ask(face: str, method: str, user: str | None) -> Any:
    if face == "limiter":
        decision = limiter.hit("ada")
        return [
            200 if decision else 429,
            sorted([state.name, state.limit] for state in decision.limits),
        ]
    request = RequestFactory().generic(method, "/place")
    request.user = (
        AnonymousUser()
        if user is None
        else SimpleNamespace(pk=user, is_authenticated=True, is_staff=False)
    )
    response = FACES[face](request)
    decision = getattr(request, "ratelimit", None)
    limits = (
        sorted([state.name, state.limit] for state in decision.limits)
        if decision is not None
        else []
    )
    return [response.status_code, limits, response.headers.get("X-Limit")]


def main() -> None:
    setup_test_environment()
    for line in sys.stdin:
        asked = json.loads(line)
        if asked == "forget":
            provider._ruleset = provider._snapshot = None
            reply: Any = None
        elif asked == "revision":
            ruleset = provider.get_ruleset()
            # Whoever has no rules, or has heard of others, finds out with the next request.
            reply = None if ruleset is None or freshness._known is None else ruleset.revision.number
        else:
            reply = ask(**asked)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
