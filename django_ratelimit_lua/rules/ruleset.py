"""All rules in force, and those that apply to a request or at a call site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from operator import attrgetter
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.functional import cached_property

from ..conf import conf
from ..conf.values import check_weight
from ..process.bounded_map import BoundedMap
from .compiler import compile
from .errors import RuleError
from .overrides import Overrides
from .rule import Rule, Spec
from .snapshot import NO_SNAPSHOT, CompiledEntry, Snapshot, compile_entry

_MAX_CACHED = 4096
_MAX_CACHED_BYTES = 4 * 2**20
_MAX_CACHED_LENGTH = 300
"""Characters of a path that an index caches; longer ones are looked up each time."""


def settings_rules() -> tuple[Rule, ...]:
    """Return the rules of `RATELIMIT_RULES`. Raises `ImproperlyConfigured`."""
    return compile_rules(conf.RULES)


def settings_problems() -> list[str]:
    """Return all problems of `RATELIMIT_RULES`."""
    try:
        settings_rules()
    except RuleError as error:
        return [str(each) for each in error.each]
    except ImproperlyConfigured as error:
        return [str(error)]
    return []


def compile_rules(specs: Sequence[Spec]) -> tuple[Rule, ...]:
    """Compile declared rules, in their order.

    Raises `RuleError` with all invalid rules, and `ImproperlyConfigured` if two have the same name.
    """
    if not isinstance(specs, (list, tuple)):
        raise ImproperlyConfigured("RATELIMIT_RULES must be a list of rules")
    rules: list[Rule] = []
    problems: list[RuleError] = []
    for spec in specs:
        try:
            rules.append(compile(spec))
        except RuleError as error:
            problems.append(error)
    if problems:
        raise RuleError.of_all(problems)
    uses = Counter(rule.name for rule in rules)
    repeated = sorted(name for name, number in uses.items() if number > 1)
    if repeated:
        raise ImproperlyConfigured(
            f"RATELIMIT_RULES: two rules have the name {', '.join(repeated)}; rules of one name "
            "would share a count"
        )
    return tuple(rules)


class PathIndex:
    """Rules indexed by the prefixes of their paths, so that few are compared with each path.

    The results for a bounded number of short paths are cached.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._by_prefix: dict[str, list[int]] = {}
        for position, rule in enumerate(rules):
            for pattern in rule.paths or ("",):
                # Every matching path begins with the prefix, so a pattern is compiled only when a
                # path begins so.
                self._by_prefix.setdefault(pattern.partition("*")[0], []).append(position)
        self._lengths = sorted({len(prefix) for prefix in self._by_prefix})
        self._cached: BoundedMap[str, tuple[Rule, ...]] = BoundedMap(
            _MAX_CACHED,
            _MAX_CACHED_BYTES,
            lambda path, rules: 4 * len(path) + 8 * len(rules),
        )

    def matching(self, path: str) -> tuple[Rule, ...]:
        """Return the rules that match this path, in their order."""
        rules = self._cached.get(path)
        if rules is None:
            candidates = [self._rules[position] for position in self._positions(path)]
            rules = tuple(rule for rule in candidates if rule.matches_path(path))
            if len(path) <= _MAX_CACHED_LENGTH:
                self._cached.put(path, rules)
        return rules

    def _positions(self, path: str) -> list[int]:
        """Return the positions of the rules with a prefix that the path begins with, in order."""
        positions: set[int] = set()
        for length in self._lengths:
            if length > len(path):
                break
            positions.update(self._by_prefix.get(path[:length], ()))
        return sorted(positions)


class Ruleset:
    """The rules of the settings and of the admin at one revision; those of the admin prevail.

    - `fence`: the key under which Redis compares the revision (None: no comparison);
    - `snapshot`: the published snapshot, or `NO_SNAPSHOT`;
    - `overrides`: its overrides;
    - `published`: the revision in Redis: that of these rules, or none if Redis was emptied and they
      could not be restored yet;
    - `before`: the previous rules. Unchanged ones are not compiled again, and unreadable ones stay
      as they were.
    """

    def __init__(
        self,
        declared: Sequence[Rule],
        snapshot: Snapshot = NO_SNAPSHOT,
        fence: bytes | None = None,
        before: Ruleset | None = None,
    ) -> None:
        self.declared = declared
        self._set_snapshot(snapshot, fence)
        self._problems: list[str] = []
        self._entries_by_pk: dict[int | None, CompiledEntry] = {}
        entries = self._compile_entries(before)
        by_name = {rule.name: rule for rule in declared}
        by_name |= {entry.rule.name: entry.rule for entry in entries if entry.rule is not None}
        self.weights: Mapping[str, int] = self._load_weights()
        """The weights of hosts that operators have set, by the name of the host."""
        self.parts: Mapping[str, Any] = snapshot.rules.get("parts", {})
        """The parts of optional apps, by name."""
        self.by_name: Mapping[str, Rule] = by_name
        self.rules = tuple(sorted(by_name.values(), key=attrgetter("order")))
        in_force = [rule for rule in self.rules if rule.mode != "off"]
        self.at_paths = [rule for rule in in_force if rule.group is None and not rule.is_elsewhere]
        """Those in force that are for requests, not for call sites."""
        self._index = PathIndex(self.at_paths)
        self._additional: dict[str, list[Rule]] = {}
        for rule in in_force:
            if rule.group not in (None, rule.name) and rule.template is not None:
                self._additional.setdefault(str(rule.group), []).append(rule)
        self.site_names: AbstractSet[str] = by_name.keys() | self._additional.keys()
        """The names and groups of call sites that rules may apply to."""

    def _compile_entries(self, before: Ruleset | None) -> list[CompiledEntry]:
        """Return the published rules. Those that `before` has already are not compiled again."""
        compiled = before._entries_by_pk if before else {}
        entries = []
        for published in self.snapshot.rules.get("rules", ()):
            # There may be thousands of rules, so no function is called for an unchanged one.
            pk = published.get("id") if isinstance(published, dict) else None
            if type(pk) is not int:
                pk = None
            entry = compiled.get(pk)
            if entry is None or entry.published != published:
                entry = compile_entry(published, entry.rule if entry else None)
            self._entries_by_pk[pk] = entry
            entries.append(entry)
            self._problems += entry.problems
        return entries

    def _set_snapshot(self, snapshot: Snapshot, fence: bytes | None) -> None:
        """Set the revision and the overrides to those of a snapshot."""
        self.fence = fence
        self.snapshot = snapshot
        self.revision = self.published = snapshot.revision
        self.overrides = Overrides(snapshot.overrides)

    def with_overrides_of(self, snapshot: Snapshot, fence: bytes | None) -> Ruleset:
        """Return a ruleset with the same compiled rules, and the overrides of another snapshot.

        The other snapshot has the same rules, so they are not compiled again.
        """
        ruleset = copy(self)
        ruleset._set_snapshot(snapshot, fence)
        return ruleset

    @property
    def problems(self) -> list[str]:
        """Return why parts of the rules and overrides are not applied."""
        return [*self._problems, *self.overrides.problems]

    def __repr__(self) -> str:
        return f"<Ruleset of {len(self.rules)} rules, revision {self.revision.number}>"

    def _load_weights(self) -> dict[str, int]:
        """Return the valid weights of hosts."""
        weights = {}
        for name, weight in self.snapshot.rules.get("weights", {}).items():
            try:
                weights[name] = check_weight(weight)
            except ValueError as error:
                self._problems.append(f"the weight of the host {name!r} is {weight!r}: {error}")
        return weights

    @cached_property
    def _by_limit(self) -> Mapping[str, Rule]:
        """Map the names of limits to their rules, when it is first used."""
        return {name: rule for rule in self.rules for name in rule.limit_names()}

    def rule_of(self, limit_name: str) -> Rule | None:
        """Return the rule that a limit belongs to, by the limit's name."""
        return self._by_limit.get(limit_name)

    def matching(self, request: HttpRequest) -> list[Rule]:
        """Return the rules for a request, in their order, without those for call sites."""
        return [
            rule
            for rule in self._index.matching(request.path_info)
            if rule.meets_conditions(request) and rule.matches_route(request)
        ]

    def replacement_for(
        self, name: str, call_sites: Sequence[Rule], request: HttpRequest
    ) -> list[Rule] | None:
        """Return the rule that replaces the call sites of that name, as a list.

        None if no rule replaces them. The list is empty if the rule is off or exempts them.
        """
        rule = self.by_name.get(name)
        if rule is None or rule.group not in (None, name) or rule.waited:
            return None
        if not rule.matches(request):
            return None
        if rule.template is None or rule.mode == "off":
            return []
        return [rule.replacing(call_sites)]

    def additional_for(self, name: str, request: HttpRequest) -> list[Rule]:
        """Return the rules for call sites of that group, which apply in addition to their own."""
        return [rule for rule in self._additional.get(name, ()) if rule.matches(request)]

    def for_call_sites(
        self, call_sites: Sequence[Rule], group: str, request: HttpRequest
    ) -> Sequence[Rule]:
        """Return the rules that decide call sites.

        Rules of their names replace them, and rules for their group are added.
        """
        chosen: list[Rule] = []
        decided_names: set[str] = set()
        for call_site in call_sites:
            name = call_site.name_at(group)
            namesakes = [other for other in call_sites if other.name_at(group) == name]
            replacement = self.replacement_for(name, namesakes, request)
            if replacement is None:
                chosen.append(call_site)
            if name not in decided_names:
                chosen += replacement or []
                chosen += self.additional_for(name, request)
            decided_names.add(name)
        return chosen
