"""The form of an override: its effects before it is saved, its status and message, and its end."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils import timezone
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.subjects import Subject, add_override
from django_ratelimit_lua.throttling import RuleThrottle
from tests.acceptance.admin.test_admin import OVERRIDES, confirmed, errors, page_text, visits
from tests.acceptance.admin.test_admin_clients import of, press
from tests.acceptance.commands.test_reset_and_block import said
from tests.support.users import OPERATOR, serve_admin, staff

pytestmark = pytest.mark.django_db(transaction=True)
EFFECT = f"{OVERRIDES}effect/"
ADDRESS = "203.0.113.9"
FORM = {"effect": "block", "network": ADDRESS, "duration": "3600"}
CLIENT = {"REMOTE_ADDR": ADDRESS}


@ratelimit(group="export", key="ip", rate=["2/s", "9/h"], algorithm="token_bucket", burst=3)
def export(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


class Orders(APIView):
    throttle_classes = (RuleThrottle,)

    def get(self, request: Any) -> Response:
        return Response({})


urlpatterns = [
    path("admin/", admin.site.urls),
    path("export", export),
    path("ok", ok),
    path("orders", Orders.as_view()),
]


@pytest.fixture(autouse=True)
def site(settings: Any, no_others: None) -> None:
    serve_admin(settings, __name__)
    settings.RATELIMIT_HEADERS = "ietf"


def told(request: HttpRequest, exception: Any) -> HttpResponse:
    """A view for refusals in a project."""
    text = f"{exception.status_code} {exception.message}"
    return HttpResponse(text, status=exception.status_code)


def effects(operator: Client, **values: str) -> list[tuple[str, str]]:
    """Return the sentence of each limit now, and with the override in the form."""
    response = operator.post(EFFECT, values)
    assert response.status_code == 200
    cells = re.findall(r"<td[^>]*>(.*?)</td>", response.content.decode())
    texts = [unescape(re.sub(r"<[^>]+>", "", cell)) for cell in cells]
    return list(zip(texts[::2], texts[1::2], strict=True))


def save(operator: Client, **values: str) -> None:
    response = operator.post(f"{OVERRIDES}add/", {"network": ADDRESS, **values})
    assert response.status_code == 302, response.context["errors"]


def admitted(where: str, times: int = 12) -> int:
    visitor = Client(REMOTE_ADDR=ADDRESS)
    return [visitor.get(where).status_code for _ in range(times)].count(200)


def test_another_limit_is_shown_as_it_then_applies(operator: Client) -> None:
    """Each limit of a call site gets the rate, with the burst of the override or of the code."""
    given = {"rule": "export", "effect": "limit", "rate": "5/h"}
    now = [words for words, _then in effects(operator, **given)]
    assert [words.partition(" per address")[0] for words in now] == ["2 per second", "9 per hour"]
    then = {words for _now, words in effects(operator, **given)}
    assert then == {"5 per hour, up to 3 at once"}
    assert {words for _now, words in effects(operator, **given, burst="7")} == {
        "5 per hour, up to 7 at once"
    }
    save(operator, **given, burst="7")
    assert admitted("/export") == 7


def test_another_limit_without_a_rule_or_a_rate_asks_for_it(operator: Client) -> None:
    """An empty form shows no error. Without a rule, the sentences help to choose one."""
    empty = operator.post(EFFECT, {"effect": "limit"}).content.decode()
    assert "Enter the rate to see what the client gets." in empty
    shown = operator.post(EFFECT, {"effect": "limit", "rate": "5/h"}).content.decode()
    assert "choose the rule" in shown
    assert "2 per second" in shown
    chosen = {"effect": "limit", "rate": "5/h", "rule": "export"}
    assert "choose the rule" not in operator.post(EFFECT, chosen).content.decode()


def test_an_override_replaces_all_tiers(operator: Client) -> None:
    """The rate is shown for the rule and for its tier. Then it applies."""
    RateLimitRule.objects.create(
        name="plans",
        path="/ok",
        key="ip",
        rate="2/m",
        options={"tiers": [{"group": "pro", "rate": "9/m"}]},
    )
    given = {"rule": "plans", "effect": "limit", "rate": "4/m"}
    shown = effects(operator, **given)
    assert len(shown) == 2
    assert shown[1][0].endswith("(tier pro)")
    assert {then for _now, then in shown} == {"4 per minute"}
    save(operator, **given)
    assert admitted("/ok") == 4


def test_numbers_that_do_not_fit_are_shown_as_unchanged(operator: Client) -> None:
    """A rate for slots leaves the limit as it is. An invalid rate is an error."""
    RateLimitRule.objects.create(
        name="held", path="/ok", key="ip", rate="2", options={"algorithm": "concurrency"}
    )
    ((now, then),) = effects(operator, rule="held", effect="limit", rate="5/h")
    assert now.startswith("2 at once per address")
    assert then.startswith("unchanged, because the override does not fit: ")
    response = operator.post(EFFECT, {"rule": "held", "effect": "limit", "rate": "often"})
    assert "often" in response.content.decode()


def test_an_exemption_and_a_block_are_shown_for_each_limit(operator: Client) -> None:
    """Without a rule, all limits of the site are listed. Nothing is saved."""
    assert {then for _now, then in effects(operator, effect="exempt")} == {"no limit"}
    assert ("every request is refused") in dict(effects(operator, effect="block")).values()
    assert not RateLimitOverride.objects.exists()
    assert staff("view_ratelimitrule", name="reader").post(EFFECT).status_code == 403


def test_a_403_block_has_no_retry_time(operator: Client) -> None:
    """Each form of the response has the status and the message of the block."""
    operator.post(f"{OVERRIDES}add/", {**FORM, "network": "203.0.113.9"})
    answer = Client(**CLIENT).get("/ok")
    assert (answer.status_code, "Retry-After" in answer) == (429, True)
    row = RateLimitOverride.objects.get()
    message = "Write to abuse@example.org."
    block = {**FORM, "network": "203.0.113.9", "forbids": "on", "message": message}
    assert operator.post(f"{OVERRIDES}{row.pk}/change/", block).status_code == 302
    for accept in ("*/*", "text/html", "application/json"):
        answer = Client(**CLIENT, headers={"accept": accept}).get("/ok")
        assert answer.status_code == 403, accept
        assert not {"Retry-After", "RateLimit"} & {*answer.headers}
        assert message in answer.content.decode()
        assert "again" not in answer.content.decode()
    body = json.loads(answer.content)
    assert (body["title"], body["status"], body["detail"]) == ("Forbidden", 403, message)
    assert visits(address="203.0.113.10") == [200]


def test_a_403_block_without_a_message_has_a_default_text(operator: Client) -> None:
    """The text is the message of the rule or, without one, a default."""
    RateLimitRule.objects.create(
        name="site", path="/ok", key="ip", rate="5/h", message="Slower, please."
    )
    operator.post(f"{OVERRIDES}add/", {**FORM, "network": "203.0.113.0/24", "forbids": "on"})
    answer = Client(**CLIENT).get("/ok")
    assert (answer.status_code, answer.content.decode().splitlines()[0]) == (403, "Slower, please.")
    RateLimitRule.objects.update(message="")
    assert Client(**CLIENT).get("/ok").content.decode().splitlines()[0] == "You are blocked."


def test_a_403_block_is_a_403_in_drf_and_in_ratelimit_view(operator: Client, settings: Any) -> None:
    """DRF's body has the message, and the exception has the status."""
    settings.MIDDLEWARE = [one for one in settings.MIDDLEWARE if "RateLimit" not in one]
    form = {**FORM, "network": "203.0.113.9", "forbids": "on", "message": "No."}
    operator.post(f"{OVERRIDES}add/", form)
    RateLimitRule.objects.create(name="orders", path="/orders", key="ip", rate="5/m")
    answer = Client(**CLIENT).get("/orders")
    assert (answer.status_code, answer.json()["detail"]) == (403, "No.")
    assert "Retry-After" not in answer
    ours = "django_ratelimit_lua.middleware.RateLimitMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, ours]
    settings.RATELIMIT_VIEW = f"{__name__}.told"
    answer = Client(**CLIENT).get("/ok")
    assert (answer.status_code, answer.content, "Retry-After" in answer) == (403, b"403 No.", False)


@pytest.mark.parametrize("fields", [{"forbids": "on"}, {"message": "No."}])
def test_only_blocks_store_a_status_and_a_message(fields: dict[str, str], operator: Client) -> None:
    """An exemption or a limit has no use for them."""
    answer = operator.post(
        f"{OVERRIDES}add/", {**FORM, **fields, "network": "203.0.113.9", "effect": "exempt"}
    )
    assert "This is for blocks." in errors(answer)


def test_a_form_sent_twice_adds_one_override(operator: Client) -> None:
    """The page reports that the override is already present, and no addition."""
    page, again = (
        operator.post(f"{OVERRIDES}add/", FORM, follow=True).content.decode() for _ in range(2)
    )
    assert "was added successfully" in page
    assert f"Already present, so not added again: {ADDRESS}." in again
    assert "was added successfully" not in again
    for model in (RateLimitOverride, LogEntry, RateLimitChange):
        assert model.objects.count() == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"network": "203.0.113.10"},
        {"effect": "exempt"},
        {"effect": "limit", "rate": "5/m", "rule": "site"},
        {"forbids": "on"},
        {"duration": "86400"},
        {"duration": ""},
        {"message": "Call us."},
        {"rule": "site"},
        {"network": "", "field": "post:username", "value": "ada"},
        {"starts_0": "2099-01-01", "starts_1": "00:00"},
    ],
)
def test_different_overrides_are_added(fields: dict[str, str], operator: Client) -> None:
    """They differ in their subject, their effect or their duration."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h")
    operator.post(f"{OVERRIDES}add/", FORM)
    operator.post(f"{OVERRIDES}add/", {**FORM, **fields})
    assert RateLimitOverride.objects.count() == 2


def test_concurrent_equal_requests_add_one_override() -> None:
    """Each request gets the same override."""

    def block(_number: int) -> Any:
        try:
            return add_override(Subject(address=ADDRESS).make_override("block", 3600)).pk
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(block, range(8)))) == 1
    assert RateLimitOverride.objects.count() == 1


def test_a_repeated_button_or_command_adds_one_override(operator: Client) -> None:
    """The page and the command report that the override is already present."""
    client = of("ip", ADDRESS)
    for action in ("exempt", "block"):
        for _time in range(2):
            page = page_text(press(operator, client, action, duration="3600"))
            assert "for 1 hour" in page
        assert "The same override is already present, so none was added." in page
    assert RateLimitOverride.objects.count() == 2
    assert "203.0.113.10 is blocked until" in said("block", "--ip", "203.0.113.10")
    number = RateLimitOverride.objects.get(network="203.0.113.10").pk
    assert said("block", "--ip", "203.0.113.10").endswith(
        f": override {number}, which existed already\n"
    )


@pytest.mark.parametrize(
    ("trusted", "network", "is_asked"),
    [
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.1.2.3"], "10.0.0.0/8", True),
        (["2001:db8::/32"], "10.0.0.0/9", False),
        (["10.0.0.0/8"], "203.0.113.9", False),
        (1, "192.0.2.1", True),
        (1, "192.0.2.2", False),
    ],
)
def test_a_block_of_a_known_proxy_has_to_be_confirmed(
    trusted: Any, network: str, is_asked: bool, settings: Any
) -> None:
    """A proxy is known by the settings, or because the operator's request came through it."""
    settings.RATELIMIT_TRUSTED_PROXIES = trusted
    client = Client(REMOTE_ADDR="192.0.2.1", headers={"x-forwarded-for": OPERATOR})
    client.force_login(User.objects.create_superuser("grace"))
    form = {"network": network, "effect": "block"}
    answer = client.post(f"{OVERRIDES}add/", form)
    assert ("is a proxy of this site" in errors(answer)) is is_asked
    assert RateLimitOverride.objects.exists() is not is_asked
    client.post(f"{OVERRIDES}add/", {**form, "effect": "exempt"})
    assert RateLimitOverride.objects.filter(effect="exempt").exists()
    if is_asked:
        assert confirmed(client, f"{OVERRIDES}add/", form).status_code == 302


def test_changing_an_ended_override_needs_no_confirmation(operator: Client) -> None:
    """The end in the past was not changed."""
    row = RateLimitOverride.objects.create(
        network="203.0.113.9", effect="block", ends=timezone.now()
    )
    page = operator.get(f"{OVERRIDES}{row.pk}/change/")
    ends = page.context["adminform"].form["ends"].value()
    day, time = f"{timezone.localtime(ends):%Y-%m-%d %H:%M:%S}".split()
    form = {"network": row.network, "effect": "block", "ends_0": day, "ends_1": time}
    for more in ({"reason": "scraper"}, {"duration": "3600"}):
        answer = operator.post(f"{OVERRIDES}{row.pk}/change/", {**form, **more})
        assert answer.status_code == 302
    row.refresh_from_db()
    assert row.is_active()


def test_a_new_override_cannot_end_in_the_past(operator: Client) -> None:
    """It would be reported as added, and have no effect."""
    form = {"effect": "block", "network": "203.0.113.9", "ends_0": "2001-01-01", "ends_1": "00:00"}
    assert "The end is in the past." in errors(operator.post(f"{OVERRIDES}add/", form))
    assert not RateLimitOverride.objects.exists()


def test_a_duration_and_an_end_contradict_each_other(operator: Client) -> None:
    """The form accepts either a duration or an end."""
    form = {"effect": "block", "network": "203.0.113.9", "duration": "3600"}
    answer = operator.post(f"{OVERRIDES}add/", {**form, "ends_0": "2099-01-01", "ends_1": "00:00"})
    assert "Choose either a duration or an end time" in errors(answer)
    assert not RateLimitOverride.objects.exists()
