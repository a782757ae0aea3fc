"""The live processes of the site, and the share of this process in split limits.

Each process sends a heartbeat once a second, with the flusher. Redis forgets the processes when it
is emptied, and counts them anew with their next heartbeats.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from ..conf import conf, on_change
from ..exceptions import StoreError
from ..limits.program import Program, source
from ..process import Clock
from ..process.forks import renew_after_fork
from ..rules import provider
from ..store import Deadline, Reply, flusher, get_store
from .run import Wait

_PROGRAM = Program.of(source("engine/heartbeat"))
PROCESSES = b"{rules}:processes"
VERSION = b"{rules}:processes-version"
LIFETIME = 10
"""Seconds without a heartbeat after which a process is removed."""


@lru_cache(maxsize=1024)
def divide(whole: int, weights: Sequence[int]) -> Sequence[int]:
    """Divide a number of units by weights, with the method of the largest remainder.

    >>> divide(100, (1, 1, 1)), divide(10, (70, 30)), divide(1, (1, 2))
    ((34, 33, 33), (7, 3), (0, 1))
    """
    total = sum(weights)
    parts = [whole * weight // total for weight in weights]
    remainders = [whole * weight % total for weight in weights]
    # Of equal remainders, the first comes first.
    by_remainder = sorted(range(len(weights)), key=lambda place: -remainders[place])
    for place in by_remainder[: whole - sum(parts)]:
        parts[place] += 1
    return tuple(parts)


class Share(NamedTuple):
    """The share of one process among those of its host, which has a weight among the hosts.

    - `weights`: the weights of the hosts; `host`: the position of its own;
    - `processes`: the number of processes on its host; `process`: its own position.

    >>> [Share((70, 30), 1, 4, number).units(100) for number in range(4)]
    [8, 8, 7, 7]
    """

    weights: tuple[int, ...]
    host: int
    processes: int
    process: int

    def units(self, whole: int) -> int:
        """Return the part of a number of units. The parts of all processes add up to it."""
        of_host = divide(whole, self.weights)[self.host]
        return divide(of_host, (1,) * self.processes)[self.process]


class Process(NamedTuple):
    """A live process, as it describes itself in every heartbeat.

    - `since`: the start of the process, in seconds since 1970;
    - `weight`: its `RATELIMIT_WEIGHT`, for a host that has no weight in the admin;
    - `id`: a random text.
    """

    host: str
    pid: int
    since: float
    weight: int
    id: str


class Host(NamedTuple):
    """A host with live processes, and its weight."""

    name: str
    weight: int
    processes: Sequence[Process]


class Heartbeat:
    """The register of this process, and what the last reply has returned.

    - `count`: the number of live processes;
    - `share`: the share of this process (None: it has sent no heartbeat yet);
    - `is_started`: whether the flusher sends heartbeats.
    """

    def __init__(self) -> None:
        self._begin()
        self.count = 1
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        """Become a process of its own, which is not registered.

        Until its first heartbeat, a child uses the number of processes that its parent has found.
        """
        self._id = uuid.uuid4().hex
        self._since = Clock.time()
        self.is_started = False
        self.share: Share | None = None
        self._clear_register()

    def _clear_register(self) -> None:
        """Forget that this process is registered, and which processes are."""
        self._entry = b""
        """This process, as it is registered; empty if it is not."""
        self._version = b""
        self._processes: Sequence[Process] = ()

    def forget(self) -> None:
        """Drop the other processes, because a new prefix belongs to another site."""
        self._clear_register()
        self.share = None
        self.count = 1

    def start(self) -> None:
        """Send a heartbeat once a second from now on."""
        self.is_started = True
        flusher.start()

    def flush(self, last: Deadline | None = None) -> bool:
        """Send a heartbeat, or the last one, as a `Flush` of the flusher. Raises `StoreError`."""
        if last is not None:
            self.leave(last)
        elif self.is_started:
            self.beat()
        return self.is_started

    def beat(self) -> int:
        """Send a heartbeat, and return the number of processes. Raises `StoreError`."""
        store = get_store(background=True)
        self._apply_reply(store.run(_PROGRAM, self._keys(), self._arguments()))
        return self.count

    def joining(self, deadline: Deadline) -> Generator[Wait, Any, None]:
        """Send the first heartbeat, for a decision that needs the share. Raises `StoreError`."""
        store = get_store()
        call = (_PROGRAM, self._keys(), self._arguments(), deadline)
        reply = yield Wait(partial(store.run, *call), partial(store.arun, *call))
        self._apply_reply(reply)

    def leave(self, deadline: Deadline | None = None) -> None:
        """Leave the register, so that the other processes take over the share of this one."""
        if self._entry:  # A child that never sent a heartbeat ends without one.
            store = get_store(background=True)
            store.run(_PROGRAM, self._keys(), self._arguments(ends=True), deadline)
            self._clear_register()

    def _keys(self) -> list[bytes]:
        """Return the keys of the script."""
        return [conf.CACHE_PREFIX + PROCESSES, conf.CACHE_PREFIX + VERSION]

    def _arguments(self, *, ends: bool = False) -> list[bytes]:
        """Describe this process in its entry, if that is not done yet.

        Return the arguments of the script. With `ends`, it removes the entry.
        """
        if not self._entry:  # It stays the same, because it is a member of the set.
            host = socket.gethostname()
            process = Process(host, os.getpid(), self._since, conf.WEIGHT, self._id)
            self._entry = json.dumps(process).encode()
        return [self._entry, self._version, b"%d" % LIFETIME, b"%d" % ends]

    def _apply_reply(self, reply: Sequence[Reply]) -> None:
        """Set the share of this process by a reply, and by the weights of the rules in force.

        Without the entries of the processes in the reply, those are unchanged. Raises `StoreError`
        if the reply is malformed.
        """
        try:
            if len(reply) > 1:
                self._processes = parse_processes(reply[1])
            self._version = bytes(reply[0])
        except (TypeError, ValueError, IndexError) as error:
            raise StoreError(f"unexpected reply to a heartbeat: {reply!r:.80}") from error
        ruleset = provider.loaded_ruleset()
        hosts = group_by_host(self._processes, {} if ruleset is None else ruleset.weights)
        self.count = max(1, len(self._processes))
        for place, host in enumerate(hosts):
            ids = [process.id for process in host.processes]
            if self._id in ids:
                weights = tuple([each.weight for each in hosts])
                self.share = Share(weights, place, len(ids), ids.index(self._id))


def parse_processes(texts: Sequence[bytes]) -> list[Process]:
    """Return the processes of these texts by host, without those that cannot be parsed."""
    processes: list[Process] = []
    for text in texts:
        with suppress(ValueError, TypeError):  # Another version may describe itself differently.
            processes.append(Process(*json.loads(text)))
    return sorted(processes, key=lambda process: (process.host, process.id))


def group_by_host(processes: Sequence[Process], weights: Mapping[str, int]) -> list[Host]:
    """Return the hosts of these processes by name, each with its weight.

    Args:
        processes: Live processes, sorted.
        weights: The weights that operators have set. The weight of any other host is the largest
            `RATELIMIT_WEIGHT` of its processes.
    """
    hosts = []
    for name, group in groupby(processes, key=attrgetter("host")):
        of_host = list(group)
        weight = weights.get(name) or max(process.weight for process in of_host)
        hosts.append(Host(name, weight, of_host))
    return hosts


def live_processes() -> list[Process]:
    """Return the processes that decide limits, by their last heartbeats. Raises `StoreError`."""
    key = conf.CACHE_PREFIX + PROCESSES
    return parse_processes(get_store(background=True).execute(b"ZRANGE", key, b"0", b"-1"))


heartbeat = Heartbeat()
flusher.add(heartbeat.flush, is_urgent=True)
on_change(("RATELIMIT_CACHE_PREFIX",), heartbeat.forget)
