"""The held slots of concurrency limits, for operators, and how to end one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..engine.slots import Holder, end_slot, holders
from ..models import RateLimitChange
from .history_names import history_names, record_change

_FURTHER = re.compile(r"(/[^/]*/).+", re.DOTALL)
"""Matches the further parts of a path."""


def slots_held(name: str = "") -> list[Holder]:
    """Return the slots held for longer than a quarter of `RATELIMIT_SLOT_SECONDS`, longest first.

    The slots of all processes are included.

    Args:
        name: The name of a rule, a call site or a limiter; empty: all.

    Raises:
        StoreError: Redis is unavailable.
    """
    return [holder for holder in holders() if not name or is_named(holder, name)]


def is_named(holder: Holder, name: str) -> bool:
    """Return whether a slot belongs to a rule, call site or limiter of this name.

    The names of some limits consist of that name, a colon and more.
    """
    return holder.limit == name or holder.limit.startswith(f"{name}:")


def names(held: Sequence[Holder]) -> list[str]:
    """Return the names of the limits of these slots."""
    return sorted({holder.limit for holder in held})


def brief(what: str) -> str:
    """Return the purpose of a slot for users who may not see names.

    Later parts of a path may be secret, as in a password reset link, or identify a client.

    >>> brief("GET /exports/7/"), brief("nightly import")
    ('GET /exports/…', 'nightly import')
    """
    return _FURTHER.sub(r"\1…", what)


def release_slot(holder_id: str, why: str = "") -> Holder | None:
    """End a slot, whichever process holds it. Its work continues.

    The user in `acting` is recorded. Return its holder, or None if it has ended already. Raises
    `StoreError`.
    """
    holder = end_slot(holder_id)
    if holder is not None:
        after = {
            **history_names({holder.digest: holder.identity}),
            "slot": f"{brief(holder.what)} ({holder.host}, {holder.pid})",
            "why": why,
        }
        record_change(RateLimitChange.Action.ENDED, [holder.limit], after)
    return holder
