"""The named networks of `RATELIMIT_NETWORKS`. Files are read again when they change."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from pathlib import Path

from ..conf import conf, on_change
from ..conf.values import Network, unmapped
from ..process import Clock
from .forwarded import Address

CHECK_SECONDS = 1.0
"""How often a process checks whether a file has changed."""


class NamedNetwork:
    """A list of ranges, or a JSON file in the form of Google, Bing and OpenAI.

    - `is_known`: whether it is a list, or its file was read once. The last valid content counts;
    - `problem`: why the present content of the file cannot be used, or empty.
    """

    def __init__(self, source: Path | Iterable[Network]) -> None:
        self._source = source
        self._stamp: tuple[int, ...] = ()
        self._starts: dict[tuple[int, int], set[int]] = {}
        self.is_known = False
        self.problem = ""

    def __contains__(self, address: Address) -> bool:
        number = int(address)
        return any(
            version == address.version and number >> bits in starts
            for (version, bits), starts in self._starts.items()
        )

    def _set(self, networks: Iterable[Network]) -> None:
        """Index the ranges by prefix length, so that each length takes one look-up."""
        found: dict[tuple[int, int], set[int]] = {}
        for network in networks:
            bits = network.max_prefixlen - network.prefixlen
            start = int(network.network_address) >> bits
            found.setdefault((network.version, bits), set()).add(start)
        self._starts = found
        self.is_known = True

    def read(self) -> None:
        """Read the ranges, of a file only if it has changed."""
        if not isinstance(self._source, Path):
            self._set(self._source)
            return
        try:
            status = self._source.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp != self._stamp:
                self._set(_parse(self._source.read_bytes()))
            self._stamp = stamp
            self.problem = ""
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            self._stamp = ()
            effect = "rules that name it do not apply"
            if self.is_known:
                effect = "its last valid content stays in force"
            self.problem = f"{self._source} cannot be used ({error!r}): {effect}"


def _parse(content: bytes) -> list[Network]:
    entries = json.loads(content)["prefixes"]
    prefixes = [{**entry}.get("ipv4Prefix") or entry["ipv6Prefix"] for entry in entries]
    if not prefixes:
        raise ValueError("it has no prefixes")
    return [unmapped(ipaddress.ip_network(str(prefix))) for prefix in prefixes]


class Networks:
    """The networks of this process, by name."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all networks, because the setting has changed."""
        self._due = float("-inf")
        self._by_name: dict[str, NamedNetwork] = {}

    def find(self, name: str) -> NamedNetwork | None:
        """Return a network, or None if it is unknown or was never read."""
        if Clock.monotonic() >= self._due:
            self.read()
        network = self._by_name.get(name)
        if network is None or not network.is_known:
            return None
        return network

    def read(self) -> list[str]:
        """Read the files that have changed, and return the problems of all files."""
        # Two threads may do this at once, each completely.
        by_name = self._by_name or {
            name: NamedNetwork(source) for name, source in conf.NETWORKS.items()
        }
        for network in by_name.values():
            network.read()
        self._by_name = by_name
        self._due = Clock.monotonic() + CHECK_SECONDS
        return [
            f"Network {name!r}: {network.problem}"
            for name, network in by_name.items()
            if network.problem
        ]


networks = Networks()
on_change(("RATELIMIT_NETWORKS",), networks.clear)
