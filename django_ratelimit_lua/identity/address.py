"""The client's address, as an identity."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from django.http import HttpRequest

from ..conf import conf

UNKNOWN = "unknown"
"""The identity of every address that is no address. One for all: nobody gains new identities by sending garbage."""


def client_address(request: HttpRequest) -> str | None:
    """The client's network as text: masked by `RATELIMIT_IPV4_MASK` and `RATELIMIT_IPV6_MASK`.

    An IPv4-mapped IPv6 address is the IPv4 client. None where there is no address (a Unix socket), `UNKNOWN` where
    there is something else.
    """
    source = conf.IP_META_KEY
    if source is None:
        text = request.META.get("REMOTE_ADDR")
    elif callable(source):
        text = source(request)
    else:
        text = request.META.get(source)
    if not text:
        return None
    return _network(str(text), conf.IPV4_MASK, conf.IPV6_MASK)


@lru_cache(maxsize=4096)
def _network(text: str, ipv4_mask: int, ipv6_mask: int) -> str:
    try:
        address = ipaddress.ip_address(text.strip().partition("%")[0])
    except ValueError:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    mask = ipv4_mask if address.version == 4 else ipv6_mask
    return str(ipaddress.ip_network(f"{address}/{mask}", strict=False).network_address)
