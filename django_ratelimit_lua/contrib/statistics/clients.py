"""The refusals of one client by hour, for its page in the core's admin."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .keys import HOUR, TOP_HOURS, key_of
from .reading import ask, known_names, merged
from .space_saving import Estimate

MAX_NAMES = 500
"""Maximum number of limits to read lists of: those that counted something last."""
MAX_BYTES = 32_000_000
"""After this much has been read, earlier hours are left out."""


class HourOfClient(NamedTuple):
    """An hour of a client under one limit, which begins at `moment`, in seconds since 1970.

    `refused`, `used`: its refusals, or those that shadow mode would have made, and its units; None:
    it is not among the top clients.
    """

    digest: str
    name: str
    moment: int
    refused: Estimate | None
    used: Estimate | None


def hours_of_clients(prefix: str, names: Sequence[str] = ()) -> Iterator[HourOfClient]:
    """Yield the hours of clients whose digests have a prefix, latest first.

    Args:
        prefix: Hexadecimal digits.
        names: The limits; empty: all.

    Raises:
        StoreError: Redis is unavailable.
    """
    now = int(time.time()) // HOUR
    if not names:
        known = sorted(known_names().items(), key=lambda pair: -pair[1])
        names = [name for name, at in known if at // HOUR > now - TOP_HOURS][:MAX_NAMES]
    needle = f'["{prefix}'.encode()
    size = 0
    for hour in range(now, now - TOP_HOURS, -1):
        replies = ask([(b"HGETALL", key_of(name, b"top:%d" % hour)) for name in names])
        for name, reply in zip(names, replies, strict=True):
            lists = reply[1::2]
            size += sum(map(len, lists))
            if any(needle in written for written in lists):
                yield from _of_lists(prefix, name, hour * HOUR, lists)
        if size > MAX_BYTES:
            return


def _of_lists(
    prefix: str, name: str, moment: int, lists: Sequence[bytes]
) -> Iterator[HourOfClient]:
    refused, used = (
        {
            client.digest: client
            for client in merged(lists, what)
            if client.digest.startswith(prefix)
        }
        for what in ("refused", "used")
    )
    for digest in refused | used:
        yield HourOfClient(digest, name, moment, refused.get(digest), used.get(digest))
