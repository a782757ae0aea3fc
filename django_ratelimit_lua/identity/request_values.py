"""Values that clients send outside the body, within bounds: headers, cookies, the query.

A refusal must not cost more than the request that it refuses, so values that are longer than any
client needs are not parsed. The response to a longer value is 400, like Django's response to too
many parameters: ignoring it would let clients evade the limit.

If a value is repeated, Django uses one of them. For a request to another server (`LINES`) it is
unknown whether that server uses the first or the last, or joins them: if these differ, the value is
`UNREAD`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from django.core.exceptions import RequestDataTooBig
from django.http import HttpHeaders, HttpRequest, parse_cookie

from .body import Values

LINES = "ratelimit.lines"
"""In `META` of a request to another server: the lines of headers that were sent more than once, by
their keys. None: the proxy has joined them already.
"""
_JOINT = re.compile(r",(?! )")
"""The separator of joined lines. A comma within a line is usually followed by a space, and no line
begins with one.
"""
_JOINT_OF_COOKIES = re.compile(r",(?=[!#$%&'*+.^_`|~\w-]+=)", re.ASCII)
MAX_HEADER_LENGTH = 64 * 1024
"""Characters of a header that are looked at; common servers take 8 to 64 KiB."""
MAX_PARSED_LENGTH = 16 * 1024
"""Characters of a query, or of cookies, that are parsed; common servers take 4 to 8 KiB."""
MAX_COOKIES = 1000
"""Cookies that are parsed; browsers send at most 180."""


def header_values(request: HttpRequest, name: str) -> Values:
    """Return the values that servers may find in a header. Raises `RequestDataTooBig`."""
    value = _header(request, name)
    if value is None or LINES not in request.META:
        return (value,)
    lines: Sequence[str] = _JOINT.split(value)
    repeated: dict[str, Sequence[str]] | None = request.META[LINES]
    if repeated is not None:
        lines = repeated.get(HttpHeaders.to_wsgi_name(name), ())
    return tuple(dict.fromkeys((value, *_ends(lines))))


def cookie_values(request: HttpRequest, name: str) -> Values:
    """Return the values that servers may find in a cookie. Raises `RequestDataTooBig`."""
    cookies = _header(request, "Cookie", MAX_PARSED_LENGTH)
    if cookies is not None and cookies.count(";") >= MAX_COOKIES:
        raise RequestDataTooBig(f"The request has more than {MAX_COOKIES} cookies")
    if cookies is None or LINES not in request.META:
        return (request.COOKIES.get(name),)
    if request.META[LINES] is None:
        cookies = _JOINT_OF_COOKIES.sub(";", cookies)
    found = [parse_cookie(cookie).get(name) for cookie in cookies.split(";")]
    return _ends([value for value in found if value is not None])


def query_values(request: HttpRequest, name: str) -> Values:
    """Return the values that servers may find in a parameter of the query.

    Raises `RequestDataTooBig`.
    """
    _check_length("query", str(request.META.get("QUERY_STRING") or ""), MAX_PARSED_LENGTH)
    if LINES not in request.META:
        return (request.GET.get(name),)
    return _ends(request.GET.getlist(name))


def _ends(values: Sequence[str]) -> Values:
    """Return the first and the last value, or one of them if they are equal."""
    return tuple(dict.fromkeys((*values[:1], *values[-1:])))


def _header(request: HttpRequest, name: str, longest: int = MAX_HEADER_LENGTH) -> str | None:
    # Not by request.headers, which looks at every header there is.
    value: str | None = request.META.get(HttpHeaders.to_wsgi_name(name))
    if value is not None:
        _check_length(f"header {name}", value, longest)
    return value


def _check_length(what: str, text: str, longest: int) -> None:
    if len(text) > longest:
        raise RequestDataTooBig(f"The {what} is longer than {longest} characters")
