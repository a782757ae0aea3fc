"""The client's address as an identity, and the reason why that address was chosen.

The headers `X-Forwarded-For` and `Forwarded` (RFC 7239) are read from the right, because the
nearest proxy has written the rightmost entry. A client can write anything into them, so only the
entries that trusted proxies appended are used, and those to the left of them are never read.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from django.http import HttpRequest

from ..conf import conf, on_change
from ..conf.values import Network, unmapped
from . import Identity

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

UNKNOWN = "unknown"
"""The identity of every invalid address. All share it, so garbage does not create new identities.
"""
MAX_HOPS = 32
"""Entries that are looked at, from the right."""
MAX_FORWARDED_LENGTH = 2048
"""Characters of a header that are looked at, from the right."""
MAX_ADDRESS_LENGTH = 128
"""Characters of an address as proxies write it, with its port, brackets, quotes and zone."""

logger = logging.getLogger("django_ratelimit_lua")
_UNTRUSTED = (
    "A request from %s has the header X-Forwarded-For or Forwarded, but RATELIMIT_TRUSTED_PROXIES "
    "is not set. Behind a proxy, all clients share one count: set it to the networks or the number "
    "of your proxies. If there is no proxy, set it to 0. (Logged once per process.)"
)
NO_ADDRESS = (
    "A request has no REMOTE_ADDR, as behind a Unix socket, so all clients share one count. If the "
    "proxy sends X-Forwarded-For, add 'unix' to RATELIMIT_TRUSTED_PROXIES; otherwise, set "
    "RATELIMIT_IP_META_KEY. (Logged once per process.)"
)
_unlogged = {_UNTRUSTED, NO_ADDRESS}
"""The warnings that this process has not logged yet."""
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
    stripped = text.strip()
    if len(stripped) > MAX_ADDRESS_LENGTH:
        return None
    return _parse_short_address(stripped)


@lru_cache(maxsize=4096)
def _parse_short_address(text: str) -> Address | None:
    """`parse_address` for text without spaces around it, which is short enough for the cache."""
    bare = text.strip('"')
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    bare = bare.partition("%")[0]  # Without the zone.
    address = _parse_plain(bare) or _parse_plain(re.sub(_PORT, "", bare, flags=re.ASCII))
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def _parse_plain(text: str) -> Address | None:
    """Return the address that the whole text is, or None."""
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


def iter_entries(header: str, kind: str) -> Iterator[str]:
    """Yield the entries of a header from the right, at most `MAX_HOPS`.

    `kind` is "x-forwarded-for" or "forwarded". A malformed `Forwarded` element, or one without
    `for`, yields an empty entry, and ends the iteration.

    >>> list(iter_entries("spoofed, 192.0.2.1,10.0.0.1", "x-forwarded-for"))
    ['10.0.0.1', '192.0.2.1', 'spoofed']
    >>> list(iter_entries('for="[2001:db8::1]:80";proto=https, for=10.0.0.1;by=_x', "forwarded"))
    ['10.0.0.1', '"[2001:db8::1]:80"']
    """
    end = header[-MAX_FORWARDED_LENGTH:]
    if kind == "forwarded":
        yield from _iter_elements(end)
        return
    entries = end.rsplit(",", MAX_HOPS)[-MAX_HOPS:]
    for entry in reversed(entries):
        yield entry.strip()


def _iter_elements(header: str) -> Iterator[str]:
    """Yield the value of `for` in each element of a `Forwarded` header, from the right.

    Empty for a malformed element, or one without `for`, which ends the iteration.
    """
    rest = header
    for _hop in range(MAX_HOPS):
        element = re.search(_LAST_ELEMENT, rest, re.ASCII)
        if element is None:
            yield ""
            return
        forwarded_for = re.search(_FOR, element.group(1), re.ASCII | re.IGNORECASE)
        if forwarded_for is None:
            yield ""
            return
        yield forwarded_for.group(1)
        if not rest.startswith(",", element.start()):
            return
        rest = rest[: element.start()]


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
    return address is not None and _is_in(address, trusted)


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
    is masked by `RATELIMIT_IPV4_MASK` and `RATELIMIT_IPV6_MASK`. Raises only what a function in
    `RATELIMIT_IP_META_KEY` raises.
    """
    source = conf.IP_META_KEY
    if callable(source):
        return parse_client_address(source(request), "RATELIMIT_IP_META_KEY returned it")
    meta = request.META
    if source is not None:
        why = f"it is {source}, the value of RATELIMIT_IP_META_KEY"
        return parse_client_address(meta.get(source), why)
    peer = meta.get("REMOTE_ADDR")
    trusted = conf.TRUSTED_PROXIES
    if trusted is None:
        if "HTTP_X_FORWARDED_FOR" in meta or "HTTP_FORWARDED" in meta:
            _warn_once(_UNTRUSTED, peer)
        return parse_client_address(peer, "it is REMOTE_ADDR; no proxy is trusted")
    header = conf.PROXY_HEADER
    text = meta.get("HTTP_" + header.upper().replace("-", "_"))
    return find_forwarded_address(peer, text, header, trusted)


def read_ip(group: str, request: HttpRequest, user: object) -> Identity:
    """Return the identity of a request by the key `ip`: the masked address of the client."""
    network = client_address(request).network
    if network is None:
        _warn_once(NO_ADDRESS)
    return ("ip", network)


def _warn_once(warning: str, *arguments: object) -> None:
    """Log a warning, unless this process has logged it before."""
    try:
        _unlogged.remove(warning)
    except KeyError:
        return
    logger.warning(warning, *arguments)


def find_forwarded_address(
    peer: str | None, text: str | None, header: str, trusted: int | tuple[Network, ...]
) -> ClientAddress:
    """Return the client's address from the peer address and the header that trusted proxies write.

    `text` is the value of the `header`; None: the request has no such header. `trusted` is the
    number of proxies, or their networks.

    >>> header = "X-Forwarded-For"
    >>> find_forwarded_address("10.0.0.1", "spoofed, 203.0.113.9", header, 1).network
    '203.0.113.9'
    """
    if isinstance(trusted, int):
        return _find_by_hops(peer, text, header, trusted)
    return _find_by_networks(peer, text, header, trusted)


def parse_client_address(text: object, why: str) -> ClientAddress:
    """Return an address from text, masked, and without its port, brackets or zone.

    `why` explains in words how the text was found.

    >>> parse_client_address("[2001:db8::1]:4711", "a proxy wrote it").network
    '2001:db8::'
    """
    if not text:
        return ClientAddress(None, f"{why}, and is empty")
    start = str(text).strip()[: MAX_ADDRESS_LENGTH + 1]
    return _parse_and_mask(start, why, conf.IPV4_MASK, conf.IPV6_MASK)


@lru_cache(maxsize=4096)
def _parse_and_mask(text: str, why: str, ipv4_mask: int, ipv6_mask: int) -> ClientAddress:
    """Return an address from text, masked to these prefix lengths. See `parse_client_address`."""
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


def _find_by_hops(peer: str | None, text: str | None, header: str, hops: int) -> ClientAddress:
    """Return the address that the outermost of `hops` proxies has written into the header."""
    if hops == 0:
        return parse_client_address(peer, "it is REMOTE_ADDR; RATELIMIT_TRUSTED_PROXIES is 0")
    written: list[str] = []
    if text is not None:
        written = list(itertools.islice(iter_entries(text, header.lower()), hops))
    if len(written) == hops:
        why = f"it is entry {hops} from the right of {header}, written by the outermost proxy"
        return parse_client_address(written[-1], why)
    why = f"{header} has {len(written)} entries where {hops} proxies would have written {hops}"
    return parse_client_address(peer, f"it is REMOTE_ADDR; {why}")


def _find_by_networks(
    peer: str | None, text: str | None, header: str, trusted: tuple[Network, ...]
) -> ClientAddress:
    """Return the first address, from the peer on, that is not one of the trusted proxies."""
    untrusted = _explain_untrusted_peer(peer, trusted)
    if untrusted:
        return parse_client_address(peer, untrusted)
    nearest = peer
    why = "it is REMOTE_ADDR, a trusted proxy"
    if text is None:
        return parse_client_address(nearest, f"{why} that sent no {header}")
    for hop, entry in enumerate(iter_entries(text, header.lower()), start=1):
        address = parse_address(entry)
        if address is None:
            place = "the last entry of" if hop == 1 else "the entry before it in"
            return parse_client_address(nearest, f"{why}; {place} {header} is not an address")
        nearest = entry
        why = f"it is entry {hop} from the right of {header}"
        if not _is_in(address, trusted):
            return parse_client_address(nearest, f"{why}, the first that is not a trusted proxy")
    return parse_client_address(nearest, f"{why}, and all of them are trusted proxies")


def _explain_untrusted_peer(peer: str | None, trusted: tuple[Network, ...]) -> str:
    """Return why the peer is not a trusted proxy; empty if it is one."""
    if not peer:
        if conf.TRUSTS_SOCKET:
            return ""
        return (
            "it is REMOTE_ADDR; add 'unix' to RATELIMIT_TRUSTED_PROXIES if a proxy connects by a "
            "Unix socket"
        )
    address = parse_address(peer)
    if address is None or not _is_in(address, trusted):
        return "it is REMOTE_ADDR, which is not a trusted proxy"
    return ""


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)
