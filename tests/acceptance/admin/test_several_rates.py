"""A rule with several rates, and the confirmation if it would lose a limit in code."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.management.rules_yaml import apply, export, plan
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
from django_ratelimit_lua.rules import RuleError
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import NO_TIERS, RULES, errors, given

pytestmark = pytest.mark.django_db(transaction=True)


@ratelimit("finds", "ip", ["10/s", "500/h"])
def finds(request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        " ".join(f"{state.name}={state.limit}" for state in request.ratelimit.limits)
    )


@method_decorator(ratelimit(key=("ip", "post:name"), rate="5/15m"), name="dispatch")
class Entrance(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("in")


urlpatterns = [*test_admin.urlpatterns, path("finds", finds), path("entrance", Entrance.as_view())]
post = RateLimiter("several.post", ["2/s", "3/h"])


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    test_admin.site.__wrapped__(settings, monkeypatch)  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = __name__


def asked(times: int = 1, where: str = "/finds", **extra: Any) -> list[int]:
    client = Client(REMOTE_ADDR="203.0.113.9")
    return [client.get(where, **extra).status_code for _ in range(times)]


def test_all_rates_of_a_rule_replace_those_of_a_call_site(operator: Client) -> None:
    """A request is refused if any of the rates is used up."""
    operator.post(f"{RULES}add/", given(name="finds", rate="100/s, 500/h, 3/d"))
    rule = RateLimitRule.objects.get()
    assert rule.rate == "100/s, 500/h, 3/d"
    assert (
        Client(REMOTE_ADDR="198.51.100.7").get("/finds").content
        == b"finds:s=100 finds:h=500 finds=3"
    )
    assert asked(4) == [200, 200, 200, 429]
    assert "100 per second and 500 per hour and 3 per day" in operator.get(RULES).content.decode()
    page = operator.get(f"{RULES}{rule.pk}/change/").content.decode()
    assert 'value="100/s, 500/h, 3/d"' in page


def test_a_rule_with_several_rates_replaces_a_limiter() -> None:
    """All rates of the rule apply to the limiter."""
    RateLimitRule.objects.create(name="several.post", rate="5/m, 2/d")
    assert [post.hit("ada").allowed for _ in range(3)] == [True, True, False]


def test_tiers_can_have_several_rates(operator: Client) -> None:
    """They work in the form, in the database and for users in the group."""
    Group.objects.create(name="pro")
    tier = {**NO_TIERS, "tiers-TOTAL_FORMS": 1, "tiers-0-group": "pro", "tiers-0-rate": "50/s, 2/h"}
    operator.post(f"{RULES}add/", {**given(path="/ok", key="ip", rate="1/h"), **tier})
    assert RateLimitRule.objects.get().spec["tiers"] == [{"group": "pro", "rate": ["50/s", "2/h"]}]
    ada = User.objects.create(username="ada")
    ada.groups.add(Group.objects.get())
    client = Client(REMOTE_ADDR="203.0.113.9")
    client.force_login(ada)
    assert [client.get("/ok").status_code for _ in range(3)] == [200, 200, 429]


def test_several_rates_survive_export_import_and_restore() -> None:
    """Importing an export changes nothing. A restored version has all its rates."""
    text = (
        '- {name: site, path: /ok, key: ip, rate: ["10/s", "500/h"], tiers: [{group: a, '
        'rate: ["20/s", "9/m"]}]}'
    )
    apply(plan(text))
    assert "rate:\n  - 10/s\n  - 500/h\n" in export()
    assert plan(export()) == []
    (change,) = plan(text.replace('"10/s", "500/h"', "10/s"))
    assert change.words() == ["~ site", "    Rate: 10 per second and 500 per hour → 10 per second"]
    RateLimitRule.objects.update(rate="10/s")
    latest = RateLimitChange.objects.first()
    assert latest is not None
    assert (latest.before or {})["rate"] == ["10/s", "500/h"]
    assert (latest.after or {})["rate"] == "10/s"


@pytest.mark.parametrize(
    ("rates", "problem"),
    [
        (["5/h"], "are for the same period"),
        (["60/60m"], "are for the same period"),
        (["5/moon"], "write N/unit"),
        ([f"{number}/{number}d" for number in range(1, 11)], "at most 10 limits"),
    ],
)
def test_contradicting_rates_are_refused(rates: list[str], problem: str) -> None:
    """The model reports the error at the field. A row that was written without validation does not
    affect the site.
    """
    row = RateLimitRule(name="site", path="/ok", key="ip", rate=", ".join(["1/h", *rates]))
    with pytest.raises(RuleError, match=problem) as raised:
        row.save()
    assert raised.value.field == "rate"
    RateLimitRule.objects.bulk_create([row])
    assert asked(2, "/ok") == [200, 200]
    tiers = [{"group": "pro", "rate": ["5/h", *rates]}]
    whole = RateLimitRule(name="whole", path="/ok", key="ip", rate="1/h", options={"tiers": tiers})
    with pytest.raises(RuleError) as raised:
        whole.save()
    assert (raised.value.field, raised.value.tier) == ("tiers", "pro")


def test_an_invalid_rate_is_explained_with_the_labels_of_the_form(operator: Client) -> None:
    """The error names the rate and valid values, and the entered text is kept."""
    answer = operator.post(f"{RULES}add/", given(path="/ok", key="ip", rate="1/h, 500/h, many"))
    assert "many&#x27;: write N/unit" in errors(answer)
    assert 'value="1/h, 500/h, many"' in answer.content.decode()


def test_the_form_shows_the_limits_that_a_name_replaces(operator: Client) -> None:
    """It shows the rates, the key and the place in the code, and suggests a similar name."""

    def shown(**fields: Any) -> str:
        page = operator.post(f"{RULES}preview/", given(**{"rate": "3/h", **fields}))
        return page.content.decode().replace("<wbr>", "")

    page = shown(name="finds")
    assert "Replaces: 10 per second and 500 per hour per address (finds, line " in page
    page = shown(name=f"{__name__}.Entrance.dispatch")
    assert "5 per 15 minutes per address and post:name" in page
    assert "Did you mean “finds”?" in shown(name="findz", key="ip")
    assert "Replaces" not in shown(name="finds", path="/finds", key="ip")
    rule = RateLimitRule.objects.create(name="finds", rate="3/s, 500/h")
    for url in (f"{RULES}{rule.pk}/change/", f"{RULES}limit/?name=finds"):
        assert "Replaces: 10 per second" in operator.get(url).content.decode()


def test_the_plot_simulates_all_rates(operator: Client) -> None:
    """The smallest rate decides a burst."""
    page = operator.post(f"{RULES}preview/", given(path="/ok", key="ip", rate="4/s, 9/m"))
    assert "Of 8 requests at once, 4 are allowed." in page.content.decode()
