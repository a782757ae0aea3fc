"""Compile rules from their specs.

A rule is one document, its spec: a mapping with the same fields in `RATELIMIT_RULES`, in the admin
and in YAML. `compile` is the only check of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType
from typing import Any, TypeVar

from django.utils.translation import gettext_noop as _

from ..conf import conf
from ..extension import FIELDS_OF_ANNEXES, annex_options, install_hint
from ..identity.keys import Key, compile_key
from ..limits.options import OPTIONS, Option, read_options
from ..limits.rate import LimitError, Rate
from ..limits.values import Check, Choice, Text, Whole
from .conditions import parse_methods
from .errors import RuleError
from .options import MAX_LENGTHS, MODES, NAMES, field_names, has_value, place_options, rule_options
from .rule import EVERYONE, Rule, Spec, is_storable
from .template import CompiledRate, LimitTemplate, as_list, as_rates, compile_rate, tier_key

TIER_FIELDS = ("group", "rate", "burst")
MAX_PATTERN_LENGTH = 1000
MAX_PATTERNS = 50
MAX_RATES = 10
_NAMES = ("name", "route", "group")
_CONTROL_CHARACTERS = "[\x00-\x1f\x7f-\x9f\u2028\u2029]"
"""Characters that break a line, or are invisible."""
_PATH = re.compile(r"(/|\*\*|\*/)[^?#]*")
_GROUP = "group:"
AUDIENCES = tuple(NAMES["audience"])

_ERRORS = (ValueError, TypeError, ArithmeticError)
"""Errors that the parts of a rule raise."""
_CHECKS: Mapping[str, Check[Any]] = {
    "route": Text("the name of a URL pattern, such as 'shop:detail'"),
    "group": Text("the group of a decorator or the scope of a throttle"),
    "description": Text("text", may_be_empty=True),
    "message": Text("a sentence for refused clients"),
    "mode": Choice(MODES),
    "order": Whole(-(2**31), 2**31 - 1),
}
"""The checks of columns that need no other field."""
T = TypeVar("T")
_CompileRates = Callable[[object, object], LimitTemplate]
"""Compiles rates, and options for them in addition to those of the rule."""


class _SpecCompiler:
    """Compiles one spec, and collects its problems.

    If `plain` is true, the spec may not refer to code, and must fit into a row.
    """

    def __init__(self, spec: Spec, where: str, *, plain: bool) -> None:
        self.spec = spec
        self.where = where
        self.plain = plain
        self.problems: list[RuleError] = []

    def attempt(self, field: str, function: Callable[..., T], *arguments: object) -> T | None:
        """Return the result of a function. If it raises, record the problem, and return None.

        The problem is one of `field`, unless the error names another field.
        """
        try:
            return function(*arguments)
        except _ERRORS as error:
            self.problems.append(RuleError.of(field, error, where=self.where))
            return None

    def check_value(self, field: str, check: Check[Any]) -> Any:
        """Return the value of a field as its check returns it; None if the field is not set."""
        value = self.spec.get(field)
        if value is None:
            return None
        try:
            return check(value)
        except LimitError:
            raise
        except ValueError as error:
            raise LimitError(f"{field} is {value!r}: {error}") from None

    def compile_rule(self, name: str, pk: int | None) -> Rule:
        """Return the rule. Raises `RuleError` with all problems of the spec."""
        spec = self.spec
        self.check_values()
        group = spec.get("group")
        has_place = bool(spec.get("path")) or spec.get("route") is not None or group is not None
        is_elsewhere = not has_place and any(map(spec.get, place_options()))
        if not (has_place or is_elsewhere or spec.get("exempt")):
            group = name  # The rule replaces the call sites of its name.
        extra = self.compile_options()
        cost = extra.get("cost", spec.get("cost"))
        needs_key = group != name and not is_elsewhere
        rule = Rule(
            name=name,
            paths=self.attempt("path", self.compile_paths) or (),
            route=spec.get("route"),
            group=group,
            audience=self.attempt("audience", self.compile_audience) or (EVERYONE,),
            methods=self.attempt("method", self.compile_methods),
            template=self.compile_template(name, cost, needs_key=needs_key),
            extra=extra,
            conditions=[extra[field] for field in ("user_agent", "network") if extra.get(field)],
            waited=extra.get("waited", 0.0),
            is_elsewhere=is_elsewhere,
            mode=spec.get("mode") or "enforce",
            order=spec.get("order") or 0,
            message=spec.get("message") or "",
            pk=pk,
            spec=spec,
        )
        if None not in extra.values():  # All options are valid.
            for field in extra:
                self.attempt(field, rule_options()[field].check_rule, rule)
        if self.problems:
            raise RuleError.of_all(self.problems)
        return rule

    def check_values(self) -> None:
        """Check the values that need no other field."""
        for field, value in self.spec.items():
            for text in _texts_in(value):
                self.attempt(field, self.check_text, field, text)
        for field, check in _CHECKS.items():
            if field in self.spec:
                self.attempt(field, self.check_value, field, check)
        if not self.plain:
            return
        for field, maximum in MAX_LENGTHS.items():
            if self.spec.get(field):
                self.attempt(field, self.check_length, self.spec[field], maximum)

    def check_exemption(self) -> None:
        """Check that an exemption is not for all requests, and its fields that have no effect."""
        spec = self.spec
        if not any(map(spec.get, ("path", "route", *place_options()))):
            text = _("An exemption needs a path or a route; otherwise all requests would be exempt")
            self.problems.append(RuleError("exempt", text, where=self.where))
        if not self.plain:
            return
        self.attempt("key", self.compile_key, False)
        if spec.get("rate") is not None:
            self.attempt("rate", self.compile_rates, spec["rate"])
        self.attempt(
            "tiers", self.compile_tiers, lambda rates, _options: LimitTemplate(None, rates)
        )
        for field, option in OPTIONS.items():
            if field not in _CHECKS:
                self.attempt(field, self.check_value, field, option.check)

    def check_text(self, field: str, text: str) -> None:
        """Raise if the text of a field has characters that are invisible or cannot be stored."""
        if not is_storable(text) or _breaks_line(field, text):
            raise LimitError(
                f"{field} is {text!r}: must be text in one line, without control characters"
            )
        if self.plain and _has_invisible_parts(field, text):
            raise LimitError(
                _("Enter the text without spaces at its ends, and without invisible characters.")
            )

    def check_length(self, value: object, maximum: int) -> None:
        """Raise if the text of a field does not fit into its column."""
        length = len(", ".join(map(str, as_list(value))))
        if length > maximum:
            raise LimitError(
                _("At most %(most)d characters fit; these are %(length)d"),
                most=maximum,
                length=length,
            )

    def compile_paths(self) -> tuple[str, ...]:
        """Return the prefixes and patterns of paths."""
        value = self.spec.get("path")
        if value in (None, ""):
            return ()
        paths = as_list(value)
        for path in paths:
            if isinstance(path, (int, float)):
                raise LimitError(f"path is {path!r}; write text: '/{path}'")
            if not isinstance(path, str) or not _PATH.fullmatch(path):
                raise LimitError(
                    _(
                        "path is %(path)r: write a prefix or pattern that begins with / or **, "
                        "without ? and #"
                    ),
                    path=path,
                )
        if len(paths) > MAX_PATTERNS or len(max(paths, key=len, default="")) > MAX_PATTERN_LENGTH:
            text = _("Write at most %(number)d paths, each of at most %(length)d characters")
            raise LimitError(text, number=MAX_PATTERNS, length=MAX_PATTERN_LENGTH)
        return tuple(paths)

    def compile_options(self) -> dict[str, Any]:
        """Return the compiled values of the options that are not options of a limit.

        The value of an invalid option is None.
        """
        return {
            field: self.attempt(field, self.compile_option, field, option)
            for field, option in rule_options().items()
            if has_value(field, self.spec.get(field))
        }

    def compile_option(self, field: str, option: Option) -> object:
        """Return the compiled value of an option. In the settings, a cost may be a function."""
        if field == "cost" and not self.plain:
            return self.spec[field]
        return option.compile(self.check_value(field, option.check))

    def compile_methods(self) -> frozenset[str] | None:
        """Return the HTTP methods to count (None: all). An exemption is for all."""
        methods = parse_methods(self.spec.get("method"))
        if self.spec.get("exempt"):
            return None
        return methods

    def compile_audience(self) -> tuple[str, ...]:
        """Return the names of the audience, which contains `EVERYONE` by default."""
        names = as_list(self.spec.get("audience", EVERYONE))
        if not names or not all(map(_is_audience, names)):
            right = f"choose one of: {', '.join(AUDIENCES)}, group:NAME, or a list of groups"
            raise LimitError(f"audience is {names!r}; {right}")
        if self.plain and len(names) > 1 and not all(name.startswith(_GROUP) for name in names):
            right = "a rule of the admin is for one audience, or for groups: make a rule for each"
            raise LimitError(f"audience is {names!r}; {right}")
        return tuple(names)

    def compile_key(self, needs_key: bool) -> Key | None:
        """Return the key to count by; None: the rule needs no key of its own.

        Raises if a needed key is missing, and if a key is unknown or refers to code.
        """
        value = self.spec.get("key")
        if not value and needs_key:
            raise LimitError(_("Choose what to count by, for example ip: the client address"))
        if not value:
            return None
        if self.plain:
            for part in as_list(value):
                self.check_plain_key(part)
        return compile_key(value)

    def check_plain_key(self, part: object) -> None:
        """Raise if a part of the key is not text, or refers to code."""
        if not isinstance(part, str):
            raise LimitError(f"key is {part!r}; write a key such as 'ip', or a list of keys")
        if "." in part and ":" not in part:
            text = _("key is %(key)r: callables are only allowed in the settings")
            raise LimitError(text, key=part)
        if "+" in part:
            right = "+ joins keys: a name that contains + is only allowed in the settings"
            raise LimitError(f"key is {part!r}; {right}")

    def compile_template(self, name: str, cost: Any, *, needs_key: bool) -> LimitTemplate | None:
        """Return the limits; None if the rule is exempt, or they are invalid."""
        spec = self.spec
        if spec.get("exempt"):
            self.check_exemption()
            return None
        options: Any = {option: spec[option] for option in OPTIONS if spec.get(option) is not None}
        if spec.get("mode") not in ("enforce", "shadow"):
            options.pop("mode", None)  # A rule that is off is checked as if it was on.
        key = self.attempt("key", self.compile_key, needs_key)
        rates = self.attempt("rate", self.compile_rates, spec.get("rate"))
        if rates is None:  # The rates are invalid: check only that the options are consistent.
            self.attempt("", read_options, {"algorithm": conf.ALGORITHM, **options})
            return None

        def compile_with(rates: object, tier_options: object) -> LimitTemplate:
            return LimitTemplate.compiled(name, key, rates, cost, options | tier_options)

        template = self.attempt("rate", compile_with, rates, {})
        if template is None:
            return None
        number_of_bans = len(template.ban_key_parts(name))

        def compile_tier(rates: object, tier_options: object) -> LimitTemplate:
            """Return the template of a tier. Raises `LimitError` if the rule's bans do not fit."""
            tier = compile_with(rates, tier_options)
            if number_of_bans not in (0, len(tier.rates)):
                text = _(
                    "A ban holds in every tier: write as many rates as the rule has (%(number)d)"
                )
                raise LimitError(text, number=number_of_bans)
            return tier

        tiers = self.attempt("tiers", self.compile_tiers, compile_tier)
        return template.with_tiers(tiers) if tiers else template

    def compile_rates(self, value: object) -> list[CompiledRate]:
        """Return the rates, which are decided together. Raises also `LimitError`.

        Each rate must have another period: if two had the same period, only the smaller rate would
        have an effect.
        """
        if value is None:
            raise LimitError(_("A rule needs a limit, such as 100/m, unless it is exempt"))
        rates = as_rates(value)
        if self.plain and not (rates and all(type(rate) is str for rate in rates)):
            raise LimitError(
                f"rate is {value!r}; write a rate, such as '100/m', or a list of rates"
            )
        if len(rates) > MAX_RATES:
            raise LimitError(_("A rule has at most %(number)d limits"), number=MAX_RATES)
        parse: Callable[[Any], CompiledRate] = compile_rate
        if self.plain:
            parse = Rate.parse
        compiled = [parse(rate) for rate in rates]
        self.check_periods([rate for rate in compiled if isinstance(rate, Rate)])
        return compiled

    def check_periods(self, rates: Sequence[Rate]) -> None:
        """Raise if two rates have the same period, or a row has both slots and rates."""
        by_period: dict[int, Rate] = {}
        for rate in rates:
            other = by_period.setdefault(rate.period_us, rate)
            if other is not rate:
                text = _("%(one)s and %(other_rate)s are for the same period: keep the smaller one")
                raise LimitError(text, one=str(other), other_rate=str(rate))
        if self.plain and len(rates) > 1 and 0 in by_period:
            raise LimitError(
                _("A concurrency limit cannot be combined with rates: add another rule for them")
            )

    def compile_tiers(self, compile_rates: _CompileRates) -> tuple[tuple[str, LimitTemplate], ...]:
        """Return the templates of the tiers, by Django group or key, the most favourable first."""
        templates: dict[str, LimitTemplate] = {}
        tiers = self.spec.get("tiers") or ()
        if not isinstance(tiers, (list, tuple)):
            return ()  # Already reported.
        for tier in tiers:
            group = tier_name(tier)
            try:
                template = self.compile_tier(tier, compile_rates)
                if group in templates:
                    raise LimitError("two tiers are for this group")
                templates[group] = template
            except _ERRORS as error:
                self.problems.append(RuleError.of("tiers", error, where=self.where, tier=group))
        generous_first = sorted(
            templates.items(), key=lambda tier: _generosity(tier[1]), reverse=True
        )
        return tuple(generous_first)

    def compile_tier(self, tier: object, compile_rates: _CompileRates) -> LimitTemplate:
        """Return the template of a tier. Raises `LimitError` if it is invalid."""
        if isinstance(tier, Mapping) and isinstance(tier.get("group"), (int, float)):
            group = tier["group"]
            raise LimitError(f"group is {group!r}; write text: {str(group)!r}")
        if (
            not isinstance(tier, Mapping)
            or not isinstance(tier.get("group"), str)
            or not tier["group"]
            or "rate" not in tier
            or tier.keys() - set(TIER_FIELDS)
        ):
            right = (
                "{'group': NAME, 'rate': '1000/m'}, with the name of a group or KEY:VALUE, "
                "and optionally 'burst'"
            )
            raise LimitError(f"tier is {tier!r}; write {right}")
        tier_key(tier["group"])  # Raises for an unknown key.
        rates = self.compile_rates(tier["rate"])
        if not (rates and all(isinstance(rate, Rate) for rate in rates)):
            raise LimitError(f"rate is {tier['rate']!r}: a tier must have constant rates")
        options = {}
        if tier.get("burst") is not None:
            options["burst"] = tier["burst"]
        return compile_rates(rates, options)


def tier_name(tier: object) -> str:
    """Return the group of a tier, for errors; "?" without one."""
    if isinstance(tier, Mapping):
        return str(tier.get("group") or "?")
    return "?"


def _breaks_line(field: str, text: str) -> bool:
    """Return whether a text has control characters, in a field that must be one line."""
    if field in ("description", "message"):
        return False
    return re.search(_CONTROL_CHARACTERS, text) is not None


def _has_invisible_parts(field: str, text: str) -> bool:
    """Return whether an operator cannot see all of a text that has to match another exactly."""
    if field in _NAMES:
        return text != text.strip() or not text.isprintable()
    return field in ("path", "key") and text != text.strip()


def _is_audience(name: object) -> bool:
    """Return whether a value is the name of an audience, or `group:NAME`."""
    if not isinstance(name, str):
        return False
    return name in AUDIENCES or re.fullmatch(_GROUP + r"\S(.*\S)?", name, re.DOTALL) is not None


def _generosity(template: LimitTemplate) -> tuple[float, int]:
    """Return the sort key of a tier: its slowest rate in units per microsecond, and its burst."""
    rates = [rate for rate in template.rates if isinstance(rate, Rate)]
    slowest = min(rates, key=_units_per_microsecond)
    return _units_per_microsecond(slowest), template.options.get("burst") or slowest.limit


def _units_per_microsecond(rate: Rate) -> float:
    """Return the speed of a rate. That of slots is their number."""
    return rate.limit / (rate.period_us or 1)


def _texts_in(value: object) -> Iterator[str]:
    """Yield all text in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts_in(pair)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts_in(part)


def refuse_absent(spec: Spec, where: str) -> None:
    """Raise `RuleError` if a spec has an option of an optional app that is not installed."""
    installed = annex_options()
    for word, annex in FIELDS_OF_ANNEXES.items():
        if word in spec and word not in installed:
            text = f"{word} is a field of an app that is not installed. {install_hint(annex)}"
            raise RuleError(word, text, where=where)


def compile(
    spec: Any, *, plain: bool = False, where: str = "RATELIMIT_RULES", pk: int | None = None
) -> Rule:
    """Compile a rule from its spec.

    This is the only check of a rule, wherever it is written: a rule that it accepts can be applied
    to every request.

    Args:
        spec: The rule, in the notation of `RATELIMIT_RULES`.
        plain: The rule is, or is to be, a row. Then no field may refer to code, by a callable or a
            dotted path, because operators may edit rules in the admin but not the site's code.
            Options of an optional app that is not installed are ignored, because rows keep them.
        where: The text that contains the rule, for errors.
        pk: The primary key of its row, if it is a row.

    Raises:
        RuleError: The rule is invalid. The error contains all problems, each with its field.

    >>> rule = compile({"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"})
    >>> rule.paths, rule.key.name
    (('/api/',), 'ip')
    """
    name = _check_name(spec, where)
    place = f"{where}: rule {name!r}"
    if not plain:
        refuse_absent(spec, place)
    _refuse_unknown_fields(spec, place)
    return _SpecCompiler(spec, place, plain=plain).compile_rule(name, pk)


def _check_name(spec: object, where: str) -> str:
    """Return the name of a rule. Raises `RuleError` if the spec is no mapping with a name."""
    if not isinstance(spec, Mapping):
        text = f"{spec!r} is not a rule; write a dict with {', '.join(field_names())}"
        raise RuleError("name", text, where=where)
    name = spec.get("name")
    if not isinstance(name, (str, NoneType)):
        text = f"name is {name!r}; write text: {str(name)!r}"
        raise RuleError("name", text, where=where)
    if not name:
        raise RuleError("name", f"the rule {dict(spec)!r} needs a name", where=where)
    return name


def _refuse_unknown_fields(spec: Spec, where: str) -> None:
    """Raise `RuleError` if a spec has fields that do not exist, with the closest matches."""
    known = field_names()
    unknown = sorted(map(str, spec.keys() - {*known, *FIELDS_OF_ANNEXES}))
    if not unknown:
        return
    closest = [match for field in unknown for match in get_close_matches(field, known, 1, 0.7)]
    hint = "."
    if closest:
        hint = f"; did you mean {', '.join(map(repr, closest))}?"
    fields = "field" if len(unknown) == 1 else "fields"
    text = f"unknown {fields} {', '.join(map(repr, unknown))}{hint}"
    text += f" Known fields: {', '.join(known)}"
    raise RuleError("name", text, where=where)
