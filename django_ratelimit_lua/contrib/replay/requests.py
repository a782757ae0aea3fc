"""The request in a line of a log, with the values that rules match and keys read."""

from __future__ import annotations

import hashlib
import ipaddress
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from django.http import HttpRequest, QueryDict
from django.utils.encoding import repercent_broken_unicode
from django.utils.functional import cached_property

from ...conf import conf
from ...identity.address import believed
from ...identity.forwarded import parse_address
from .formats import LogLine

Trusted = int | tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] | None
"""Proxies, as in `RATELIMIT_TRUSTED_PROXIES`."""


class LoggedUser(NamedTuple):
    """The signed-in user, by the name in the log; empty if no user is signed in."""

    pk: str

    @property
    def is_authenticated(self) -> bool:
        return bool(self.pk)


class LoggedRequest(HttpRequest):
    """A request made from a line of a log and the address of the client, see `client_of`."""

    # Django's own method would compute unused values.
    def __init__(self, line: LogLine, address: str) -> None:
        self.line = line
        self.method = line.method
        self.path = self.path_info = path_of(line.target)
        self.user: Any = LoggedUser(line.user)
        self.resolver_match = None
        self.COOKIES: dict[str, str] = {}
        self._address = address

    @cached_property
    def META(self) -> dict[str, str]:  # type: ignore[override]
        """The values of a WSGI environment."""
        line = self.line
        sent = {
            "Host": line.host,
            "Referer": line.referer,
            "User-Agent": line.agent,
            **(line.headers or {}),
        }
        meta = {
            f"HTTP_{name.upper().replace('-', '_')}": value for name, value in sent.items() if value
        }
        # The address was determined already, by the trusted proxies of the replay.
        meta.pop("HTTP_X_FORWARDED_FOR", None)
        meta.pop("HTTP_FORWARDED", None)
        meta["REQUEST_METHOD"] = line.method
        meta["PATH_INFO"] = self.path_info
        meta["QUERY_STRING"] = line.target.partition("?")[2].partition("#")[0]
        meta["REMOTE_ADDR"] = self._address
        if isinstance(conf.IP_META_KEY, str):
            meta[conf.IP_META_KEY] = self._address
        return meta

    @cached_property
    def GET(self) -> QueryDict:  # type: ignore[override]
        return QueryDict(self.META["QUERY_STRING"])


def path_of(target: str) -> str:
    """Return the path of a target, as Django decodes it.

    >>> path_of("/caf%C3%A9/%zz?q=1")
    '/café/%zz'
    """
    path = target.partition("?")[0].partition("#")[0]
    if "%" not in path:
        return path
    return repercent_broken_unicode(unquote_to_bytes(path)).decode()


def client_of(line: LogLine, trusted: Trusted) -> str:
    """Return the address of the client, by the values that trusted proxies have written.

    A host name, which servers may log instead, is replaced by an address.

    Args:
        line: The line.
        trusted: The trusted proxies, as in `RATELIMIT_TRUSTED_PROXIES`.
    """
    address = line.address
    if trusted is not None and line.forwarded:
        found = believed(address, line.forwarded, "X-Forwarded-For", trusted)
        if found.address is not None:
            return str(found.address)
    if parse_address(address) is None:
        return address_for(address)
    return address


@lru_cache(maxsize=4096)
def address_for(name: str) -> str:
    """Return an address for a client that is logged by its host name.

    It is in a private network (RFC 4193). Each host name has its own /64.

    >>> (
    ...     address_for("a.example") == address_for("A.example"),
    ...     address_for("a.example") == address_for("b.example"),
    ... )
    (True, False)
    """
    drawn = hashlib.blake2b(name.lower().encode(), digest_size=7).digest()
    return str(ipaddress.IPv6Address(b"\xfd" + drawn + bytes(8)))
