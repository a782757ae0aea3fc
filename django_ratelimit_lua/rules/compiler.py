"""Compile rules from their specs.

A rule is one document, its spec: a mapping with the same fields in `RATELIMIT_RULES`, in the admin
and in YAML. `compile` is the only check of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from types import NoneType
from typing import Any, TypeVar

from django.utils.translation import gettext_noop as _

from ..conf import conf
from ..extension import FIELDS_OF_ANNEXES, annex_options, install
from ..identity.keys import Key, compile_key
from ..limits.options import OPTIONS, Option, read_options
from ..limits.rate import LimitError, Rate
from ..limits.values import Check, Choice, Text, Whole
from .conditions import parse_methods
from .errors import RuleError
from .options import MAX_LENGTHS, MODES, NAMES, field_names, has_value, place_options, rule_options
from .rule import EVERYONE, Rule, Spec, is_unwritable
from .template import CompiledRate, LimitTemplate, as_list, as_rates, compile_rate, tier_key

TIER_FIELDS = ("group", "rate", "burst")
MAX_PATTERN_LENGTH = 1000
MAX_PATTERNS = 50
MAX_RATES = 10
_NAMES = ("name", "route", "group")
_CONTROL = "[\x00-\x1f\x7f-\x9f\u2028\u2029]"
"""What breaks a line, or cannot be seen."""
_PATH = re.compile(r"(/|\*\*|\*/)[^?#]*")
_GROUP = "group:"
AUDIENCES = tuple(NAMES["audience"])

WRONG = (ValueError, TypeError, ArithmeticError)
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
_Compile = Callable[[object, object], LimitTemplate]


class _Reader:
    """Reads one spec, and collects its problems.

    If `plain` is true, the spec may not refer to code, and must fit into a row.
    """

    def __init__(self, given: Spec, where: str, *, plain: bool) -> None:
        self.given = given
        self.where = where
        self.plain = plain
        self.problems: list[RuleError] = []

    def read(self, word: str, function: Callable[..., T], *arguments: object) -> T | None:
        """Call a function. If it raises, record the problem of the field `word`.

        If the error names another field, the problem is recorded for that.
        """
        try:
            return function(*arguments)
        except WRONG as error:
            self.problems.append(RuleError.of(word, error, where=self.where))
            return None

    def checked(self, word: str, check: Check[Any]) -> Any:
        """Return the value of a field as its check returns it, or None."""
        value = self.given.get(word)
        if value is None:
            return None
        try:
            return check(value)
        except LimitError:
            raise
        except ValueError as error:
            raise LimitError(f"{word} is {value!r}: {error}") from None

    def rule(self, name: str, pk: int | None) -> Rule:
        given = self.given
        self.check_values()
        route = given.get("route")
        group = given.get("group")
        is_bare = not given.get("path") and route is None and group is None
        is_elsewhere = is_bare and any(map(given.get, place_options()))
        if is_bare and not (is_elsewhere or given.get("exempt")):
            group = name
        table = rule_options()
        own = {word: table[word] for word in table if has_value(word, given.get(word))}
        extra: dict[str, Any] = {
            word: self.read(word, self.extra, word, option) for word, option in own.items()
        }
        paths = self.read("path", self.paths) or ()
        audience = self.read("audience", self.audience) or (EVERYONE,)
        methods = self.read("method", parse_methods, given.get("method"))
        template = None
        if given.get("exempt"):
            methods = None
            self.check_exemption()
        else:
            cost = extra.get("cost", given.get("cost"))
            template = self.template(name, cost, needs_key=group != name and not is_elsewhere)
        rule = Rule(
            name=name,
            template=template,
            paths=paths,
            route=route,
            group=group,
            methods=methods,
            audience=audience,
            extra=extra,
            conditions=[extra[word] for word in ("user_agent", "network") if extra.get(word)],
            waited=extra.get("waited", 0.0),
            is_elsewhere=is_elsewhere,
            mode=given.get("mode") or "enforce",
            order=given.get("order") or 0,
            message=given.get("message") or "",
            pk=pk,
            spec=given,
        )
        if None not in extra.values():
            for word, option in own.items():
                self.read(word, option.check_rule, rule)
        if self.problems:
            raise RuleError.of_all(self.problems)
        return rule

    def check_values(self) -> None:
        """Check the values that need no other field."""
        for word, value in self.given.items():
            # Nearly every value is a number, or text that may be written anywhere.
            is_text = isinstance(value, str) and value.isprintable() and value == value.strip()
            if not is_text and not isinstance(value, (int, float, NoneType)):
                for text in _texts(value):
                    self.read(word, self.check_text, word, text)
        for word, check in _CHECKS.items():
            if word in self.given:
                self.read(word, self.checked, word, check)
        for word, most in MAX_LENGTHS.items():
            value = self.given.get(word)
            # Nearly every value is a short text, which needs no call.
            is_short = not value or (isinstance(value, str) and len(value) <= most)
            if self.plain and not is_short:
                self.read(word, self.check_length, value, most)

    def check_exemption(self) -> None:
        """Check that an exemption is not for all requests, and its fields that have no effect."""
        given = self.given
        if not any(map(given.get, ("path", "route", *place_options()))):
            text = _("An exemption needs a path or a route; otherwise all requests would be exempt")
            self.problems.append(RuleError("exempt", text, where=self.where))
        if not self.plain:
            return
        self.read("key", self.key, False)
        if given.get("rate") is not None:
            self.read("rate", self.rates, given["rate"])
        self.read("tiers", self.tiers, lambda rates, _burst: LimitTemplate(None, rates))
        for word, option in OPTIONS.items():
            if word not in _CHECKS:
                self.read(word, self.checked, word, option.check)

    def check_text(self, word: str, text: str) -> None:
        """Raise if the text of a field has characters that are invisible or cannot be stored."""
        has_lines = word in ("description", "message")
        if is_unwritable(text) or (not has_lines and re.search(_CONTROL, text)):
            raise LimitError(
                f"{word} is {text!r}: must be text in one line, without control characters"
            )
        is_name = word in _NAMES
        is_padded = text != text.strip() and (is_name or word in ("path", "key"))
        if self.plain and (is_padded or (is_name and not text.isprintable())):
            raise LimitError(
                _("Enter the text without spaces at its ends, and without invisible characters.")
            )

    def check_length(self, value: object, most: int) -> None:
        """Raise if the text of a field does not fit into its column."""
        length = len(", ".join(map(str, as_list(value))))
        if length > most:
            raise LimitError(
                _("At most %(most)d characters fit; these are %(length)d"), most=most, length=length
            )

    def paths(self) -> tuple[str, ...]:
        value = self.given.get("path")
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

    def extra(self, word: str, option: Option) -> object:
        """Return the compiled value of an option that is not one of a limit."""
        if word == "cost" and not self.plain:
            return self.given[word]  # It may be a function.
        return option.compile(self.checked(word, option.check))

    def audience(self) -> tuple[str, ...]:
        names = as_list(self.given.get("audience", EVERYONE))
        if not names or not all(map(_is_audience, names)):
            right = f"choose one of: {', '.join(AUDIENCES)}, group:NAME, or a list of groups"
            raise LimitError(f"audience is {names!r}; {right}")
        if self.plain and len(names) > 1 and not all(name.startswith(_GROUP) for name in names):
            right = "a rule of the admin is for one audience, or for groups: make a rule for each"
            raise LimitError(f"audience is {names!r}; {right}")
        return tuple(names)

    def key(self, needs_key: bool) -> Key | None:
        """Return the key to count by. Raises if it is missing, unknown, or refers to code."""
        value = self.given.get("key")
        if not value and needs_key:
            raise LimitError(_("Choose what to count by, for example ip: the client address"))
        if not value:
            return None
        if self.plain:
            for part in as_list(value):
                self.check_plain_key(part)
        return compile_key(value)

    def check_plain_key(self, part: object) -> None:
        if not isinstance(part, str):
            raise LimitError(f"key is {part!r}; write a key such as 'ip', or a list of keys")
        if "." in part and ":" not in part:
            text = _("key is %(key)r: callables are only allowed in the settings")
            raise LimitError(text, key=part)
        if "+" in part:
            right = "+ joins keys: a name that contains + is only allowed in the settings"
            raise LimitError(f"key is {part!r}; {right}")

    def template(self, name: str, cost: Any, *, needs_key: bool) -> LimitTemplate | None:
        """Return the limits, or None if they are invalid."""
        given = self.given
        options: Any = {
            option: given[option] for option in OPTIONS if given.get(option) is not None
        }
        if given.get("mode") not in ("enforce", "shadow"):
            options.pop("mode", None)  # A rule that is off is checked as if it was on.
        key = self.read("key", self.key, needs_key)
        rates = self.read("rate", self.rates, given.get("rate"))
        if rates is None:
            self.read("", read_options, {"algorithm": conf.ALGORITHM, **options})
            return None

        def compiled(rates: object, burst: object) -> LimitTemplate:
            return LimitTemplate.compiled(name, key, rates, cost, options | burst)

        template = self.read("rate", compiled, rates, {})
        if template is None:
            return None

        def compiled_tier(rates: object, burst: object) -> LimitTemplate:
            tier = compiled(rates, burst)
            bans = template.ban_parts(name)
            if bans and len(bans) != len(tier.rates):
                text = _(
                    "A ban holds in every tier: write as many rates as the rule has (%(number)d)"
                )
                raise LimitError(text, number=len(bans))
            return tier

        tiers = self.read("tiers", self.tiers, compiled_tier)
        if not tiers:
            return template
        return template.with_tiers(tiers)

    def rates(self, value: object) -> list[CompiledRate]:
        """Return the rates, which are decided together. Raises also `LimitError`.

        Each rate must have another period: if two had the same period, only the smaller rate would
        have an effect.
        """
        if value is None:
            raise LimitError(_("A rule needs a limit, such as 100/m, unless it is exempt"))
        rates = as_rates(value)
        if self.plain and {*map(type, rates)} != {str}:
            raise LimitError(
                f"rate is {value!r}; write a rate, such as '100/m', or a list of rates"
            )
        if len(rates) > MAX_RATES:
            raise LimitError(_("A rule has at most %(number)d limits"), number=MAX_RATES)
        parse: Callable[[Any], CompiledRate] = compile_rate
        if self.plain:
            parse = Rate.parse
        compiled = [parse(rate) for rate in rates]
        periods: dict[int, Rate] = {}
        for rate in compiled:
            if isinstance(rate, Rate) and periods.setdefault(rate.period_us, rate) is not rate:
                text = _("%(one)s and %(other_rate)s are for the same period: keep the smaller one")
                raise LimitError(text, one=str(periods[rate.period_us]), other_rate=str(rate))
        if self.plain and len(rates) > 1 and 0 in periods:
            raise LimitError(
                _("A concurrency limit cannot be combined with rates: add another rule for them")
            )
        return compiled

    def tiers(self, compiled: _Compile) -> tuple[tuple[str, LimitTemplate], ...]:
        """Return the templates of the tiers, by Django group or key, the most favourable first."""
        tiers: dict[str, LimitTemplate] = {}
        given = self.given.get("tiers") or ()
        if not isinstance(given, (list, tuple)):
            return ()  # Already reported.
        for tier in given:
            group = tier_name(tier)
            try:
                template = self.tier(tier, compiled)
                if group in tiers:
                    raise LimitError("two tiers are for this group")
                tiers[group] = template
            except WRONG as error:
                self.problems.append(RuleError.of("tiers", error, where=self.where, tier=group))
        return tuple(sorted(tiers.items(), key=lambda tier: _favour(tier[1]), reverse=True))

    def tier(self, tier: object, compiled: _Compile) -> LimitTemplate:
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
        tier_key(tier["group"])
        rates = self.rates(tier["rate"])
        if {*map(type, rates)} != {Rate}:
            raise LimitError(f"rate is {tier['rate']!r}: a tier must have constant rates")
        options = {}
        if tier.get("burst") is not None:
            options["burst"] = tier["burst"]
        return compiled(rates, options)


def tier_name(tier: object) -> str:
    """Return the group of a tier, for errors; "?" without one."""
    if isinstance(tier, Mapping):
        return str(tier.get("group") or "?")
    return "?"


def _is_audience(name: object) -> bool:
    return isinstance(name, str) and (
        name in AUDIENCES or re.fullmatch(_GROUP + r"\S(.*\S)?", name, re.DOTALL) is not None
    )


def _favour(template: LimitTemplate) -> tuple[float, int]:
    rates = [rate for rate in template.rates if isinstance(rate, Rate)]
    slowest = min(rates, key=lambda rate: rate.limit / (rate.period_us or 1))
    return slowest.limit / (slowest.period_us or 1), template.options.get("burst") or slowest.limit


def _texts(value: object) -> Iterator[str]:
    """Yield all text in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def refuse_absent(given: Spec, where: str) -> None:
    """Raise `RuleError` if a spec has an option of an optional app that is not installed."""
    installed = annex_options()
    for word, annex in FIELDS_OF_ANNEXES.items():
        if word in given and word not in installed:
            text = f"{word} is a field of an app that is not installed. {install(annex)}"
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
    if not isinstance(spec, Mapping):
        text = f"{spec!r} is not a rule; write a dict with {', '.join(field_names())}"
        raise RuleError("name", text, where=where)
    name = spec.get("name")
    if not isinstance(name, (str, NoneType)):
        text = f"name is {name!r}; write text: {str(name)!r}"
        raise RuleError("name", text, where=where)
    if not name:
        raise RuleError("name", f"the rule {dict(spec)!r} needs a name", where=where)
    where = f"{where}: rule {name!r}"
    if not plain:
        refuse_absent(spec, where)
    known = field_names()
    unknown = sorted(map(str, spec.keys() - {*known, *FIELDS_OF_ANNEXES}))
    if unknown:
        meant = [match for word in unknown for match in get_close_matches(word, known, 1, 0.7)]
        hint = "."
        if meant:
            hint = f"; did you mean {', '.join(map(repr, meant))}?"
        fields = "field" if len(unknown) == 1 else "fields"
        text = f"unknown {fields} {', '.join(map(repr, unknown))}{hint}"
        text += f" Known fields: {', '.join(known)}"
        raise RuleError("name", text, where=where)
    return _Reader(spec, where, plain=plain).rule(name, pk)
