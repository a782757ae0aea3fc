"""Rules for busy times, with `waited`: a 503 that costs no round trip and counts for no ban."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import Ratelimited, ratelimit
from django_ratelimit_lua.engine.deny_cache import deny_cache
from django_ratelimit_lua.management import rules_yaml
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.signals import limit_exceeded
from django_ratelimit_lua.throttling import RuleThrottle
from tests.acceptance.admin.test_admin import RULES, given
from tests.engine.test_cost import calls
from tests.support.users import ADMIN_MIDDLEWARE
from tests.urls import LIMITS

BUSY: dict[str, Any] = {"name": "busy", "path": "/", "key": "ip", "rate": "0/s", "waited": "500ms"}
OTHER = {"name": "other", "path": "/", "key": "ip", "rate": "100/m"}


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("served")


@ratelimit("limited", "ip", "2/h")
def limited(request: HttpRequest) -> HttpResponse:
    return HttpResponse("served")


class Api(APIView):
    """A view with the rules as a throttle."""

    throttle_classes = (RuleThrottle,)

    def get(self, request: Request) -> Response:
        return Response("served")


urlpatterns = [path("page", page), path("limited", limited), path("api", Api.as_view())]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [LIMITS]
    settings.RATELIMIT_REQUEST_START = "X-Request-Start"
    settings.RATELIMIT_TRUSTED_PROXIES = ["127.0.0.1/32"]
    settings.RATELIMIT_RULES = [BUSY]


def get(url: str = "/page", waited: float = 1.0, **headers: str) -> Any:
    headers["X-Request-Start"] = f"t={time.time() - waited:.3f}"
    headers.setdefault("X-Forwarded-For", "203.0.113.7")
    return Client().get(url, headers=headers)


def test_a_request_that_waited_gets_a_503_with_a_random_retry_time() -> None:
    """Three to nine times the waiting time, in whole seconds; other requests are served."""
    assert get(waited=0.1).status_code == 200
    assert Client().get("/page").status_code == 200
    answers = [get() for _ in range(40)]
    assert {answer.status_code for answer in answers} == {503}
    times = {int(answer["Retry-After"]) for answer in answers}
    assert times <= {2, 3, 4, 5}
    assert len(times) > 1
    assert answers[0]["Cache-Control"] == "no-store"
    problem = get(Accept="application/json").json()
    assert (problem["status"], problem["violated-policies"]) == (503, ["busy"])
    assert problem["type"].endswith("#temporary-reduced-capacity")
    assert b"The server is busy" in get(Accept="text/html").content


def test_django_does_not_log_each_503_as_an_error(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise it would mail each of them to the admins, also those of DRF."""
    assert [get(url).status_code for url in ("/page", "/api")] == [503, 503]
    settings.MIDDLEWARE = []
    assert get("/api").status_code == 503
    assert [record for record in caplog.records if record.name == "django.request"] == []


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_a_limit_of_0_and_shadow_mode_cost_no_round_trip(
    mode: str, settings: Any, direct: redis.Redis
) -> None:
    """A refusal asks for no other limit, and shadow mode decides in the process."""
    rate = "0/s" if mode == "enforce" else "2/m"
    settings.RATELIMIT_RULES = [{**BUSY, "mode": mode, "rate": rate}]
    if mode == "enforce":
        settings.RATELIMIT_RULES += [OTHER]
    get()  # Loads the rules, and compares them, as the listener does.
    direct.config_resetstat()
    shown: list[tuple[str, bool]] = []

    def hear(**arguments: Any) -> None:
        shown.append((arguments["limit"], arguments["mode"] == "enforce"))

    limit_exceeded.connect(hear)
    statuses = [get().status_code for _ in range(5)]
    limit_exceeded.disconnect(hear)
    assert calls(direct) == {}
    assert statuses == ([503] * 5 if mode == "enforce" else [200] * 5)
    assert shown == [("busy", mode == "enforce")] * (5 if mode == "enforce" else 4)


@pytest.mark.usefixtures("quiet")
def test_calm_times_cost_no_further_round_trip(settings: Any, direct: redis.Redis) -> None:
    """A request that did not wait is one call with another limit, and none without."""
    settings.RATELIMIT_RULES = [BUSY, OTHER]
    get(waited=0.0)
    direct.config_resetstat()
    get(waited=0.0)
    assert calls(direct) == {"evalsha": 1}


def test_a_rate_counts_while_requests_wait(settings: Any) -> None:
    """Redis counts it for all processes. The deny cache does not repeat the refusal."""
    settings.RATELIMIT_RULES = [{**BUSY, "rate": "2/m"}]
    assert [get().status_code for _ in range(4)] == [200, 200, 503, 503]
    assert len(deny_cache.entries) == 0
    assert int(get()["Retry-After"]) <= 5
    assert get(waited=0.0).status_code == 200


def test_a_view_keeps_its_own_limit(settings: Any) -> None:
    """A rule with the name of a call site does not replace its limit."""
    settings.RATELIMIT_RULES = [{**BUSY, "name": "limited", "rate": "100/m"}]
    assert [get("/limited").status_code for _ in range(3)] == [200, 200, 429]
    settings.RATELIMIT_RULES = [{**BUSY, "path": None, "group": "limited"}]
    assert get("/limited", **{"X-Forwarded-For": "203.0.113.8"}).status_code == 503
    assert get().status_code == 200


def test_drf_sees_the_status(settings: Any) -> None:
    """The exception that any handler of DRF gets has the status 503."""
    settings.MIDDLEWARE = []
    answer = get("/api")
    assert (answer.status_code, answer.json()["violated-policies"]) == (503, ["busy"])
    assert 2 <= int(answer["Retry-After"]) <= 5
    seen: list[APIException] = []

    def handler(exc: APIException, context: object) -> Response:
        seen.append(exc)
        return Response(status=exc.status_code)

    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "EXCEPTION_HANDLER": handler}
    assert get("/api").status_code == seen[0].status_code == 503
    assert get("/api", waited=0.0).status_code == 200


class OwnRefusal(Ratelimited):
    """An exception of the project."""


class OtherError(Exception):
    """Another exception of the project."""


@pytest.mark.parametrize("exception", [OwnRefusal, OtherError])
def test_an_exception_of_the_project_has_the_status(
    exception: type[Exception], settings: Any
) -> None:
    """`RATELIMIT_EXCEPTION_CLASS` is raised with the attribute `status_code`."""
    settings.RATELIMIT_EXCEPTION_CLASS = exception
    request = RequestFactory().get("/", HTTP_X_REQUEST_START=f"t={time.time() - 1:.3f}")
    with pytest.raises(exception) as caught:
        RateLimitMiddleware(page)(request)
    assert vars(caught.value)["status_code"] == 503


def test_a_view_of_the_project_sees_the_status(settings: Any) -> None:
    """`RATELIMIT_VIEW` gets it with the exception."""

    def view(request: HttpRequest, exception: Ratelimited) -> HttpResponse:
        return HttpResponse(exception.when, status=exception.status_code)

    settings.RATELIMIT_VIEW = view
    answer = get()
    assert answer.status_code == 503
    assert b"Try again in" in answer.content
    assert 2 <= int(answer["Retry-After"]) <= 5


@pytest.mark.django_db(transaction=True)
def test_overrides_apply_to_busy_times(django_user_model: Any) -> None:
    """An exempt client is served, one with a rate is counted, and a blocked one is not busy."""
    RateLimitRule.from_spec(BUSY).save()
    RateLimitOverride.objects.create(network="203.0.113.1", effect="exempt")
    RateLimitOverride.objects.create(network="203.0.113.2", rule="busy", effect="limit", rate="1/h")
    RateLimitOverride.objects.create(network="203.0.113.3", effect="block", forbids=True)

    def statuses(address: str) -> list[int]:
        return [get(**{"X-Forwarded-For": address}).status_code for _ in range(2)]

    assert statuses("203.0.113.1") == [200, 200]
    assert statuses("203.0.113.2") == [200, 503]
    assert statuses("203.0.113.3") == [403, 403]
    assert statuses("203.0.113.4") == [503, 503]


def is_probe(request: HttpRequest) -> bool:
    return request.headers["X-Probe"] == "yes"


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("function", [is_probe, f"{__name__}.is_probe"])
def test_an_exempt_request_has_no_limit_at_all(
    function: Callable[..., bool] | str, settings: Any, direct: redis.Redis
) -> None:
    """Rules, views and throttles neither refuse nor count it; if the function raises, they do."""
    settings.RATELIMIT_RULES = [{**OTHER, "path": "/page", "rate": "0/s"}]
    settings.RATELIMIT_EXEMPT = function
    assert get("/page", **{"X-Probe": "no"}).status_code == 429
    assert get("/page").status_code == 429
    direct.config_resetstat()
    assert [get("/limited", **{"X-Probe": "yes"}).status_code for _ in range(4)] == [200] * 4
    assert get("/api", **{"X-Probe": "yes"}).status_code == 200

    answer = async_to_sync(AsyncClient().get)("/page", headers={"X-Probe": "yes"})
    assert answer.status_code == 200
    # The rules are compared at most once a second.
    assert set(calls(direct)) <= {"eval", "evalsha"}
    assert get("/limited", **{"X-Probe": "no"}).status_code == 200


async def ais_probe(request: HttpRequest) -> bool:
    return True


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (ais_probe, "must be a plain function"),
        (lambda: True, "must accept one argument"),
        (7, "must be a callable"),
        ("nowhere.function", "cannot be imported"),
    ],
)
def test_check_refuses_a_function_that_cannot_exempt(
    function: object, text: str, settings: Any
) -> None:
    """It is a plain function of the request."""
    settings.RATELIMIT_EXEMPT = function
    assert [message.id for message in run_checks(tags=["caches"]) if text in message.msg] == [
        "django_ratelimit_lua.E001"
    ]


@pytest.mark.parametrize(
    ("start", "trusted"), [(None, ["127.0.0.1/32"]), ("X-Request-Start", 1), ("X-Start", None)]
)
def test_check_warns_of_a_rule_that_cannot_know_the_waiting_time(
    start: str | None, trusted: object, settings: Any
) -> None:
    """Without the header or the networks of the proxy, the rule never applies."""
    assert "django_ratelimit_lua.W042" not in [each.id for each in run_checks(tags=["caches"])]
    settings.RATELIMIT_REQUEST_START = start
    settings.RATELIMIT_TRUSTED_PROXIES = trusted
    assert "django_ratelimit_lua.W042" in [each.id for each in run_checks(tags=["caches"])]
    assert get().status_code == 200


@pytest.mark.django_db(transaction=True)
def test_the_form_of_a_rule_keeps_its_conditions(operator: Client, settings: Any) -> None:
    """Also an empty pattern, which is two quotation marks there."""
    settings.ROOT_URLCONF = "tests.acceptance.admin.test_admin"
    settings.MIDDLEWARE = ADMIN_MIDDLEWARE
    settings.RATELIMIT_NETWORKS = {"google": ["192.0.2.0/24"]}
    rule = RateLimitRule.from_spec(
        {**BUSY, "rate": "5/m", "user_agent": ["*bot*", ""], "network": "!google"}
    )
    rule.save()
    url = f"{RULES}{rule.pk}/change/"
    form = operator.get(url).context["adminform"].form
    shown = {name: form[name].value() for name in ("user_agent", "network", "waited")}
    assert shown == {"user_agent": '*bot*\n""', "network": "!google", "waited": "500ms"}
    sent = given(path="/", key="ip", rate="5/m", name="busy", user_agent='*bot*\r\n""')
    sent |= {"network": "!google", "waited": "500ms", "_continue": "1"}
    operator.post(url, sent)
    stored = RateLimitRule.objects.get().options
    assert stored == {"user_agent": ["*bot*", ""], "network": ["!google"], "waited": "500ms"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("patterns", ["", ["*bot*", ""], "!*bot*"])
def test_a_rule_with_conditions_is_exported_and_imported(patterns: Any, settings: Any) -> None:
    """YAML has the same fields as the settings, with the same values."""
    settings.RATELIMIT_NETWORKS = {"google": ["192.0.2.0/24"]}
    rule = {**BUSY, "user_agent": patterns, "network": ["!google"]}
    rules_yaml.apply(rules_yaml.plan(rules_yaml.dump([rule])))
    assert RateLimitRule.objects.get().spec == rule
    assert rules_yaml.plan(rules_yaml.export()) == []
