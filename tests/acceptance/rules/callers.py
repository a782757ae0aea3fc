"""Callers of limits of every kind, for a process of a site."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.core import get_usage
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.rules import provider
from django_ratelimit_lua.rules.status import freshness
from django_ratelimit_lua.throttling import (
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


def with_get_usage(request: HttpRequest) -> HttpResponse:
    usage = get_usage(request, "writes", key="ip", rate="700/h", method=["POST"], increment=True)
    return HttpResponse(status=200, headers={"X-Limit": str(usage["limit"])} if usage else {})


class RequestUser(BaseAuthentication):
    """Authenticates the user of the Django request."""

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
        "authentication_classes": (RequestUser,),
        "get": handle,
        "post": handle,
    }
    return type("View", (APIView,), {**own, **attributes}).as_view()


def middleware(*, has_user: bool) -> Any:
    inner = RateLimitMiddleware(answer)

    def handle(request: HttpRequest) -> Any:
        user = request.user
        if not has_user:
            del request.user

            def view(request: HttpRequest) -> Any:
                request.user = user
                return inner.process_view(request, answer, (), {}) or answer(request)

            inner.get_response = view
        else:
            inner.get_response = answer
        return inner(request)

    return handle


limiter = RateLimiter("limiter", "800/h")
CALLERS: dict[str, Any] = {
    "decorator": writes,
    "a decorator without a rate": hook,
    "two decorators": both,
    "get_usage": with_get_usage,
    "a throttle": throttled(AnonRateThrottle),
    "a throttle without a rate": throttled(UserRateThrottle),
    "throttles": throttled(AnonRateThrottle, UserRateThrottle),
    "a throttle by method": throttled(Reads),
    "a throttle by scope": throttled(ScopedRateThrottle, throttle_scope="uploads"),
    "a throttle for all rules": throttled(RuleThrottle),
    "middleware": middleware(has_user=True),
    "middleware in front of the user": middleware(has_user=False),
}


def ask(caller: str, method: str, user: str | None) -> Any:
    """Return the status of a request, its limits and their numbers, and a header of the view."""
    if caller == "limiter":
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
    response = CALLERS[caller](request)
    decision = getattr(request, "ratelimit", None)
    limits = (
        sorted([state.name, state.limit] for state in decision.limits)
        if decision is not None
        else []
    )
    return [response.status_code, limits, response.headers.get("X-Limit")]


def forget() -> None:
    """Forget the rules, as a new process."""
    provider._ruleset = provider._snapshot = None


def revision() -> int | None:
    """Return the revision of the known rules, or None if the next request loads them."""
    ruleset = provider.get_ruleset()
    is_known = ruleset is not None and freshness._proof is not None
    return ruleset.revision.number if is_known else None
