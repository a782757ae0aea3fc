"""Evidence of bans: the latest offences and their requests.

A decision that counts an offence records it here, in memory. One call writes all records to Redis a
second later. They expire with the ban, or, without a ban, when the offence no longer counts. A
killed process loses the evidence of its last second, but no offence and no ban.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from ..conf import conf
from ..conf.changes import on_change
from ..exceptions import StoreError
from ..identity.names import printable
from ..limits.ban import Ban, BanTerms
from ..limits.program import Program, source
from ..limits.rate import SECOND
from ..process.clock import Clock
from ..process.forks import renew_after_fork
from ..store import PATIENCE, Patience, flusher, get_store

MAX_OFFENCES = 10
"""Of one ban: the last ones."""
MAX_NOTED = 1000
"""Maximum number of identities with unwritten offences. Those of further identities are dropped for
that second.
"""
MAX_METHOD_BYTES, MAX_PATH_BYTES, MAX_AGENT_BYTES = 20, 120, 150
"""Maximum number of bytes that are stored of a client's text in one request, after escaping."""
MAX_BYTES = 1024
"""Bytes of the evidence of one ban in Redis; the last offences that fit are kept."""
_NUMBERS = Struct("<2d")
_LENGTHS = Struct("<2H")
_PROGRAM = Program.of(source("engine/evidence"))
_numbers = itertools.count()


class Offence(NamedTuple):
    """One offence and its request: the path without the query, and the user agent.

    Characters that cannot be printed are escaped, and long texts are cut (`MAX_PATH_BYTES`). All
    texts are empty if there was no request.

    - `moment`: microseconds since 1970.
    """

    moment: int
    method: str = ""
    path: str = ""
    agent: str = ""


class _Noted:
    """The unwritten offences of one identity under one limit, by names that sort by time.

    - `until`: the monotonic time after which they need not be written.
    """

    __slots__ = ("key", "offences", "until")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.until = 0.0
        self.offences: deque[tuple[str, Offence]] = deque(maxlen=MAX_OFFENCES)

    def record(self, now: float) -> bytes:
        """Return the arguments of the script for these offences."""
        offences = list(self.offences)
        parts = [_NUMBERS.pack(max(1.0, (self.until - now) * 1000), len(offences))]
        for name, offence in offences:
            # The texts have no line breaks.
            text = "\n".join(offence[1:]).encode()
            parts += (_LENGTHS.pack(len(name), len(text)), name.encode(), text)
        return b"".join(parts)


class EvidenceNotes:
    """The offences that this process has recorded and not yet written to Redis."""

    def __init__(self) -> None:
        self.clear()
        renew_after_fork(self.clear)  # The parent writes what it saw.

    def clear(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._noted: dict[bytes, _Noted] = {}

    def note(self, ban_key: bytes, terms: BanTerms, ban: Ban, moment: int, request: object) -> None:
        """Record an offence that a call has counted.

        Args:
            ban_key: The key of the ban.
            terms: The ban terms of the limit.
            ban: The state of the ban after the offence.
            moment: The time of `ban`, in microseconds since 1970.
            request: The request, if any.
        """
        key = evidence_key(ban_key)
        meta = getattr(request, "META", {})
        offence = Offence(
            ban.last,
            _cut(getattr(request, "method", None) or "", MAX_METHOD_BYTES),
            _cut(getattr(request, "path", ""), MAX_PATH_BYTES),
            _cut(meta.get("HTTP_USER_AGENT", ""), MAX_AGENT_BYTES),
        )
        lasts = max(ban.until, ban.last + terms.window_us) - moment
        with self._lock:  # A note added while its table is being written would be lost.
            noted = self._noted.get(key)
            if noted is None:
                if len(self._noted) >= MAX_NOTED:
                    return
                noted = self._noted[key] = _Noted(key)
            noted.offences.append((f"{ban.last:017d}:{next(_numbers) % 10**9:09d}", offence))
            noted.until = max(noted.until, Clock.monotonic() + lasts / SECOND)
        flusher.start()

    def flush(self, last: Patience | None) -> bool:
        """Write the recorded offences, as a `Flush` of the flusher."""
        if not self.write(last or Patience(PATIENCE)):
            raise StoreError("evidence of bans could not be written")
        return False

    def write(self, patience: Patience) -> bool:
        """Write the recorded offences, and wait for a thread that is writing some already.

        Return whether all were written.
        """
        if not self._turn.acquire(timeout=max(patience.left, 0.0)):
            return False
        try:
            return self._write(patience)
        finally:
            self._turn.release()

    def _write(self, patience: Patience) -> bool:
        with self._lock:
            noted = self._noted
            self._noted = {}
        now = Clock.monotonic()
        items = [(each.key, each.record(now)) for each in noted.values() if each.until > now]
        if not items:
            return True
        common = (b"%d" % MAX_OFFENCES, b"%d" % MAX_BYTES)
        answers = get_store(background=True).run_each(_PROGRAM, common, items, patience)
        late = [key for (key, _), answer in zip(items, answers, strict=True) if answer is None]
        for key in late:
            if len(self._noted) < MAX_NOTED:
                self._noted.setdefault(key, noted[key])  # What has come since is newer.
        return not late

    def drop(self, ban_keys: Sequence[bytes]) -> None:
        for key in ban_keys:
            self._noted.pop(evidence_key(key), None)


def evidence_key(ban_key: bytes) -> bytes:
    """Return the key of the evidence of a ban."""
    return ban_key + b":evidence"


def _cut(text: object, size: int) -> str:
    """Return a client's text as it is stored: printable, and cut to a size in bytes."""
    return printable(str(text)[:size]).encode()[:size].decode(errors="ignore")


def evidence_of(
    bans: Sequence[tuple[bytes, Ban]], patience: Patience | None = None
) -> list[tuple[Offence, ...]]:
    """Return the latest offences of each of these bans, the earliest first.

    Offences of earlier bans are left out. The offences recorded by this process are written first,
    so that they are included.

    Args:
        bans: The keys of the bans, and the bans.
        patience: The time that a request has left for this. Default: that of background work.

    Raises:
        StoreError: Redis is unavailable.
    """
    evidence_notes.write(patience or Patience(PATIENCE))
    store = get_store(background=patience is None)
    replies = store.execute_all([(b"HGETALL", evidence_key(key)) for key, _ in bans], patience)
    found = []
    for (_, ban), reply in zip(bans, replies, strict=True):
        # Names of offences begin with their moments.
        pairs = sorted(zip(reply[::2], reply[1::2], strict=True))
        found.append(tuple([each for each in _read(pairs) if each.moment >= ban.first]))
    return found


def _read(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[Offence]:
    for name, text in pairs:
        with suppress(ValueError, TypeError):  # Written by hand, or by another version.
            method, path, agent = text.decode().split("\n")
            yield Offence(int(name.partition(b":")[0]), method, path, agent)


def drop_evidence(ban_keys: Sequence[bytes]) -> None:
    """Delete the evidence of lifted bans.

    If Redis is unavailable, the evidence expires when the bans would have ended.
    """
    evidence_notes.drop(ban_keys)
    with suppress(StoreError):
        get_store().delete_keys([evidence_key(key) for key in ban_keys])


def evidence_now(ban_key: bytes, ban: Ban) -> tuple[Offence, ...]:
    """Return the evidence of a ban that is triggered at this moment. Empty if Redis is unavailable.

    It takes no longer than a decision may, and raises nothing.
    """
    try:
        return evidence_of([(ban_key, ban)], Patience(conf.TIMEOUT))[0]
    except StoreError:
        return ()


evidence_notes = EvidenceNotes()
flusher.add(evidence_notes.flush)
on_change(("RATELIMIT_*", "CACHES", "SECRET_KEY"), evidence_notes.clear)
