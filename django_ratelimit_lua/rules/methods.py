"""The HTTP methods that a rule or a call site limits."""

from __future__ import annotations

from difflib import get_close_matches
from http import HTTPMethod

from ..limits.rate import LimitError

ALL: None = None
UNSAFE = ["DELETE", "PATCH", "POST", "PUT"]

METHODS = frozenset(
    {
        *map(str, HTTPMethod),
        "COPY",
        "LOCK",
        "MKCALENDAR",
        "MKCOL",
        "MOVE",
        "PROPFIND",
        "PROPPATCH",
        "PURGE",
        "QUERY",
        "REPORT",
        "SEARCH",
        "UNLOCK",
    }
)
"""The methods of HTTP, WebDAV and caches. Any other is taken for a spelling error."""


def method_name(name: object) -> str:
    """Return the name of an HTTP method in capitals. Raises `LimitError` if it is unknown.

    >>> method_name("get")
    'GET'
    >>> method_name("PSOT")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: 'PSOT' is not an HTTP method; did you mean ...
    """
    upper = str(name).upper()
    if upper in METHODS:
        return upper
    if upper in ("ALL", "UNSAFE"):
        listed = ", ".join(UNSAFE)
        raise LimitError(
            f"{name!r} is not an HTTP method. For all methods, leave method out; for UNSAFE, write "
            f"[{listed}]. In code, both are constants of django_ratelimit_lua",
            "method",
        )
    hint = "."
    for meant in get_close_matches(upper, METHODS, n=1):
        hint = f"; did you mean {meant!r}?"
    raise LimitError(
        f"{name!r} is not an HTTP method{hint} Known methods: {', '.join(sorted(METHODS))}",
        "method",
    )


def parse_methods(method: object) -> frozenset[str] | None:
    """Return the methods to count, or None for all. GET includes HEAD, which runs the same view."""
    if method is ALL:
        return None
    names = method
    if isinstance(method, str):
        names = [method]
    if not isinstance(names, (list, tuple, set, frozenset)) or not names:
        raise LimitError(
            f"method is {method!r}: must be a method's name or a list of names; in code also ALL "
            "or UNSAFE",
            "method",
        )
    methods = frozenset(map(method_name, names))
    return methods | _implied(methods)


def methods_label(methods: frozenset[str] | None) -> str:
    """Return the methods for the name of a limit.

    A limit on GET includes HEAD, but its name contains only GET, so that it is the same as before
    HEAD was included.
    """
    if methods is None:
        return "*"
    return ",".join(sorted(methods - _implied(methods)))


def _implied(methods: frozenset[str]) -> frozenset[str]:
    if "GET" in methods:
        return frozenset({"HEAD"})
    return frozenset()
