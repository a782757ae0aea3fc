"""Staff who are refused by a rule in the admin get the command that switches it off. Other clients
do not, and a flood costs no query.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import AsyncClient, Client

from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance import test_admin
from tests.acceptance.test_admin import RULES, staff

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "all of it's"


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    test_admin.site.__wrapped__(settings, monkeypatch)  # type: ignore[attr-defined]
    settings.RATELIMIT_RULES = []
    RateLimitRule.objects.create(name=NAME, path="/", key="ip", rate="0/m")


@pytest.mark.parametrize("accept", ["text/html", "*/*"])
def test_the_suggested_command_switches_the_rule_off(accept: str, operator: Client) -> None:
    """Every page of the admin has the command, which works as it is printed."""
    answer = operator.get(RULES, headers={"accept": accept})
    assert answer.status_code == 429
    text = answer.content.decode().replace("&#x27;", "'").replace("&quot;", '"')
    assert "switches it off: python manage.py ratelimit rules mode" in text
    line = text.partition("switches it off: ")[2].partition("</code>")[0].splitlines()[0]
    call_command(*shlex.split(line)[2:])
    assert operator.get(RULES).status_code == 200


def test_clients_other_than_staff_get_no_hint(
    operator: Client, django_assert_num_queries: Any
) -> None:
    """Other pages and other clients have no hint. Anonymous clients cost no query."""
    stranger, customer = Client(), Client()
    customer.force_login(User.objects.create_user("ada"))
    for client, page in ((operator, "/ok"), (stranger, "/admin/"), (customer, "/admin/")):
        answer = client.get(page, headers={"accept": "text/html"})
        assert (answer.status_code, b"ratelimit rules" in answer.content) == (429, False)
    with django_assert_num_queries(0):
        assert stranger.get("/admin/login/").status_code == 429


def test_under_asgi_the_hint_names_a_rule_of_the_settings(operator: Client, settings: Any) -> None:
    """No command can switch off a rule of the settings."""
    client = AsyncClient()
    client.cookies = operator.cookies

    async def asked() -> Any:
        return await client.get(RULES, headers={"accept": "text/html"})

    assert "ratelimit rules mode" in async_to_sync(asked)().content.decode()
    RateLimitRule.objects.all().delete()
    settings.RATELIMIT_RULES = [{"name": "none", "path": "/", "key": "ip", "rate": "0/m"}]
    page = staff("view_ratelimitrule").get(RULES, headers={"accept": "text/html"}).content.decode()
    assert "The rule “none” of RATELIMIT_RULES refuses you." in page
