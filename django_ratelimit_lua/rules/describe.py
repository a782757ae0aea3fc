"""Describe a rule in one sentence, and the difference between two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.formats import number_format
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..extension import FIELDS_OF_ANNEXES, annex_options, install_hint
from ..identity.keys import ALL_CALLERS, FIELDS, operator_label
from ..limits.options import OPTIONS
from ..limits.rate import LimitError, Rate
from .options import COLUMNS, NAMES, OPTIONS_OF_RULES, has_value, option_table, place_options
from .rule import Spec
from .template import as_list


def rate_words(rate: Any) -> str:
    """Return a rate in words.

    >>> rate_words("100/m"), rate_words("5/15m"), rate_words(["10/s", "500/h"])
    ('100 per minute', '5 per 15 minutes', '10 per second and 500 per hour')
    >>> rate_words("5")
    '5 at once'
    """
    if isinstance(rate, list):
        return _(" and ").join(map(rate_words, rate))
    try:
        parsed = Rate.parse(rate)
    except LimitError:
        return str(rate)
    if parsed.is_slots:
        return _("%(limit)s at once") % {"limit": parsed}
    numbers = {"limit": parsed.limit, "period": period_words(parsed)}
    return _("%(limit)s per %(period)s") % numbers


def period_words(rate: Rate) -> str:
    """Return the period of a rate, as written after "per"; empty for slots.

    >>> period_words(Rate.parse("5/m")), period_words(Rate.parse("5/15m"))
    ('minute', '15 minutes')
    """
    unit = rate.per.lstrip("0123456789")
    times = int(rate.per.removesuffix(unit) or 1)
    names = {
        "s": ngettext("second", "%(times)d seconds", times),
        "m": ngettext("minute", "%(times)d minutes", times),
        "h": ngettext("hour", "%(times)d hours", times),
        "d": ngettext("day", "%(times)d days", times),
        "w": ngettext("week", "%(times)d weeks", times),
        "us": ngettext("microsecond", "%(times)d microseconds", times),
    }
    return names[unit] % {"times": times}


def key_label(key: object, otherwise: str = "") -> str:
    """Return what a key counts by, in words, or `otherwise` if there is no key.

    >>> key_label("ip"), key_label(["ip", "post:username"])
    ('address', 'address and post:username')
    """
    if isinstance(key, (list, tuple)):
        return _(" and ").join(map(key_label, key))
    if not key:
        return otherwise or _("key in the code")
    if isinstance(key, str):
        return operator_label(key)
    return str(getattr(key, "__qualname__", key))


def field_words(field: str) -> str:
    """Return the name of a field for operators.

    >>> field_words("post:username")
    'form field username'
    """
    kind, _colon, name = field.partition(":")
    if kind in FIELDS:
        return str(FIELDS[kind].label) % name
    return operator_label(field)


def describe_spec(spec: Spec, client: str = "") -> str:
    """Return a rule in one sentence.

    `client` is what it counts by, in words, if the rule has no key of its own.

    >>> rule = {"name": "api", "key": "user", "rate": "100/m", "burst": 20, "path": "/api/"}
    >>> describe_spec({**rule, "mode": "shadow"})
    '100 per minute per user, bursts of 20, on /api/, shadow mode'
    >>> describe_spec({"name": "budget", "key": "ip", "rate": "10000/s", "lease": 500})
    '10000 per second per address, leases of 500, at the call site budget'
    """
    try:
        return _describe_valid_spec(spec, client)
    except (AttributeError, KeyError, TypeError, ValueError):  # A spec that was edited by hand.
        return str(spec)


def _describe_valid_spec(spec: Spec, client: str) -> str:
    """Return a rule in one sentence. Raises an error if a field has a wrong type."""
    parts = [_limit_words(spec, client)]
    for name, option in OPTIONS.items():
        if option.words and spec.get(name):
            words = option.singular if option.singular and spec[name] == 1 else option.words
            parts.append(_(words) % spec)
    parts += [
        _("%(rate)s for %(group)s") % {**tier, "rate": rate_words(tier["rate"])}
        for tier in spec.get("tiers") or ()
    ]
    parts.append(_describe_place(spec))
    if spec.get("mode", "enforce") != "enforce":
        parts.append({"shadow": _("shadow mode"), "off": _("off")}[spec["mode"]])
    return ", ".join(filter(None, parts))


def _limit_words(spec: Spec, client: str) -> str:
    """Return the rate and what it counts by, in words; empty if the spec has no rate.

    Without a key, it counts by `client` or, in the place of an optional app, as that app does.
    """
    if spec.get("exempt"):
        return _("no limits")
    if spec.get("rate") is None:
        return ""
    words = _("%(rate)s per %(client)s")
    if spec.get("key") == ALL_CALLERS:
        words = _("%(rate)s for %(client)s")
    for name, option in annex_options().items():
        if option.is_place and spec.get(name):
            client = _(option.label)
    return words % {"rate": rate_words(spec["rate"]), "client": key_label(spec.get("key"), client)}


def _describe_place(spec: Spec) -> str:
    """Return the requests that a rule applies to, in words."""
    parts: list[str] = []
    if spec.get("method"):
        parts.append(_join_words(spec["method"]))
    if spec.get("path"):
        parts.append(_("on %(paths)s") % {"paths": _join_words(spec["path"])})
    if spec.get("route"):
        parts.append(_("at the route %(route)s") % spec)
    group = spec.get("group")
    if not any(map(spec.get, ("path", "route", "group", *place_options()))):
        group = spec.get("name")
    if group:
        parts.append(_("at the call site %(group)s") % {"group": group})
    for name, option in OPTIONS_OF_RULES.items():
        if option.is_place and has_value(name, spec.get(name)):
            condition = {"condition": _(option.label), "values": _join_words(spec[name])}
            parts.append(_("with the %(condition)s %(values)s") % condition)
    parts += _annex_words(spec)
    audience = spec.get("audience", "everyone")
    if audience != "everyone":
        names = {
            "authenticated": _("logged-in users"),
            "anonymous": _("visitors without a login"),
        }
        words = _join_words(_audience_names(audience, names))
        parts.append(_("for %(audience)s") % {"audience": words})
    return " ".join(filter(None, parts))


def _annex_words(spec: Spec) -> list[str]:
    """Return the options of optional apps, in words, and those of absent apps by name."""
    installed = annex_options()
    words = []
    for name in filter(spec.get, {**FIELDS_OF_ANNEXES, **installed}):
        if name in installed:
            words.append(installed[name].describe(spec[name]))
        elif name in place_options():
            words.append(f"{name} ({install_hint(FIELDS_OF_ANNEXES[name])})")
    return words


def _audience_names(audience: Any, names: Mapping[str, str]) -> list[str]:
    """Return the names of an audience in words, as in `names`.

    A group may have the name of another audience.
    """
    words = []
    for name in as_list(audience):
        _kind, is_group, group = name.partition("group:")
        if is_group:
            words.append(_("group %(name)s") % {"name": group})
        else:
            words.append(names.get(name, name))
    return words


def _join_words(words: object) -> str:
    """Return one or several words as one text."""
    return _(" and ").join(map(str, as_list(words)))


def describe_difference(before: Spec | None, after: Spec | None) -> list[str]:
    """Return the fields in which two versions of a rule differ, by their labels.

    Each line has the old and the new value in words, or only one if there is no other version.

    >>> describe_difference({"rate": "100/m", "mode": "shadow"}, {"rate": "50/m", "burst": 5})
    ['Rate: 100 per minute → 50 per minute', 'Mode: shadow mode → enforce', 'Burst: — → 5']
    >>> describe_difference(None, {"key": ["ip", "post:username"]})
    ['Count by: address and post:username']
    """
    versions = [version for version in (before, after) if version]
    labels = {**COLUMNS, **{name: option.label for name, option in option_table().items()}}
    fields = dict.fromkeys([*labels, *(field for version in versions for field in version)])
    lines = []
    for field in fields:
        if (before or {}).get(field) != (after or {}).get(field):
            words = [value_words(field, version.get(field)) for version in versions]
            lines.append(f"{capfirst(_(labels.get(field, field)))}: {' → '.join(words)}")
    return lines


def value_words(field: str, value: Any) -> str:
    """Return the value of a field of a rule in words, with the labels of choices.

    >>> value_words("tiers", [{"group": "pro", "rate": "9/m", "burst": 3}])
    'pro: 9 per minute, burst 3'
    >>> [value_words(field, None) for field in ("audience", "exempt", "burst", "order")]
    ['everyone', 'no', '—', '0']
    """
    option = option_table().get(field)
    if field in NAMES:
        names = {name: _(words) for name, words in NAMES[field].items()}
        return ", ".join(_audience_names(value or next(iter(names)), names))
    if option is not None and option.default is False and isinstance(value, bool | None):
        return _("yes") if value else _("no")
    if field == "order":
        return str(value or 0)
    if value in (None, "", []):
        return "—"
    if field == "rate":
        return rate_words(value)
    if field == "key":
        return key_label(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_item_words, value))
    if isinstance(value, float):
        return str(number_format(f"{value:.15g}"))
    if option is not None and isinstance(value, str) and value in option.names:
        return _(option.names[value])
    return str(value)


def _item_words(item: object) -> str:
    """Return an item of a list in words: a tier, or any text."""
    if not (isinstance(item, Mapping) and {"group", "rate"} <= item.keys()):
        return str(item)
    text = f"{item['group']}: {rate_words(item['rate'])}"
    if item.get("burst"):
        text += f", {_(OPTIONS['burst'].label)} {item['burst']}"
    return text
