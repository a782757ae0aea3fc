"""The limits of this site, and those that a reference may refer to."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from ..limits.limit import Limit
from ..models import RateLimitOverride
from ..rules.describe import describe_spec, key_label
from ..rules.provider import reload_ruleset
from ..rules.rule import Rule
from ..views.call_sites import (
    THROTTLE,
    constant_limits,
    describe_rule,
    discover_call_sites,
    known_call_sites,
)
from ..views.inspection import url_patterns
from ..web.reference import BadReferenceError, parse_reference

__all__ = ["BadReferenceError", "KnownLimit", "OpenedReference", "known_limits", "open_reference"]


_PACKAGE = f"{__package__.partition('.')[0]}."
IDENT = "\0"
"""Stands for the user or address in the identity of a throttle."""


class KnownLimit(NamedTuple):
    """A limit of this site.

    - `name`; `source`: where it is written: "admin", "settings" or "code"; `words`: its sentence if
      it has no rule;
    - `rule`: None if it is written in code; `limit`: the limit itself;
    - `place`: the name that statistics count it under, which several limits share;
    - `key`: the name of the key that it counts by; empty: unknown;
    - `identity_form`: the identity that a throttle makes of a user or address, with `IDENT` for it;
      empty: the identity is that of the key.
    """

    name: str
    source: str
    words: str
    rule: Rule | None
    limit: Limit
    place: str
    key: str = ""
    identity_form: str = ""

    @property
    def reading(self) -> str:
        """Return the sentence that describes the limit."""
        if self.rule is None:
            return self.words
        return describe_rule(self.rule.spec)

    @property
    def key_label(self) -> str:
        """Return what the limit counts by, in words."""
        return key_label(self.key.split("+"))


class OpenedReference(NamedTuple):
    """The contents of a reference.

    - `reference`: the text as shown to the client and written to the log;
    - `at`: when the request was refused;
    - `limits`: the limits in the group, scope or rule that refused; empty if they do not exist any
      more, or their code is not imported in this process;
    - `is_block`: whether a block refused;
    - `overrides`: the overrides of the block's subject that still exist;
    - `digest_prefix`: 6 of the 32 digits of the digest of the identity, or of the block's subject.
    """

    reference: str
    at: datetime.datetime
    limits: tuple[KnownLimit, ...]
    is_block: bool
    overrides: tuple[RateLimitOverride, ...]
    digest_prefix: str


def open_reference(text: str) -> OpenedReference:
    """Parse a reference, in any letter case, with or without hyphens and spaces.

    Raises:
        BadReferenceError: It is not a reference.
    """
    found = parse_reference(text)
    limits: Iterable[KnownLimit] = ()
    overrides: Iterable[RateLimitOverride] = ()
    if found.is_block:
        overrides = RateLimitOverride.objects.filter(subject__startswith=found.digest_prefix)
    else:
        known = [limit for limit in known_limits() if found.is_of(limit.name)]
        limits = {(limit.name, limit.source, limit.reading): limit for limit in known}.values()
    return OpenedReference(
        found.text,
        datetime.datetime.fromtimestamp(found.moment, datetime.UTC),
        tuple(limits),
        found.is_block,
        tuple(overrides),
        found.digest_prefix,
    )


def known_limits() -> Iterator[KnownLimit]:
    """Yield the limits of this site that this process knows, those of rules first."""
    for rule in reload_ruleset().rules:
        keys = [site.key for site in known_call_sites.get(rule.name)]
        if rule.key is not None:
            keys = [rule.key.name]
        key = next(iter(keys), "")
        for limit in constant_limits(rule):
            yield KnownLimit(limit.name, rule.source, "", rule, limit, rule.name, key)
    discover_call_sites()
    for name in known_call_sites.names():
        for site in known_call_sites.get(name):
            if site.kind == THROTTLE:
                continue
            for limit in site.limits:
                words = describe_spec({"rate": str(limit.rate), "key": site.key.split("+")})
                yield KnownLimit(limit.name, "code", words, None, limit, name, site.key)
    yield from _of_throttles()


def _of_throttles() -> Iterator[KnownLimit]:
    """Yield the limits of throttles on views of Django REST framework, if it is installed."""
    for pattern, _space in url_patterns():
        view: Any = pattern.callback
        cls: Any = getattr(view, "cls", None)
        if not hasattr(cls, "throttle_classes"):
            continue
        for throttle in view.initkwargs.get("throttle_classes", cls.throttle_classes):
            with suppress(Exception):  # It may need more than there is here, or is not ours.
                ours = throttle()
                for limit in ours.limits_on(cls(**view.initkwargs)):
                    key, form = _throttle_key(ours)
                    given = {"rate": str(limit.rate), "key": key, "group": ours.name}
                    words = describe_spec(given)
                    yield KnownLimit(limit.name, "code", words, None, limit, ours.name, key, form)


def _throttle_key(throttle: Any) -> tuple[str, str]:
    """Return the key of a throttle and the form of its identities; empty if it is the project's."""
    if not type(throttle).get_cache_key.__module__.startswith(_PACKAGE):
        return "", ""
    return "user_or_ip", throttle.cache_format % {"scope": throttle.scope, "ident": IDENT}
