"""The rate-limit headers of responses to allowed and to refused requests."""

from __future__ import annotations

import asyncio
from typing import Any

import http_sf
import pytest
from django.http import HttpRequest
from django.test import Client, RequestFactory

from django_ratelimit_lua import ratelimit
from tests.unit.web.test_headers import OURS
from tests.urls import ok


def test_there_are_no_headers_by_default(client: Client) -> None:
    """A 429 only has `Retry-After`."""
    for _ in range(3):
        response = client.get("/plain")
        assert not [name for name in OURS if name in response.headers]
    assert response["Retry-After"]


def test_draft_10_headers_list_every_policy(rf: RequestFactory, settings: Any) -> None:
    """One header has the quota, window, remaining units and reset time of each policy."""
    settings.RATELIMIT_HEADERS = "ietf"
    view = ratelimit("search", "ip", ["10/m", "500/h"], algorithm="fixed_window")(ok)
    for used in (1, 2):
        response = view(rf.get("/"))
        assert response["RateLimit-Policy"] == '"search";q=10;w=60, "search-2";q=500;w=3600'
        assert (
            response["RateLimit"]
            == f'"search";r={10 - used};t=60, "search-2";r={500 - used};t=3600'
        )


def test_x_headers_show_the_limit_with_the_least_remaining(
    rf: RequestFactory, settings: Any
) -> None:
    """Each header has the value of one of the limits."""
    settings.RATELIMIT_HEADERS = "x"
    view = ratelimit(key="ip", rate=["2/m", "500/h"], algorithm="fixed_window")(ok)
    for remaining in (1, 0, 0):
        response = view(rf.get("/"))
        assert [response[name] for name in OURS[2:]] == ["2", str(remaining), "60"]
    assert response.status_code == 429


@pytest.mark.parametrize("path", ["/plain", "/coroutine", "/on-class", "/async-on-class"])
def test_every_kind_of_view_gets_headers(path: str, client: Client, settings: Any) -> None:
    """Responses to allowed and to refused requests have them."""
    settings.RATELIMIT_HEADERS = "ietf"
    responses = [client.get(path) for _ in range(3)]
    assert [
        http_sf.parse(r["RateLimit"].encode(), tltype="list")[0][1]["r"] for r in responses
    ] == [1, 0, 0]


def test_a_view_that_returns_none_is_left_to_django(rf: RequestFactory, settings: Any) -> None:
    """Headers are only added to a response."""
    settings.RATELIMIT_HEADERS = "x"
    assert ratelimit(key="ip", rate="5/m")(lambda request: None)(rf.get("/")) is None

    async def nothing(request: HttpRequest) -> None:
        return None

    assert asyncio.run(ratelimit(key="ip", rate="5/m")(nothing)(rf.get("/"))) is None
