"""A strict Content-Security-Policy for the admin: nothing inline, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'"
)


def _with_policy(request: HttpRequest, response: Any) -> Any:
    if request.path.startswith("/admin/"):
        response.headers["Content-Security-Policy"] = POLICY
    return response


@sync_and_async_middleware
def strict(get_response: Callable[[HttpRequest], Any]) -> Any:
    """The middleware."""
    if iscoroutinefunction(get_response):

        async def astrict(request: HttpRequest) -> Any:
            return _with_policy(request, await get_response(request))

        return astrict
    return lambda request: _with_policy(request, get_response(request))
