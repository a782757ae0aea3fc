"""What clients send beside a body, within bounds: a header, a cookie, a query parameter.

A refusal must not cost more than the request it refuses, so nothing is parsed that is longer than any client needs.
More than that is answered 400, as Django answers too many parameters: passed over, it would be a way around the limit.
"""

from __future__ import annotations

from django.core.exceptions import RequestDataTooBig
from django.http import HttpHeaders, HttpRequest

LONGEST_HEADER = 64 * 1024
"""Characters of a header that are looked at; common servers take 8 to 64 KiB."""
LONGEST_QUERY = 16 * 1024
"""Characters of a query that are parsed; common servers take 4 to 8 KiB."""
MOST_COOKIES = 1000
"""Cookies that are parsed; browsers send at most 180."""


def header_value(request: HttpRequest, name: str) -> str | None:
    """A header; None if there is none. Raises `RequestDataTooBig`."""
    # Not by request.headers, which looks at every header there is.
    value: str | None = request.META.get(HttpHeaders.to_wsgi_name(name))
    if value is not None:
        _check_length(f"header {name}", value, LONGEST_HEADER)
    return value


def cookie_value(request: HttpRequest, name: str) -> str | None:
    """A cookie; None if there is none. Raises `RequestDataTooBig`."""
    cookies = header_value(request, "Cookie")
    if cookies is not None and cookies.count(";") >= MOST_COOKIES:
        raise RequestDataTooBig(f"The request has more than {MOST_COOKIES} cookies")
    return request.COOKIES.get(name)


def query_value(request: HttpRequest, name: str) -> str | None:
    """A parameter of the query; None if there is none.

    Raises `RequestDataTooBig`, and what Django raises for more than `DATA_UPLOAD_MAX_NUMBER_FIELDS`.
    """
    _check_length("query", str(request.META.get("QUERY_STRING") or ""), LONGEST_QUERY)
    return request.GET.get(name)


def _check_length(what: str, text: str, longest: int) -> None:
    if len(text) > longest:
        raise RequestDataTooBig(f"The {what} is longer than {longest} characters")
