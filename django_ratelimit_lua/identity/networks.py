"""The named networks of `RATELIMIT_NETWORKS`. Files are read again when they change."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from pathlib import Path

from ..conf import conf, on_change
from ..conf.values import Network, unmapped
from ..process import Clock
from .address import Address

CHECK_SECONDS = 1.0
"""How often a process checks whether a file has changed."""
_READ_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors of a file that is missing or malformed."""


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
        """Return whether an address is in one of the ranges, with a look-up for each length."""
        number = int(address)
        return any(
            version == address.version and number >> bits in starts
            for (version, bits), starts in self._starts.items()
        )

    def _index_ranges(self, networks: Iterable[Network]) -> None:
        """Set the ranges. They are indexed by prefix length, so that each takes one look-up."""
        starts: dict[tuple[int, int], set[int]] = {}
        for network in networks:
            bits = network.max_prefixlen - network.prefixlen
            start = int(network.network_address) >> bits
            starts.setdefault((network.version, bits), set()).add(start)
        self._starts = starts
        self.is_known = True

    def refresh(self) -> None:
        """Read the ranges, of a file only if it has changed. An error sets `problem`."""
        if not isinstance(self._source, Path):
            self._index_ranges(self._source)
            return
        try:
            self._refresh_file(self._source)
            self.problem = ""
        except _READ_ERRORS as error:
            self._stamp = ()
            effect = "rules that name it do not apply"
            if self.is_known:
                effect = "its last valid content stays in force"
            self.problem = f"{self._source} cannot be used ({error!r}): {effect}"

    def _refresh_file(self, path: Path) -> None:
        """Read a file if it has changed. Raises one of `_READ_ERRORS`."""
        status = path.stat()
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        if stamp != self._stamp:
            self._index_ranges(_parse_ranges(path.read_bytes()))
        self._stamp = stamp


def _parse_ranges(content: bytes) -> list[Network]:
    """Return the ranges of a file. Raises one of `_READ_ERRORS`."""
    entries = json.loads(content)["prefixes"]
    prefixes = [entry.get("ipv4Prefix") or entry["ipv6Prefix"] for entry in entries]
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
        """Read files that have changed, at most once in `CHECK_SECONDS`, and return a network.

        None if it is unknown or was never read.
        """
        if Clock.monotonic() >= self._due:
            self.refresh()
        network = self._by_name.get(name)
        if network is None or not network.is_known:
            return None
        return network

    def refresh(self) -> list[str]:
        """Read the files that have changed, and return the problems of all files."""
        by_name = self._by_name
        if not by_name:
            # If two threads do this at once, each reads all files, and either result is complete.
            by_name = {name: NamedNetwork(source) for name, source in conf.NETWORKS.items()}
        for network in by_name.values():
            network.refresh()
        self._by_name = by_name
        self._due = Clock.monotonic() + CHECK_SECONDS
        return [
            f"Network {name!r}: {network.problem}"
            for name, network in by_name.items()
            if network.problem
        ]


networks = Networks()
on_change(("RATELIMIT_NETWORKS",), networks.clear)
