"""Descriptors, as Envoy describes requests by them, and which rule of many each one meets.

A descriptor is a domain and a list of entries, a key and a value each, in the order of Envoy's
configuration. A rule has a pattern for them: the same keys in the same order, and for each what its
value has to be. Of all that match, the most specific one wins; a descriptor that no pattern matches
may name its rule instead, as its `generic_key`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django import forms
from django.utils.translation import gettext, gettext_lazy
from django.utils.translation import gettext_noop as _

from ...conf.changes import on_change
from ...extension import RuleField
from ...identity.keys import ALL_CALLERS, EXACT, registered_keys
from ...limits.rate import LimitError, Rate
from ...rules.rule import Rule
from ...rules.ruleset import Ruleset

Entry = tuple[str, str]
"""A key and its value."""
Entries = tuple[Entry, ...]
ANY = "*"
WORD = "descriptor"
"""The field of rules."""
DOMAIN, NAMED, ADDRESS = "domain", "generic_key", "remote_address"
READ_KINDS = ("header", "cookie", "get")
"""The kinds of fields that an entry can stand for."""
CHARGE: Entry = ("charge", "after")
"""The entry by which Envoy's configuration reports units that were used already."""
MAX_ENTRIES = 20
MAX_ENTRY_LENGTH = 500


@dataclass(frozen=True, slots=True)
class ValuePattern:
    """The pattern of a value: the value itself, or, with stars, text with any text in place of each
    star.

    >>> ValuePattern("/api/*.json").matches("/api/v1/x.json"), ValuePattern("a").matches("ab")
    (True, False)
    """

    text: str

    @property
    def is_literal(self) -> bool:
        """Whether it is one value only."""
        return ANY not in self.text

    @property
    def breadth(self) -> tuple[int, int]:
        """The more specific, the less: a value.

        Text with stars, by how much is fixed of it; anything.
        """
        return (0, 0) if self.is_literal else (1, -len(self.text.replace(ANY, "")))

    def matches(self, value: str) -> bool:
        """Whether a value is such a one.

        It takes time in proportion to the value for each star, whatever it is.
        """
        first, *others = self.text.split(ANY)
        if not others:
            return value == first
        *middle, last = others
        if len(value) < len(first) + len(last) or not (
            value.startswith(first) and value.endswith(last)
        ):
            return False
        at, end = len(first), len(value) - len(last)
        for text in middle:
            # The earliest place leaves most room for what follows.
            found = value.find(text, at, end)
            if found < 0:
                return False
            at = found + len(text)
        return True


@dataclass(frozen=True, slots=True)
class DescriptorPattern:
    """The descriptors that a rule is for: of which domain, and with which entries.

    >>> pattern = DescriptorPattern.parse(["domain=edge", "generic_key=login", "remote_address"])
    >>> pattern.matches("edge", (("generic_key", "login"), ("remote_address", "203.0.113.9")))
    True
    >>> pattern.matches("edge", (("generic_key", "login"),))
    False
    """

    domain: ValuePattern
    entries: tuple[tuple[str, ValuePattern], ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> DescriptorPattern:
        """The pattern that is written so, an entry in each text: "key=value", "key=text*", or "key"
        for any value.

        The domain may stand before them. Raises `LimitError`.
        """
        pairs = []
        for text in texts:
            key, separator, value = text.partition("=")
            if not key or key != key.strip() or text != text.strip() or (separator and not value):
                raise LimitError(
                    _("%(entry)r: write key=value, key=text* or, for any value, key"), entry=text
                )
            if (key, value) == CHARGE:
                problem = _(
                    "%(entry)r is for Envoy's configuration: it says that units were used already"
                )
                raise LimitError(problem, entry=text)
            pairs.append((key, ValuePattern(value or ANY)))
        domain = ValuePattern(ANY)
        if pairs and pairs[0][0] == DOMAIN:
            domain = pairs.pop(0)[1]
        if not pairs:
            raise LimitError(_("A descriptor needs at least one entry, such as generic_key=login"))
        if len(pairs) > MAX_ENTRIES or len(max(texts, key=len)) > MAX_ENTRY_LENGTH:
            problem = _("Write at most %(number)d entries, each of at most %(length)d characters")
            raise LimitError(problem, number=MAX_ENTRIES, length=MAX_ENTRY_LENGTH)
        return cls(domain, tuple(pairs))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the entries."""
        return tuple([key for key, _ in self.entries])

    @property
    def breadth(self) -> tuple[tuple[int, int], ...]:
        """The more specific, the less: entry by entry, and the domain last."""
        return (*(value.breadth for _, value in self.entries), self.domain.breadth)

    def matches(self, domain: str, entries: Entries) -> bool:
        """Whether a descriptor is such a one."""
        if len(entries) != len(self.entries) or not self.domain.matches(domain):
            return False
        return all(
            key == named and value.matches(given)
            for (named, value), (key, given) in zip(self.entries, entries, strict=True)
        )


class DescriptorIndex:
    """Rules by the descriptors that they are for, so that a descriptor only meets those of its keys
    and first value.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        by_start: dict[
            tuple[tuple[str, ...], str | None], list[tuple[Any, DescriptorPattern, Rule]]
        ] = {}
        for rule in rules:
            pattern: DescriptorPattern | None = rule.extra.get(WORD)
            if pattern is not None and rule.mode != "off":
                first = pattern.entries[0][1]
                start = (pattern.keys, first.text if first.is_literal else None)
                by_start.setdefault(start, []).append((pattern.breadth, pattern, rule))
        for found in by_start.values():
            found.sort(
                key=lambda one: one[0]
            )  # Of equals, the one that comes first in the order of rules.
        self._by_start: Mapping[Any, Sequence[tuple[Any, DescriptorPattern, Rule]]] = by_start

    def find(self, domain: str, entries: Entries) -> Rule | None:
        """The most specific rule for a descriptor."""
        if not self._by_start or not entries:
            return None
        keys = tuple([key for key, _ in entries])
        for start in ((keys, entries[0][1]), (keys, None)):
            for _breadth, pattern, rule in self._by_start.get(start, ()):
                if pattern.matches(domain, entries):
                    return rule
        return None


def unread(key_name: str, keys: Collection[str]) -> list[str]:
    """The parts of a key that entries of these keys do not have, see `entry_of`.

    >>> (
    ...     unread("ip+header:X-Tenant", ["generic_key", "remote_address"]),
    ...     unread("user_or_ip", ["remote_address"]),
    ... )
    (['header:X-Tenant'], [])
    """
    there = {spelt(key) for key in keys}
    return [
        part for part in key_name.split("+") if part != ALL_CALLERS and entry_of(part) not in there
    ]


@lru_cache(maxsize=1024)
def entry_of(part: str) -> str:
    """The key of the entry that a part of a rule's key reads: the entry of that name, and for
    addresses `remote_address`.

    Empty if no entry has the value: a session, a body.

    >>> entry_of("ip"), entry_of("header:X_Tenant"), entry_of("user"), entry_of("session")
    ('remote_address', 'header:x-tenant', 'user', '')
    """
    if part in ("ip", "user_or_ip"):  # A client without a signed-in user has only an address.
        return ADDRESS
    kind, _, name = part.removeprefix(EXACT).partition(":")
    is_read = part in ("user", "path") or part in registered_keys() or (kind in READ_KINDS and name)
    return spelt(part.removeprefix(EXACT)) if is_read else ""


on_change(("RATELIMIT_KEYS",), entry_of.cache_clear)


@lru_cache(maxsize=1024)
def spelt(key: str) -> str:
    """The key of an entry as it is compared with a part of a rule's key: a header's is the same in
    any case.
    """
    return key.lower().replace("_", "-") if key.lower().startswith("header:") else key


@lru_cache(maxsize=2)
def _index(ruleset: Ruleset) -> DescriptorIndex:
    return DescriptorIndex(ruleset.rules)


def rule_for(ruleset: Ruleset, domain: str, entries: Entries) -> Rule | None:
    """The rule for one of Envoy's descriptors: the most specific one that matches.

    Otherwise the one that its first entry names as `generic_key`, if that has no descriptor of its
    own.
    """
    rule = _index(ruleset).find(domain, entries)
    if rule is None and entries and entries[0][0] == NAMED:
        rule = ruleset.by_name.get(entries[0][1])
        if rule is not None and (WORD in rule.extra or rule.template is None or rule.mode == "off"):
            return None
    return rule


class EntriesField(forms.CharField):
    """Entries of a descriptor, one per line."""

    def __init__(self) -> None:
        super().__init__(
            required=False,
            widget=forms.Textarea(attrs={"rows": 3}),
            help_text=gettext_lazy(
                "For Envoy: one entry per line, in Envoy's order, for example generic_key=login "
                "and remote_address. In "
                "values, * is any text; a key without a value takes any. The first line may be "
                "domain=NAME. If “count "
                "by” is empty, every descriptor is counted by itself."
            ),
        )

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(map(str, value)) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        return [
            line.strip() for line in (super().to_python(value) or "").splitlines() if line.strip()
        ]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(initial or [], data)


def _listed(value: Any) -> list[str]:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple)) or not all(
        isinstance(entry, str) for entry in entries
    ):
        right = "write a list of entries, such as ['generic_key=login', 'remote_address']"
        raise LimitError(f"descriptor is {value!r}; {right}")
    return list(entries)


def _check(rule: Rule) -> None:
    """Raises if its descriptors do not have what the rule counts, or a function would have to be
    called.
    """
    if rule.template is None:
        return
    if callable(rule.template.cost) or not all(
        isinstance(rate, Rate) for rate in rule.template.rates
    ):
        word = "cost" if callable(rule.template.cost) else "rate"
        raise LimitError(
            f"{word}: a function knows only requests of Django's; of descriptors, write a number",
            word,
        )
    for part in () if rule.key is None else unread(rule.key.name, rule.extra[WORD].keys):
        text = _("The descriptor needs an entry %(entry)s to be counted by “%(key)s”.")
        if not entry_of(part):
            text = _("A descriptor cannot be counted by “%(key)s”.")
        raise LimitError(text, "key", entry=entry_of(part), key=part)


def _words(value: Any) -> str:
    return gettext("for Envoy's descriptor %(entries)s") % {"entries": ", ".join(_listed(value))}


DESCRIPTOR = RuleField(
    WORD, gettext_lazy("descriptor"), EntriesField, _listed, DescriptorPattern.parse, _check, _words
)
