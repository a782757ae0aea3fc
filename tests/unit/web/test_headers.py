"""The rate-limit headers of responses."""

from __future__ import annotations

from typing import Any

import http_sf
from django.http import HttpResponse

from django_ratelimit_lua import Decision
from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.web.headers import add_headers

OURS = ("RateLimit", "RateLimit-Policy")
OURS += ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")


def test_names_in_headers_are_escaped_and_unique(settings: Any) -> None:
    """Other characters than ASCII are replaced, and equal names get a number."""
    settings.RATELIMIT_HEADERS = "ietf"
    names = ['say "hi"', "back\\slash", "größe", "shop.views.search:*:ip:5/m"]
    names += ["news.views.search:*:ip:5/m", "\r\nX: y"]
    states = tuple(LimitState(name, True, 5, 1, 4, 0.0, 60.0, 0.0, period=60.0) for name in names)
    response = HttpResponse()
    add_headers(response, Decision(True, states))
    policies = http_sf.parse(response["RateLimit-Policy"].encode(), tltype="list")
    parsed = [name for name, _ in policies]
    assert parsed == ['say "hi"', "back\\slash", "gr__e", "search", "search-2", "__X"]


def test_a_fallback_decision_adds_no_headers(settings: Any) -> None:
    """Without Redis, the counts are not exact, so they are not sent to clients."""
    settings.RATELIMIT_HEADERS = "x"
    response = HttpResponse()
    state = LimitState("x", True, 5, 0, 5, 0.0, 0.0, 0.0)
    add_headers(response, Decision(True, (state,), source="fallback"))
    assert not [name for name in OURS if name in response.headers]
