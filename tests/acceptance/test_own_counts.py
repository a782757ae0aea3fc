"""Each tier, and each override with a rate, has a count of its own.

A client that can choose between two limits of a rule is admitted at most the sum of both.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.testing import move_clock

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "203.0.113.9"


def plan(request: HttpRequest) -> str | None:
    return request.COOKIES.get("plan")


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [path("ok", ok)]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]
    settings.RATELIMIT_KEYS = {"plan": f"{__name__}.plan"}
    settings.RATELIMIT_DENY_CACHE_SECONDS = 0


def get(cookie: str = "") -> int:
    return Client(REMOTE_ADDR=ADDRESS, HTTP_COOKIE=cookie).get("/ok").status_code


def numbers(rate: str) -> dict[str, Any]:
    limit, _slash, unit = rate.partition("/")
    return {"limit": int(limit), "unit": unit}


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
        name="site", path="/", key="ip", algorithm=algorithm, **numbers(rate)
    )
    if kind == "tier":
        rule.tiers.create(group="plan:pro", **numbers(other))
    else:
        override = RateLimitOverride(field="cookie:plan", effect="limit", **numbers(other))
        override.set_value("pro")
        override.save()
    admitted = 0
    with move_clock() as clock:
        for _round in range(10):
            for cookie in ("", "plan=pro"):
                while admitted <= most and get(cookie) == 200:
                    admitted += 1
            clock.advance(seconds)
    print("ADMITTED", kind, algorithm, admitted, most)
    assert admitted <= most
