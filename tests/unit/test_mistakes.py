"""Errors name the mistake in the words of the developer's code, with a valid alternative."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy
from django.views import View
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua import (
    Decision,
    LimitError,
    Ratelimited,
    RateLimiter,
    extension,
    ratelimit,
)
from django_ratelimit_lua.core import get_usage, is_ratelimited
from django_ratelimit_lua.extension import FIELDS_OF_ANNEXES
from django_ratelimit_lua.identity import address
from django_ratelimit_lua.identity.address import client_address
from django_ratelimit_lua.identity.keys import compile_key
from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.options import OPTIONS
from django_ratelimit_lua.rules import RuleError, compile
from django_ratelimit_lua.rules.options import field_names
from django_ratelimit_lua.throttling import SimpleRateThrottle
from django_ratelimit_lua.views import call_sites

MAIL = LimitState("mail", False, 5, 5, 0, 12.0, 60.0, 0.0)


class LastExport(Ratelimited):
    """A subclass of the exception that takes a decision, as a project may define it."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.seconds = decision.retry_after


async def later(request: HttpRequest) -> HttpResponse:
    return HttpResponse("later")


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


KNOWN = {*field_names(), *FIELDS_OF_ANNEXES, *call_sites._ARGUMENTS, "id", "self", "name"}
LETTERS = st.characters(categories=["Ll", "Nd"], include_characters="_")
WORDS = st.text(LETTERS, min_size=1).filter(lambda word: word not in {*KNOWN, "counted_as"})
MISSPELT = st.sampled_from(["brust", "bursts", "algoritm", "max_wiat", "methods", "raet", "Burst"])


@given(WORDS | MISSPELT)
def test_an_unknown_option_is_named(option: str) -> None:
    """Decorators, limiters, throttles and rules list the known options."""
    unknown: dict[str, Any] = {option: 5}
    ways: list[Any] = [
        lambda: ratelimit(key="ip", rate="5/m", **unknown),
        lambda: RateLimiter("mail", "5/m", **unknown),
        lambda: Limit("mail", "5/m", **unknown),
        lambda: type("Wrong", (SimpleRateThrottle,), {"options": unknown}),
    ]
    for way in ways:
        with pytest.raises(LimitError) as caught:
            way()
        assert f"unknown option {option!r}" in str(caught.value)
        assert all(known in str(caught.value) for known in OPTIONS)
        assert caught.value.field == option
    with pytest.raises(RuleError) as refused:
        compile({"name": "x", "key": "ip", "rate": "5/m", **unknown})
    assert f"unknown field {option!r}" in str(refused.value)
    assert str(refused.value).endswith(f" Known fields: {', '.join(field_names())}")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("brust", "burst"), ("algoritm", "algorithm"), ("max_wiat", "max_wait"), ("modes", "mode")],
)
def test_unknown_names_get_a_suggestion(wrong: str, meant: str) -> None:
    """The error suggests the most similar name, including the decorator's own arguments."""
    unknown: Any = {wrong: 5}
    for way in (
        lambda: ratelimit(key="ip", rate="5/m", **unknown),
        lambda: Limit("x", "5/m", **unknown),
    ):
        with pytest.raises(LimitError, match=f"unknown option '{wrong}'; did you mean '{meant}'"):
            way()
    with pytest.raises(RuleError, match=f"unknown field {wrong!r}; did you mean {meant!r}"):
        compile({"name": "x", "key": "ip", "rate": "5/m", wrong: 5})
    with pytest.raises(LimitError, match="did you mean 'count_if'"):
        ratelimit(key="ip", rate="5/m", countif=len)  # type: ignore[call-arg]


def test_the_error_for_a_plain_method_names_method_decorator() -> None:
    """Without an argument `self`, it is raised at the first call."""
    with pytest.raises(LimitError, match=r"on .*Plain\.get: .*@method_decorator\(ratelimit"):

        class Plain(View):
            @ratelimit(key="ip", rate="5/m")
            def get(self, request: HttpRequest) -> HttpResponse:
                return HttpResponse("never")

    class Sync(View):
        @ratelimit(key="ip", rate="5/m")
        def get(this, request: HttpRequest) -> HttpResponse:  # noqa: N805
            return HttpResponse("never")

    class Async(View):
        @ratelimit(key="ip", rate="5/m")
        async def get(this, request: HttpRequest) -> HttpResponse:  # noqa: N805
            return HttpResponse("never")

    for view in (Sync, Async):
        send = async_to_sync(view.as_view()) if view is Async else view.as_view()
        with pytest.raises(LimitError, match=rf"{view.__name__}\.get: .*@method_decorator"):
            send(RequestFactory().get("/"))


def test_the_error_for_a_function_without_a_request_names_rate_limiters() -> None:
    """The error is raised at the first call of a sync or async function, with any fallback."""

    limit = ratelimit(key=lambda *_: "all", rate="5/m", fallback="later")

    @limit
    def add(one: int, other: int) -> int:
        return one + other

    @limit
    async def aadd(one: int, other: int) -> int:
        return one + other

    error = r"add: .* without a request, use a RateLimiter as the decorator"
    for function in (add, async_to_sync(aadd)):
        with pytest.raises(LimitError, match=error):
            function(1, 2)


def test_the_error_for_a_class_names_method_decorator() -> None:
    """The error shows `method_decorator` with the name `dispatch`."""

    class Whole(View):
        pass

    error = r"@method_decorator\(ratelimit\(\.\.\.\), name='dispatch'\) on Whole"
    with pytest.raises(LimitError, match=error):
        ratelimit(key="ip", rate="5/m")(Whole)


def test_functions_that_resemble_methods_can_be_decorated() -> None:
    """One is defined inside a method, and one is a bound method."""

    class Site:
        def view(self) -> Any:
            @ratelimit("inner", "ip", "5/m")
            def inner(self: HttpRequest) -> HttpResponse:
                return HttpResponse("inner")

            return inner

        def bound(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("bound")

    class Decorated(View):
        @method_decorator(ratelimit("method", "ip", "5/m"))
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("method")

    views = [Site().view(), ratelimit("bound", "ip", "5/m")(Site().bound), Decorated.as_view()]
    contents = [view(RequestFactory().get("/")).content for view in views]
    assert contents == [b"inner", b"bound", b"method"]


def test_the_core_functions_need_a_request() -> None:
    """The error says that the first argument must be the request."""
    for function in (is_ratelimited, get_usage):
        with pytest.raises(TypeError, match="must be the request, not <object"):
            function(object(), "group", None, "ip", "5/m")  # type: ignore[operator]


@pytest.mark.parametrize(
    "made",
    [
        Ratelimited(),
        Ratelimited("Five exports a day are enough."),
        Ratelimited(gettext_lazy("Too many requests.")),
        Ratelimited(Decision(False, (MAIL,))),
        Ratelimited(Decision(False, (MAIL, MAIL))),
    ],
    ids=repr,
)
def test_an_exception_can_be_pickled_and_copied(made: Exception) -> None:
    """Celery's JSON serializer creates it again from its arguments."""
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert (type(again), str(again), vars(again)) == (type(made), str(made), vars(made))
    again = type(made)(*json.loads(json.dumps(made.args)))
    assert str(again) == str(made)
    if isinstance(made, Ratelimited):
        assert made.message == again.message == str(made)
        assert not again.decision


def test_an_exception_subclass_with_a_decision_can_be_pickled() -> None:
    """A subclass whose constructor takes a decision is unpickled with its decision."""
    made = LastExport(Decision(False, (MAIL,)))
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), str(again), again.seconds) == (LastExport, "mail: retry in 12 s", 12.0)


def test_the_exception_has_a_default_text() -> None:
    """The default text has the event, and the retry time of a decision."""
    assert str(Ratelimited()) == "Rate limit exceeded"
    assert str(Ratelimited("Ask sales.")) == "Ask sales."
    assert str(Ratelimited(Decision(False, (MAIL,)))) == "mail: retry in 12 s"


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
def test_an_untrusted_proxy_is_logged_once(
    header: str, rf: RequestFactory, caplog: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """The warning has no content of the header, and ends with a proxy setting."""
    monkeypatch.setattr(address, "_unlogged", {address._UNTRUSTED})
    request = rf.get("/", headers={header: "for=203.0.113.66\nforged"})
    settings.RATELIMIT_TRUSTED_PROXIES = 0
    with caplog.at_level(logging.WARNING, "django_ratelimit_lua"):
        client_address(request)
        client_address(rf.get("/"))
        assert not caplog.records
        settings.RATELIMIT_TRUSTED_PROXIES = None
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(client_address, [request] * 100))
    (record,) = caplog.records
    assert "127.0.0.1" in record.getMessage()
    assert "RATELIMIT_TRUSTED_PROXIES is not set" in record.getMessage()
    assert "203.0.113.66" not in record.getMessage()


@pytest.mark.parametrize("proxies", [None, ["10.0.0.0/8"]])
def test_a_missing_address_is_logged_once(
    proxies: Any, rf: RequestFactory, caplog: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """One warning is logged if the key `ip` counts requests without an address, as behind a Unix
    socket that is not trusted.
    """
    monkeypatch.setattr(address, "_unlogged", {address.NO_ADDRESS})
    read_ip = compile_key("ip").read
    request = rf.get("/", REMOTE_ADDR="", headers={"X-Forwarded-For": "203.0.113.66"})
    settings.RATELIMIT_TRUSTED_PROXIES = ["unix"]
    with caplog.at_level(logging.WARNING, "django_ratelimit_lua"):
        assert read_ip("", request, None) == ("ip", "203.0.113.66")
        assert not caplog.records
        settings.RATELIMIT_TRUSTED_PROXIES = proxies
        for _ in range(2):
            assert read_ip("", request, None) == ("ip", None)
    (record,) = caplog.records
    assert "no REMOTE_ADDR" in record.getMessage()
    assert "'unix'" in record.getMessage()


def test_a_key_that_returns_none_is_logged(caplog: Any) -> None:
    """A record of the level DEBUG says that such a request is counted with all others."""

    def shop(group: str, request: HttpRequest) -> None:
        return None

    @ratelimit("shops", shop, "5/m")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with caplog.at_level(logging.DEBUG, "django_ratelimit_lua"):
        view(RequestFactory().get("/"))
    text = "returned None for shops, so the request is counted with those of all clients"
    assert [record for record in caplog.records if text in record.getMessage()]


IP = {"key": "ip"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "ip", "rate": "10/x"}, "write N/unit"),
        ({"key": "ip", "rate": "5/month"}, "write N/unit"),
        ({"key": "ip", "rate": "ten/m"}, "'ten/m'"),
        ({"key": "ip", "rate": "5/m junk"}, "'5/m junk'"),
        ({"key": "ip", "rate": "-5/m"}, "'-5/m'"),
        ({"key": "ip", "rate": "9" * 30 + "/m"}, "too large"),
        ({"key": "ip", "rate": []}, "empty list"),
        ({"key": "ip", "rate": 5}, "neither text nor"),
        ({"key": "ip", "rate": ("5/m", "10/h")}, "several rates are a list"),
        ({"key": "ip", "rate": "5/m", "algorithm": "lucky"}, "sliding_log"),
        ({"key": "ip", "rate": "5/m", "burst": 3}, "no option burst"),
        ({"key": "ip", "rate": "5/m", "cost": -1}, "Cost -1"),
        ({"key": "ip", "rate": "5/m", "cost": "many"}, "Cost 'many'"),
        ({"key": "ip", "rate": "5/m", "count_if": "failed"}, "count_if is 'failed'"),
        ({"key": "ip", "rate": "5/m", "method": 7}, "method is 7"),
        ({"key": "ip", "rate": "5/m", "method": []}, "method is"),
        ({"key": "ip", "rate": "5/m", "group": ""}, "group is ''"),
        ({"key": "nobody", "rate": "5/m"}, "cookie:NAME"),
        ({"key": "get:", "rate": "5/m"}, "Unknown key 'get:'"),
        ({"key": (), "rate": "5/m"}, "needs a key"),
        ({"rate": "5/m"}, "needs a key"),
        ({**IP, "rate": "5/m", "descriptor": ["generic_key=x"]}, "is only a field of rules"),
        ({**IP, "rate": "5/m", "block": False, "fallback": ok}, "no effect with block=False"),
        ({**IP, "rate": "5/m", "fallback": HttpResponse("later")}, "all requests would share"),
    ],
)
def test_errors_are_raised_by_the_decorator(arguments: dict[str, Any], message: str) -> None:
    """Invalid arguments raise an error when the decorator is created, not at the first request."""
    with pytest.raises(LimitError, match=message):
        ratelimit(**arguments)


@pytest.mark.parametrize(("group", "name"), [(None, "@ratelimit"), ("search", "search")])
def test_an_error_of_the_decorator_names_the_group(group: str | None, name: str) -> None:
    """Without a group, the limit has no name yet, so the decorator is named."""
    with pytest.raises(LimitError, match=f"^Limit '{name}': "):
        ratelimit(group, "ip", "5/m", burst=3)


def test_errors_are_raised_at_construction() -> None:
    """Invalid arguments raise an error when the limiter is created, not at the first hit."""
    for arguments in (["x", "5/month"], ["x", []], ["", "5/m"], ["x", ["5/m", "5/m"]]):
        with pytest.raises(LimitError):
            RateLimiter(*arguments)
    with pytest.raises(LimitError, match="unknown option 'bursts'; did you mean 'burst'"):
        RateLimiter("x", "5/m", bursts=3)


async def several() -> Any:
    yield 1


LIMITER = RateLimiter("mistakes", "5/m")


@pytest.mark.parametrize(
    ("decorator", "function", "problem"),
    [
        (LIMITER, type("Job", (), {}), "Job is not a function"),
        (LIMITER, classmethod(ok), "ok: that is a classmethod, not a function"),
        (LIMITER, several, "several is an async generator"),
        (LIMITER(fallback=later), ok, "fallback is a coroutine function"),
        (ratelimit(key="ip", rate="5/m", fallback=later), ok, "fallback is a coroutine function"),
    ],
)
def test_a_fallback_that_does_not_fit_is_an_error_of_the_decorator(
    decorator: Any, function: Any, problem: str
) -> None:
    """A coroutine as the response would fail for each client."""
    with pytest.raises(LimitError, match=problem):
        decorator(function)


def test_the_option_durable_without_its_app_is_an_error_that_names_the_app(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It needs the app of the statistics."""
    monkeypatch.setattr(extension, "extensions", [])
    line = 'Add "django_ratelimit_lua.contrib.statistics" to INSTALLED_APPS'
    with pytest.raises(LimitError, match=line):
        RateLimiter("mistakes", "5/m", durable=True)
    with pytest.raises(LimitError, match=line):
        ratelimit(key="ip", rate="5/m", durable=True)(ok)


def test_a_missing_app_is_logged_with_what_to_add(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the app no system check runs, so the first decision reports what does not apply."""
    settings.INSTALLED_APPS = [
        app for app in settings.INSTALLED_APPS if not app.startswith("django_ratelimit_lua")
    ]
    with caplog.at_level(logging.WARNING, "django_ratelimit_lua"):
        for _ in range(2):
            RateLimiter("mail", "2/h").hit("ada")
    (text,) = [each for each in caplog.messages if "INSTALLED_APPS" in each]
    assert 'Add "django_ratelimit_lua".' in text
