"""The client's address as an identity, and the reason why that address was chosen."""

from __future__ import annotations

import ipaddress
import itertools
import logging
from functools import lru_cache
from typing import NamedTuple

from django.http import HttpRequest

from ..conf import conf, on_change
from ..conf.values import Network
from .forwarded import MAX_ADDRESS_LENGTH, Address, entries, parse_address

UNKNOWN = "unknown"
"""The identity of every invalid address. All share it, so garbage does not create new identities.
"""

logger = logging.getLogger("django_ratelimit_lua")
_UNTRUSTED = (
    "A request from %s has the header X-Forwarded-For or Forwarded, but RATELIMIT_TRUSTED_PROXIES "
    "is not set. Behind a proxy, all clients share one count: set it to the networks or the number "
    "of your proxies. If there is no proxy, set it to 0. (Logged once per process.)"
)
_unheard = itertools.count()


@lru_cache(maxsize=1024)
def is_trusted_peer(peer: str | None) -> bool:
    """Return whether a peer is in the networks of `RATELIMIT_TRUSTED_PROXIES`.

    False if that setting is a number, which does not identify proxies.
    """
    trusted = conf.TRUSTED_PROXIES
    if not isinstance(trusted, tuple):
        return False
    if not peer:
        return conf.TRUSTS_SOCKET
    address = parse_address(peer)
    return address is not None and any(address in network for network in trusted)


on_change(("RATELIMIT_TRUSTED_PROXIES",), is_trusted_peer.cache_clear)


class ClientAddress(NamedTuple):
    """The address that a request counts for.

    - `network`: the masked address as text; None without an address (a Unix socket), `UNKNOWN` if
      it is invalid;
    - `why`: how it was found, in words;
    - `address`: the full address, if it is valid.
    """

    network: str | None
    why: str
    address: Address | None = None


def client_address(request: HttpRequest) -> ClientAddress:
    """Return the address of the client that sent a request.

    It is the address in `RATELIMIT_IP_META_KEY` if that is set, or the one that
    `RATELIMIT_TRUSTED_PROXIES` report. Otherwise it is `REMOTE_ADDR`, and headers are ignored. It
    is masked by `RATELIMIT_IPV4_MASK` and `RATELIMIT_IPV6_MASK`. Never raises, whatever the request
    contains.
    """
    source = conf.IP_META_KEY
    if callable(source):
        return address_as(source(request), "RATELIMIT_IP_META_KEY returned it")
    if source is not None:
        return address_as(
            request.META.get(source), f"it is {source}, the value of RATELIMIT_IP_META_KEY"
        )
    peer = request.META.get("REMOTE_ADDR")
    trusted = conf.TRUSTED_PROXIES
    if trusted is None:
        if ("HTTP_X_FORWARDED_FOR" in request.META or "HTTP_FORWARDED" in request.META) and next(
            _unheard
        ) == 0:
            logger.warning(_UNTRUSTED, peer)
        return address_as(peer, "it is REMOTE_ADDR; no proxy is trusted")
    header = conf.PROXY_HEADER
    return believed(
        peer, request.META.get("HTTP_" + header.upper().replace("-", "_")), header, trusted
    )


def believed(
    peer: str | None, text: str | None, header: str, trusted: int | tuple[Network, ...]
) -> ClientAddress:
    """Return the client's address from the peer address and the header that trusted proxies write.

    >>> believed("10.0.0.1", "spoofed, 203.0.113.9", "X-Forwarded-For", 1).network
    '203.0.113.9'
    """
    if isinstance(trusted, int):
        return _by_count(peer, text, header, trusted)
    return _by_network(peer, text, header, trusted)


def address_as(text: object, why: str) -> ClientAddress:
    """Return an address from text, masked, and without its port, brackets or zone.

    >>> [address_as(text, "a proxy").network for text in ("[2001:db8::1]:4711", "203.0.113.9:80")]
    ['2001:db8::', '203.0.113.9']
    """
    if not text:
        return ClientAddress(None, f"{why}, and is empty")
    return _understood(
        str(text).strip()[: MAX_ADDRESS_LENGTH + 1], why, conf.IPV4_MASK, conf.IPV6_MASK
    )


@lru_cache(maxsize=4096)
def _understood(text: str, why: str, ipv4_mask: int, ipv6_mask: int) -> ClientAddress:
    address = parse_address(text)
    if address is None:
        return ClientAddress(UNKNOWN, f"{why}, and is not an address")
    mask = {4: ipv4_mask, 6: ipv6_mask}[address.version]
    network = ipaddress.ip_network(f"{address}/{mask}", strict=False).network_address
    return ClientAddress(str(network), why, address)


@lru_cache(maxsize=4096)
def subnet(address: Address) -> str:
    """Return the network that the key `subnet` counts: /24 of IPv4, /48 of IPv6.

    >>> subnet(ipaddress.ip_address("203.0.113.9"))
    '203.0.113.0/24'
    """
    bits = {4: 24, 6: 48}[address.version]
    return str(ipaddress.ip_network(f"{address}/{bits}", strict=False))


def _by_count(peer: str | None, text: str | None, header: str, hops: int) -> ClientAddress:
    if hops == 0:
        return address_as(peer, "it is REMOTE_ADDR; RATELIMIT_TRUSTED_PROXIES is 0")
    found: list[str] = []
    if text is not None:
        found = list(itertools.islice(entries(text, header.lower()), hops))
    if len(found) == hops:
        why = f"it is entry {hops} from the right of {header}, written by the outermost proxy"
        return address_as(found[-1], why)
    why = f"{header} has {len(found)} entries where {hops} proxies would have written {hops}"
    return address_as(peer, f"it is REMOTE_ADDR; {why}")


def _by_network(
    peer: str | None, text: str | None, header: str, trusted: tuple[Network, ...]
) -> ClientAddress:
    def is_trusted(address: Address) -> bool:
        return any(address.version == network.version and address in network for network in trusted)

    nearest = parse_address(peer or "")
    if (nearest is None and peer) or (nearest is not None and not is_trusted(nearest)):
        return address_as(peer, "it is REMOTE_ADDR, which is not a trusted proxy")
    if nearest is None and not conf.TRUSTS_SOCKET:
        return address_as(
            peer,
            "it is REMOTE_ADDR; add 'unix' to RATELIMIT_TRUSTED_PROXIES if a proxy "
            "connects by a Unix socket",
        )
    believed = peer
    why = "it is REMOTE_ADDR, a trusted proxy"
    if text is None:
        return address_as(believed, f"{why} that sent no {header}")
    for hop, entry in enumerate(entries(text, header.lower()), start=1):
        address = parse_address(entry)
        if address is None:
            odd = "the entry before it in"
            if hop == 1:
                odd = "the last entry of"
            return address_as(believed, f"{why}; {odd} {header} is not an address")
        believed = entry
        why = f"it is entry {hop} from the right of {header}"
        if not is_trusted(address):
            return address_as(believed, f"{why}, the first that is not a trusted proxy")
    return address_as(believed, f"{why}, and all of them are trusted proxies")
