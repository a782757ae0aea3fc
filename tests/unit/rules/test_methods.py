"""The names of HTTP methods."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua import LimitError, ratelimit
from django_ratelimit_lua.core import is_ratelimited
from django_ratelimit_lua.rules import RuleError, compile
from django_ratelimit_lua.rules.conditions import ALL, METHODS, UNSAFE, methods_label, parse_methods
from django_ratelimit_lua.throttling import SimpleRateThrottle


class ByMethod(SimpleRateThrottle):
    rate = {"GET": "2/h", "*": None}  # noqa: RUF012 - as users write it

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        return self.get_ident(request)


@given(
    st.one_of(
        st.text(),
        st.sampled_from(["PSOT", "GTE", "HAED", "UNSAFE", "ALL", "*", "GET,POST", "GET POST", ""]),
    )
)
def test_an_unknown_method_is_refused_everywhere(name: str) -> None:
    """Decorators, functions, rules and throttles refuse an unknown method."""
    if name.upper() in METHODS:
        ratelimit(key="ip", rate="5/m", method=name)
        return
    for method in (name, ["GET", name]):
        with pytest.raises(LimitError, match="is not an HTTP method") as caught:
            ratelimit(key="ip", rate="5/m", method=method)
        assert caught.value.field == "method"
        with pytest.raises(LimitError, match="is not an HTTP method"):
            is_ratelimited(RequestFactory().get("/"), "g", None, "ip", "5/m", method)
        if name:
            with pytest.raises(RuleError, match=r"is not an HTTP method|must be text in one line"):
                compile({"name": "x", "key": "ip", "rate": "5/m", "method": method})
    if name != "*":
        with pytest.raises(ImproperlyConfigured, match="is not an HTTP method"):
            type("Wrong", (ByMethod,), {"rate": {name: "5/m"}})()


def test_a_misspelt_method_gets_a_suggestion() -> None:
    """The error names the most similar method."""
    with pytest.raises(LimitError, match="'PSOT' is not an HTTP method; did you mean 'POST'"):
        ratelimit(key="ip", rate="5/m", method="PSOT")


@pytest.mark.parametrize(
    ("given", "methods", "label"),
    [
        (ALL, None, "*"),
        ("get", {"GET", "HEAD"}, "GET"),
        (["GET", "HEAD"], {"GET", "HEAD"}, "GET"),
        ("HEAD", {"HEAD"}, "HEAD"),
        (["post", "Put"], {"POST", "PUT"}, "POST,PUT"),
        (UNSAFE, set(UNSAFE), "DELETE,PATCH,POST,PUT"),
        ({"PROPFIND"}, {"PROPFIND"}, "PROPFIND"),
    ],
)
def test_get_includes_head(given: Any, methods: set[str] | None, label: str) -> None:
    """The label, which is part of the names of counts, contains only GET."""
    assert parse_methods(given) == methods
    assert methods_label(parse_methods(given)) == label


@pytest.mark.parametrize("given", [7, [], (), {}, "", [7], object()])
def test_a_missing_method_is_an_error(given: Any) -> None:
    """The error is at the field `method`."""
    with pytest.raises(LimitError) as raised:
        parse_methods(given)
    assert raised.value.field == "method"
