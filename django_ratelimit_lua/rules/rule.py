"""One rule: a limit, and when it applies. The same words in `RATELIMIT_RULES`, in the admin and in YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest

from ..conf import conf
from ..identity.keys import Key
from ..identity.routes import resolved
from ..limits.call import MOST_COST
from ..limits.options import OPTIONS
from ..limits.rate import Rate
from .descriptors import DescriptorPattern, entry_of, unread
from .methods import ALL, parse_methods
from .paths import path_pattern
from .template import LimitTemplate, compile_rate

FIELDS = (
    "name", "description", "order", "path", "route", "group", "method", "audience", "descriptor", "key", "rate",
    "tiers", "cost", "exempt", "message", "durable", *OPTIONS,
)  # fmt: skip
_KNOWN = frozenset((*FIELDS, "id"))
TIER_FIELDS = ("group", "rate", "burst")
MODES = ("enforce", "shadow", "off")
LONGEST_PATTERN = 1000
MOST_PATTERNS = 50
MOST_RATES = 10
UNWRITABLE = re.compile("[\x00\ud800-\udfff]")
"""What no database takes."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""What breaks a line, or cannot be seen."""
EVERYONE = "everyone"
_GROUP = "group:"
AUDIENCES = (EVERYONE, "anonymous", "authenticated", "staff")

WRONG = (ValueError, TypeError, ArithmeticError)
"""What the parts of a rule raise where they are wrong."""

Outcome = Callable[[HttpRequest, Any], Any]
"""Called with the request and its response, or the exception that was raised instead of one; may be `async`."""


class RuleError(ImproperlyConfigured):
    """A rule that cannot be understood: `field` is wrong because of `problem`."""

    def __init__(self, where: str, field: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.field = field
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a limit applies, and what comes of it. A call site is a rule too, one without a name.

    - `template`: how much, and for whom; None: whatever the rule applies to is exempt;
    - `paths`: prefixes or globs (none: every path); `route`: a URL pattern's name, with its namespaces; `group`: only
      at call sites of that name; `methods` (None: all) and `audience`: whose requests;
    - `descriptor`: which of Envoy's descriptors, see `rules.descriptors`; a rule without a key counts each by itself;
    - `block`, `count_if`, `reset_if`, `cost_after`: as a call site says, see `ratelimit`;
    - `replaces`: the call sites in whose place it stands;
    - `given`: how it was declared; `problems`: what of that had to be left out.
    """

    name: str = ""
    template: LimitTemplate | None
    paths: tuple[str, ...] = ()
    route: str | None = None
    group: str | None = None
    methods: frozenset[str] | None = None
    audience: tuple[str, ...] = (EVERYONE,)
    descriptor: DescriptorPattern | None = None
    mode: str = "enforce"
    order: int = 0
    message: str = ""
    pk: int | None = None
    block: bool = True
    count_if: Outcome | None = None
    reset_if: Outcome | None = None
    cost_after: Outcome | None = None
    replaces: tuple[Rule, ...] = ()
    given: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Where it was declared."""
        return "settings" if self.pk is None else "admin"

    @property
    def settles(self) -> bool:
        """Whether something is left to do when the outcome is known."""
        return self.count_if is not None or self.reset_if is not None or self.cost_after is not None

    @property
    def is_for_descriptors(self) -> bool:
        """Whether it is for Envoy's descriptors, and for no request of Django's."""
        return self.descriptor is not None and not self.paths and self.route is None and self.group is None

    @property
    def key(self) -> Key | None:
        """Whom it counts; None where a call site says, or nobody is counted."""
        return None if self.template is None else self.template.key

    @property
    def _keys(self) -> list[Key]:
        """What it reads of a request: whom it counts, and whom it bans."""
        keys = () if self.template is None else (self.template.key, self.template.ban_key)
        return [key for key in keys if key is not None]

    @property
    def needs_user(self) -> bool:
        """Whether it can only be decided when the user is known."""
        if self.template is None:
            return False
        of_key = any(key.needs_user for key in self._keys)
        return of_key or bool(self.template.tiers) or EVERYONE not in self.audience

    @property
    def needs_session(self) -> bool:
        """Whether it can only be decided when the session is known."""
        return any(key.needs_session for key in self._keys)

    @property
    def needs_route(self) -> bool:
        """Whether whom it counts depends on the route."""
        return any(key.needs_route for key in self._keys)

    def unknown_to_proxies(self, *, is_user_known: bool) -> list[str]:
        """What it goes by that a proxy cannot know of a request: "route", "user", "session", "body", and "end", where
        slots are held until it is over. Where there is any, it does not apply to what a proxy asks about.
        `is_user_known`: a header of the proxy's says who it is."""
        rates = () if self.template is None else self.template.rates
        needs = {
            "route": self.route is not None or self.needs_route,
            "user": self.needs_user and not is_user_known,
            "session": self.needs_session,
            "body": any(key.needs_body for key in self._keys),
            "end": any(isinstance(rate, Rate) and rate.is_slots for rate in rates),
        }
        return [what for what, is_needed in needs.items() if is_needed]

    @property
    def lumps_strangers(self) -> bool:
        """Whether it meets people who are not logged in, and counts them as one."""
        return self.key is not None and lumps_strangers(self.key, self.audience)

    def matches_path(self, path: str) -> bool:
        """Whether a path is one of its own."""
        # A path that is too long for a glob to decide about is limited, and not exempt.
        is_limit = self.template is not None
        return not self.paths or any(path_pattern(text).matches(path, is_limit) for text in self.paths)

    def matches_route(self, request: HttpRequest) -> bool:
        """Whether the request's route is its own."""
        if self.route is None and not self.needs_route:
            return True
        match = resolved(request)
        return self.route is None or (match is not None and match.view_name == self.route)

    def matches(self, request: HttpRequest) -> bool:
        """Whether path and route are its own."""
        return self.matches_path(request.path_info) and self.matches_route(request)

    def matches_method(self, request: HttpRequest) -> bool:
        """Whether the request's method is one of those to be counted."""
        return self.methods is None or request.method in self.methods

    def name_at(self, group: str) -> str:
        """What its limits are named by; `group`: what those of a call site without a group are named by."""
        return self.name or self.group or group

    def in_place_of(self, call_sites: Sequence[Rule]) -> Rule:
        """This rule with what only call sites of its name can know, and with what they have counted by the same key.
        Where several have that name, key, algorithm and outcome are those of the first."""
        first, template = call_sites[0], self.template
        methods = self.methods
        if methods is None and all(call_site.methods is not None for call_site in call_sites):
            methods = frozenset(method for call_site in call_sites for method in call_site.methods or ())
        if template is not None and first.template is not None:
            cost = first.template.cost if template.cost is None else template.cost
            key = template.key or first.template.key
            templates = [call_site.template for call_site in call_sites if call_site.template is not None]
            same = [other for other in templates if key is None or other.key is None or other.key.name == key.name]
            limits = tuple([limit for other in same for limit in other.limits(self.name)])
            template = replace(template.in_place_of(limits), key=key, cost=cost)
        return replace(
            self, template=template, methods=methods, block=first.block, count_if=first.count_if,
            reset_if=first.reset_if, cost_after=first.cost_after, replaces=tuple(call_sites),
        )  # fmt: skip

    def limit_names(self) -> list[str]:
        """The names of the limits that its constant rates become."""
        if self.template is None:
            return []
        templates = [self.template, *(template for _, template in self.template.tiers)]
        return list(dict.fromkeys(limit.name for template in templates for limit in template.limits(self.name)))


def lumps_strangers(key: Key, audience: Sequence[str]) -> bool:
    """Whether all who are not logged in share one count because the key goes by a user that they are not.

    >>> from django_ratelimit_lua.identity.keys import compile_key
    >>> lumps_strangers(compile_key("user"), ["everyone"]), lumps_strangers(compile_key("user_or_ip"), ["everyone"])
    (True, False)
    """
    return key.needs_user and key.lumps_strangers and not {EVERYONE, "anonymous"}.isdisjoint(audience)


_TEXT_WORDS = {
    "route": "the name of a URL pattern, such as 'shop:detail'",
    "group": "the group of a decorator or the scope of a throttle",
    "description": "text",
    "message": "a sentence for who is refused",
}
"""The words whose value is text, and what it is."""


@dataclass(slots=True)
class _Reader:
    """Reads one declaration, and says where something is wrong. What of it can be left out is, unless it is `strict`,
    and is named in `left_out`. Where it is `plain`, code has no place in it."""

    given: Mapping[str, Any]
    where: str
    plain: bool
    strict: bool
    left_out: list[str] = field(default_factory=list)

    def fail(self, word: str, problem: str) -> NoReturn:
        raise RuleError(self.where, word, problem)

    def refuse(self, word: str, right: str) -> NoReturn:
        self.fail(word, f"{word} is {self.given.get(word)!r}{right}")

    def check_text(self, word: str) -> None:
        """Raises for text that no database takes, or that is not what it looks like."""
        for text in _texts(self.given[word]):
            if UNWRITABLE.search(text) or (word not in ("description", "message") and _CONTROL.search(text)):
                self.fail(word, f"{word} is {text!r}: must be text in one line, without control characters")
            if self.plain and word in ("path", "key", "descriptor") and text != text.strip():
                self.fail(word, f"{word} is {text!r}: must not begin or end with a space")

    def paths(self) -> tuple[str, ...]:
        value = self.given.get("path")
        paths = value if isinstance(value, (list, tuple)) else () if value in (None, "") else (value,)
        for path in paths:
            if not isinstance(path, str) or not path.startswith(("/", "*")):
                self.refuse("path", "; write a prefix or glob that begins with /, or a list")
        if len(paths) > MOST_PATTERNS or len(max(paths, key=len, default="")) > LONGEST_PATTERN:
            most = f"at most {MOST_PATTERNS} prefixes or globs of at most {LONGEST_PATTERN} characters"
            self.fail("path", f"path: {most}")
        return tuple(paths)

    def descriptor(self) -> DescriptorPattern | None:
        value = self.given.get("descriptor")
        texts = [value] if isinstance(value, str) and value else value
        if not texts:
            return None
        if not (isinstance(texts, (list, tuple)) and all(isinstance(text, str) for text in texts)):
            self.refuse("descriptor", "; write a list of entries, such as ['generic_key=login', 'remote_address']")
        try:
            return DescriptorPattern.parse(texts)
        except ValueError as error:
            self.fail("descriptor", f"descriptor: {error}")

    def check_readable(self, rule: Rule) -> None:
        """Raises where the descriptors of a rule do not have what its key counts, or a function is to be asked."""
        if rule.descriptor is None or rule.template is None:
            return
        if callable(rule.template.cost) or not all(isinstance(rate, Rate) for rate in rule.template.rates):
            field = "cost" if callable(rule.template.cost) else "rate"
            self.fail(field, f"{field}: a function knows only requests of Django's; of descriptors, write a number")
        if rule.key is not None:
            for part in unread(rule.key.name, rule.descriptor.keys):
                entry = entry_of(part)
                right = f"it needs an entry {entry!r}" if entry else "no descriptor has that"
                self.fail("key", f"key: the descriptor cannot be counted by {part!r}; {right}")

    def audience(self) -> tuple[str, ...]:
        value = self.given["audience"]
        names = [value] if isinstance(value, str) else value
        if not (isinstance(names, (list, tuple)) and names and all(map(_is_audience, names))):
            self.refuse("audience", f"; choose one of: {', '.join(AUDIENCES)}, group:NAME, or a list of groups")
        if self.plain and len(names) > 1 and not all(name.startswith(_GROUP) for name in names):
            self.refuse("audience", ": a rule of the admin is for one of them, or for groups; make a rule of each")
        return tuple(names)

    def check_key(self) -> None:
        """Raises for a key that names code."""
        value = self.given.get("key")
        for part in value if isinstance(value, (list, tuple)) else () if value is None else (value,):
            if not isinstance(part, str):
                self.refuse("key", "; write a key such as 'ip', or a list of keys")
            if "." in part and ":" not in part:
                self.refuse("key", "; callables can only be named in the settings")
            if "+" in part:
                self.refuse("key", ": + joins keys; a name that has one can only stand in the settings")

    def template(self, name: str, group: str | None, *, needs_key: bool) -> LimitTemplate:
        given = self.given
        key, rate, cost = given.get("key"), given["rate"], given.get("cost")
        if self.plain:
            self.check_key()
            if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int)):
                self.refuse("cost", f"; write a whole number from 0 to {MOST_COST}")
        if not key and needs_key:
            self.fail("key", "needs a key: whom to count, such as 'ip'")
        if not isinstance(rate, str) and (self.plain or isinstance(rate, list)):
            rate = self.rates(rate)
        elif self.plain:
            rate = Rate.parse(rate)
        options: Any = {option: given[option] for option in OPTIONS if option in given}
        if given.get("mode") == "off":
            options["mode"] = "enforce"  # What is off is checked as if it was on.
        if not self.strict and options.get("lease") and (options.get("algorithm") or conf.ALGORITHM) == "leaky_bucket":
            del options["lease"]
            self.left_out.append(f"{self.where}: a leaky bucket has no lease: each hit is asked for")
        template = LimitTemplate.compiled(name, key, rate, cost, options)
        if given.get("tiers") is None:
            return template

        def tier(rates: list[Any], burst: Any) -> LimitTemplate:
            return LimitTemplate.compiled(name, key, rates, cost, options | burst)

        return replace(template, tiers=self.tiers(tier))

    def rates(self, value: Any) -> list[Any]:
        """One rate, or several that hold together: each for a period of its own, as of two for one the smaller decides
        alone. Raises also `LimitError`."""
        rates = value if isinstance(value, list) else [value]
        if self.plain and not (rates and all(isinstance(rate, str) for rate in rates)):
            self.fail("rate", f"rate is {value!r}; write a rate, such as '100/m', or a list of rates")
        if len(rates) > MOST_RATES:
            self.fail("rate", f"rate: at most {MOST_RATES} rates")
        compiled = [Rate.parse(rate) for rate in rates] if self.plain else [compile_rate(rate) for rate in rates]
        periods: dict[int, Rate] = {}
        for rate in compiled:
            if isinstance(rate, Rate) and periods.setdefault(rate.period_us, rate) is not rate:
                both = f"'{periods[rate.period_us]}' and '{rate}'"
                self.fail("rate", f"rate: {both} are for one period, of which the smaller decides alone; write one")
        return compiled

    def tiers(self, compiled: Callable[[Any, Any], LimitTemplate]) -> tuple[tuple[str, LimitTemplate], ...]:
        """The same rule with other numbers for Django groups, the most favourable first."""
        value = self.given["tiers"]
        if not isinstance(value, (list, tuple)):
            self.refuse("tiers", "; write a list of {'group': ..., 'rate': ...}")
        tiers: dict[str, LimitTemplate] = {}
        for tier in value:
            try:
                group, template = self._tier(tier, compiled)
                if group in tiers:
                    self.fail("tiers", f"two tiers are for one group, {group!r}")
                tiers[group] = template
            except RuleError as error:
                if self.strict:
                    raise
                self.left_out.append(f"{error} (a tier, which is left out; its group has the numbers of the rule)")
        return tuple(sorted(tiers.items(), key=lambda tier: _favour(tier[1]), reverse=True))

    def _tier(self, tier: Any, compiled: Callable[[Any, Any], LimitTemplate]) -> tuple[str, LimitTemplate]:
        named = isinstance(tier, Mapping) and isinstance(tier.get("group"), str) and tier["group"]
        if not named or "rate" not in tier or set(tier) - set(TIER_FIELDS):
            self.fail("tiers", f"tier {tier!r}; write {{'group': NAME, 'rate': '1000/m'}}, if need be with 'burst'")
        try:
            rates = self.rates(tier["rate"])
            if not all(isinstance(rate, Rate) for rate in rates) or not rates:
                raise ValueError(f"rate is {tier['rate']!r}")
        except WRONG as error:
            self.fail("tiers", f"tier of {tier['group']!r}: a tier has constant rates: {error}")
        except RuleError as error:
            self.fail("tiers", f"tier of {tier['group']!r}: {error.problem}")
        burst = {"burst": tier["burst"]} if tier.get("burst") is not None else {}
        try:
            return str(tier["group"]), compiled(rates, burst)
        except WRONG as error:  # Nothing but its numbers can be wrong.
            self.fail("tiers", str(error))


def _is_audience(name: Any) -> bool:
    return isinstance(name, str) and (name in AUDIENCES or (name.startswith(_GROUP) and name != _GROUP))


def _favour(template: LimitTemplate) -> tuple[float, int]:
    rates = [rate for rate in template.rates if isinstance(rate, Rate)]
    slowest = min(rates, key=lambda rate: rate.limit / (rate.period_us or 1))
    return slowest.limit / (slowest.period_us or 1), template.options.get("burst") or slowest.limit


def _texts(value: Any) -> Iterator[str]:
    """All text in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def meant_by(word: object) -> str | None:
    """The word of a rule that one that there is not nearly is; None: it is like none.

    >>> meant_by("paths"), meant_by("url")
    ('path', None)
    """
    return next(iter(get_close_matches(str(word), FIELDS, n=1, cutoff=0.7)), None)


def compile_rule(
    given: Mapping[str, Any], *, plain: bool = False, strict: bool = True, where: str = "RATELIMIT_RULES"
) -> Rule:
    """A rule as it is declared. Raises `RuleError` that names rule and field.

    The only judge of a rule, wherever it is written: what it takes can be applied to every request.

    With `plain`, nothing in it may name code: no callable and no dotted path, as for whoever may edit rules in the
    admin but not the site's code. Without `strict`, a tier that contradicts its rule, or the lease of a leaky bucket,
    does not take the rule with it: it is left out, and named in the rule's `problems`. So it is for a rule that is in
    force already.

    >>> rule = compile_rule({"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"})
    >>> rule.paths, rule.key.name
    (('/api/',), 'ip')
    """
    if not isinstance(given, Mapping):
        raise RuleError(where, "name", f"{given!r} is no rule; write a dict with {', '.join(FIELDS)}")
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise RuleError(where, "name", f"the rule {dict(given)!r} needs a name")
    reader = _Reader(given, f"{where}: rule {name!r}", plain, strict)
    unknown = sorted(given.keys() - _KNOWN, key=str)
    if unknown:
        meant = [match for word in unknown if (match := meant_by(word)) is not None]
        hint = f"; did you mean {', '.join(meant)}?" if meant else ""
        reader.fail("name", f"unknown {', '.join(map(str, unknown))}; known are {', '.join(FIELDS)}{hint}")
    for word, value in given.items():
        # Nearly every value is a number, or text that anybody may write anywhere.
        is_bare, is_text = value is None or isinstance(value, (int, float)), isinstance(value, str)
        if not (is_bare or (is_text and value.isprintable() and value == value.strip())):
            reader.check_text(word)
        if word in _TEXT_WORDS and value is not None and not (is_text and (value or word == "description")):
            reader.refuse(word, f"; write {_TEXT_WORDS[word]}")
    mode, order, exempt = given.get("mode", "enforce"), given.get("order", 0), given.get("exempt")
    route, group = given.get("route"), given.get("group")
    if mode not in MODES:
        reader.fail("mode", f"mode is {mode!r}; choose one of: {', '.join(MODES)}")
    if isinstance(order, bool) or not isinstance(order, int):
        reader.refuse("order", "; write a whole number")
    if exempt is not None and not isinstance(exempt, bool):
        reader.refuse("exempt", "; write true or false")
    if given.get("durable") is not None and not isinstance(given["durable"], bool):
        reader.refuse("durable", "; write true or false")
    paths, descriptor = reader.paths(), reader.descriptor()
    if not exempt and not paths and route is None and group is None and descriptor is None:
        group = name
    template, methods = None, None
    audience: tuple[str, ...] = (EVERYONE,)
    if exempt:
        if not paths and route is None and descriptor is None:
            reader.fail("exempt", "exempts everything; name a path, a route or a descriptor")
        if plain:
            # What has no meaning where there are no limits is kept all the same, and has to be what it is elsewhere.
            reader.check_key()
            if "audience" in given:
                reader.audience()
            if given.get("tiers") is not None:
                reader.tiers(lambda rates, burst: LimitTemplate(None, tuple(rates)))
    elif given.get("rate") is None:
        reader.fail("rate", "needs a rate, such as '100/m' (or exempt=True)")
    else:
        try:
            is_for_descriptors = descriptor is not None and not paths and route is None and group is None
            template = reader.template(name, group, needs_key=group != name and not is_for_descriptors)
            if "audience" in given:
                audience = reader.audience()
            if given.get("method") is not ALL:
                methods = parse_methods(given["method"])
        except WRONG as error:  # With the rate, unless it names another field.
            reader.fail(getattr(error, "field", "") or "rate", str(error))
    rule = Rule(
        name=name, template=template, paths=paths, route=route, group=group, methods=methods, audience=audience,
        descriptor=descriptor, mode=mode, order=order, message=given.get("message") or "", pk=given.get("id"),
        given=given, problems=tuple(reader.left_out),
    )  # fmt: skip
    reader.check_readable(rule)
    return rule
