"""The published rules and overrides, as far as this version of the package can read them.

The overrides are published in sections, so that a change sends and loads one of them only. The
snapshot has one format number. A process uses the rules of its database instead of those of a newer
format, see `rules.provider`, and never publishes over them.

Values may also have been edited by hand. That may neither break a request nor lift a limit: for an
invalid rule, the last valid version stays; without one, the rule is skipped. An invalid override is
left out when it is published, and the log names it. A part with a member of a wrong type is not
read at all, and is published again from the database.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from ..limits.call import NO_RULES, Revision
from .compiler import compile, tier_name
from .errors import RuleError
from .options import place_options
from .rule import Rule

FORMAT = 1
"""The version of the published data. Raise it whenever older versions would omit something of it: a
new field of a rule or an override, or a new member. A process never publishes over a higher format.
"""
WHERE = "Rules of the admin"
SECTIONS = 64
EVERY_SECTION = range(SECTIONS)
_TAG_LENGTH = 8
Part = Mapping[str, Any]
_EMPTY: Part = MappingProxyType({})
Members = Mapping[str, tuple[type, type]]
"""The members of a part: their types, and those of their items or values."""
RULES_MEMBERS: Members = {
    "tag": (str, str),
    "rules": (list, object),
    "weights": (dict, object),
    "parts": (dict, object),
}
SECTION_MEMBERS: Members = {
    "tag": (str, str),
    "fields": (dict, list),
    "blocks": (bool, object),
    "keys": (list, str),
    "value_keys": (list, str),
    "networks": (list, str),
    "entries": (dict, list),
    "problems": (list, str),
}


def section_number(pk: int) -> int:
    """Return the section of the override with a primary key."""
    return pk % SECTIONS


def split_tags(text: str) -> list[str]:
    """Return the tags of sections, which are stored as one text."""
    return [text[at : at + _TAG_LENGTH] for at in range(0, len(text), _TAG_LENGTH)]


def join_tags(sections: Sequence[Part]) -> bytes:
    """Return the tags of sections as one text, with spaces for those that were never loaded."""
    tags = [f"{section.get('tag', ''):{_TAG_LENGTH}.{_TAG_LENGTH}}" for section in sections]
    return "".join(tags).encode("ascii", "replace")


class Snapshot(NamedTuple):
    """The published state at one revision.

    Its parts are the rules and each section of overrides. A part has a revision of its own: its
    `tag`.

    - `database`: the id of its database;
    - `rules`: `rules`, the specs, each with the `id` of its row; `weights`, those that
      operators have set, by host; and `parts`, the data of optional apps by name, see
      `Extension.snapshot`;
    - `overrides`: the sections. `entries` has overrides that have not ended (see `Override.parse`),
      by `value_key`, `client_key` or `network_key`; `networks`, the kinds of their networks;
      `fields`, the values of requests that they refer to, by rule; `blocks` is whether any of them
      blocks for all rules; `problems` is why invalid ones were left out; `keys` are the ids of the
      keys of all digests but those of values, and `value_keys` of those.
    """

    revision: Revision = NO_RULES
    database: str = ""
    rules: Part = _EMPTY
    overrides: Sequence[Part] = (_EMPTY,) * SECTIONS


NO_SNAPSHOT = Snapshot()
"""For a process that has loaded nothing."""


class UnreadableError(ValueError):
    """The published snapshot cannot be used.

    It is invalid, has a newer format, or belongs to another database. In the last two cases, it is
    not replaced (`is_kept`).
    """

    def __init__(self, problem: str, *, is_kept: bool = False) -> None:
        super().__init__(problem)
        self.is_kept = is_kept


class CompiledEntry(NamedTuple):
    """A published rule and what became of it.

    - `published`: its spec, with the `id` of its row;
    - `rule`: the compiled rule or, if it is invalid, its last valid version; None: it is skipped;
    - `problems`: why it, or a tier of it, is not applied.
    """

    published: object
    rule: Rule | None
    problems: Sequence[str] = ()


def compile_entry(published: Any, last_valid: Rule | None) -> CompiledEntry:
    """Compile a published rule; if it is invalid, return its last valid version.

    If only some of its tiers are invalid, they are left out: their groups have its limit.
    """
    try:
        return _compile_valid_tiers(published)
    except RuleError as error:
        problem = str(error)
    except Exception as error:  # Anything, edited by hand.
        problem = f"{WHERE}: {str(published)[:200]}: {type(error).__name__}: {error}"
    if last_valid is not None:
        problem += "; its last valid version stays in force"
    return CompiledEntry(published, last_valid, (problem,))


def _compile_valid_tiers(published: Any) -> CompiledEntry:
    """Compile a published rule, without its invalid tiers. Raises `RuleError` for other fields."""
    spec = dict(published)
    pk = spec.pop("id", None)
    try:
        rule = compile(spec, plain=True, where=WHERE, pk=pk)
    except RuleError as error:
        invalid_tiers = {each.tier for each in error.each}
        if "" in invalid_tiers:  # Something that is not a tier.
            raise
        tiers = [tier for tier in spec["tiers"] if tier_name(tier) not in invalid_tiers]
        rule = compile({**spec, "tiers": tiers}, plain=True, where=WHERE, pk=pk)
        return CompiledEntry(published, rule, (f"{error}; these tiers are skipped",))
    if type(pk) is not int:
        place = f"{WHERE}: rule {rule.name!r}"
        raise RuleError("id", "the id of the row is missing", where=place)
    if rule.is_elsewhere and rule.extra.keys().isdisjoint(place_options()):
        # Its only place is one of an optional app that is not installed.
        return CompiledEntry(published, None)
    return CompiledEntry(published, rule)


def check_format(form: bytes) -> None:
    """Raise `UnreadableError` if this version cannot read that format."""
    if int(form) > FORMAT:
        problem = f"the snapshot has format {int(form)}; this version reads format {FORMAT}"
        raise UnreadableError(problem, is_kept=True)


def parse_part(text: bytes | None, members: Members, known: Part) -> Part:
    """Return a part of the published snapshot.

    Args:
        text: The part as JSON. None: nothing is published. Empty: the part is `known`.
        members: The types of its members.
        known: The part that this process has.

    Raises:
        ValueError: The text is no JSON, a member has a wrong type, or no part is known.
    """
    if text == b"":
        if known is _EMPTY:
            raise ValueError("a part is empty")
        return known
    try:
        part = json.loads(text or b"{}")
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(part, dict):
        raise ValueError(f"invalid part: {str(part)[:100]}")
    for name, (kind, kind_of_items) in members.items():
        if name in part and not _has_type(part[name], kind, kind_of_items):
            raise ValueError(f"{name} is {str(part[name])[:100]}")
    return part


def _has_type(member: Any, kind: type, kind_of_items: type) -> bool:
    """Return whether a member has its type, and its items or values have theirs."""
    if not isinstance(member, kind):
        return False
    if kind_of_items is object:
        return True
    items = member.values() if isinstance(member, dict) else cast(Iterable[object], member)
    return all(type(item) is kind_of_items for item in items)


def parse_sections(texts: Sequence[bytes | None], known: Sequence[Part]) -> list[Part]:
    """Return the sections of the overrides, of which most are empty or unchanged.

    Raises `ValueError`.
    """
    sections: list[Part] = []
    for text, known_section in zip(texts, known, strict=True):
        if text is None:  # Nothing is published.
            sections.append({})
        elif text == b"" and known_section is not _EMPTY:
            sections.append(known_section)
        else:
            sections.append(parse_part(text, SECTION_MEMBERS, known_section))
    return sections
