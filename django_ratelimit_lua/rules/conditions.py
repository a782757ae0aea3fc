"""Conditions of rules: the path, the HTTP method, the user agent and the network of the client."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from fnmatch import translate
from functools import lru_cache
from http import HTTPMethod
from typing import NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext_noop as _

from ..conf import conf
from ..identity.address import client_address
from ..identity.networks import networks
from ..limits.rate import LimitError

Condition = Callable[[HttpRequest], bool]
"""Returns whether a request meets the condition."""
MAX_USER_AGENT_LENGTH = 500
"""Characters of a user agent that are compared."""
MAX_PATH_LENGTH = 10_000
"""Characters of a path that a glob looks at."""

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


class PathPattern:
    """A prefix or, if it contains a star, a glob for the whole path.

    `*` matches any text without a slash, `**` any text, and every other character itself.

    Matching a glob stores all possible positions in the bits of one number, so it takes one step
    for each character of the path: no backtracking, whatever the pattern (Thompson, 1968, "Regular
    expression search algorithm"). After `MAX_PATH_LENGTH` characters the result is `undecided`,
    unless nothing can match any more.

    >>> PathPattern("/api/").matches("/api/v1")
    True
    >>> pattern = PathPattern("/api/*/items")
    >>> [pattern.matches(path) for path in ("/api/v1/items", "/api/v1/x/items", "/api/v1/items/")]
    [True, False, False]
    >>> PathPattern("/files/**.pdf").matches("/files/2026/11/report.pdf")
    True
    """

    def __init__(self, pattern: str) -> None:
        prefix, star, rest = pattern.partition("*")
        self._is_glob = bool(star)
        self._prefix = prefix
        self._suffix = rest.rpartition("*")[2]
        # Each number has one bit for each part of the pattern, a letter or a star.
        self._letters: dict[str, int] = {}
        self._stars_within_segment = 0
        self._stars_across_segments = 0
        bit = 1
        for part in re.findall(r"\*+|.", pattern, re.DOTALL):
            if part == "*":
                self._stars_within_segment |= bit
            elif part[0] == "*":
                self._stars_across_segments |= bit
            else:
                self._letters[part] = self._letters.get(part, 0) | bit
            bit <<= 1
        self._end = bit

    def matches(self, path: str, *, undecided: bool = True) -> bool:
        """Return whether the path matches the pattern.

        Args:
            path: The path.
            undecided: The result if the path is too long for the glob.
        """
        if not path.startswith(self._prefix) or not path.endswith(self._suffix):
            return False
        if not self._is_glob:
            return True
        stars = self._stars_within_segment | self._stars_across_segments
        positions = self._skip_stars(1, stars)
        for letter in path[:MAX_PATH_LENGTH]:
            stay = positions & stars
            if letter == "/":
                stay = positions & self._stars_across_segments
            advance = (positions & self._letters.get(letter, 0)) << 1
            positions = self._skip_stars(stay | advance, stars)
            if not positions:
                return False
        if len(path) > MAX_PATH_LENGTH:
            return undecided
        return bool(positions & self._end)

    @staticmethod
    def _skip_stars(positions: int, stars: int) -> int:
        """Add the positions after stars, which also match the empty text."""
        return positions | (positions & stars) << 1


path_pattern = lru_cache(maxsize=4096)(PathPattern)
"""Returns the pattern for a text; cached."""


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
    closest = get_close_matches(upper, METHODS, n=1)
    if closest:
        hint = f"; did you mean {closest[0]!r}?"
    raise LimitError(
        f"{name!r} is not an HTTP method{hint} Known methods: {', '.join(sorted(METHODS))}",
        "method",
    )


def parse_methods(method: object) -> frozenset[str] | None:
    """Return the methods to count, or None for all. GET includes HEAD, which runs the same view."""
    if method is ALL:
        return None
    names = [method] if isinstance(method, str) else method
    if not isinstance(names, (list, tuple, set, frozenset)) or not names:
        raise LimitError(
            f"method is {method!r}: must be a method's name or a list of names; in code also ALL "
            "or UNSAFE",
            "method",
        )
    methods = frozenset(map(method_name, names))
    return methods | _implied_methods(methods)


def methods_label(methods: frozenset[str] | None) -> str:
    """Return the methods for the name of a limit.

    A limit on GET includes HEAD, but its name contains only GET, so that it is the same as before
    HEAD was included.
    """
    if methods is None:
        return "*"
    return ",".join(sorted(methods - _implied_methods(methods)))


def _implied_methods(methods: frozenset[str]) -> frozenset[str]:
    """Return the methods that are counted in addition to those that a rule names."""
    if "GET" in methods:
        return frozenset({"HEAD"})
    return frozenset()


class _Names(NamedTuple):
    """The values of a condition: those that a request needs, and those that it must not have."""

    wanted: list[str]
    unwanted: list[str]

    @classmethod
    def parse(cls, names: Sequence[str]) -> _Names:
        """Return the names. A leading `!` negates one."""
        wanted = [name for name in names if not name.startswith("!")]
        unwanted = [name[1:] for name in names if name.startswith("!")]
        return cls(wanted, unwanted)


def user_agent_condition(patterns: Sequence[str]) -> Condition:
    """Return the condition that one of the patterns matches, and no negated one.

    The user agent of a request without the header is empty.
    """
    globs = _Names.parse(patterns)
    wanted, unwanted = [
        re.compile("|".join(map(translate, texts)), re.IGNORECASE) for texts in globs
    ]

    @lru_cache(maxsize=1024)
    def matches(user_agent: str) -> bool:
        if unwanted.pattern and unwanted.match(user_agent):
            return False
        return wanted.match(user_agent) is not None

    return lambda request: matches(request.META.get("HTTP_USER_AGENT", "")[:MAX_USER_AGENT_LENGTH])


def network_condition(names: Sequence[str]) -> Condition:
    """Return the condition that the client is in one of the networks, and in no negated one.

    It is not met if one of the networks was never read. Raises `LimitError` for an unknown network.
    """
    wanted, unwanted = _Names.parse(names)
    for name in wanted + unwanted:
        if name not in conf.NETWORKS:
            text = _("%(name)r is not a network of RATELIMIT_NETWORKS (%(names)s)")
            raise LimitError(text, name=name, names=", ".join(conf.NETWORKS) or "none")

    def is_met(request: HttpRequest) -> bool:
        """Return whether the client is in a wanted network, if any, and in no unwanted one."""
        containing = set()
        address = client_address(request).address
        for name in wanted + unwanted:
            network = networks.find(name)
            if network is None:  # It was never read.
                return False
            if address is not None and address in network:
                containing.add(name)
        if not containing.isdisjoint(unwanted):
            return False
        return not wanted or not containing.isdisjoint(wanted)

    return is_met
