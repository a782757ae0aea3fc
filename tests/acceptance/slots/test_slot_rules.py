"""Rules with a number of slots in the admin, and the slow report of the demo."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client
from django.urls import path

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance.admin.test_admin import given
from tests.support.processes import until
from tests.support.users import ADMIN_MIDDLEWARE

SITE = pytest.mark.django_db(transaction=True)
RULE = "/admin/django_ratelimit_lua/ratelimitrule/"
CLIENT = "/admin/django_ratelimit_lua/client/"
FORM = given(name="downloads", rate="2", algorithm="concurrency", key="ip", path="/export/")


def export(request: HttpRequest) -> HttpResponse:
    return StreamingHttpResponse(iter([b"exported"]))  # type: ignore[return-value]


@ratelimit("slow exports", key="ip", rate="2", algorithm="concurrency")
def slow(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("admin/", admin.site.urls), path("export/", export), path("slow/", slow)]


@pytest.fixture
def ada(settings: Any) -> Client:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [*ADMIN_MIDDLEWARE, "django_ratelimit_lua.middleware.RateLimitMiddleware"]
    client = Client()
    client.force_login(User.objects.create_superuser("ada", "ada@example.org", "x"))
    return client


@SITE
def test_a_rule_of_the_admin_can_limit_concurrency(ada: Client, tmp_path: Any) -> None:
    """It has a sentence, holds slots, is explained, and survives an export and import."""
    assert ada.post(f"{RULE}add/", FORM).status_code == 302
    rule = RateLimitRule.objects.get()
    assert rule.describe() == "2 at once per address, on /export/"
    open_ones = [ada.get("/export/") for _ in range(2)]
    assert [each.status_code for each in open_ones] == [200, 200]
    refused = ada.get("/export/", headers={"accept": "text/plain"})
    assert refused.status_code == 429
    assert refused.content.startswith(b"Too many requests at the same time. Try again in")
    page = ada.get(CLIENT, {"q": "127.0.0.1"}, follow=True).content.decode()
    assert "2 of 2 used; allowed again: when a slot is free." in page
    for each in open_ones:
        assert b"".join(each.streaming_content) == b"exported"
        each.close()
    assert ada.get("/export/").status_code == 200
    file = tmp_path / "rules.yaml"
    with file.open("w") as written:
        call_command("ratelimit", "rules", "export", stdout=written)
    rule.delete()
    call_command("ratelimit", "rules", "import", file)
    assert RateLimitRule.objects.get().describe() == "2 at once per address, on /export/"


@SITE
def test_slots_of_a_call_site_continue_under_the_rule_that_replaces_it(ada: Client) -> None:
    """The key is the same, so the counts continue and no confirmation is needed."""
    form = FORM | {"name": "slow exports", "path": ""}
    assert ada.post(f"{RULE}add/", form).status_code == 302


def test_the_demo_report_holds_a_slot_until_it_is_sent(demo: str) -> None:
    """Two reports are sent simultaneously. The third is refused until a client has disconnected."""

    def ask() -> Any:
        return urllib.request.urlopen(f"{demo}report/", timeout=30)

    def refused() -> bool:
        try:
            ask().close()
        except urllib.error.HTTPError as error:
            return error.code == 429
        return False

    first, second = ask(), ask()
    assert refused()
    first.close()
    until(lambda: not refused(), "a slot is free", 20)
    second.close()
