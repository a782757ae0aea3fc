"""The limits of this site: of rules, in the settings and in the code, and those of a reference."""

from __future__ import annotations

import datetime
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from ..identity.names import name_words
from ..limits.limit import Limit
from ..models import RateLimitOverride, RateLimitRule
from ..rules.describe import describe_spec, rate_words
from ..rules.provider import reload_ruleset
from ..rules.rule import Rule
from ..rules.ruleset import settings_rules
from ..views.call_sites import (
    THROTTLE,
    CallSite,
    constant_limits,
    describe_rule,
    discover_call_sites,
    known_call_sites,
    rate_text,
)
from ..views.inspection import url_patterns
from ..web.reference import parse_reference

_PACKAGE = f"{__package__.partition('.')[0]}."
IDENT = "\0"
"""Stands for the user or address in the identity of a throttle."""


def place_words(name: str) -> str:
    """Return the name of a limit for operators.

    A limit that is named by its view is shown as the view and its line: "Login.dispatch, line 86".
    All other names stay as they are.
    """
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:end]))
        if module is not None:
            line = _find_line(module, tuple(parts[end:]))
            if line:
                return _("%(place)s, line %(line)s") % {
                    "place": ".".join(parts[end:]),
                    "line": line,
                }
            break
    return name_words(name)


@lru_cache(maxsize=4096)
def _find_line(module: Any, path: tuple[str, ...]) -> int:
    """Return the line of a function or a class in a module; 0 if it is not known.

    For a name inside a class that is not a function of the module, it is the line of the class.
    """
    line = 0
    member = module
    for part in path:
        member = vars(member).get(part)
        function = inspect.unwrap(member) if callable(member) else None
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            return function.__code__.co_firstlineno
        if not isinstance(member, type):
            break
        try:
            line = inspect.getsourcelines(member)[1]
        except (OSError, TypeError):  # Its source is not available.
            break
    return line


class LimitInCode(NamedTuple):
    """A limit in the code or in the settings.

    - `name`: the name of the rule that replaces it;
    - `words`: its rates and its key;
    - `place`: where it is, unless the name contains that;
    - `number`: its place in the list of those with the same name;
    - `is_rule`: it is a rule of the settings.
    """

    name: str
    words: str
    place: str = ""
    number: int = 0
    is_rule: bool = False


def limits_in_code() -> list[LimitInCode]:
    """Return all limits in the imported code and in the settings that no rule replaces, by name."""
    rows = RateLimitRule.objects.values_list("name", flat=True)
    names = {*names_in_code(), *(rule.name for rule in settings_rules())}.difference(rows)
    return [limit for name in sorted(names) for limit in limits_named(name)]


def limits_named(name: str) -> list[LimitInCode]:
    """Return the limits with this name: that of the settings, or else those in the code."""
    discover_call_sites()
    rules = [rule for rule in settings_rules() if rule.name == name]
    if rules:
        return [LimitInCode(name, describe_rule(rule.spec), is_rule=True) for rule in rules]
    sites = known_call_sites.get(name)
    if not sites and name in known_call_sites:
        return [LimitInCode(name, _("only the name is known"))]
    return [_limit_at(site, name, number) for number, site in enumerate(sites)]


def _limit_at(site: CallSite, name: str, number: int) -> LimitInCode:
    """Return the limit of a call site, which is in this place among those of the same name."""
    rates = rate_words([rate_text(rate) for rate in site.rates])
    words = _("%(rate)s per %(client)s") % {"rate": rates, "client": site.describe_client()}
    place = ""
    if site.place != name:
        place = place_words(site.place)
    return LimitInCode(name, words, place, number)


def names_in_code() -> list[str]:
    """Return the sorted names under which the imported code and the settings have limits."""
    discover_call_sites()
    names = {rule.name for rule in settings_rules() if rule.template is not None}
    return sorted(names.union(known_call_sites.names()))


def rule_names() -> list[str]:
    """Return the sorted names of all rules, and of the limits in the code."""
    return sorted({*RateLimitRule.objects.values_list("name", flat=True), *names_in_code()})


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


def known_limits() -> Iterator[KnownLimit]:
    """Yield the limits of this site that this process knows, those of rules first."""
    for rule in reload_ruleset().rules:
        if rule.key is not None:
            key = rule.key.name
        else:  # The rule replaces call sites, and counts as they do.
            key = next((site.key for site in known_call_sites.get(rule.name)), "")
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
    yield from _throttle_limits()


def _throttle_limits() -> Iterator[KnownLimit]:
    """Yield the limits of throttles on views of Django REST framework, if it is installed."""
    for pattern, _space in url_patterns():
        view: Any = pattern.callback
        cls: Any = getattr(view, "cls", None)
        if not hasattr(cls, "throttle_classes"):
            continue
        for throttle_class in view.initkwargs.get("throttle_classes", cls.throttle_classes):
            with suppress(Exception):  # It may need more than there is here, or is not ours.
                throttle = throttle_class()
                key, form = _throttle_key(throttle)
                limits = throttle.limits_on(cls(**view.initkwargs))
                name = throttle.name  # The view may set its scope.
                for limit in limits:
                    words = describe_spec({"rate": str(limit.rate), "key": key, "group": name})
                    yield KnownLimit(limit.name, "code", words, None, limit, name, key, form)


def _throttle_key(throttle: Any) -> tuple[str, str]:
    """Return the `key` and the `identity_form` of a throttle's limits.

    Both are empty if the project's own code makes the identities.
    """
    if not type(throttle).get_cache_key.__module__.startswith(_PACKAGE):
        return "", ""
    return "user_or_ip", throttle.cache_format % {"scope": throttle.scope, "ident": IDENT}


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
    reference = parse_reference(text)
    limits: dict[object, KnownLimit] = {}
    overrides: Iterable[RateLimitOverride] = ()
    if reference.is_block:
        overrides = RateLimitOverride.objects.filter(subject__startswith=reference.digest_prefix)
    else:
        for limit in known_limits():
            if reference.is_of(limit.name):
                limits[limit.name, limit.source, limit.reading] = limit
    return OpenedReference(
        reference=reference.text,
        at=datetime.datetime.fromtimestamp(reference.moment, datetime.UTC),
        limits=tuple(limits.values()),
        is_block=reference.is_block,
        overrides=tuple(overrides),
        digest_prefix=reference.digest_prefix,
    )
