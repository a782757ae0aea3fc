"""The exception handler of Django REST framework: a refusal becomes a 429."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from django.http import HttpRequest
from rest_framework.exceptions import APIException, PermissionDenied, Throttled

from ..exceptions import Ratelimited
from ..identity.request_state import request_state, unwrap_request
from ..web.headers import add_headers
from ..web.refusal import ErrorDetails, Refusal, details_of, refusal_of
from ..web.responses import leave_unlogged

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
    from rest_framework.views import exception_handler as drf_handler

    details = _find_details(exc, unwrap_request(context.get("request")))
    response = drf_handler(_adapt_error(exc, details), context)
    if details is None:
        return response
    if isinstance(response.data, dict):
        response.data |= {
            name: value for name, value in details.members().items() if name != "title"
        }
    for name, value in details.headers().items():
        response.headers[name] = value
    if isinstance(details, Refusal):
        add_headers(response, details.decision)
        if details.reason == "busy":
            leave_unlogged(response)
    return response


def _find_details(exc: Exception, request: HttpRequest | None) -> ErrorDetails | None:
    """Return the content of the response to an exception; None for an exception of others."""
    if isinstance(exc, Ratelimited):
        return refusal_of(request or HttpRequest(), exc.decision)
    if isinstance(exc, Throttled):
        return last_refusal(request)
    return details_of(exc)


def _adapt_error(exc: Any, details: ErrorDetails | None) -> Any:
    """Return the exception of DRF that responds with these details; without any, the same one."""
    if details is None:
        return exc
    if not isinstance(details, Refusal):
        error = APIException(details.detail())
        error.status_code = details.status
        return error
    if details.is_forbidden:
        return PermissionDenied(details.detail())
    if isinstance(exc, Ratelimited):
        return throttled(details.retry_after, _replacement_detail(details), details)
    # A view may have its own message.
    if str(exc.detail).startswith(str(Throttled.default_detail)):
        wait = exc.wait
        if details.retry_after is None:
            wait = None
        return throttled(wait, _replacement_detail(details), details)
    return exc


def throttled(wait: float | None, detail: str | None, refusal: Refusal) -> Throttled:
    """Return DRF's exception for a refusal. By itself, it has the status 429."""
    error = Throttled(wait, detail)
    error.status_code = refusal.status
    return error


def _replacement_detail(refusal: Refusal) -> str | None:
    """Return the replacement for DRF's "Request was throttled.", or None to keep that.

    DRF adds the time to wait.
    """
    if refusal.retry_after is None:
        return refusal.detail() or None
    if not refusal.message and refusal.reason in ("at once", "busy"):
        return refusal.first_sentence()
    return refusal.message or None
