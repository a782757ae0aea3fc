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
    """The header is never less than the wait and never 0. It is absent if no retry would
    succeed.
    """
    refused = Decision(False, (LimitState("x", False, 1, 1, 0, seconds, 1.0, 0.0),))
    response = too_many_requests(rf.get("/", headers={"accept": "application/json"}), refused)
    assert response.headers.get("Retry-After") == header
    assert ("retry_after" in json.loads(response.content)) == (header is not None)


def test_an_overlong_accept_header_gets_the_page(rf: RequestFactory) -> None:
    """An overlong Accept header gets the default response. A header of usual length is read to its
    end.
    """
    refused = Decision(False)
    for accept, kind in (
        ("application/json," + "a/b," * 300, "text/plain; charset=utf-8"),
        ("a/b," * 40 + "application/json", "text/plain; charset=utf-8"),
        ("a/b," * 30 + "application/json", "application/problem+json"),
        ("", "text/plain; charset=utf-8"),
    ):
        assert (
            too_many_requests(rf.get("/", headers={"accept": accept}), refused)["Content-Type"]
            == kind
        )
