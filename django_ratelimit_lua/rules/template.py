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
        return [*value]
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
    """Return a constant cost, or the function that returns the cost. Raises `LimitError`."""
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
      continue, because they replace limits declared in code; see `in_place_of`;
    - `tier`, `whole`: for the template of a tier, the name of the tier and the template of its
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
    whole: LimitTemplate | None = field(default=None, repr=False)
    tier_keys: tuple[Key, ...] = field(init=False, repr=False)
    has_group_tiers: bool = field(init=False, repr=False)
    _limits: dict[object, Limit] = field(default_factory=dict, repr=False)
    _in_place: dict[object, LimitTemplate] = field(default_factory=dict, repr=False)

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
        if key and not isinstance(key, Key):
            key = compile_key(key)
        count_by = cast(Key | None, key or None)
        template = cls(count_by, rates, compile_cost(cost), declared)
        # Errors in the options apply to every rate: raise them now, not at the first request.
        template._check(name, declared.get("algorithm", conf.ALGORITHM))
        return template

    def _check(self, name: str, algorithm: str) -> None:
        """Raise `LimitError` if a rate or an option does not fit the key or an algorithm."""
        if self.options.get("ban_after") and self.key and self.key.name == ALL_CALLERS:
            text = _(
                "A limit for all clients together cannot ban: the ban would refuse every client"
            )
            raise LimitError(text, "ban_after")
        for rate in self.rates:
            if not isinstance(rate, Rate):
                rate = self._example(algorithm)
            Limit(name, rate, **self._options_of(rate, algorithm))

    def _example(self, algorithm: str) -> Rate:
        """Return a rate that a function may return."""
        align = str(self.options.get("align"))
        period = PERIODS.get(align, (SECOND, SECOND))[0]
        if len(self.rates) == 1 and algorithms.find(algorithm).holds:
            period = 0
        return Rate(EXAMPLE_UNITS if period else 1, period)

    def with_tiers(self, tiers: Iterable[tuple[str, LimitTemplate]]) -> LimitTemplate:
        """Return this template with tiers: their names and templates."""
        whole = replace(self, tiers=())
        own = [(name, replace(tier, tier=name, whole=whole, _limits={})) for name, tier in tiers]
        return replace(self, tiers=tuple(own))

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
            limit = self._limits[limit_key] = self._limit(name, rate, ordinal, algorithm)
        return limit

    def _limit(self, name: str, rate: Rate, ordinal: int, algorithm: str) -> Limit:
        options = self._options_of(rate, algorithm)
        varies = rate not in self.rates
        number = ""
        if ordinal > 1:
            number = f"*{ordinal}"
        shown = name
        if self.label:
            shown = f"{name}:{self.label}:{rate}"
        elif len(self.rates) > 1 and varies:
            shown = f"{name}:{rate}"
        elif len(self.rates) > 1 and rate.period_us != self._longest:
            shown = f"{name}:{rate.per or 'slots'}"
        shown += number
        variant = ""
        counted_as = self._count_of(shown, rate, options, ordinal)
        if self.tier:
            variant = f"{TIER}:{self.tier}"
        elif varies:
            variant = str(rate)
            counted_as = f"{name}:{self.label or 'function'}{number}"
        limit = Limit(shown, rate, counted_as=counted_as, variant=variant, **options)
        if limit.ban is not None and self.whole is not None:
            parts = dict(zip(self._longest_first(), self.whole.ban_parts(name), strict=False))
            if rate in parts and ordinal == 1:
                limit = limit.with_ban(limit.ban._replace(key_part=parts[rate]))
        return limit

    def ban_parts(self, name: str) -> list[bytes]:
        """Return the ends of the keys of its bans, those of the longest period first."""
        example = self._example(self.options.get("algorithm") or conf.ALGORITHM)
        limits = [
            self.limit(name, rate if isinstance(rate, Rate) else example)
            for rate in self._longest_first()
        ]
        return [*dict.fromkeys(limit.ban.key_part for limit in limits if limit.ban is not None)]

    def _longest_first(self) -> list[CompiledRate]:
        """Return the rates, the constant ones first."""

        def length(rate: CompiledRate) -> int:
            return rate.period_us if isinstance(rate, Rate) else -1

        return sorted(self.rates, key=length, reverse=True)

    def _count_of(self, name: str, rate: Rate, options: Options, ordinal: int) -> str:
        """Return the name of the count of a limit.

        A limit in the code that has another period or algorithm never has the same name.
        """
        counted = dict(self.counted)
        known = counted.get((rate.period_us, options["algorithm"]))
        if known and ordinal == 1:
            return known
        if name in counted.values():
            return f"{name}:{rate.per or 'slots'}"
        return name

    def in_place_of(
        self, limits: tuple[Limit, ...], declared: tuple[Limit, ...] = ()
    ) -> LimitTemplate:
        """Return this template with the limits declared in code that it replaces.

        They count by the same key. A rate continues the count of the limit with the same period and
        algorithm. If there are none, `declared` are the replaced limits with other keys.

        An option that the template does not have is that of the replaced limits, provided that it
        fits the key, the rates and the other options.
        """
        asked = (limits, declared, conf.ALGORITHM)
        template = self._in_place.get(asked)
        if template is None:
            if len(self._in_place) >= 100:
                self._in_place.clear()
            counted = {
                (limit.rate.period_us, limit.algorithm): limit.counted_as
                for limit in reversed(limits)
            }
            templates = [
                each._with_options_of(limits or declared, continues=bool(limits))
                for each in (self, *dict(self.tiers).values())
            ]
            template = replace(templates[0], counted=tuple(counted.items()), _limits={})
            template = template.with_tiers(zip(dict(self.tiers), templates[1:], strict=True))
            self._in_place[asked] = template
        return template

    def _with_options_of(self, limits: Sequence[Limit], *, continues: bool) -> LimitTemplate:
        """Return this template with those options of the first of the limits that fit it.

        That is the first rate for rates, and the first slots for slots, if there are both. The mode
        is never one of the options: a rule has its own. The algorithm is one only if the template
        continues their counts, because a count is that of one algorithm.
        """
        kinds = {isinstance(rate, Rate) and rate.is_slots for rate in self.rates}
        firsts = {limit.holds: limit for limit in reversed(limits)}
        of_kinds = [firsts[holds] for holds in (False, True) if holds in kinds & firsts.keys()]
        given: dict[str, Any] = {}
        for limit in of_kinds or firsts.values():
            for name, row in OPTIONS.items():
                value = getattr(limit, name)
                if name == "algorithm" or value != row.default:
                    given.setdefault(name, value)
        template = self
        for name, row in OPTIONS.items():
            is_own = name == "mode" or (name == "algorithm" and not continues)
            if is_own or name not in given or name in self.options:
                continue
            # An option that others need is only valid together with them.
            both = {each: given[each] for each in (name, row.needs) if each in given}
            options = cast(Options, both | template.options)
            changed = replace(template, options=options, _limits={}, _in_place={})
            try:
                changed._check("rule", options.get("algorithm", conf.ALGORITHM))
            except LimitError:
                continue
            template = changed
        return template

    def declared(self, name: str) -> tuple[Limit, ...]:
        """Return the limits of the constant rates. If there are none, return one as an example."""
        if limits := self.limits(name):
            return limits
        rate = self._example(self.options.get("algorithm") or conf.ALGORITHM)
        return (self.limit(name, rate),)

    def _options_of(self, rate: Rate, algorithm: str) -> Options:
        """Return the options of one rate.

        If there are both slots and rates, each kind has its own algorithm, with the options of that
        algorithm.
        """
        options: Options = {**self.options, "algorithm": algorithm}
        kinds = {each.is_slots for each in self.rates if isinstance(each, Rate)}
        if len(kinds) < 2:
            return options
        own = algorithms.find(algorithm)
        if own.holds:
            own = algorithms.find(conf.ALGORITHM)
        other = algorithms.find(algorithms.OF_SLOTS)
        if rate.is_slots:
            own, other = other, own
        options["algorithm"] = own.name
        kept = {
            option: value
            for option, value in options.items()
            if option not in other.options - own.options
        }
        return cast(Options, kept)

    def limits(self, name: str) -> tuple[Limit, ...]:
        """Return the limits of the constant rates."""
        return tuple([self.limit(name, rate) for rate in self.rates if isinstance(rate, Rate)])

    @property
    def _longest(self) -> int:
        """Return the longest of the constant rates' periods, in microseconds."""
        return max((rate.period_us for rate in self.rates if isinstance(rate, Rate)), default=0)
