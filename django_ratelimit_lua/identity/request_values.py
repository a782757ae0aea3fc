"""Values that clients send outside the body, within bounds: headers, cookies, the query.

A refusal must not cost more than the request that it refuses, so values that are longer than any
client needs are not parsed. The response to a longer value is 400, like Django's response to too
many parameters: ignoring it would let clients evade the limit.
"""

from __future__ import annotations

from django.core.exceptions import RequestDataTooBig
from django.http import HttpHeaders, HttpRequest

MAX_HEADER_LENGTH = 64 * 1024
"""Characters of a header that are looked at; common servers take 8 to 64 KiB."""
MAX_PARSED_LENGTH = 16 * 1024
"""Characters of a query, or of cookies, that are parsed; common servers take 4 to 8 KiB."""


def header_value(request: HttpRequest, name: str) -> str | None:
    """Return the value of a header. Raises `RequestDataTooBig`."""
    # Not by request.headers, which looks at every header there is.
    return _bounded(request, HttpHeaders.to_wsgi_name(name), MAX_HEADER_LENGTH)


def cookie_value(request: HttpRequest, name: str) -> str | None:
    """Return the value of a cookie. Raises `RequestDataTooBig`."""
    _bounded(request, "HTTP_COOKIE", MAX_PARSED_LENGTH)
    return request.COOKIES.get(name)


def query_value(request: HttpRequest, name: str) -> str | None:
    """Return the value of a parameter of the query. Raises `RequestDataTooBig`."""
    _bounded(request, "QUERY_STRING", MAX_PARSED_LENGTH)
    return request.GET.get(name)


def _bounded(request: HttpRequest, key: str, longest: int) -> str | None:
    value: str | None = request.META.get(key)
    if value is not None and len(value) > longest:
        raise RequestDataTooBig(f"{key} is longer than {longest} characters")
    return value
