"""What a reference says that a client was shown with a 429, and what is counted there now."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..engine.decide import build_call
from ..exceptions import StoreError
from ..limits.call import Charge
from ..limits.decision import LimitState
from ..limits.limit import Limit
from ..models import RateLimitOverride
from ..rules.callsite import known_call_sites, limits_of
from ..rules.describe import reading
from ..rules.places import look_for_call_sites
from ..rules.provider import reload
from ..rules.rule import Rule
from ..rules.stacks import url_patterns
from ..store import get_store
from ..web.reference import BadReferenceError
from ..web.reference import open_reference as unseal
from .explain import Explanation, reset_charges

__all__ = ["BadReferenceError", "OpenedReference", "ReferredLimit", "open_reference", "reset_reference"]


@dataclass(frozen=True, slots=True)
class ReferredLimit:
    """A limit that a reference is about.

    - `source`: where it is written: "admin", "settings" or "code"; `reading`: what it says; `rule`: the rule it is of
      (None: it is in code);
    - `state`: what it has counted for that identity now, by its own numbers; None: it is not known, because Redis
      cannot be asked, because processes keep the count (`split`), or because a block refused, which counts nobody;
    - `charge`: what is counted there, as far as the limit is known and no block refused.
    """

    name: str
    source: str
    reading: str
    rule: Rule | None
    state: LimitState | None
    charge: Charge | None


@dataclass(frozen=True, slots=True)
class OpenedReference:
    """What a reference says, and how it is now.

    - `reference`: as it was written to the client and to the log;
    - `at`: when it was refused; `identity`: the digest of whom the limit counts, or of whom the block is about;
    - `limits`: the limit that refused. Several where they cannot be told apart, by what they have counted either; none
      where it has no such name here any more, or is made in code that this process has not imported;
    - `is_exact`: these are the limits that refused. Else they are what stands now where that one stood: of the same
      group, scope or rule;
    - `is_block`: a block refused; `overrides`: these about that subject, as far as they are still there;
    - `is_of_earlier_key`: it was sealed with a secret that is a fallback now; counts began afresh with the new one;
    - `error`: why nothing is known of the counts; empty: they are known.
    """

    reference: str
    at: datetime.datetime
    identity: str
    limits: tuple[ReferredLimit, ...]
    is_exact: bool
    is_block: bool
    overrides: tuple[RateLimitOverride, ...]
    is_of_earlier_key: bool
    error: str

    def is_of(self, found: Explanation) -> bool | None:
        """Whether a request like the one that was explained is of whom it was refused: counted as the same, or met by
        the same block. None: that cannot be told, as it does not meet what refused, or the secret was another."""
        if self.is_block:
            blocks = {override.pk for override in self.overrides}
            met = [found.block, *(limit.override for limit in found.met)]
            return any(override is not None and override.pk in blocks for override in met) if blocks else None
        names = {limit.name for limit in self.limits}
        digests = [limit.charge.digest for limit in found.met if limit.name in names]
        return self.identity.encode() in digests if digests and not self.is_of_earlier_key else None


def open_reference(text: str) -> OpenedReference:
    """What a reference says, however it was written down, and what is counted there now. Takes nothing.

    Raises `BadReferenceError` for what is none of this site's, with what is wrong with it.
    """
    sealed = unseal(text)
    all_known = _told_apart(known_limits())
    found = [one for one in all_known if sealed.is_of_limit(one.name)]
    is_exact = bool(found)
    limits, error = [], ""
    for one in found or [one for one in all_known if sealed.is_of_place(one.name)]:
        name, source, words, rule, limit, _place = one
        charge = None if limit is None or sealed.is_block else Charge(limit, sealed.identity)
        state = None
        if charge is not None and charge.limit.split is None:
            try:
                state = get_store(background=True).decide(build_call([charge], "peek")).limits[0]
            except StoreError as problem:
                error = str(problem)
        limits.append(ReferredLimit(name, source, words, rule, state, charge))
    if is_exact:  # Who was refused was counted.
        limits = [limit for limit in limits if limit.state is not None and limit.state.used] or limits
    overrides = RateLimitOverride.objects.filter(subject=sealed.identity.decode()) if sealed.is_block else ()
    return OpenedReference(
        sealed.reference,
        datetime.datetime.fromtimestamp(sealed.moment, datetime.UTC),
        sealed.identity.decode(),
        tuple(limits),
        is_exact,
        sealed.is_block,
        tuple(overrides),
        sealed.secret > 0,
        error,
    )


def reset_reference(opened: OpenedReference) -> list[str]:
    """Forget what the limits of a reference have counted for its identity; it is recorded as done by who is `acting`.

    Returns the names of those that had counted something. Raises `StoreError`.
    """
    return reset_charges([limit.charge for limit in opened.limits if limit.charge is not None])


class KnownLimit(NamedTuple):
    """A limit that this site has: its name, where it is written, what it says, its rule, and itself, as far as it is
    known; `place`: the name that it is counted under in statistics, which several limits share."""

    name: str
    source: str
    reading: str
    rule: Rule | None
    limit: Limit | None
    place: str


def _told_apart(known: Iterable[KnownLimit]) -> list[KnownLimit]:
    """Each once that counts for itself: a tier counts where its rule does, which is said first."""
    apart: dict[tuple[str, str, bytes], KnownLimit] = {}
    for one in known:
        apart.setdefault((one.name, one.source, b"" if one.limit is None else one.limit.key_part), one)
    named = {one[:2] for one in apart.values() if one.limit is not None}
    return [one for one in apart.values() if one.limit is not None or one[:2] not in named]


def known_limits() -> Iterator[KnownLimit]:
    """The limits that this site has, as far as they are known here."""
    for rule in reload().rules:
        words = reading(rule.given or {})
        for limit in limits_of(rule):
            yield KnownLimit(limit.name, rule.source, words, rule, limit, rule.name)
        yield KnownLimit(rule.name, rule.source, words, rule, None, rule.name)  # Its rate may be a function.
    look_for_call_sites()
    for name in known_call_sites.names():
        for site in known_call_sites.of(name):
            for limit in site.limits:
                yield KnownLimit(limit.name, "code", site.words(), None, limit, name)
    yield from _of_throttles()


def _of_throttles() -> Iterator[KnownLimit]:
    """Those of Django REST framework's views; known by what they have, as that need not be installed."""
    for pattern, _space in url_patterns():
        cls, given = getattr(pattern.callback, "cls", None), getattr(pattern.callback, "initkwargs", None) or {}
        for throttle in given.get("throttle_classes") or getattr(cls, "throttle_classes", None) or ():
            if not isinstance(cls, type) or not hasattr(throttle, "limits_on"):
                continue
            with suppress(Exception):  # A throttle of the project's may ask for more than is here.
                view: Any = cls(**given)
                asked = throttle()
                for limit in asked.limits_on(view):
                    words = reading({"rate": str(limit.rate), "group": limit.name.partition(":")[0]})
                    yield KnownLimit(limit.name, "code", words, None, limit, asked.name)
