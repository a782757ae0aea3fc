"""What a rule in shadow mode has seen and would have refused, and of how many people: counted for each version of the
rule, so that it is judged by what it says now. Counted here, written to Redis once a second."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

from ..conf import conf
from ..exceptions import StoreError
from ..process.forks import renew_after_fork
from ..process.tasks import Task
from ..rules.rule import Rule
from ..store import Patience, get_store, last_patience
from .refusals import FLUSH_SECONDS, KEPT_DAYS

MOST_PEOPLE = 5000
"""People that are remembered for one version between two writings; more are counted the next time that they come."""
_OF_NO_VERSION = frozenset({"id", "mode", "order", "description", "message"})
"""Words of a rule that change nothing of what it refuses."""


class ShadowNumbers(NamedTuple):
    """Requests that a version of a rule has `seen` and would have `refused`, and about how many people (whoever the
    rule counts) these were of."""

    seen: int = 0
    refused: int = 0
    people: int = 0
    refused_people: int = 0


def version_of(given: Mapping[str, Any]) -> str:
    """What tells a version of a rule from others, by how it is declared."""
    words = {word: value for word, value in given.items() if word not in _OF_NO_VERSION}
    text = json.dumps(words, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


@dataclass(slots=True)
class _Tally:
    seen: int = 0
    refused: int = 0
    people: set[bytes] = field(default_factory=set)
    refused_people: set[bytes] = field(default_factory=set)

    def merge(self, other: _Tally) -> None:
        self.seen += other.seen
        self.refused += other.refused
        if len(self.people) < MOST_PEOPLE:  # However long nothing can be written.
            self.people |= other.people
            self.refused_people |= other.refused_people


class ShadowCounter:
    """What rules in shadow mode decided, by version, until it is written. A process that is killed loses its last
    second."""

    def __init__(self) -> None:
        self._task = Task("shadow", self.flush, delay=FLUSH_SECONDS, at_exit=self._say_last)
        self._begin()
        renew_after_fork(self._begin)  # The parent writes what it counted.

    def _begin(self) -> None:
        self._tallies: dict[str, _Tally] = {}
        self._versions: dict[str, tuple[Any, str]] = {}
        self._lock = Lock()

    def add(self, rule: Rule, subject: bytes, is_refused: bool) -> None:
        """One more request that a rule has decided about, of a subject by its digest."""
        known = self._versions.get(rule.name)
        if known is None or known[0] is not rule.given:
            if len(self._versions) > 1000:
                self._versions.clear()
            known = self._versions[rule.name] = (rule.given, version_of(rule.given or {}))
        with self._lock:
            tally = self._tallies.setdefault(known[1], _Tally())
            tally.seen += 1
            tally.refused += is_refused
            if len(tally.people) < MOST_PEOPLE:
                tally.people.add(subject)
                if is_refused:
                    tally.refused_people.add(subject)
        self._task.start()

    def clear(self) -> None:
        """Drop what was not written yet; for tests, whose servers come and go."""
        with self._lock:
            self._tallies.clear()

    def _say_last(self) -> None:
        if self._tallies:
            self.flush(last_patience())

    def flush(self, patience: Patience | None = None) -> None:
        """Write what was counted; where that cannot be done now, it is tried again with the next."""
        with self._lock:
            tallies, self._tallies = self._tallies, {}
        for version in list(tallies):
            try:
                _write(version, tallies[version], patience)
                del tallies[version]
            except StoreError as error:
                if error.was_answered:  # A user of Redis that may not do this will not do it the next time either.
                    del tallies[version]
        with self._lock:
            for version, tally in tallies.items():
                self._tallies.setdefault(version, _Tally()).merge(tally)


def _write(version: str, tally: _Tally, patience: Patience | None) -> None:
    store, key, lifetime = get_store(background=True), _key(version), b"%d" % (KEPT_DAYS * 86_400)
    store.execute(b"HINCRBY", key, b"seen", b"%d" % tally.seen, patience=patience)
    store.execute(b"HINCRBY", key, b"refused", b"%d" % tally.refused, patience=patience)
    store.execute(b"EXPIRE", key, lifetime, patience=patience)
    for name, people in ((b":people", tally.people), (b":refused", tally.refused_people)):
        if people:
            store.execute(b"PFADD", key + name, *people, patience=patience)
            store.execute(b"EXPIRE", key + name, lifetime, patience=patience)


shadow_counter = ShadowCounter()


def _key(version: str) -> bytes:
    return conf.CACHE_PREFIX + b"{rules}:shadow:" + version.encode()


def shadow_numbers(given: Mapping[str, Any]) -> ShadowNumbers:
    """What a rule as it is declared has seen in shadow mode, in the last days in which it was asked. Raises
    `StoreError`."""
    shadow_counter.flush()
    store, key = get_store(background=True), _key(version_of(given))
    reply = store.execute(b"HGETALL", key)
    counts = {name: int(number) for name, number in zip(reply[::2], reply[1::2], strict=True)}
    seen, refused = counts.get(b"seen", 0), counts.get(b"refused", 0)
    people, refused_people = (int(store.execute(b"PFCOUNT", key + name)) for name in (b":people", b":refused"))
    return ShadowNumbers(seen, refused, people, refused_people)
