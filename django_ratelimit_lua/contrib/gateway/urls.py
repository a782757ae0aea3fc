"""The URLs of the gateway as views of a Django site.

`path("ratelimit/", include("django_ratelimit_lua.contrib.gateway.urls"))` includes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt

from ...views.exempt import ratelimit_exempt
from .endpoints import (
    MAX_BODY_BYTES,
    answer_check,
    answer_health,
    answer_json,
    answer_scope,
)


def _for_programs(view: Callable[..., Any]) -> Callable[..., Any]:
    """Exempt a view from limits, logins and CSRF tokens.

    Limits are for the clients that the request is about. Envoy uses the method of the original
    request, and programs have no CSRF token.
    """
    return ratelimit_exempt(login_not_required(csrf_exempt(view)))


@_for_programs
async def check(request: HttpRequest) -> HttpResponse:
    """Respond to a proxy, see `answer_check`."""
    if isinstance(request, ASGIRequest):
        answer = await answer_scope(request.scope)
    else:
        answer = await answer_check(request.META)
    return answer.response()


@_for_programs
async def json(request: HttpRequest) -> HttpResponse:
    """Respond to a service, see `answer_json`."""

    async def read_body() -> bytes:
        """Return the body up to one byte more than the maximum."""
        try:
            # Not `request.body`, because a body that is sent in chunks may have any size.
            return request.read(MAX_BODY_BYTES + 1)
        except UnreadablePostError:
            return b""  # The client has disconnected.

    return (await answer_json(request.META, read_body)).response()


@_for_programs
async def health(request: HttpRequest) -> HttpResponse:
    """Report whether limits can be decided, see `answer_health`."""
    return (await answer_health()).response()


urlpatterns = [
    path("check", check, name="ratelimit-check"),
    # Envoy appends the path of the client's request, whatever it contains.
    re_path(r"^check(?:\*|/[\s\S]*)\Z", check),
    path("json", json, name="ratelimit-json"),
    path("health", health, name="ratelimit-health"),
]
