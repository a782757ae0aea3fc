"""State that belongs to one process, and that a child process has to renew after a fork.

A fork copies the memory of all threads, but only the forking thread continues. So in the child, a
lock that another thread held stays locked for good, a background thread does not run, and a
connection is the parent's. Every object with a lock, a thread, a connection or unwritten data
registers here how to renew it. This is the only module that hooks forks.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import random
from collections.abc import Callable
from inspect import ismethod
from typing import TypeVar
from weakref import ref

logger = logging.getLogger("django_ratelimit_lua")

Renew = TypeVar("Renew", bound=Callable[[], None])

_serial = itertools.count()
_renewals: dict[int, tuple[ref[object] | None, Callable[..., None]]] = {}
"""In the order of registration. A dictionary, because its single steps are whole whenever another
thread forks.
"""

_of_parent: list[object] = []


def renew_after_fork(renew: Renew) -> Renew:
    """Call this function in a child process after a fork, before any other code runs there.

    Registering a bound method does not keep its object alive. The function replaces locks instead
    of releasing them (the forking thread may hold one), and starts no thread: the first use does
    that.
    """
    number = next(_serial)
    if ismethod(renew):
        forget = functools.partial(
            _renewals.pop, number, None
        )  # Holds on to all that it needs, also at the very end.
        _renewals[number] = (ref(renew.__self__, lambda _: forget()), renew.__func__)
    else:
        _renewals[number] = (None, renew)
    return renew


chance = random.Random()
"""Our own generator: a project that seeds Python's, as tests do, would send the same token twice.
"""


@renew_after_fork
def _reseed() -> None:
    chance.seed()


def leave_to_parent(*objects: object) -> None:
    """Keep objects that a child process must neither use nor release.

    Releasing them would affect resources that the parent still uses.
    """
    _of_parent.extend(objects)


def _renew() -> None:
    for owner, renew in list(_renewals.values()):
        instance = None if owner is None else owner()
        try:
            if instance is not None:
                renew(instance)
            elif owner is None:
                renew()
        except Exception:  # The others must be renewed.
            logger.exception("Cannot be renewed after a fork: %r", renew)


if hasattr(os, "register_at_fork"):  # Not on Windows, which does not fork.
    os.register_at_fork(after_in_child=_renew)
