"""The named networks of `RATELIMIT_NETWORKS`. Files are read again when they change."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock

from ..conf import Network, conf, unmapped
from ..conf.changes import on_change
from ..process.clock import Clock
from ..process.forks import renew_after_fork
from .forwarded import Address

CHECK_SECONDS = 1.0
"""How often a process checks whether a file has changed."""


class AddressSet:
    """Address ranges, with one look-up for each prefix length.

    >>> ipaddress.ip_address("192.0.2.7") in AddressSet([ipaddress.ip_network("192.0.2.0/24")])
    True
    """

    def __init__(self, networks: Iterable[Network]) -> None:
        starts: dict[tuple[int, int], set[int]] = {}
        for network in networks:
            bits = network.max_prefixlen - network.prefixlen
            numbers = starts.setdefault((network.version, bits), set())
            numbers.add(int(network.network_address) >> bits)
        self._starts = [(version, bits, numbers) for (version, bits), numbers in starts.items()]

    def __contains__(self, address: Address) -> bool:
        number = int(address)
        return any(
            version == address.version and number >> bits in numbers
            for version, bits, numbers in self._starts
        )


class NamedNetwork:
    """A list of ranges, or a JSON file with them.

    - `addresses`: its ranges, for a file its last valid content; None: it was never read;
    - `problem`: why the present content of the file cannot be used, or empty.
    """

    def __init__(self, source: Iterable[Network] | Path) -> None:
        self._path: Path | None = None
        self._stamp: tuple[int, ...] = ()
        self.addresses: AddressSet | None = None
        self.problem = ""
        if isinstance(source, Path):
            self._path = source
        else:
            self.addresses = AddressSet(source)

    def read(self) -> None:
        """Read the file if it has changed."""
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
                if stamp == self._stamp:
                    return
                content = file.read()
            self._stamp = stamp
            self.addresses = AddressSet(_parse(content))
            self.problem = ""
        except OSError as error:
            self._stamp = ()
            self.problem = str(error)
        except (ValueError, RecursionError) as error:
            self.problem = f"{self._path}: {error}"


def _parse(content: bytes) -> list[Network]:
    """Return the prefixes of a file in the form of Google, Bing and OpenAI. Raises `ValueError`."""
    document = json.loads(content)
    prefixes = document.get("prefixes") if isinstance(document, dict) else None
    if not isinstance(prefixes, list) or not prefixes:
        raise ValueError('it has no "prefixes", such as [{"ipv4Prefix": "192.0.2.0/24"}]')
    networks = []
    for entry in prefixes:
        text = None
        if isinstance(entry, dict):
            text = entry.get("ipv4Prefix") or entry.get("ipv6Prefix")
        if not isinstance(text, str):
            raise ValueError(f"{str(entry)[:80]} has neither ipv4Prefix nor ipv6Prefix")
        networks.append(unmapped(ipaddress.ip_network(text)))
    return networks


class Networks:
    """The networks of this process, by name."""

    def __init__(self) -> None:
        self.clear()
        renew_after_fork(self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = Lock()

    def clear(self) -> None:
        """Forget all networks, because the setting has changed."""
        self._renew_lock()
        self._due = float("-inf")
        self._by_name: Mapping[str, NamedNetwork] = {}

    def _read(self) -> Mapping[str, NamedNetwork]:
        """Return the networks. Files are read first if they may have changed."""
        if Clock.monotonic() >= self._due:
            with self._lock:
                if not self._by_name:
                    sources = conf.NETWORKS.items()
                    self._by_name = {name: NamedNetwork(source) for name, source in sources}
                if Clock.monotonic() >= self._due:  # Otherwise another thread has read them.
                    for network in self._by_name.values():
                        network.read()
                    self._due = Clock.monotonic() + CHECK_SECONDS
        return self._by_name

    def find(self, name: str) -> AddressSet | None:
        """Return the ranges of a network, or None if there is none, or its file was never read."""
        network = self._read().get(name)
        if network is None:
            return None
        return network.addresses

    def problems(self) -> list[str]:
        """Return why the present content of files cannot be used."""
        found = []
        for name, network in self._read().items():
            effect = "its last valid content stays in force"
            if network.addresses is None:
                effect = "rules that name it do not apply"
            if network.problem:
                found.append(f"Network {name!r}: {network.problem}; {effect}")
        return found


networks = Networks()
on_change(("RATELIMIT_NETWORKS",), networks.clear)
