"""The form of an override shows, before it is saved, what the client gets under each limit."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from tests.support.users import staff

pytestmark = pytest.mark.django_db(transaction=True)
FORM = "/admin/django_ratelimit_lua/ratelimitoverride/add/"
EFFECT = "/admin/django_ratelimit_lua/ratelimitoverride/effect/"
ADDRESS = "203.0.113.9"


@ratelimit(group="export", key="ip", rate=["2/s", "9/h"], algorithm="token_bucket", burst=3)
def export(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [path("admin/", admin.site.urls), path("export", export), path("ok", ok)]


def effects(operator: Client, **values: str) -> list[tuple[str, str]]:
    """Return the sentence of each limit now, and with the override in the form."""
    response = operator.post(EFFECT, values)
    assert response.status_code == 200
    cells = re.findall(r"<td[^>]*>(.*?)</td>", response.content.decode())
    texts = [unescape(re.sub(r"<[^>]+>", "", cell)) for cell in cells]
    return list(zip(texts[::2], texts[1::2], strict=True))


def save(operator: Client, **values: str) -> None:
    response = operator.post(FORM, {"network": ADDRESS, **values})
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
