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
"""The functions in the order of registration, each with its owner: a dead reference if the owner is
gone, and None if the function is not a method. A dictionary, because no thread that forks can
interrupt one of its operations.
"""

_left_to_parent: list[object] = []


def renew_after_fork(renew: Renew) -> Renew:
    """Call this function in a child process after a fork, before any other code runs there.

    Registering a bound method does not keep its object alive. The function replaces locks instead
    of releasing them (the forking thread may hold one), and starts no thread: the first use does
    that.
    """
    number = next(_serial)
    if not ismethod(renew):
        _renewals[number] = (None, renew)
        return renew
    # A partial, because the globals of this module are gone when the interpreter ends.
    unregister = functools.partial(_renewals.pop, number, None)
    _renewals[number] = (ref(renew.__self__, lambda _: unregister()), renew.__func__)
    return renew


chance = random.Random()
"""A generator of its own: a project that seeds Python's, as tests do, would repeat tokens."""


@renew_after_fork
def _reseed() -> None:
    chance.seed()


def leave_to_parent(*objects: object) -> None:
    """Keep objects that a child process must neither use nor release.

    Releasing them would affect resources that the parent still uses.
    """
    _left_to_parent.extend(objects)


def _renew_all() -> None:
    """Call the registered functions, in the child process."""
    for owner, renew in list(_renewals.values()):
        try:
            if owner is None:
                renew()
            elif (instance := owner()) is not None:
                renew(instance)
        except Exception:  # The others must be renewed.
            logger.exception("Cannot be renewed after a fork: %r", renew)


if hasattr(os, "register_at_fork"):  # Not on Windows, which does not fork.
    os.register_at_fork(after_in_child=_renew_all)
