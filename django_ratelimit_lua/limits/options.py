"""The options of a limit, in a table with one row for each.

Call sites, rules, the admin and the documentation use it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_args

from . import algorithms
from .algorithms.algorithm import POLICIES, Align, Policy
from .ban import MAX_OFFENCES, ban_lengths
from .rate import SECOND, LimitError, Rate, duration, zone
from .values import Choice, Number, Whole, flag
from .values import gettext_noop as _

_MAX_WAIT = Rate.MAX_US // SECOND


class _Seconds(Number):
    """Check for a number of seconds, or a timedelta."""

    def __call__(self, value: object) -> float:
        if isinstance(value, timedelta):
            return super().__call__(value.total_seconds())
        return super().__call__(value)


_check_seconds = _Seconds(_MAX_WAIT, "number of seconds", f" to {_MAX_WAIT}")


def wait_us(seconds: float | timedelta, what: str) -> int:
    """Return a wait in microseconds. Raises `LimitError` if it is not from 0 to ten years."""
    try:
        return round(_check_seconds(seconds) * SECOND)
    except ValueError as error:
        raise LimitError(f"{what} is {seconds!r}: {error}") from None


def _check_algorithm(algorithm: str) -> str:
    """Check for the name of an algorithm, and return its own name for a synonym."""
    return algorithms.find(algorithm).name


def _check_time_zone(name: str) -> str:
    """Check for the name of a time zone, and return it unchanged."""
    zone(name)
    return name


_NEEDS_REDIS = ("max_wait", "count_denied", "ban_after")


class Option(NamedTuple):
    """One row of the table: an option's default, the check that reads it, its label and its help.

    - `check`: returns the value as the package uses it, or raises `ValueError` with the valid
      values;
    - `label`, `help`: in the admin and the documentation; `names`: the labels of the values of a
      choice;
    - `words`: its words in a rule's sentence, and `singular` those for a value of 1; `excludes`:
      options that contradict it; `needs`: the option without which it has no effect.

    For options of rules that optional apps add (see `Extension.options`):

    - `compile`: returns the value that decisions use, for `Rule.extra`, or raises `LimitError`;
    - `check_rule`: is called with a compiled `Rule` that has a value, and raises `LimitError` for a
      contradiction;
    - `describe`: returns the part about the value in the sentence that describes a rule;
    - `is_place`: it restricts where a rule applies. A rule with such an option of an optional app
      needs neither a path nor a key.

    An option that no algorithm names is taken by every algorithm.
    """

    check: Callable[[Any], Any]
    label: str
    help: str
    default: object = None
    names: Mapping[str, str] = MappingProxyType({})
    words: str = ""
    singular: str = ""
    excludes: Sequence[str] = ()
    needs: str = ""
    compile: Callable[[Any], object] = lambda value: value
    check_rule: Callable[[Any], None] = lambda rule: None
    describe: Callable[[Any], str] = lambda value: ""
    is_place: bool = False


class Options(TypedDict, total=False):
    """The options of a `Limit`. Each annotation is an option's type, with its `Option`."""

    algorithm: Annotated[
        str,
        Option(
            _check_algorithm,
            _("algorithm"),
            _("Empty: as in the settings."),
            names={name: algorithm.label for name, algorithm in algorithms.ALGORITHMS.items()},
            default="sliding_window",
        ),
    ]
    burst: Annotated[
        int | None,
        Option(
            Whole(1, Rate.MAX_UNITS),
            _("burst"),
            _("Token bucket: requests allowed at once. Empty: the limit."),
            words=_("bursts of %(burst)s"),
        ),
    ]
    queue: Annotated[
        int | None,
        Option(
            Whole(0, Rate.MAX_UNITS),
            _("queue"),
            _("Leaky bucket: how many requests may wait. Empty: the limit minus 1."),
        ),
    ]
    segments: Annotated[
        int | None,
        Option(
            Whole(1, 1000, note="; at most 1000 segments, as sliding_log is exact"),
            _("segments"),
            _("Sliding window: number of parts of the window, which expire one by one. Empty: 10."),
        ),
    ]
    align: Annotated[
        Align | None,
        Option(
            Choice(get_args(Align), "must be None or one of"),
            _("window starts"),
            _("For fixed windows. Empty: with the first request."),
            names={
                "clock": _("by the clock"),
                "day": _("each day"),
                "week": _("each week (Monday)"),
                "month": _("each month"),
            },
        ),
    ]
    time_zone: Annotated[
        str,
        Option(
            _check_time_zone,
            _("time zone"),
            _("For days, weeks and months. Empty: UTC."),
            default="UTC",
            needs="align",
        ),
    ]
    max_wait: Annotated[
        float | None,
        Option(
            _check_seconds,
            _("longest wait"),
            _(
                "Token and leaky bucket: seconds. A request waits instead of being refused if its "
                "turn comes within this time."
            ),
            words=_("waits up to %(max_wait)s s"),
        ),
    ]
    count_denied: Annotated[
        bool,
        Option(
            flag,
            _("count refused requests"),
            _("Windows and logs: a client that keeps trying stays refused."),
            default=False,
        ),
    ]
    mode: Annotated[
        Literal["enforce", "shadow"],
        Option(
            Choice(("enforce", "shadow")),
            _("mode"),
            _("Shadow mode counts but does not refuse."),
            default="enforce",
        ),
    ]
    on_store_error: Annotated[
        Policy | None,
        Option(
            Choice(POLICIES),
            _("fallback"),
            _("What happens while Redis is unavailable. Empty: as in the settings."),
            names={
                "open": _("allow requests"),
                "closed": _("refuse requests"),
                "local": _("limit each process to its share"),
            },
        ),
    ]
    lease: Annotated[
        int | None,
        Option(
            Whole(1, Rate.MAX_UNITS),
            _("lease"),
            _(
                "Token bucket and fixed window: units that a process takes at once and spends "
                "without asking Redis, for keys that are used very often."
            ),
            words=_("leases of %(lease)s"),
            excludes=_NEEDS_REDIS,
        ),
    ]
    split: Annotated[
        bool,
        Option(
            flag,
            _("split"),
            _(
                "Token bucket and fixed window: each host has a part of the limit, by its weight, "
                "which its processes share without asking Redis."
            ),
            default=False,
            words=_("split among hosts"),
            excludes=("lease", "align", *_NEEDS_REDIS),
        ),
    ]
    ban_after: Annotated[
        int | None,
        Option(
            Whole(1, MAX_OFFENCES),
            _("ban after"),
            _("Refusals that trigger a ban. Empty: there are no bans."),
            words=_("banned for %(ban_for)s after %(ban_after)s refusals"),
            singular=_("banned for %(ban_for)s after a refusal"),
            needs="ban_for",
        ),
    ]
    ban_window: Annotated[
        str | None,
        Option(
            duration,
            _("within"),
            _("How long a refusal counts, for example 10m. Empty: as long as the first ban."),
            needs="ban_after",
        ),
    ]
    ban_for: Annotated[
        str | None,
        Option(
            ban_lengths,
            _("ban for"),
            _(
                "How long the first, second and each further ban is, for example 10m,1h,1d. One "
                "may be enough: 10m."
            ),
            needs="ban_after",
        ),
    ]


OPTIONS: Mapping[str, Option] = {
    name: row.__metadata__[0] for name, row in Options.__annotations__.items()
}
_SPECIAL = frozenset[str]().union(
    *(algorithm.options for algorithm in algorithms.ALGORITHMS.values())
)
"""The options that not every algorithm takes."""


def refuse_unknown(
    names: Iterable[str], accepted: Iterable[str] = OPTIONS, where: str = ""
) -> None:
    """Raise `LimitError` for an unknown option, with the closest match and the accepted ones."""
    known = tuple(accepted)
    for option in names:
        if option not in known:
            hint = "."
            if closest := get_close_matches(option, known, n=1):
                hint = f"; did you mean {closest[0]!r}?"
            raise LimitError(
                f"{where}unknown option {option!r}{hint} Known options: {', '.join(known)}",
                option,
            )


def read_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Return every option by name, with its value as the package uses it, or its default.

    Raises `LimitError`, which names the option.
    """
    if not options.keys() <= OPTIONS.keys():
        refuse_unknown(options)
    values: dict[str, Any] = {}
    for name, row in OPTIONS.items():  # The first one is the algorithm.
        value = options.get(name)
        if value is None or value == row.default:
            values[name] = row.default
        else:
            _check_option_of(values.get("algorithm", ""), name)
            values[name] = _check_value(name, value)
    _check_combination(values)
    return values


def _check_combination(values: Mapping[str, Any]) -> None:
    """Raise `LimitError` if options contradict each other, or have no effect without another."""
    for name, row in OPTIONS.items():
        for other in row.excludes:
            if values[name] and values[other]:
                text = _("%(option)s and %(other)s contradict each other: remove one of them")
                raise LimitError(text, name, option=name, other=other)
        if row.needs and values[name] != row.default and not values[row.needs]:
            text = _("%(option)s needs %(other)s as well")
            raise LimitError(text, name, option=name, other=row.needs)


def _check_option_of(algorithm: str, option: str) -> None:
    """Raise `LimitError` if an algorithm has no such option."""
    if option in _SPECIAL and option not in algorithms.find(algorithm).options:
        takers = [each.name for each in algorithms.ALGORITHMS.values() if option in each.options]
        raise LimitError(
            _("%(algorithm)s has no option %(option)s; it is for %(algorithms)s"),
            option,
            option=option,
            algorithm=algorithm,
            algorithms=", ".join(takers),
        )


def _check_value(option: str, value: object) -> object:
    """Return the value of an option as the package uses it. Raises `LimitError`, which names it."""
    try:
        return OPTIONS[option].check(value)
    except LimitError as error:
        raise error.for_option(option) from None
    except ValueError as error:
        raise LimitError(f"{option} is {value!r}: {error}", option) from None
