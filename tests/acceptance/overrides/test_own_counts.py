"""Each tier, and each override with a rate, has a count of its own.

A client that can choose between two limits of a rule is admitted at most the sum of both.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils import timezone

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.admin.client_limits import explain_client
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.bans import active_bans, lift_bans
from django_ratelimit_lua.operations.explain import ExplainedLimit, explain, reset_counts
from django_ratelimit_lua.rules import RuleError, compile
from django_ratelimit_lua.testing import move_clock
from tests.support.limits import add_tier

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "203.0.113.9"


def plan(request: HttpRequest) -> str | None:
    return request.COOKIES.get("plan")


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@ratelimit("limited", "ip", "2/h")
def limited(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [path("ok", ok), path("limited", limited)]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]
    settings.RATELIMIT_KEYS = {"plan": f"{__name__}.plan"}
    settings.RATELIMIT_DENY_CACHE_SECONDS = 0


def get(cookie: str = "", where: str = "/ok") -> int:
    return Client(REMOTE_ADDR=ADDRESS, HTTP_COOKIE=cookie).get(where).status_code


@pytest.mark.parametrize(
    ("algorithm", "rate", "other", "seconds", "most"),
    [
        ("token_bucket", "6/m", "60/m", 11, 66 + 13 * 10),
        ("sliding_window", "30/h", "3/m", 60, 30 + 3 * 11),
        ("sliding_log", "30/h", "3/m", 60, 30 + 3 * 11),
        ("fixed_window", "30/h", "3/m", 60, 30 + 3 * 11),
    ],
)
@pytest.mark.parametrize("kind", ["tier", "override"])
def test_a_client_that_chooses_between_two_limits_gets_at_most_the_sum(
    kind: str, algorithm: str, rate: str, other: str, seconds: int, most: int
) -> None:
    """Neither limit forgets what only the other remembers."""
    rule = RateLimitRule.objects.create(
        name="own", path="/", key="ip", rate=rate, options={"algorithm": algorithm}
    )
    if kind == "tier":
        add_tier(rule, "plan:pro", other)
    else:
        override = RateLimitOverride(field="cookie:plan", rule="own", rate=other)
        override.set_value("pro")
        override.save()
    admitted = 0
    with move_clock() as clock:
        for _round in range(10):
            for cookie in ("", "plan=pro"):
                while admitted <= most and get(cookie) == 200:
                    admitted += 1
            clock.advance(seconds)
    assert admitted <= most


def tiered(rate: str = "3/m", **options: Any) -> RateLimitRule:
    """Create a rule of 2 per hour, with a tier."""
    options["tiers"] = [{"group": "plan:pro", "rate": rate}]
    return RateLimitRule.objects.create(name="own", path="/", key="ip", rate="2/h", options=options)


def met(client: str, address: str = "") -> list[ExplainedLimit]:
    """Return the limits of the rule on the page of a client. Other limits may refuse any client."""
    parts = [("ip", address)] if address else []
    found = explain_client(client, parts=parts).explanation
    return [limit for limit in found.limits if limit.planned.name == "own"]


def used(cookie: str = "") -> list[int]:
    """Return the units that the limits of a request show as used."""
    request = RequestFactory().get("/ok", REMOTE_ADDR=ADDRESS, HTTP_COOKIE=cookie)
    return [limit.state.used for limit in explain(request).limits if limit.state]


def test_a_rate_from_a_function_has_a_count_of_its_own(settings: Any) -> None:
    """A client that can choose between the rates that the function returns gets the sum."""

    def rate(group: str, request: HttpRequest) -> str:
        return "3/m" if plan(request) else "2/h"

    settings.RATELIMIT_RULES = [{"name": "own", "path": "/", "key": "ip", "rate": rate}]
    with move_clock() as clock:
        assert [get() for _ in range(3)] == [200, 200, 429]
        assert [get("plan=pro") for _ in range(4)] == [200, 200, 200, 429]
        clock.advance(61)
        assert get("plan=pro") == 200
        assert get() == 429


def test_a_tier_of_a_rule_in_place_of_code_has_a_count_of_its_own(settings: Any) -> None:
    """The rule continues the count of the code, and its tier does not."""
    settings.MIDDLEWARE = []
    assert [get("plan=pro", "/limited") for _ in range(2)] == [200, 200]
    rule = RateLimitRule.objects.create(name="limited", rate="3/h")
    add_tier(rule, "plan:pro", "4/m")
    assert [get("", "/limited") for _ in range(2)] == [200, 429]
    assert [get("plan=pro", "/limited") for _ in range(5)] == [200] * 4 + [429]


def test_an_edited_tier_keeps_its_count() -> None:
    """So does a tier whose place among the tiers changes."""
    rule = tiered()
    assert [get("plan=pro") for _ in range(2)] == [200, 200]
    tiers = [{"group": "plan:free", "rate": "1/m"}, {"group": "plan:pro", "rate": "4/m"}]
    rule.options = {"tiers": tiers}
    rule.save()
    assert used("plan=pro") == [2]


@pytest.mark.parametrize(("rate", "tier"), [("2/h", "9/d"), ("5/s, 2/h", ["9/s", "9/d"])])
def test_a_ban_holds_in_every_tier_and_under_every_override(rate: str, tier: Any) -> None:
    """A client does not escape it by another cookie, and lifting it once lifts it in all."""
    bans = {"ban_after": 2, "ban_for": "1h"}
    rule = RateLimitRule.objects.create(name="own", path="/", key="ip", rate=rate, options=bans)
    add_tier(rule, "plan:pro", tier)
    override = RateLimitOverride(field="cookie:plan", rule="own", rate="9/m")
    override.set_value("other")
    override.save()
    assert [get() for _ in range(4)] == [200, 200, 429, 429]
    assert [get("plan=pro"), get("plan=other")] == [429, 429]
    (ban,) = active_bans()
    lift_bans([ban])
    assert [get("plan=pro"), get("plan=other")] == [200, 200]


def test_offences_in_all_tiers_lead_to_one_ban() -> None:
    """A client that offends in turn is banned as early as one that does not."""
    tiered("1/m", ban_after=4, ban_for="1h")
    assert [get(cookie) for cookie in ("", "", "plan=pro")] == [200, 200, 200]
    assert [get(cookie) for cookie in ("", "plan=pro", "", "plan=pro")] == [429] * 4
    assert len(active_bans()) == 1


def test_a_tier_of_a_rule_that_bans_has_as_many_rates() -> None:
    """Each rate has bans of its own, so a client of another number could escape one of them."""
    given = {"name": "own", "path": "/", "key": "ip", "rate": "2/h"}
    tiers = [{"group": "pro", "rate": ["9/s", "50/d"]}]
    compile({**given, "tiers": tiers})
    with pytest.raises(RuleError, match="tier of 'pro': A ban holds in every tier"):
        compile({**given, "ban_after": 2, "ban_for": "1h", "tiers": tiers})


def test_a_reset_deletes_the_counts_of_all_tiers_and_overrides() -> None:
    """A support engineer need not know the tier of the earlier requests."""
    tiered()
    override = RateLimitOverride(field="cookie:plan", rule="own", rate="5/m")
    override.set_value("other")
    override.save()
    cookies = ("", "plan=pro", "plan=other")
    assert [get(cookie) for cookie in cookies] == [200, 200, 200]
    assert [used(cookie) for cookie in cookies] == [[1], [1], [1]]
    request = RequestFactory().get("/ok", REMOTE_ADDR=ADDRESS, HTTP_COOKIE="plan=other")
    assert reset_counts(explain(request)) == ["own"]
    assert [used(cookie) for cookie in cookies] == [[0], [0], [0]]


def test_the_page_of_a_client_shows_and_resets_the_counts_of_all_tiers() -> None:
    """A tier is listed if it has counted the client. An override with a rate is listed once."""
    tiered()
    client = digest(("ip", ADDRESS)).decode()
    assert [get(cookie) for cookie in ("", "plan=pro", "plan=pro")] == [200, 200, 200]
    reading = "2 per hour per address, 3 per minute for plan:pro, on /"
    found = [(limit.reading, limit.state and limit.state.used) for limit in met(client)]
    assert found == [(reading, 1), (f"{reading} (tier plan:pro)", 2)]
    RateLimitOverride.objects.create(network=ADDRESS, rule="own", rate="5/m")
    assert [get(), get("plan=pro")] == [200, 200]
    (_limit,) = met(client, ADDRESS)
    assert reset_counts(explain_client(client, parts=[("ip", ADDRESS)]).explanation) == ["own"]
    assert used() == [0]
    assert not met(client, ADDRESS)


def test_an_override_about_a_client_applies_instead_of_all_tiers() -> None:
    """A client does not get its rate once for each tier."""
    tiered()
    client = digest(("ip", ADDRESS)).decode()
    ends = timezone.now() + timedelta(days=1)
    RateLimitOverride.objects.create(client_digest=client, rule="own", rate="2/d", ends=ends)
    assert [get(cookie) for cookie in ("", "plan=pro", "", "plan=pro")] == [200, 200, 429, 429]
    (limit,) = met(client)
    assert limit.state is not None
    assert (limit.state.used, limit.state.limit) == (2, 2)
