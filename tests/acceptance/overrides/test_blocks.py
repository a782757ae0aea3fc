"""Blocks with a status of 403 and a message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua.models import (
    RateLimitOverride,
    RateLimitRule,
)
from django_ratelimit_lua.throttling import RuleThrottle
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import OVERRIDES, errors, visits
from tests.support.users import serve_admin

pytestmark = pytest.mark.django_db(transaction=True)


class Orders(APIView):
    throttle_classes = (RuleThrottle,)

    def get(self, request: Any) -> Response:
        return Response({})


def told(request: HttpRequest, exception: Any) -> HttpResponse:
    """A view for refusals in a project."""
    return HttpResponse(
        f"{exception.status_code} {exception.message}", status=exception.status_code
    )


urlpatterns = [*test_admin.urlpatterns, path("orders", Orders.as_view())]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    serve_admin(settings, __name__)
    settings.RATELIMIT_HEADERS = "ietf"


FORM = {"effect": "block", "duration": "3600"}
CLIENT = {"REMOTE_ADDR": "203.0.113.9"}


def test_a_403_block_has_no_retry_time(operator: Client) -> None:
    """Each form of the response has the status and the message of the block. By default, a block is
    a 429.
    """
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
