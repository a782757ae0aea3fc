"""Bans that were triggered: the list for operators, the log and the signal.

The process that triggers a ban adds it to the list after the decision, through the
flusher. The list is a sorted set of the keys of bans by their ends. Beside the key of each ban is
its description, which expires with it.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async

from ..conf import conf, on_change
from ..exceptions import StoreError
from ..identity.names import display_name, printable
from ..limits.ban import Ban
from ..limits.call import Call
from ..limits.decision import Decision
from ..limits.rate import SECOND
from ..process.forks import renew_after_fork
from ..signals import banned
from ..store import Deadline, flusher, get_store
from . import DecidedCharge
from .logs import LogSampler
from .run import Wait

logger = logging.getLogger("django_ratelimit_lua.banned")
LIST = b"{bans}"
"""The key of the list, without the prefix."""
MAX_LISTED = 10_000
"""Maximum number of listed bans: those that end last."""
MAX_WHY_LENGTH = 200
"""Maximum length of the reason for a ban that was made by hand."""
MAX_PATH_LENGTH = 200


class ListedBan(NamedTuple):
    """A ban for the list.

    - `until`, `since`: microseconds since 1970;
    - `description`: a JSON object with `since`, `offences`, `times`, `limit`, `name` (that of its
      statistics), `rule`, `why`, and `who`, the parts of the identity as
      `RATELIMIT_SHOW_IDENTITIES` allows.
    """

    until: int
    since: int
    description: bytes

    @classmethod
    def of(cls, ban: Ban, since: int, **description: object) -> ListedBan:
        """Return the entry for a ban. `description`: `limit`, `name`, `rule`, `who` and `why`."""
        numbers = {"since": since, "offences": ban.offences, "times": ban.times}
        return cls(ban.until, since, json.dumps(numbers | description).encode())


class BanList:
    """The bans in force, for operators: those that end last.

    It is a help, and decides nothing. New bans are collected in memory and written once a second;
    a killed process loses those of its last second.
    """

    def __init__(self) -> None:
        self.clear()
        renew_after_fork(self.clear)  # The parent writes what it has collected.

    def clear(self) -> None:
        """Drop the bans that are not written yet."""
        self._lock = Lock()
        self._added: dict[bytes, ListedBan] = {}

    def add(self, key: bytes, listed: ListedBan) -> None:
        """Collect a ban, by its key, for the next flush.

        If `MAX_LISTED` bans are collected, another is not: it is in force, but never listed.
        """
        with self._lock:
            if key in self._added or len(self._added) < MAX_LISTED:
                self._added[key] = listed
        flusher.start()

    def flush(self, last: Deadline | None = None) -> bool:
        """Write the added bans, as a `Flush` of the flusher: nothing is left. Raises `StoreError`.

        Bans that cannot be written stay for the next flush.
        """
        with self._lock:
            added = self._added
            self._added = {}
        if not added:
            return False
        try:
            self.write(added, last)
        except StoreError:
            with self._lock:
                self._added = added | self._added
            raise
        return False

    def write(self, bans: Mapping[bytes, ListedBan], deadline: Deadline | None = None) -> None:
        """Write bans to the list in Redis, by their keys. Raises `StoreError`."""
        name = conf.CACHE_PREFIX + LIST
        now = max(listed.since for listed in bans.values())
        commands: list[Sequence[bytes]] = []
        for key, listed in bans.items():
            milliseconds = (listed.until - listed.since) // 1000 + 1000
            commands.append((b"ZADD", name, b"%d" % listed.until, key))
            commands.append(
                (b"SET", description_key(key), listed.description, b"PX", b"%d" % milliseconds)
            )
        commands.append((b"ZREMRANGEBYSCORE", name, b"-inf", b"%d" % now))
        commands.append((b"ZREMRANGEBYRANK", name, b"0", b"%d" % (-MAX_LISTED - 1)))
        get_store(background=True).execute_all(commands, deadline)

    def read(self) -> dict[bytes, int]:
        """Return the ends of the listed bans by their keys, the latest end first.

        The bans that this process has added are written first. Raises `StoreError`.
        """
        self.flush()
        name = conf.CACHE_PREFIX + LIST
        now = _read_redis_time()
        _removed, entries = get_store(background=True).execute_all(
            [
                (b"ZREMRANGEBYSCORE", name, b"-inf", b"%d" % now),
                (b"ZREVRANGE", name, b"0", b"-1", b"WITHSCORES"),
            ]
        )
        keys = entries[::2]
        ends = entries[1::2]
        return {key: int(end) for key, end in zip(keys, ends, strict=True)}

    def remove(self, keys: Iterable[bytes]) -> None:
        """Remove the bans with these keys. If Redis is unavailable, they stay until their ends."""
        removed = list(keys)
        with self._lock:
            for key in removed:
                self._added.pop(key, None)
        with suppress(StoreError):
            get_store(background=True).execute(b"ZREM", conf.CACHE_PREFIX + LIST, *removed)


def description_key(ban_key: bytes) -> bytes:
    """Return the Redis key of the description of a ban, see `ListedBan`."""
    return ban_key + b":about"


def read_descriptions(ban_keys: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the descriptions of bans by their keys, unless they are lost. Raises `StoreError`."""
    keys = list(ban_keys)
    texts = get_store(background=True).execute_all([(b"GET", description_key(key)) for key in keys])
    return {key: text for key, text in zip(keys, texts, strict=True) if text is not None}


def _read_redis_time() -> int:
    """Return the time of the server in microseconds since 1970. Raises `StoreError`."""
    seconds, microseconds = get_store(background=True).execute(b"TIME")
    return int(seconds) * SECOND + int(microseconds)


def count_active_bans() -> Counter[str]:
    """Return the number of listed bans for each name under which decisions are counted.

    A ban without a description, which was lost, counts under its key. Raises `StoreError`.
    """
    counts: Counter[str] = Counter()
    keys = ban_list.read().keys()
    descriptions = read_descriptions(keys)
    for key in keys:
        name = json.loads(descriptions.get(key, b"{}")).get("name")
        _prefix_and_digest, _end, key_part = key.partition(b"}:")
        counts[name or key_part.removesuffix(b":ban").decode(errors="replace")] += 1
    return counts


def report_bans(
    charges: Sequence[DecidedCharge],
    decision: Decision,
    request: object = None,
    why: str = "",
) -> Iterator[Wait]:
    """List the new bans of a decision, write them to the log, and send the signal `banned`.

    A ban that was made by hand, and one in shadow mode, which refuses no request, are only listed.
    """
    for decided in charges:
        ban = decided.state.ban
        if ban is None or not ban.is_new:
            continue
        rule = None if decided.rule is None else decided.rule.name or None
        details = {"limit": decided.state.name, "rule": rule}
        _list_ban(ban, decided, decision.moment, why=why[:MAX_WHY_LENGTH], **details)
        is_by_hand = ban.offences == 0
        if is_by_hand or decided.state.mode == "shadow":
            continue
        seconds = round((ban.until - decision.moment) / SECOND)
        _log_ban(ban, decided, request, seconds=seconds, **details)
        if banned.receivers:
            send = partial(
                banned.send_robust,
                Ban,
                ban=ban,
                identity=decided.charge.digest.decode(),
                mode=decided.state.mode,
                decision=decision,
                request=request,
                **details,
            )
            yield Wait(send, sync_to_async(send))


def _list_ban(ban: Ban, decided: DecidedCharge, moment: int, **description: object) -> None:
    """Add a new ban to the list."""
    client = display_name(decided.identity)
    listed = ListedBan.of(ban, moment, **description, name=decided.name, who=client)
    (key,) = Call([decided.charge], "peek", conf.CACHE_PREFIX).ban_keys()
    ban_list.add(key, listed)


def _log_ban(ban: Ban, decided: DecidedCharge, request: object, **details: Any) -> None:
    """Write a new ban to the log, unless the log has enough records about its limit."""
    limit = decided.state.name
    digest = decided.charge.digest
    if not logger.isEnabledFor(logging.WARNING) or not ban_log.admit(limit, digest):
        return
    parts = [f"{kind}={value}".removeprefix("=") for kind, value in display_name(decided.identity)]
    details |= {
        "client": " ".join(parts) or "hidden",
        "identity": digest[:8].decode(),
        "path": printable(str(getattr(request, "path", ""))[:MAX_PATH_LENGTH]) or None,
        "offences": ban.offences,
        "times": ban.times,
        "skipped": ban_log.take_skipped(limit),
    }
    logger.warning(
        "Banned by %(limit)s (rule: %(rule)s) for %(seconds)s s after %(offences)s refusals: "
        "client %(client)s (%(identity)s), last path %(path)s, ban number %(times)s; "
        "records dropped before: %(skipped)s",
        details,
        extra=details,
    )


ban_list = BanList()
ban_log = LogSampler()
flusher.add(ban_list.flush)
on_change(("RATELIMIT_*", "CACHES", "SECRET_KEY"), ban_list.clear)
