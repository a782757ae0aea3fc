"""The table of the options of rules: everything that `RateLimitRule.options` may contain.

The form, its help texts, YAML, the history, the documentation and the validation use it. A new
option is one entry: in `limits.options` for an option of a limit, here for one of rules only, and
in `Extension.options` for one of an optional app.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..extension import PLACES_OF_ANNEXES, annex_options
from ..limits.algorithms import OF_SLOTS
from ..limits.call import MAX_COST
from ..limits.options import OPTIONS, Option
from ..limits.rate import SECOND, LimitError, time_us
from ..limits.values import Lines, Whole, flag
from ..limits.values import gettext_noop as _
from .conditions import network_condition, user_agent_condition

COLUMNS: Mapping[str, str] = {
    "name": _("name"),
    "description": _("description"),
    "order": _("order"),
    "path": _("paths"),
    "route": _("route"),
    "group": _("call site"),
    "method": _("methods"),
    "audience": _("audience"),
    "key": _("count by"),
    "rate": _("rate"),
    "message": _("message"),
    "mode": _("mode"),
}
"""The fields of a rule that are columns of its row, with their labels. All others are options."""
NAMES: Mapping[str, Mapping[str, str]] = {
    "mode": {"enforce": _("enforce"), "shadow": _("shadow mode"), "off": _("off")},
    "audience": {
        "everyone": _("everyone"),
        "anonymous": _("not logged in"),
        "authenticated": _("logged in"),
        "staff": _("staff"),
    },
}
"""The values of columns that are choices, with their labels; the first one is the default."""
MODES = tuple(NAMES["mode"])
MAX_LENGTHS = {
    "name": 200,
    "route": 300,
    "group": 200,
    "method": 200,
    "audience": 1000,
    "key": 300,
    "rate": 300,
    "message": 300,
}
"""The maximum lengths of the columns of a row."""


def check_tier_list(value: object) -> Sequence[object]:
    """Return a list of tiers. Raises `ValueError` for any other value."""
    if not isinstance(value, (list, tuple)):
        raise ValueError("must be a list of {'group': ..., 'rate': ...}")
    return value


def _check_waited(rule: Any) -> None:
    """Raise `LimitError` for a rule that cannot apply to busy times only.

    Its refusals say nothing about the client, so they are neither counted nor offences. It does not
    replace the limit of a call site, which it would lift.
    """
    excluded = [name for name in ("exempt", "ban_after", "count_denied") if rule.spec.get(name)]
    if rule.template is not None and any(limit.holds for limit in rule.template.limits(rule.name)):
        excluded.append(OF_SLOTS)
    if excluded:
        text = _("waited and %(other)s contradict each other: remove one of them")
        raise LimitError(text, "waited", other=excluded[0])
    if rule.group == rule.name:
        text = _("waited needs a path, a route, or the call site of another name")
        raise LimitError(text, "waited")


def has_value(name: str, value: object) -> bool:
    """Return whether an option is set: an empty pattern matches requests without a user agent."""
    return bool(value) or (name == "user_agent" and value == "")


OPTIONS_OF_RULES: Mapping[str, Option] = {
    "tiers": Option(
        check_tier_list,
        _("tiers"),
        _(
            "Other limits for Django groups, or for values of a key of this site (plan:pro). The "
            "most generous one applies. Empty a row to remove its tier."
        ),
    ),
    "cost": Option(
        Whole(0, MAX_COST),
        _("cost"),
        _("Units per request. Empty: 1, or the cost at the call site."),
    ),
    "user_agent": Option(
        Lines("['*bot*', '!*Googlebot*']"),
        _("user agents"),
        _(
            "One per line, with * for any text, in any case: *bot*. With ! in front: none of "
            "these. !?* is a request without a user agent."
        ),
        compile=user_agent_condition,
        is_place=True,
    ),
    "waited": Option(
        time_us,
        _("waiting time above"),
        _(
            "For busy times, for example 500ms: only requests that waited longer before the "
            "application began with them. Refusals are a 503."
        ),
        compile=lambda microseconds: microseconds / SECOND,
        check_rule=_check_waited,
        is_place=True,
    ),
    "network": Option(
        Lines("['google', 'bing']"),
        _("networks"),
        _(
            "Names of RATELIMIT_NETWORKS, one per line: clients in one of them. With ! in front: "
            "in none of these."
        ),
        compile=network_condition,
        is_place=True,
    ),
    "exempt": Option(
        flag,
        _("exempt"),
        _("No rule applies to requests of these paths or this route."),
        default=False,
        excludes=("rate", "algorithm"),
    ),
}


def rule_options() -> dict[str, Option]:
    """Return the options of rules that are not options of a limit, by name."""
    return {**OPTIONS_OF_RULES, **annex_options()}


def option_table() -> dict[str, Option]:
    """Return the options that a rule may have, by name."""
    table = {**OPTIONS_OF_RULES, **OPTIONS, **annex_options()}
    del table["mode"]  # It is a column.
    return table


def field_names() -> list[str]:
    """Return the names of all fields of a rule, in their usual order."""
    *columns, message, _mode = COLUMNS
    return [*columns, *OPTIONS_OF_RULES, message, *OPTIONS, *annex_options()]


def place_options() -> set[str]:
    """Return the options that say where a rule applies, also those of absent optional apps."""
    of_installed = {name for name, option in annex_options().items() if option.is_place}
    return of_installed.union(PLACES_OF_ANNEXES)
