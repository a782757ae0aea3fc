"""How many signed-in users were seen lately at an address, whom a ban of it would keep out with one attacker.

Counted for limits that ban: every request that one of them was asked about and whose user is known by the time it is
answered. What a request pays is a look into a set. A second later, who is new there is added to a HyperLogLog of the
address and hour (Flajolet et al., "HyperLogLog: the analysis of a near-optimal cardinality estimation algorithm",
2007): 12 KB at most, however many they are, by digests. It is exact for small numbers, and within 1 % else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest

from ..conf import conf
from ..conf.changes import on_change
from ..identity import Identity, digest
from ..identity.address import UNKNOWN, client_address
from ..limits.ban import HOUR, HOURS, users_keys
from ..process.forks import renew_after_fork
from ..process.tasks import Task
from ..store import Store, get_store

MOST_NOTED = 10_000
"""Users at addresses that wait to be written; others are left out until they come again."""
MOST_KNOWN = 20_000
"""Users at addresses that are known to be written in this hour."""
FLUSH_SECONDS = 1.0
_Seen = tuple[str, str]
"""An address, masked as identities have it, and the primary key of a user."""


class Neighbours:
    """Who was seen at which address by this process."""

    def __init__(self) -> None:
        self.clear()
        renew_after_fork(self.clear)
        self.task = Task(
            "neighbours", self._step, delay=FLUSH_SECONDS, meanwhile="those who share an address are not all counted"
        )

    def clear(self) -> None:
        """Begin with nothing."""
        self._noted: dict[_Seen, None] = {}
        self._known: set[_Seen] = set()
        self._hour = 0

    def note(self, request: HttpRequest) -> None:
        """Count the user of a request, if that is known without asking anybody."""
        user = known_user(request)
        if user is None or not getattr(user, "is_authenticated", False):
            return
        network = client_address(request).network
        if network is None or network == UNKNOWN:
            return
        hour = int(time.time()) // HOUR
        if hour != self._hour:
            self._hour, self._known = hour, set()
        seen = (network, str(user.pk))
        if seen in self._known or seen in self._noted or len(self._noted) >= MOST_NOTED:
            return
        self._noted[seen] = None
        self.task.start()

    def _step(self) -> float | None:
        self.write()
        return None

    def write(self) -> None:
        """Write who is new. Raises `StoreError`; they are counted when they come again."""
        noted, self._noted = self._noted, {}
        hour, by_network = int(time.time()) // HOUR, dict[str, list[bytes]]()
        for network, user in noted:
            by_network.setdefault(network, []).append(digest(("user", user)))
        commands: list[tuple[bytes, ...]] = []
        for network, users in by_network.items():
            key = users_keys(conf.CACHE_PREFIX, digest(("ip", network)))[0]
            commands += [(b"PFADD", key, *users), (b"EXPIRE", key, b"%d" % ((HOURS + 1) * HOUR))]
        get_store(background=True).execute_all(commands)
        if hour == self._hour:
            self._known = (self._known if len(self._known) < MOST_KNOWN else set()) | noted.keys()


def known_user(request: HttpRequest) -> Any:
    """The user of a request, if somebody has asked for it already, so that nobody asks a database for it here."""
    attributes = getattr(request, "__dict__", {})
    for name in ("_cached_user", "_acached_user"):  # Django's middleware keeps it there.
        if name in attributes:
            return attributes[name]
    user = attributes.get("user")
    return None if type(user).__name__ == "SimpleLazyObject" else user


def neighbours_at(networks: Sequence[bytes], store: Store | None = None) -> list[int]:
    """How many signed-in users were seen lately at each of these addresses, by their digests. Raises `StoreError`."""
    store = store or get_store(background=True)
    return store.execute_all([(b"PFCOUNT", *users_keys(conf.CACHE_PREFIX, network)) for network in networks])


def address_of(identity: Identity) -> Identity:
    """The address that an identity has in it, as an identity of its own; None where there is none.

    >>> address_of((("ip", "203.0.113.9"), ("post", "username", "ada")))
    ('ip', '203.0.113.9')
    """
    if not isinstance(identity, tuple):
        return None
    if len(identity) == 2 and identity[0] == "ip":
        return identity if identity[1] not in (None, UNKNOWN) else None
    return next((found for part in identity if (found := address_of(part)) is not None), None)


def network_of(identity: Identity) -> bytes:
    """The digest of the address that an identity has in it; empty where there is none."""
    address = address_of(identity)
    return b"" if address is None else digest(address)


neighbours = Neighbours()
on_change(("RATELIMIT_*", "CACHES", "SECRET_KEY"), neighbours.clear)
