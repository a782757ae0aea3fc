"""The page of a client: its counts, bans and overrides by its digest, and its actions."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations import active_bans
from tests.support.users import serve_admin, staff

pytestmark = pytest.mark.django_db(transaction=True)
CLIENT = "/admin/django_ratelimit_lua/client/"


@ratelimit(group="login-of-both", key=("ip", "post:username"), rate="1/h")
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("in")


@ratelimit(group="banning", key="ip", rate="1/h", ban_after=2, ban_for="10m")
def banning(request: HttpRequest) -> HttpResponse:
    return HttpResponse("in")


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [
    path("admin/", admin.site.urls),
    path("login", login),
    path("banning", banning),
    path("ok", ok),
]


@pytest.fixture(autouse=True)
def site(settings: Any, no_others: None) -> None:
    serve_admin(settings, __name__)


def of(*identity: Any) -> str:
    return digest(identity).decode()


def page(operator: Client, client: str, **query: str) -> str:
    """Return the text of the page of a client."""
    response = operator.get(CLIENT, {"digest": client, **query})
    assert response.status_code == 200
    return words(response)


def words(response: Any) -> str:
    html = response.content.decode().replace("<wbr>", "")
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def press(operator: Client, client: str, action: str, **more: str) -> Any:
    return operator.post(f"{CLIENT}?digest={client}", {"action": action, **more}, follow=True)


def statuses(where: str, times: int, address: str, **data: str) -> list[int]:
    visitor = Client(REMOTE_ADDR=address)
    return [visitor.post(where, data).status_code for _ in range(times)]


def test_the_page_shows_the_counts_of_every_limit_that_has_some(operator: Client) -> None:
    """Limits of rules and of code are shown, except those without counts. A reset applies to one
    limit or to all.
    """
    for name, limit in (("first", 2), ("second", 9), ("elsewhere", 9)):
        RateLimitRule.objects.create(
            name=name, path="/else" if name == "elsewhere" else "/ok", key="ip", rate=f"{limit}/m"
        )
    assert statuses("/ok", 3, "203.0.113.1") == [200, 200, 429]
    client = of("ip", "203.0.113.1")
    shown = page(operator, client)
    assert "Refused by first: 2 of 2 used" in shown
    assert "2 / 2" in shown
    assert "2 / 9" in shown
    assert "elsewhere" not in shown
    assert "elsewhere" in page(operator, client, name="elsewhere")
    assert "Counts are reset: first." in words(press(operator, client, "reset:first"))
    shown = page(operator, client)
    assert "No limit refuses this client now" in shown
    assert "2 / 9" in shown
    assert "Counts are reset: second." in words(press(operator, client, "reset"))
    assert "No limit has counted this client recently" in page(operator, client)


def test_a_limit_of_zero_is_listed_for_the_clients_that_it_counts(operator: Client) -> None:
    """A user is not refused by a limit that counts addresses."""
    ada = User.objects.create_user("ada")
    RateLimitRule.objects.create(name="closed", path="/ok", key="ip", rate="0/m")
    assert "Refused by closed" in page(operator, of("ip", "203.0.113.9"), q="203.0.113.9")
    assert "closed" not in page(operator, of("user", str(ada.pk)), q="ada")


def test_the_rates_of_one_rule_are_distinguished(operator: Client) -> None:
    """They have the same sentence, so each row has its rate."""
    RateLimitRule.objects.create(name="twice", path="/ok", key="ip", rate="3/m, 9/h")
    assert statuses("/ok", 1, "203.0.113.9") == [200]
    shown = page(operator, of("ip", "203.0.113.9"))
    for rate, used in (("3/m", "1 / 3 2"), ("9/h", "1 / 9 8")):
        assert f"3 per minute and 9 per hour per address, on /ok ({rate}) Allowed {used}" in shown


def test_a_token_bucket_shows_its_burst_as_the_most_that_a_client_can_use(
    operator: Client,
) -> None:
    """The used and the remaining units make up the burst, not the rate."""
    options = {"algorithm": "token_bucket", "burst": 2}
    RateLimitRule.objects.create(name="bucket", path="/ok", key="ip", rate="60/h", options=options)
    assert statuses("/ok", 1, "203.0.113.9") == [200]
    assert "Allowed 1 / 2 1" in page(operator, of("ip", "203.0.113.9"))
    assert statuses("/ok", 2, "203.0.113.9") == [200, 429]
    assert "Refused by bucket: 2 of 2 used" in page(operator, of("ip", "203.0.113.9"))


def test_a_block_keeps_the_counts_and_can_be_ended(operator: Client) -> None:
    """The end of the block is shown once, and the counts stay visible. *Unblock* applies to the
    next request.
    """
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="9/m")
    assert statuses("/ok", 2, "203.0.113.1") == [200, 200]
    client = of("ip", "203.0.113.1")
    asked = page(operator, client, ask="block")
    assert f"Block {client[:12]}?" in asked
    assert "for good" not in asked
    done = words(press(operator, client, "block", duration="3600"))
    assert f"Client {client[:12]} is blocked for 1 hour." in done
    assert done.count("Blocked by an override until") == 1
    assert "2 / 9" in done
    assert statuses("/ok", 1, "203.0.113.1") == [429]
    assert statuses("/ok", 1, "203.0.113.2") == [200]
    override = RateLimitOverride.objects.get()
    assert override.client_digest == client
    ended = words(press(operator, client, f"end:{override.pk}"))
    assert f"Ended: client {client[:12]}." in ended
    assert statuses("/ok", 1, "203.0.113.1") == [200]
    assert "has ended already" in words(press(operator, client, f"end:{override.pk}"))


def test_a_block_of_a_network_is_found_by_the_address(operator: Client) -> None:
    """The page knows the address only after a search. It then shows the override, and ends it."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="9/m")
    block = RateLimitOverride.objects.create(network="203.0.113.0/24", effect="block")
    client = of("ip", "203.0.113.1")
    assert "Blocked" not in page(operator, client)
    assert "Blocked by an override, for good" in page(operator, client, q="203.0.113.1")
    assert "Blocked" not in page(operator, client, q="203.0.113.2")
    exempt = RateLimitOverride.objects.create(user=None, network="203.0.113.1", effect="exempt")
    assert "Blocked" not in page(operator, client, q="203.0.113.1")
    assert statuses("/ok", 1, "203.0.113.1") == [200]
    exempt.delete()
    url = f"{CLIENT}?{urlencode({'digest': client, 'q': '203.0.113.1'})}"
    operator.post(url, {"action": f"end:{block.pk}"})
    assert statuses("/ok", 1, "203.0.113.1") == [200]


def test_bans_are_shown_and_lifted(operator: Client) -> None:
    """Only users who may view identities see the address."""
    statuses("/banning", 4, "203.0.113.1")
    client = of("ip", "203.0.113.1")
    shown = page(operator, client)
    assert "Banned by banning" in shown
    assert "2 refusals" in shown
    reader = staff("view_ratelimitrule", name="reader")
    assert "203.0.113" not in page(reader, client)
    (active,) = active_bans()
    done = words(press(operator, client, f"lift:{active.key.decode()}"))
    assert "is lifted." in done
    assert not active_bans()
    assert "has ended already" in words(press(operator, client, f"lift:{active.key.decode()}"))


def test_an_override_names_the_address_or_user_that_was_searched(
    operator: Client, settings: Any
) -> None:
    """The digest has to match the searched value. For IPv6, the override names the network that is
    counted as one.
    """
    ada = User.objects.create_user("ada")
    for query, identity, wanted in (
        ("203.0.113.1", ("ip", "203.0.113.1"), "network=203.0.113.1"),
        ("2001:db8::7", ("ip", "2001:db8::"), "network=2001%3Adb8%3A%3A%2F64"),
        ("ada", ("user", str(ada.pk)), f"user={ada.pk}"),
        ("203.0.113.2", ("ip", "203.0.113.1"), f"client_digest={of('ip', '203.0.113.1')}"),
    ):
        html = operator.get(CLIENT, {"digest": of(*identity), "q": query}).content.decode()
        assert f"ratelimitoverride/add/?{wanted}" in html, query


def test_each_action_needs_its_permission(operator: Client) -> None:
    """Viewing and each action need separate permissions, and operators cannot block themselves."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="9/m")
    client = of("ip", "203.0.113.1")
    assert staff("view_ratelimitchange", name="other").get(CLIENT).status_code == 403
    reader = staff("view_ratelimitrule", name="reader")
    assert "ask=block" not in reader.get(CLIENT, {"digest": client}).content.decode()
    for action in ("block", "exempt", "reset", "end:1", "lift:x"):
        sent = {"action": action, "duration": "3600"}
        assert reader.post(f"{CLIENT}?digest={client}", sent).status_code == 403
    assert press(operator, client, "block", duration="2592001").status_code == 403
    assert press(operator, client, "nonsense").status_code == 403
    assert operator.post(CLIENT, {"action": "block", "duration": "3600"}).status_code == 403
    own = of("ip", "198.51.100.1")
    assert "lock yourself out" in words(press(operator, own, "block", duration="3600"))
    assert not RateLimitOverride.objects.exists()
    checking = Client(enforce_csrf_checks=True)
    checking.force_login(User.objects.get(username="grace"))
    sent = {"action": "block", "duration": "3600"}
    assert checking.post(f"{CLIENT}?digest={client}", sent).status_code == 403
    done = words(press(operator, client, "exempt", duration="86400"))
    assert f"Client {client[:12]} is exempt for 1 day." in done
    assert RateLimitChange.objects.latest("pk").by == "grace"
