"""Conditions of rules: the user agent, the network and the waiting time of a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache

from django.http import HttpRequest
from django.utils.translation import gettext_noop as _

from ..conf import conf
from ..identity.address import client_address
from ..identity.networks import networks
from ..identity.waiting_time import MAX_SECONDS, waiting_time
from ..limits.rate import SECOND, LimitError, time_text, time_us

MAX_NAMES = 100
"""Patterns or networks of one condition."""
MAX_PATTERN_LENGTH = 200
_MAX_CACHED_LENGTH = 300


class Condition:
    """A condition of a rule."""

    def is_met(self, request: HttpRequest) -> bool:
        """Return whether a request meets the condition."""
        raise NotImplementedError


def _split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names, and those that a leading `!` negates."""
    wanted = [name for name in names if not name.startswith("!")]
    return wanted, [name[1:] for name in names if name.startswith("!")]


def _check_number(names: Sequence[str]) -> None:
    if len(names) > MAX_NAMES:
        raise LimitError(_("Write at most %(number)d lines"), number=MAX_NAMES)


class UserAgents(Condition):
    """A request with a user agent that matches one of the patterns, and no negated one.

    >>> UserAgents(["*bot*", "!*Googlebot*"]).matches("ExampleBot/1.0")
    True
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        _check_number(patterns)
        if len(max(patterns, key=len)) > MAX_PATTERN_LENGTH:
            text = _("A pattern has at most %(number)d characters")
            raise LimitError(text, number=MAX_PATTERN_LENGTH)
        wanted, unwanted = _split(patterns)
        self._wanted = _compiled(wanted or ["*"])
        self._unwanted = _compiled(unwanted)
        self._cached = lru_cache(maxsize=1024)(self.matches)

    def matches(self, user_agent: str) -> bool:
        """Return whether a user agent matches; that of a request without the header is empty."""
        is_wanted = self._wanted.match(user_agent) is not None
        return is_wanted and self._unwanted.match(user_agent) is None

    def is_met(self, request: HttpRequest) -> bool:
        user_agent = request.META.get("HTTP_USER_AGENT", "")
        if len(user_agent) > _MAX_CACHED_LENGTH:
            return self.matches(user_agent)
        return self._cached(user_agent)


def _compiled(patterns: Sequence[str]) -> re.Pattern[str]:
    """Return one pattern for all of these; without any, it matches nothing."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)", re.IGNORECASE)


class ClientNetworks(Condition):
    """A client in one of the networks, and in no negated one.

    It is not met if one of the networks was never read.
    """

    def __init__(self, names: Sequence[str]) -> None:
        _check_number(names)
        self._wanted, self._unwanted = _split(names)
        for name in (*self._wanted, *self._unwanted):
            if name not in conf.NETWORKS:
                text = _("%(name)r is not a network of RATELIMIT_NETWORKS (%(names)s)")
                raise LimitError(text, name=name, names=", ".join(conf.NETWORKS) or "none")

    def is_met(self, request: HttpRequest) -> bool:
        wanted = [networks.find(name) for name in self._wanted]
        unwanted = [networks.find(name) for name in self._unwanted]
        if None in wanted or None in unwanted:
            return False
        address = client_address(request).address
        if address is None:
            return not wanted
        is_wanted = not wanted or any(address in addresses for addresses in wanted if addresses)
        return is_wanted and not any(address in addresses for addresses in unwanted if addresses)


class Waited(Condition):
    """A request that waited for longer than some seconds before this process began with it."""

    def __init__(self, text: str) -> None:
        self.seconds = time_us(text) / SECOND

    def is_met(self, request: HttpRequest) -> bool:
        waited = waiting_time(request)
        return waited is not None and waited > self.seconds


def waited_text(value: str) -> str:
    """Return the canonical text of a waiting time. Raises `LimitError`.

    >>> waited_text("500ms"), waited_text("1.0s")
    ('500ms', '1s')
    """
    microseconds = time_us(value)
    if microseconds >= MAX_SECONDS * SECOND:
        text = _("%(time)s: longer waiting times than %(longest)d seconds are not measured")
        raise LimitError(text, time=value, longest=MAX_SECONDS)
    return time_text(microseconds)
