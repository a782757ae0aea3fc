"""Breakers on views: how they are found, what the inspector shows, and which declarations are
errors.
"""

from __future__ import annotations

import copy
import datetime
import pickle
from typing import Any, assert_type

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from django_ratelimit_lua import LimitError, ratelimit
from django_ratelimit_lua.contrib.breakers import CircuitBreaker, CircuitOpen, circuit
from django_ratelimit_lua.contrib.breakers.inspection import explain
from django_ratelimit_lua.contrib.breakers.operations import BreakerState
from django_ratelimit_lua.contrib.breakers.rows import Thresholds
from django_ratelimit_lua.rules.stacks import on_view
from tests.acceptance.test_recipes import recipe

limited = ratelimit(key="ip", rate="5/m")


def fine(request: Any) -> Any:
    return HttpResponse("fine")


async def later(request: Any) -> Any:
    return HttpResponse("later")


class Parent(View):
    def get(self, request: Any) -> Any:
        return request


payments, search = CircuitBreaker("payments of a view"), circuit("search of a view", fallback=fine)


class Guarded(View):
    @payments
    def get(self, request: Any) -> Any:
        return request

    @method_decorator([never_cache, search])
    def post(self, request: Any) -> Any:
        return self.get(request)


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (search(fine), ["search"]),
        (limited(never_cache(search(fine))), ["search"]),
        (search(limited(payments(fine))), ["search", "payments"]),
        (fine, []),
        (never_cache(fine), []),
        (method_decorator(search, name="dispatch")(Parent).as_view(), ["search"]),
        (Guarded.as_view(), ["payments"]),
    ],
)
def test_breakers_on_a_view_are_found(view: Any, found: list[str]) -> None:
    """Breakers around the view, on its methods and between limits are found once each, with the
    outermost first.
    """
    guards = on_view(view, "GET").marks
    assert [guard.value[0].split()[0] for guard in guards] == found
    answers = {"search": "fallback", "payments": "raises"}
    assert [guard.value[1] for guard in guards] == [answers[name] for name in found]
    assert [guard.value[0] for guard in on_view(Guarded.as_view(), "POST").marks] == [
        "search of a view"
    ]


SINCE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("state", "passes", "words"),
    [
        ({"state": "closed"}, True, "closed"),
        (
            {"state": "open", "seconds": 8.0},
            False,
            "probe in 8 s; a stopped call raises CircuitOpen",
        ),
        ({"state": "open"}, True, "the next call is a probe"),
        (
            {"state": "half-open", "probes": 3},
            False,
            "trial calls running; a stopped call raises CircuitOpen",
        ),
        (
            {"state": "half-open", "probes": 1},
            None,
            "trial calls running; a stopped call raises CircuitOpen",
        ),
        ({}, None, "Redis is unavailable; a stopped call raises CircuitOpen"),
    ],
)
def test_a_breaker_reports_its_effect_on_a_request(
    state: Any, passes: bool | None, words: str
) -> None:
    """The effect depends on the state and the forced state. It is unknown if other calls or chance
    decide.
    """
    known = BreakerState("payments", Thresholds(), **{"row": None, "since": SINCE, **state})
    found, passed = explain(known, "raises")
    assert passed is passes
    assert found.endswith(words)


@pytest.mark.parametrize(
    "made", [CircuitOpen("payments", 2.5), CircuitOpen("payments", None, "forced")], ids=repr
)
def test_an_exception_can_be_pickled_and_copied(made: CircuitOpen) -> None:
    """`pickle`, `copy` and creation from its arguments, as in Celery's JSON, keep all
    attributes.
    """
    for again in (
        pickle.loads(pickle.dumps(made)),
        copy.copy(made),
        copy.deepcopy(made),
        CircuitOpen(*made.args),
    ):
        assert (type(again), str(again), vars(again)) == (type(made), str(made), vars(made))


@pytest.mark.parametrize(
    "decorator",
    [CircuitBreaker("mistakes", fallback=later), circuit("mistakes too", fallback=later)],
)
def test_a_fallback_of_a_plain_function_must_be_plain(decorator: Any) -> None:
    """A coroutine as the response of a sync view would be an error for every client."""
    with pytest.raises(LimitError, match="fallback is a coroutine function"):
        decorator(fine)


def test_decorators_keep_the_types_of_a_function() -> None:
    """The decorators keep the types of views and of other functions."""

    @circuit("typed view")
    def view(request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(str(number))

    @CircuitBreaker("typed")
    def call(number: int) -> str:
        return str(number)

    assert assert_type(view(RequestFactory().get("/"), number=1), HttpResponse).content == b"1"
    assert assert_type(call(number=1), str) == "1"


def test_without_the_app_a_breaker_names_the_line_to_add(monkeypatch: Any) -> None:
    """The error is raised at the declaration or, if the apps are not ready then, at the
    first call.
    """
    early = CircuitBreaker("declared early")
    monkeypatch.setattr("django_ratelimit_lua.extension.extensions", [])
    for use in (lambda: CircuitBreaker("declared late"), lambda: early.call(fine, None)):
        with pytest.raises(
            ImproperlyConfigured, match="to INSTALLED_APPS, to use circuit breakers"
        ):
            use()


def test_a_stored_public_page_can_be_the_fallback_of_a_breaker() -> None:
    """This is the example of the documentation. While the service fails, clients get the stored
    page, or a 503 without one.
    """
    names = recipe("how-to/circuit-breaker.rst", "prices")

    def fail() -> str:
        raise ConnectionError

    def status_and_text() -> tuple[int, str]:
        response = names["prices"](RequestFactory().get("/prices"))
        return response.status_code, response.content.decode()

    assert status_and_text() == (200, "Tea: 3.20")
    names["load_prices"] = fail
    for _ in range(19):
        with pytest.raises(ConnectionError):
            status_and_text()
    assert status_and_text() == (200, "Tea: 3.20")
    names["cache"].delete("prices")
    assert status_and_text() == (503, "The prices are not available at the moment.")
