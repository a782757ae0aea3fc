"""The limits that this site has, and which of them a reference is about."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..conf import conf
from ..limits.limit import Limit
from ..models import RateLimitOverride
from ..rules.callsite import known_call_sites, limits_of
from ..rules.describe import reading
from ..rules.places import look_for_call_sites
from ..rules.provider import reload
from ..rules.rule import Rule
from ..rules.stacks import url_patterns
from ..web.reference import BadReferenceError, Reference
from ..web.reference import open_reference as read
from .explain import Explanation

__all__ = ["BadReferenceError", "KnownLimit", "OpenedReference", "known_limits", "open_reference"]


class KnownLimit(NamedTuple):
    """A limit of this site.

    - `name`; `source`: where it is written: "admin", "settings" or "code"; `reading`: its sentence;
    - `rule`: None if it is written in code; `limit`: None if its rate is a function;
    - `place`: the name that statistics count it under, which several limits share.
    """

    name: str
    source: str
    reading: str
    rule: Rule | None
    limit: Limit | None
    place: str


@dataclass(frozen=True, slots=True)
class OpenedReference:
    """The contents of a reference.

    - `reference`: as it was shown to the client and written to the log; `at`: when the request was
      refused;
    - `limits`: the limits that may have refused, mostly one; empty if the limit is gone, or is made
      in code that this process has not imported. If not `is_exact`, these are now at the place of
      the one that refused: of the same group, scope or rule;
    - `is_block`: a block refused; `overrides`: those of its subject that still exist;
    - `digest_prefix`: 8 of the 32 digits of the identity's digest, or of the block's subject;
    - `is_of_earlier_key`: it was made with a secret that is a fallback now; the current one has new
      counts.
    """

    reference: str
    at: datetime.datetime
    limits: tuple[KnownLimit, ...]
    is_exact: bool
    is_block: bool
    overrides: tuple[RateLimitOverride, ...]
    digest_prefix: str
    is_of_earlier_key: bool
    _read: Reference

    def is_of(self, found: Explanation) -> bool | None:
        """Whether an explained request has the identity that was refused, or meets the same block.

        None: it has no limit at the place of the one that refused, or the secret has changed.
        """
        if self.is_of_earlier_key:
            return None
        if self.is_block:
            blocks = {override.pk for override in self.overrides}
            met = [found.block, *(limit.override for limit in found.met)]
            return (
                any(override is not None and override.pk in blocks for override in met)
                if blocks
                else None
            )
        digests = [
            limit.charge.digest.decode()
            for limit in found.met
            if self._read.is_of_place(limit.name)
        ]
        return any(digest.startswith(self.digest_prefix) for digest in digests) if digests else None


def open_reference(text: str) -> OpenedReference:
    """Read a reference, in any letter case, with or without hyphens and spaces.

    Raises `BadReferenceError` if it is not a reference of this site.
    """
    opened = read(text)
    limits: list[KnownLimit] = []
    overrides: Iterable[RateLimitOverride] = ()
    is_exact = True
    if opened.is_block:
        overrides = RateLimitOverride.objects.filter(subject__startswith=opened.digest_prefix)
    else:
        known = {(one.name, one.source, one.reading): one for one in known_limits()}.values()
        limits = [one for one in known if opened.is_of_limit(one.name)]
        is_exact = bool(limits)
        limits = limits or [one for one in known if opened.is_of_place(one.name)]
    return OpenedReference(
        opened.text,
        datetime.datetime.fromtimestamp(opened.moment, datetime.UTC),
        tuple(limits),
        is_exact,
        opened.is_block,
        tuple(overrides),
        opened.digest_prefix,
        opened.secret != conf.KEY_SECRET[0],
        opened,
    )


def known_limits() -> Iterator[KnownLimit]:
    """The limits that this site has, as far as they are known here."""
    for rule in reload().rules:
        words = reading(rule.given or {})
        for limit in limits_of(rule):
            yield KnownLimit(limit.name, rule.source, words, rule, limit, rule.name)
        yield KnownLimit(
            rule.name, rule.source, words, rule, None, rule.name
        )  # Its rate may be a function.
    look_for_call_sites()
    for name in known_call_sites.names():
        for site in known_call_sites.of(name):
            for limit in site.limits:
                yield KnownLimit(limit.name, "code", site.words(), None, limit, name)
    yield from _of_throttles()


def _of_throttles() -> Iterator[KnownLimit]:
    """Those of Django REST framework's views.

    Known by what they have, as that need not be installed.
    """
    for pattern, _space in url_patterns():
        cls, given = (
            getattr(pattern.callback, "cls", None),
            getattr(pattern.callback, "initkwargs", None) or {},
        )
        for throttle in (
            given.get("throttle_classes") or getattr(cls, "throttle_classes", None) or ()
        ):
            if not isinstance(cls, type) or not hasattr(throttle, "limits_on"):
                continue
            with suppress(Exception):  # A throttle of the project's may ask for more than is here.
                view: Any = cls(**given)
                asked = throttle()
                for limit in asked.limits_on(view):
                    words = reading(
                        {"rate": str(limit.rate), "group": limit.name.partition(":")[0]}
                    )
                    yield KnownLimit(limit.name, "code", words, None, limit, asked.name)
