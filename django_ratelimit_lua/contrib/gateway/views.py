"""The endpoints of the gateway as views of a Django site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from ...rules.exempt import ratelimit_exempt
from .check import answer_check, answer_scope
from .decide import answer_decide
from .decide_request import MAX_BYTES
from .health import answer_health
from .openapi import answer_openapi


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
async def decide(request: HttpRequest) -> HttpResponse:
    """Respond to a service, see `answer_decide`. Django cancels it if the client disconnects."""
    try:
        # Not `request.body`: what is sent in chunks may have any size.
        body = request.read(MAX_BYTES + 1)
    except UnreadablePostError:
        body = b""  # The client has gone.
    return (await answer_decide(str(request.method), request.META, body)).response()


@_for_programs
async def health(request: HttpRequest) -> HttpResponse:
    """Report whether limits can be decided, see `answer_health`."""
    return (await answer_health()).response()


@_for_programs
@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    """Return the OpenAPI document."""
    return answer_openapi().response()
