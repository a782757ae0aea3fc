"""Read `X-Forwarded-For` and `Forwarded` (RFC 7239) from the right.

The nearest proxy has written the rightmost entry.

A client can write anything into these headers, and each proxy appends the address of its peer. So
only the entries that trusted proxies appended are used, and those to the left of them are never
read.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from functools import lru_cache

from ..conf.values import Network, unmapped

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_HOPS = 32
"""Entries that are looked at, from the right."""
MAX_LENGTH = 2048
"""Characters of a header that are looked at, from the right."""
MAX_ADDRESS_LENGTH = 128
"""Characters of an address as proxies write it, with its port, brackets, quotes and zone."""

_TOKEN = r"[!#$%&'*+.^`|~\w-]++"
_VALUE = r'(?:"(?:[^"\\]|\\.)*+"|[^\s,;"]*+)'
_PAIR = rf"{_TOKEN}={_VALUE}"
_LAST_ELEMENT = rf"(?:^|,)[ \t]*+((?:{_PAIR})(?:[ \t]*+;[ \t]*+(?:{_PAIR})?)*+)[ \t]*+$"
_PORT = r"(?<!:):\w*\Z"
_FOR = rf"(?:^|;)[ \t]*+for=({_VALUE})"


def parse_address(text: str) -> Address | None:
    """Return an address from a proxy's header, or None if it is invalid.

    A port, brackets, quotes and a zone are removed. Text that is an address as it stands has no
    port. An IPv4-mapped IPv6 address becomes its IPv4 address.

    >>> (
    ...     parse_address("[2001:db8::1]:4711"),
    ...     parse_address("2001:db8:0:0:0:0:0:1:4711"),
    ...     parse_address("::ffff:192.0.2.1"),
    ...     parse_address("unknown"),
    ... )
    (IPv6Address('2001:db8::1'), IPv6Address('2001:db8::1'), IPv4Address('192.0.2.1'), None)
    """
    text = text.strip()
    if len(text) > MAX_ADDRESS_LENGTH:
        return None
    return _parsed(text)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Address | None:
    text = text.strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    text = text.partition("%")[0]
    address = _address(text) or _address(re.sub(_PORT, "", text, flags=re.ASCII))
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def parse_network(text: str) -> Network:
    """Return a network from text; an address is a network of itself. Raises `ValueError`.

    An IPv4-mapped IPv6 network becomes its IPv4 network, because its clients are IPv4 clients.

    >>> (
    ...     parse_network("::ffff:203.0.113.9"),
    ...     parse_network("::ffff:203.0.113.0/120"),
    ...     parse_network("2001:db8::7/48"),
    ... )
    (IPv4Network('203.0.113.9/32'), IPv4Network('203.0.113.0/24'), IPv6Network('2001:db8::/48'))
    """
    return unmapped(ipaddress.ip_network(text, strict=False))


def network_words(network: Network) -> str:
    """Return a network as text, without the prefix length if it is a single address.

    >>> network_words(parse_network("203.0.113.9")), network_words(parse_network("::/48"))
    ('203.0.113.9', '::/48')
    """
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    return str(network)


def covers(network: str, address: str) -> bool:
    """Return whether an address is in a network, both as text; False if either is invalid.

    >>> (
    ...     covers("203.0.113.0/24", "203.0.113.9"),
    ...     covers("203.0.113.0/24", "198.51.100.7"),
    ...     covers("nowhere", "::1"),
    ... )
    (True, False, False)
    """
    parsed = parse_address(address)
    try:
        return parsed is not None and parsed in parse_network(network)
    except ValueError:
        return False


def overlaps(network: str, other: str) -> bool:
    """Return whether two networks have an address in common; False if either text is invalid.

    >>> overlaps("203.0.113.0/24", "203.0.113.9"), overlaps("203.0.113.0/24", "mary")
    (True, False)
    """
    try:
        first = parse_network(network)
        second = parse_network(other)
    except ValueError:
        return False
    return first.version == second.version and first.overlaps(second)


def entries(header: str, kind: str) -> Iterator[str]:
    """Yield the entries of a header from the right, at most `MAX_HOPS`.

    `kind` is "x-forwarded-for" or "forwarded". A malformed `Forwarded` element, or one without
    `for`, yields an empty entry, and ends the iteration.

    >>> list(entries("spoofed, 192.0.2.1,10.0.0.1", "x-forwarded-for"))
    ['10.0.0.1', '192.0.2.1', 'spoofed']
    >>> list(entries('for="[2001:db8::1]:80";proto=https, for=10.0.0.1;by=_x', "forwarded"))
    ['10.0.0.1', '"[2001:db8::1]:80"']
    """
    header = header[-MAX_LENGTH:]
    comma: object
    for _ in range(MAX_HOPS):
        if kind == "x-forwarded-for":
            header, comma, entry = header.rpartition(",")
            yield entry.strip()
        else:
            element = re.search(_LAST_ELEMENT, header, re.ASCII)
            match = element and re.search(_FOR, element.group(1), re.ASCII | re.IGNORECASE)
            if element is None or match is None:
                yield ""
                return
            yield match.group(1)
            comma = header.startswith(",", element.start())
            header = header[: element.start()]
        if not comma:
            return
