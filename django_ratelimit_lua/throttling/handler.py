"""The exception handler of Django REST framework: a refusal becomes a 429."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from django.http import HttpRequest

from ..exceptions import Ratelimited
from ..identity.request_state import plain, request_state
from ..web.headers import add_headers
from ..web.refusal import ErrorDetails, Refusal, details_of, refusal_of

if TYPE_CHECKING:
    from rest_framework.response import Response


def last_refusal(request: object) -> Refusal | None:
    """Return the content of the last refusal by throttles, or None."""
    return cast("Refusal | None", getattr(request_state(request).throttles, "refusal", None))


def exception_handler(exc: Exception, context: Mapping[str, Any]) -> Response | None:
    """Handle exceptions: a `Ratelimited` becomes DRF's 429 instead of its 403.

    This is a value for DRF's setting `EXCEPTION_HANDLER`, and the default of that setting if
    `django_ratelimit_lua` is in `INSTALLED_APPS`. A project's own handler calls this function
    instead of `rest_framework.views.exception_handler`.

    The body is DRF's. Its `detail` begins with the message of the rule that refuses, and it has the
    members `type`, `violated-policies` and `reference`, as in a problem document.
    """
    from rest_framework.exceptions import APIException, PermissionDenied, Throttled
    from rest_framework.views import exception_handler as drf_handler

    request = plain(context.get("request"))
    error: Any = exc
    refusal: Refusal | None = None
    details: ErrorDetails | None = details_of(exc)
    if details is not None:
        error = APIException(details.detail())
        error.status_code = details.status
    elif isinstance(exc, Ratelimited):
        details = refusal = refusal_of(HttpRequest() if request is None else request, exc.decision)
        error = Throttled(exc.decision.retry_after, _detail(refusal))
    elif isinstance(exc, Throttled):
        details = refusal = last_refusal(request)
        # A view may have its own message.
        if refusal is not None and str(error.detail).startswith(str(Throttled.default_detail)):
            wait = error.wait
            if refusal.retry_after is None:
                wait = None
            error = Throttled(wait, _detail(refusal))
    if refusal is not None and refusal.is_forbidden:
        error = PermissionDenied(refusal.detail())
    response = drf_handler(error, context)
    if details is None:
        return response
    if isinstance(response.data, dict):
        response.data |= {
            name: value for name, value in details.members().items() if name != "title"
        }
    for name, value in details.headers().items():
        response.headers[name] = value
    if refusal is not None:
        add_headers(response, refusal.decision)
    return response


def _detail(refusal: Refusal) -> str | None:
    """Return the replacement for DRF's "Request was throttled.", or None to keep that.

    DRF adds the time to wait.
    """
    if refusal.retry_after is None:
        return refusal.detail() or None
    if not refusal.message and refusal.reason == "at once":
        return refusal.begin()
    return refusal.message or None
