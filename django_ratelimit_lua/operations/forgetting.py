"""Erase everything that is stored about one identity, in Redis and in the database."""

from __future__ import annotations

import time
from collections import Counter

from django.db.models import Q

from ..conf import conf
from ..engine.bans import ban_list
from ..engine.decide import build_call, forgetting
from ..engine.run import run
from ..extension import extensions
from ..limits.call import Charge
from ..limits.limit import Limit
from ..models import RateLimitChange, RateLimitOverride
from ..store import FLUSH_SECONDS, get_store
from .subjects import Subject

IN_FLIGHT_SECONDS = 1.5 * FLUSH_SECONDS
"""After this time, every process has received the push, and has written what it was writing."""


def forget(subject: Subject) -> Counter[str]:
    """Erase the counts, bans, overrides, names and statistics of an identity.

    Totals, and counts of keys that combine it with other values, stay.

    Args:
        subject: A user, an address, a value of a field, or the digest of any identity.

    Returns:
        The number of erased items by kind.

    Raises:
        StoreError: Redis is unavailable. Then not everything is erased.
    """
    digests = subject.digests()
    subjects = [*digests, *filter(None, subject.about().digests())]
    about = Q(subject__in=subjects) | Q(client_digest__in=digests)
    if subject.user is not None:
        about |= Q(user=subject.user)
    erased = Counter[str]()
    erased["overrides"], _ = RateLimitOverride.objects.filter(about).delete()
    for pause in (IN_FLIGHT_SECONDS, 0.0):
        erased.update(_erase_in_redis([digest.encode() for digest in digests]))
        time.sleep(pause)
    for change in RateLimitChange.objects.exclude(kind=RateLimitChange.Kind.RULE):
        stored = f"{change.before}{change.after}"
        if any(text in stored for text in subjects):
            change.delete()
            erased["entries of the history"] += 1
    return erased


def _erase_in_redis(digests: list[bytes]) -> Counter[str]:
    store = get_store(background=True)
    charges = [Charge(Limit("forgotten", "1/s"), digest) for digest in digests]
    # All processes drop refusals, leases and bans.
    run(forgetting(build_call(charges, "peek"), strict=True))
    begins = [b"%b{%b}:" % (conf.CACHE_PREFIX, digest) for digest in digests]
    keys = [key for begin in begins for key in store.find_keys(begin)]
    store.delete_keys(keys)
    ban_list.remove(keys)
    erased = Counter({"counts and bans": len(keys)})
    for extension in extensions:
        erased.update(extension.forget(digests))
    return erased
