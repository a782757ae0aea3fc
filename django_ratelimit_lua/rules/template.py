"""Templates of limits: the declared rates, options and key.

A template is turned into limits when its rates and algorithm are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from django.http import HttpRequest
from django.utils.translation import gettext_noop as _

from ..conf import conf
from ..conf.values import import_lazily
from ..identity.keys import ALL_CALLERS, Key, KeyLike, compile_key, registered_keys
from ..limits import algorithms
from ..limits.call import MAX_COST, whole_cost
from ..limits.limit import TIER, Limit
from ..limits.options import OPTIONS, Options
from ..limits.rate import PERIODS, SECOND, LimitError, Rate

EXAMPLE_UNITS = 100
"""The units of the rate with which the options are checked if a function returns the rate."""

RateFunction = Callable[[str, HttpRequest], object]
RateLike = str | tuple[int, float] | Rate | RateFunction | None
CompiledRate = Rate | RateFunction | None
CostFunction = Callable[[str, HttpRequest], object]
CostLike = int | str | CostFunction


def as_list(value: object) -> list[Any]:
    """Return a list or tuple as a list, and any other value as a list of one item."""
    if isinstance(value, (list, tuple)):
        return list(value)
    return [value]


def as_rates(value: object) -> list[Any]:
    """Return a list of rates as it is, and one rate, which may be a tuple, as a list of one."""
    if isinstance(value, list):
        return value
    return [value]


def compile_rate(rate: RateLike) -> CompiledRate:
    """Return a constant rate parsed, or the function that returns the rate. Raises `LimitError`."""
    if rate is None or callable(rate):
        return rate
    if isinstance(rate, str) and "/" not in rate and "." in rate:
        return import_lazily(rate, "Rate")
    return Rate.parse(rate)


def compile_cost(cost: CostLike | None) -> int | CostFunction | None:
    """Return a constant cost, or the function that returns it; None: no cost is declared.

    Raises `LimitError`.
    """
    if cost is None or callable(cost):
        return cost
    if isinstance(cost, int):
        return whole_cost(cost, "Cost")
    if isinstance(cost, str) and "." in cost:
        return import_lazily(cost, "Cost")
    raise LimitError(
        f"Cost {cost!r}: must be a whole number from 0 to {MAX_COST}, a callable (group, request) "
        "or its dotted path",
        "cost",
    )


def tier_key(name: str) -> Key | None:
    """Return the registered key of a tier such as `plan:pro`; None if it is for a Django group.

    Raises `LimitError` if a name with a colon is not a registered key and a value.
    """
    key, colon, value = name.partition(":")
    if not colon:
        return None
    keys = registered_keys()
    if key not in keys or not value or value != value.strip():
        text = _(
            "%(group)r is not KEY:VALUE with a key of RATELIMIT_KEYS (%(keys)s), without "
            "spaces around the value"
        )
        raise LimitError(text, "group", group=name, keys=", ".join(keys) or "none")
    return keys[key]


@dataclass(slots=True, eq=False)
class LimitTemplate:
    """The declared rates, options and key of a limit.

    - `key`: the key to count by, and `cost`: the units of a request; None: those of the call site
      that a rule replaces (by default, a cost of 1);
    - `rates`: units per time, or functions that return them;
    - `options`: the options of each limit;
    - `tiers`: the templates that replace it for the members of a Django group, or for a value of a
      registered key (`plan:pro`), the most favourable first;
    - `tier_keys`: the registered keys of the tiers; `has_group_tiers`: whether any tier is for a
      group;
    - `label`: distinguishes its limits from others of the same name, in addition to the rate. If it
      is empty, the name of a count contains the period of its rate. For the rate with the longest
      period, it does not contain the period either. So a rate keeps its count when its number of
      units changes, and the rate with the longest period keeps its count when one with a shorter
      period is added. If one with a longer period is added, it starts a new count. Each rate that a
      function returns has a count of its own, because a client may be able to choose between them;
    - `counted`: by period and algorithm, the names of the counts that rates of this template
      continue, because they replace limits declared in code; see `replacing`;
    - `tier`, `of_rule`: for the template of a tier, the name of the tier and the template of its
      rule. A tier has counts of its own, for the same reason, and the bans of its rule.
    """

    key: Key | None
    rates: tuple[CompiledRate, ...]
    cost: int | CostFunction | None = None
    options: Options = field(default_factory=Options)
    label: str = ""
    tiers: tuple[tuple[str, LimitTemplate], ...] = ()
    counted: tuple[tuple[tuple[int, str], str], ...] = ()
    tier: str = ""
    of_rule: LimitTemplate | None = field(default=None, repr=False)
    tier_keys: tuple[Key, ...] = field(init=False, repr=False)
    has_group_tiers: bool = field(init=False, repr=False)
    _limits: dict[object, Limit] = field(default_factory=dict, repr=False)
    _replacing: dict[object, LimitTemplate] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        keys = dict.fromkeys([tier_key(name) for name, _ in self.tiers])
        self.tier_keys = tuple([key for key in keys if key is not None])
        self.has_group_tiers = None in keys

    @classmethod
    def compiled(
        cls,
        name: str,
        key: KeyLike | Key | None,
        rate: object,
        cost: CostLike | None,
        options: Options,
    ) -> LimitTemplate:
        """Return the compiled template. Raises `LimitError` if anything in it is invalid."""
        rates = tuple(map(compile_rate, as_rates(rate)))
        if not rates:
            raise LimitError("rate is an empty list; write at least one rate")
        declared: Any = {option: value for option, value in options.items() if value is not None}
        compiled_key: Key | None = None
        if key:
            compiled_key = key if isinstance(key, Key) else compile_key(key)
        template = cls(compiled_key, rates, compile_cost(cost), declared)
        # Errors in the options apply to every rate: raise them now, not at the first request.
        template._raise_if_unfit(name, declared.get("algorithm", conf.ALGORITHM))
        return template

    def _raise_if_unfit(self, name: str, algorithm: str) -> None:
        """Raise `LimitError` if a rate or an option does not fit the key or an algorithm."""
        if self.options.get("ban_after") and self.key and self.key.name == ALL_CALLERS:
            text = _(
                "A limit for all clients together cannot ban: the ban would refuse every client"
            )
            raise LimitError(text, "ban_after")
        for rate in self.rates:
            constant = rate if isinstance(rate, Rate) else self._example_rate(algorithm)
            Limit(name, constant, **self._options_for(constant, algorithm))

    def is_counted_by(self, key: Key | None) -> bool:
        """Return whether the template has that key. Without a key, any key fits."""
        return key is None or self.key is None or self.key.name == key.name

    def _example_rate(self, algorithm: str) -> Rate:
        """Return a rate that a function may return."""
        align = str(self.options.get("align"))
        period = PERIODS.get(align, (SECOND, SECOND))[0]
        if len(self.rates) == 1 and algorithms.find(algorithm).holds:
            period = 0
        return Rate(EXAMPLE_UNITS if period else 1, period)

    def with_tiers(self, tiers: Iterable[tuple[str, LimitTemplate]]) -> LimitTemplate:
        """Return this template with copies of these tiers, which refer to it for their bans."""
        of_rule = replace(self, tiers=())
        linked = [
            (name, replace(tier, tier=name, of_rule=of_rule, _limits={})) for name, tier in tiers
        ]
        return replace(self, tiers=tuple(linked))

    def limit(self, name: str, rate: Rate, ordinal: int = 1) -> Limit:
        """Return the limit for one rate: one of `rates`, or one that a function has returned.

        If several limits in one call would have the same name, `ordinal` distinguishes them.
        """
        algorithm = self.options.get("algorithm") or conf.ALGORITHM
        limit_key = (name, rate.limit, rate.period_us, ordinal, algorithm, self.counted)
        limit = self._limits.get(limit_key)
        if limit is None:
            if len(self._limits) >= 1000:
                self._limits.clear()
            limit = self._limits[limit_key] = self._make_limit(name, rate, ordinal, algorithm)
        return limit

    def _make_limit(self, name: str, rate: Rate, ordinal: int, algorithm: str) -> Limit:
        """Return a new limit for one rate, which has the bans of the rule if it is of a tier."""
        options = self._options_for(rate, algorithm)
        number = f"*{ordinal}" if ordinal > 1 else ""
        limit_name = self._limit_name(name, rate) + number
        counted_as = self._count_name(limit_name, rate, options, ordinal)
        variant = ""
        if self.tier:
            variant = f"{TIER}:{self.tier}"
        elif rate not in self.rates:  # A function has returned it.
            variant = str(rate)
            counted_as = f"{name}:{self.label or 'function'}{number}"
        limit = Limit(limit_name, rate, counted_as=counted_as, variant=variant, **options)
        if ordinal > 1:
            return limit
        return self._with_ban_of_rule(limit, name)

    def _limit_name(self, name: str, rate: Rate) -> str:
        """Return the name of the limit for one rate, which no other rate of the template has."""
        if self.label:
            return f"{name}:{self.label}:{rate}"
        if len(self.rates) == 1:
            return name
        if rate not in self.rates:
            return f"{name}:{rate}"
        if rate.period_us == self._longest:
            return name
        return f"{name}:{rate.per or 'slots'}"

    def _count_name(self, limit_name: str, rate: Rate, options: Options, ordinal: int) -> str:
        """Return the name of the count of a limit.

        A limit in the code that has another period or algorithm never has the same name.
        """
        counted = dict(self.counted)
        continued = counted.get((rate.period_us, options["algorithm"]))
        if continued and ordinal == 1:
            return continued
        if limit_name in counted.values():
            return f"{limit_name}:{rate.per or 'slots'}"
        return limit_name

    def _with_ban_of_rule(self, limit: Limit, name: str) -> Limit:
        """Return the limit of a tier with the bans of its rule, and any other limit as it is."""
        if limit.ban is None or self.of_rule is None:
            return limit
        # Both lists begin with the longest period, and a rule without bans has no parts.
        parts = dict(zip(self._longest_first(), self.of_rule.ban_key_parts(name), strict=False))
        if limit.rate not in parts:
            return limit
        return limit.with_ban(limit.ban._replace(key_part=parts[limit.rate]))

    def ban_key_parts(self, name: str) -> list[bytes]:
        """Return the ends of the keys of its bans, those of the longest period first."""
        example = self._example_rate(self.options.get("algorithm") or conf.ALGORITHM)
        limits = [
            self.limit(name, rate if isinstance(rate, Rate) else example)
            for rate in self._longest_first()
        ]
        return list(dict.fromkeys(limit.ban.key_part for limit in limits if limit.ban is not None))

    def _longest_first(self) -> list[CompiledRate]:
        """Return the rates by their periods, the longest first, and functions at the end."""

        def period(rate: CompiledRate) -> int:
            return rate.period_us if isinstance(rate, Rate) else -1

        return sorted(self.rates, key=period, reverse=True)

    def replacing(
        self, limits: tuple[Limit, ...], of_other_keys: tuple[Limit, ...] = ()
    ) -> LimitTemplate:
        """Return this template in place of limits that are declared in code.

        An option that the template does not have is that of the replaced limits, provided that it
        fits the key, the rates and the other options.

        Args:
            limits: The replaced limits that count by the same key. A rate continues the count of
                the limit with the same period and algorithm.
            of_other_keys: The replaced limits with other keys, if there are no `limits`.
        """
        arguments = (limits, of_other_keys, conf.ALGORITHM)
        template = self._replacing.get(arguments)
        if template is None:
            if len(self._replacing) >= 100:
                self._replacing.clear()
            template = self._replacing[arguments] = self._make_replacing(limits, of_other_keys)
        return template

    def _make_replacing(
        self, limits: tuple[Limit, ...], of_other_keys: tuple[Limit, ...]
    ) -> LimitTemplate:
        """Return a new template with the counts of `limits`, and options of the replaced ones."""
        counted = {
            (limit.rate.period_us, limit.algorithm): limit.counted_as for limit in reversed(limits)
        }
        replaced = limits or of_other_keys
        continues = bool(limits)
        template = self._with_options_of(replaced, continues=continues)
        tiers = [
            (name, tier._with_options_of(replaced, continues=continues))
            for name, tier in self.tiers
        ]
        return replace(template, counted=tuple(counted.items()), _limits={}).with_tiers(tiers)

    def _with_options_of(self, limits: Sequence[Limit], *, continues: bool) -> LimitTemplate:
        """Return this template with those options of limits that it lacks and that fit it.

        The mode is never one of the options: a rule has its own. The algorithm is one only if the
        template continues their counts, because a count is that of one algorithm.
        """
        others = self._non_default_options(limits)
        others.pop("mode", None)
        if not continues:
            others.pop("algorithm", None)
        template = self
        for name in OPTIONS:
            if name not in others or name in self.options:
                continue
            # An option that others need is only valid together with them.
            needed = (name, OPTIONS[name].needs)
            added = {option: others[option] for option in needed if option in others}
            options = cast(Options, added | template.options)
            changed = replace(template, options=options, _limits={}, _replacing={})
            try:
                changed._raise_if_unfit("rule", options.get("algorithm", conf.ALGORITHM))
            except LimitError:
                continue
            template = changed
        return template

    def _non_default_options(self, limits: Sequence[Limit]) -> dict[str, Any]:
        """Return those options of limits that differ from their defaults.

        They are those of the first limit on rates and of the first one on slots, as far as this
        template has rates and slots. If there is no such limit, they are those of the others.
        """
        kinds = {isinstance(rate, Rate) and rate.is_slots for rate in self.rates}
        first_by_kind = {limit.holds: limit for limit in reversed(limits)}
        same_kind = [first_by_kind[kind] for kind in sorted(kinds & first_by_kind.keys())]
        options: dict[str, Any] = {}
        for limit in same_kind or first_by_kind.values():
            for name, option in OPTIONS.items():
                value = getattr(limit, name)
                if name == "algorithm" or value != option.default:
                    options.setdefault(name, value)
        return options

    def limits_or_example(self, name: str) -> tuple[Limit, ...]:
        """Return the limits of the constant rates, or one example if all rates are callables."""
        limits = self.limits(name)
        if limits:
            return limits
        rate = self._example_rate(self.options.get("algorithm") or conf.ALGORITHM)
        return (self.limit(name, rate),)

    def _options_for(self, rate: Rate, algorithm: str) -> Options:
        """Return the options of the limit for one rate.

        If the template has both slots and rates, each kind has its own algorithm, without options
        that only the algorithm of the other kind has.
        """
        options: Options = {**self.options, "algorithm": algorithm}
        kinds = {declared.is_slots for declared in self.rates if isinstance(declared, Rate)}
        if len(kinds) < 2:
            return options
        for_slots = algorithms.find(algorithms.OF_SLOTS)
        for_rates = algorithms.find(algorithm)
        if for_rates.holds:
            for_rates = algorithms.find(conf.ALGORITHM)
        used, other = (for_slots, for_rates) if rate.is_slots else (for_rates, for_slots)
        options["algorithm"] = used.name
        foreign = other.options - used.options
        fitting = {option: value for option, value in options.items() if option not in foreign}
        return cast(Options, fitting)

    def limits(self, name: str) -> tuple[Limit, ...]:
        """Return the limits of the constant rates."""
        return tuple([self.limit(name, rate) for rate in self.rates if isinstance(rate, Rate)])

    @property
    def _longest(self) -> int:
        """Return the longest of the constant rates' periods, in microseconds."""
        return max((rate.period_us for rate in self.rates if isinstance(rate, Rate)), default=0)
