"""The responses to refused requests."""

from __future__ import annotations

import json

import pytest
from django.test import RequestFactory

from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.web.responses import too_many_requests


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.2, "1"), (1.0, "1"), (1.0001, "2"), (59.5, "60"), (None, None)]
)
def test_retry_after_is_whole_seconds_rounded_up(
    seconds: float | None, header: str | None, rf: RequestFactory
) -> None:
    """It is never 0, and absent if no retry would succeed."""
    refused = Decision(False, (LimitState("x", False, 1, 1, 0, seconds, 1.0, 0.0),))
    response = too_many_requests(rf.get("/", headers={"accept": "application/json"}), refused)
    assert response.headers.get("Retry-After") == header
    assert ("retry_after" in json.loads(response.content)) == (header is not None)


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
ACCEPTED = {
    "application/problem+json": [
        "application/json",
        "application/problem+json",
        "application/json, text/html;q=0.5",
        "a/b," * 30 + "application/json",
    ],
    "text/html": [BROWSER, "text/html", "TEXT/HTML", "text/html, application/json;q=0.9"],
    "text/plain": [
        *("*/*", "image/png", "text/plain", "text/*", ""),
        "application/json," + "a/b," * 300,
        "a/b," * 40 + "application/json",
    ],
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_the_accept_header_selects_the_kind_of_response(kind: str, rf: RequestFactory) -> None:
    """Without a preference, or with an overlong header, it is plain text."""
    for accept in ACCEPTED[kind]:
        response = too_many_requests(rf.get("/", headers={"accept": accept}), Decision(False))
        assert response["Content-Type"].partition(";")[0] == kind, accept
