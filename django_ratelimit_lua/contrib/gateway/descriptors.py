"""Descriptors, by which the protocol describes requests, and the rule that matches each.

A descriptor is a domain and a list of entries in the order of Envoy's configuration. An entry is a
key and a value. A rule has a pattern for descriptors: the same keys in the same order, with a
pattern for each value. If several match, the most specific one wins.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from ...identity.keys import ALL_CALLERS, registered_keys, split_prefix
from ...limits.options import Option
from ...limits.rate import LimitError, Rate
from ...limits.values import Lines
from ...rules.rule import EVERYONE, Rule
from ...rules.ruleset import Ruleset
from ...rules.template import LimitTemplate

Entry = tuple[str, str]
"""A key and its value."""
Entries = tuple[Entry, ...]
ANY = "*"
WORD = "descriptor"
"""The option of rules."""
DOMAIN = "domain"
ADDRESS = "remote_address"
READ_KINDS = ("header", "cookie", "get")
"""The kinds of fields that an entry can stand for."""
CHARGE: Entry = ("charge", "after")
"""The entry by which Envoy's configuration reports units that were used already."""
MAX_ENTRIES = 20
MAX_ENTRY_LENGTH = 500


def _matches(pattern: str, value: str) -> bool:
    """Return whether a pattern matches a value; a star in it matches any text.

    >>> _matches("/api/*.json", "/api/v1/x.json"), _matches("a", "ab")
    (True, False)
    """
    return pattern == value or (ANY in pattern and _compile_glob(pattern).match(value) is not None)


@lru_cache(maxsize=4096)
def _compile_glob(text: str) -> re.Pattern[str]:
    """Compile a glob in which only stars are special. `fnmatch` avoids backtracking."""
    return re.compile(fnmatch.translate(re.sub(r"[?\[]", r"[\g<0>]", text)))


class DescriptorPattern(NamedTuple):
    """The descriptors that a rule applies to: their keys, and patterns of values and domain.

    >>> pattern = DescriptorPattern.parse(["domain=edge", "generic_key=login", "remote_address"])
    >>> pattern.keys
    ('generic_key', 'remote_address')
    >>> pattern.matches("edge", ["login", "203.0.113.9"])
    True
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    domain: str = ANY

    @classmethod
    def parse(cls, texts: Sequence[str]) -> DescriptorPattern:
        """Parse entries such as "key=value", "key=text*" or, for any value, "key".

        A domain may precede them. Raises `LimitError`.
        """
        entries = [_parse_entry(text) for text in texts]
        domain = ANY
        if entries and entries[0][0] == DOMAIN:
            domain = entries.pop(0)[1]
        if not entries:
            raise LimitError(_("A descriptor needs at least one entry, such as generic_key=login"))
        if len(entries) > MAX_ENTRIES or len(max(texts, key=len)) > MAX_ENTRY_LENGTH:
            problem = _("Write at most %(number)d entries, each of at most %(length)d characters")
            raise LimitError(problem, number=MAX_ENTRIES, length=MAX_ENTRY_LENGTH)
        keys, values = zip(*entries, strict=True)
        return cls(keys, values, domain)

    @property
    def breadth(self) -> list[tuple[bool, int]]:
        """Return pairs that are less for a more specific pattern.

        Entries are compared in order, and then the domain: an exact value is the most specific, and
        other patterns are compared by the length of their fixed text.
        """
        return [(ANY in text, -len(text.replace(ANY, ""))) for text in (*self.values, self.domain)]

    def matches(self, domain: str, values: Sequence[str]) -> bool:
        """Return whether the pattern matches a descriptor that has the same keys."""
        return _matches(self.domain, domain) and all(map(_matches, self.values, values))


def _parse_entry(text: str) -> Entry:
    """Return the key of an entry and the pattern of its value. Raises `LimitError`."""
    key, separator, value = text.partition("=")
    if not key or key != key.strip() or text != text.strip() or (separator and not value):
        raise LimitError(
            _("%(entry)r: write key=value, key=text* or, for any value, key"), entry=text
        )
    if (key, value) == CHARGE:
        problem = _("%(entry)r is reserved: Envoy sends it to charge units that were already used")
        raise LimitError(problem, entry=text)
    return key, value or ANY


def _entry_for(part: str) -> str:
    """Return the key of the entry that a part of a rule's key reads.

    It is the entry of the same name, or `remote_address` for addresses. It is empty if no entry can
    contain the value, such as a session or a body.

    >>> _entry_for("ip"), _entry_for("header:X_Tenant"), _entry_for("user"), _entry_for("session")
    ('remote_address', 'header:x-tenant', 'user', '')
    """
    if part in ("ip", "user_or_ip"):  # A client without a signed-in user has only an address.
        return ADDRESS
    _prefix, field = split_prefix(part)
    kind, _, name = field.partition(":")
    if part in ("user", "path", *registered_keys()) or (kind in READ_KINDS and name):
        return _normalise_key(field)
    return ""


def _normalise_key(key: str) -> str:
    """Return the canonical key of an entry. Names of headers ignore case."""
    if key.lower().startswith("header:"):
        return key.lower().replace("_", "-")
    return key


@lru_cache(maxsize=2)
def _index_rules(ruleset: Ruleset) -> Mapping[object, Sequence[tuple[DescriptorPattern, Rule]]]:
    """Return the rules by the keys and first value of their descriptors, most specific first."""
    index: dict[object, list[tuple[DescriptorPattern, Rule]]] = {}
    for rule in ruleset.rules:
        pattern: DescriptorPattern | None = rule.extra.get(WORD)
        if pattern is not None and rule.mode != "off":
            first = pattern.values[0]
            if ANY in first:
                first = ANY
            index.setdefault((pattern.keys, first), []).append((pattern, rule))
    for rules in index.values():
        # Of equals, the one that comes first in the order of rules.
        rules.sort(key=lambda item: item[0].breadth)
    return index


def find_rule(ruleset: Ruleset, domain: str, entries: Entries) -> Rule | None:
    """Return the most specific rule that matches a descriptor; None if no rule does."""
    keys, values = zip(*entries, strict=True)
    for first in (values[0], ANY):
        for pattern, rule in _index_rules(ruleset).get((keys, first), ()):
            if pattern.matches(domain, values):
                return rule
    return None


def _check_rule(rule: Rule) -> None:
    """Raise `LimitError` if a rule needs a value that its descriptors do not contain."""
    if rule.is_elsewhere:
        _check_conditions(rule)
    if rule.template is not None:
        _check_template(rule.template)
        _check_key(rule)


def _check_conditions(rule: Rule) -> None:
    """Raise `LimitError` if a rule that is only for descriptors has a condition for requests."""
    text = _("A rule with a descriptor only has no method, audience or condition")
    if rule.methods is not None:
        raise LimitError(text, "method")
    if EVERYONE not in rule.audience:
        raise LimitError(text, "audience")
    for option in ("user_agent", "waited", "network"):
        if option in rule.extra:
            raise LimitError(text, option)


def _check_template(template: LimitTemplate) -> None:
    """Raise `LimitError` if limits cannot be applied to a descriptor."""
    if template.tiers:
        text = _("A rule with a descriptor has no tiers: write a rule for each, with its own entry")
        raise LimitError(text, "tiers")
    functions = "a function needs a Django request; for descriptors, use a constant"
    if callable(template.cost):
        raise LimitError(f"cost: {functions}", "cost")
    if any(callable(rate) for rate in template.rates):
        raise LimitError(f"rate: {functions}", "rate")
    if any(isinstance(rate, Rate) and rate.is_slots for rate in template.rates):
        raise LimitError(
            _("Descriptors cannot hold slots: limit a view, or use a RateLimiter"), "rate"
        )


def _check_key(rule: Rule) -> None:
    """Raise `LimitError` if a part of the rule's key has no entry in its descriptors."""
    if rule.key is None:
        return
    entries = {_normalise_key(key) for key in rule.extra[WORD].keys}
    for part in rule.key.name.split("+"):
        entry = _entry_for(part)
        if part == ALL_CALLERS or entry in entries:
            continue
        text = _("A descriptor cannot be counted by “%(key)s”")
        if entry:
            text = _("The descriptor needs an entry %(entry)s to be counted by “%(key)s”")
        raise LimitError(text, "key", entry=entry, key=part)


def _describe_descriptor(value: object) -> str:
    """Return where a rule applies, for its sentence."""
    entries = ", ".join(_check_entries(value))
    return gettext("for Envoy's descriptor %(entries)s") % {"entries": entries}


_check_entries = Lines("['generic_key=login', 'remote_address']")
DESCRIPTOR = Option(
    _check_entries,
    _("descriptor"),
    _(
        "For Envoy: one entry per line, in Envoy's order, for example generic_key=login and "
        "remote_address. In values, * is any text; a key without a value takes any. The first "
        "line may be domain=NAME. If “count by” is empty, every descriptor is counted by itself."
    ),
    compile=DescriptorPattern.parse,
    check_rule=_check_rule,
    describe=_describe_descriptor,
    is_place=True,
)
