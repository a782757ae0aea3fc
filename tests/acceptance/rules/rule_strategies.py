"""Hypothesis strategies for rules: plausible and odd values of every field of the models."""

from __future__ import annotations

import math
from typing import Any

from django.db import models
from hypothesis import strategies as st

from django_ratelimit_lua.limits.values import Number, Whole
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.rules.options import Option, option_table

# Texts that a form, a file or a script may put into a field.
TEXTS = ["", "x", " ", "ö" * 40, "a" * 300, "9" * 30, "-1", "1e400", "null", "٣", "²", "\x00", "\n"]
TEXTS += ["a\nb", "\u2028", "../", "%00", "{0}", "\ud800"]
texts = st.sampled_from(TEXTS) | st.text(max_size=20)
NUMBERS = [0, 1, 2, 3, 7, 59, 60, 86_400, 10**5, 10**12, 10**12 + 1, 2**31 - 1, 2**31, 2**53]
NUMBERS += [2**53 + 1, 2**63 - 1, 2**63, -1]
numbers = st.sampled_from(NUMBERS) | st.integers(0, 100)
moments = st.sampled_from([0.0, 0.001, 0.5, 1e9, 1e300, -0.0, math.inf, math.nan, -1.0])


def mostly(good: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw a good value in nine of ten cases, because a rule with many odd fields is refused."""
    return st.integers(0, 9).flatmap(lambda number: odd if number == 9 else good)


KINDS = ["ip", "user", "user_or_ip", "session", "path", "route", "header:User-Agent", "get:q"]
KINDS += ["cookie:sessionid", "post:username", "json:a.b", "data:username", "int:post:account"]
KINDS += ["kwarg:name", "a.b:c", "header:\u00e9"]
kinds = st.sampled_from(KINDS)
PATHS = ["/", "/ok", "/*", "/**", "**", "/things/*/", "/search", "/\n/ok", "/" + "*a" * 400, "/["]
PATHS += ["//["]
AUDIENCES = ["everyone", "anonymous", "authenticated", "staff", "group:pro\ngroup:free"]
ROUTES = ["ok", "thing", "nowhere", "admin:index", "\u00f6" * 40]
wrong_keys = (
    st.sampled_from(["", "header:X+Y", "header:", "os.system", "id", " ip", "ip+", "+"]) | texts
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
RATES = ["0/m", "1/h", "2/m", "5/7m", "3/30s", "5/d", "9/7m", "3/w"]
tiers = st.fixed_dictionaries(
    {
        "group": mostly(
            st.sampled_from(["pro", "free"]), st.sampled_from([None, "", "x:"]) | texts
        ),
        "rate": mostly(st.sampled_from(RATES), st.sampled_from([None, 5, "5", ["5/m"]]) | texts),
    },
    optional={"burst": mostly(st.integers(1, 9), numbers)},
)
LIKELY: dict[str, Any] = {
    "name": mostly(st.sampled_from(["site", "search", "other", "x" * 200, "\u00f6 : /*"]), texts),
    "key": mostly(kinds | st.lists(kinds, min_size=2, max_size=3).map("+".join), wrong_keys),
    "path": mostly(
        st.sampled_from(PATHS),
        st.sampled_from(["", "ok", "/" + "a" * 2000]) | texts.map("/{}".format),
    ),
    "route": mostly(st.sampled_from(ROUTES), texts),
    "group": mostly(st.sampled_from(["search", "other"]), texts),
    "time_zone": mostly(
        st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu"]),
        st.sampled_from(["Mars/Base", "../etc/passwd", "Europe"]) | texts,
    ),
    "method": mostly(
        st.lists(st.sampled_from(METHODS), max_size=3).map(", ".join),
        st.sampled_from(["GET,", "PSOT", "get", "5"]) | texts,
    ),
    "audience": mostly(
        st.sampled_from(AUDIENCES), st.sampled_from(["", "group:", "nobody", "pro"]) | texts
    ),
    "rate": mostly(
        st.lists(st.sampled_from(RATES), min_size=1, max_size=3, unique=True).map(", ".join),
        st.sampled_from(["", "5/moon", "5/d, 5/d", "5", "-1/h", f"{10**13}/m", "5/0m"]) | texts,
    ),
    "tiers": mostly(st.lists(tiers, max_size=2), st.sampled_from([None, {}, [5], ["pro"]])),
    "burst": mostly(st.integers(1, 9), numbers),
    "cost": mostly(st.integers(0, 3), numbers),
}


def field_values(field: models.Field[Any, Any]) -> st.SearchStrategy[Any]:
    """Draw values of a field: its choices, plausible ones and odd ones."""
    if field.name in LIKELY:
        return LIKELY[field.name]
    if field.choices:
        names = [choice for choice, _ in field.choices] + ([""] if field.blank else [])
        return mostly(st.sampled_from(names), texts)
    if isinstance(field, models.BooleanField):
        return st.booleans()
    if isinstance(field, models.FloatField):
        return st.none() | moments
    if isinstance(field, models.IntegerField):
        return (st.none() | numbers) if field.null else numbers
    return texts


def option_values(name: str, option: Option) -> st.SearchStrategy[Any]:
    """Draw values of an option: its names, plausible ones and odd ones."""
    if name in LIKELY:
        return LIKELY[name]
    if option.names:
        return mostly(st.sampled_from([*option.names]), texts | st.none())
    if isinstance(option.check, Number):
        return mostly(moments, numbers)
    if isinstance(option.check, Whole):
        return numbers
    return mostly(st.booleans() | st.sampled_from(["1h", "10m,1d"]), texts | numbers)


def a_few(strategies: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw at most three values by name, so that most rules are accepted."""
    few = st.lists(st.sampled_from(sorted(strategies)), max_size=3, unique=True)
    return few.flatmap(
        lambda names: st.fixed_dictionaries({name: strategies[name] for name in names})
    )


OFTEN = ("name", "path", "key", "rate")
columns = {
    field.name: field_values(field)
    for field in RateLimitRule._meta.concrete_fields
    if not field.primary_key and field.name not in ("options", "revision")
}
rules = st.builds(
    lambda often, few, given: {**few, **often, "options": given},
    st.fixed_dictionaries({name: columns[name] for name in OFTEN}),
    a_few({name: of for name, of in columns.items() if name not in OFTEN}),
    a_few({name: option_values(name, option) for name, option in option_table().items()}),
)
