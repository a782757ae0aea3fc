"""The functions of django-ratelimit, for projects that change only their imports."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import UNSAFE
from django_ratelimit_lua.core import get_usage, is_ratelimited
from django_ratelimit_lua.decorators import ratelimit


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def test_usage_contains_the_count_and_the_reset_time(rf: RequestFactory) -> None:
    """With `increment`, each call counts. A refused call has a count of one more than the limit."""
    usages = [
        get_usage(rf.get("/"), group="g", key="ip", rate="2/h", increment=True) for _ in range(3)
    ]
    assert [(usage["count"], usage["limit"], usage["should_limit"]) for usage in usages] == [
        (1, 2, False),
        (2, 2, False),
        (3, 2, True),
    ]
    assert all(3600 <= usage["time_left"] <= 3960 for usage in usages)


def test_get_usage_without_increment_counts_nothing(rf: RequestFactory) -> None:
    """The result is that of one further call, as code that counts only failures needs it."""
    ask = {"request": rf.get("/"), "group": "login", "key": "ip", "rate": "2/h"}
    assert [is_ratelimited(**ask) for _ in range(5)] == [False] * 5
    for _ in range(2):
        is_ratelimited(**ask, increment=True)
    assert is_ratelimited(**ask)
    assert get_usage(**ask)["count"] == 2


def test_get_usage_reads_the_count_of_the_decorator(rf: RequestFactory) -> None:
    """The group, key, rate and method have to be equal. `fn` may be the view itself."""
    ratelimit(key="ip", rate="2/h", method=UNSAFE)(view)(rf.post("/"))
    assert get_usage(rf.post("/"), fn=view, key="ip", rate="2/h", method=UNSAFE)["count"] == 1
    assert get_usage(rf.post("/"), fn=view, key="ip", rate="2/h")["count"] == 0


@pytest.mark.parametrize("rules", [[], [{"name": "login", "rate": "2/h"}]], ids=["code", "rule"])
def test_calls_for_one_request_count_and_read_the_same_under_a_rule(
    rules: list[dict[str, str]], rf: RequestFactory, settings: Any
) -> None:
    """Each call counts, and the functions read what the decorator has counted."""
    settings.RATELIMIT_RULES = rules
    request = rf.get("/")
    ask = {"request": request, "group": "login", "key": "ip", "rate": "2/h"}
    assert [is_ratelimited(**ask, increment=True) for _ in range(4)] == [False, False, True, True]
    assert is_ratelimited(**ask)
    view_of_login = ratelimit("login", "ip", "2/h", block=False)(lambda request: get_usage(**ask))
    other = rf.get("/", REMOTE_ADDR="192.0.2.7")
    ask["request"] = other
    assert [view_of_login(other)["count"] for _ in range(3)] == [1, 2, 2]
    assert (other.limited, is_ratelimited(**ask)) == (True, True)


def test_a_rule_counts_a_request_once_at_different_call_sites(
    rf: RequestFactory, settings: Any
) -> None:
    """Two decorators and a function of the same group use one unit, whatever comes first."""
    settings.RATELIMIT_RULES = [{"name": "login", "key": "ip", "rate": "9/h"}]
    one = ratelimit("login", "ip", "5/h")(view)
    two = ratelimit("login", "ip", "5/h")(lambda request: one(request))
    ask = {"group": "login", "key": "ip", "rate": "5/h"}
    request = rf.get("/")
    two(request)
    is_ratelimited(request, **ask, increment=True)
    assert get_usage(request, **ask)["count"] == 1
    request = rf.get("/")
    is_ratelimited(request, **ask, increment=True)
    two(request)
    assert get_usage(request, **ask)["count"] == 2


def test_get_usage_without_a_limit_returns_none(rf: RequestFactory, settings: Any) -> None:
    """There is no limit without a rate, for another method, or if the site is disabled."""
    assert get_usage(rf.get("/"), group="g", key="ip", rate=None) is None
    assert get_usage(rf.get("/"), group="g", key="ip", rate=lambda group, request: None) is None
    assert get_usage(rf.get("/"), group="g", key="ip", rate="1/h", method="POST") is None
    settings.RATELIMIT_ENABLE = False
    assert not is_ratelimited(rf.get("/"), group="g", key="ip", rate="0/s", increment=True)


def test_time_left_is_minus_one_if_the_limit_never_resets(rf: RequestFactory) -> None:
    """django-ratelimit also returns -1 in this case."""
    assert get_usage(rf.get("/"), group="g", key="ip", rate="0/s")["time_left"] == -1


def test_get_usage_without_group_or_function_is_an_error(rf: RequestFactory) -> None:
    """The same call is an error in django-ratelimit."""
    with pytest.raises(ImproperlyConfigured, match="group"):
        get_usage(rf.get("/"), key="ip", rate="1/h")


@pytest.mark.parametrize("function", [get_usage, is_ratelimited])
def test_method_constants_are_attributes_of_the_functions(
    rf: RequestFactory, function: Any
) -> None:
    """As in django-ratelimit, `is_ratelimited.UNSAFE` needs no second import."""
    assert (function.ALL, function.UNSAFE) == (None, UNSAFE)
    assert not function(
        rf.get("/"), group="g", key="ip", rate="0/s", method=function.UNSAFE, increment=True
    )
    assert function(
        rf.post("/"), group="g", key="ip", rate="0/s", method=function.UNSAFE, increment=True
    )
