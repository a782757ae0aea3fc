"""The page of a client with its statistics: the limits that refused it, and when."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from tests.acceptance.admin.test_admin import site, staff, visits  # noqa: F401 - a fixture
from tests.contrib.statistics.test_statistics_pages import text, words

pytestmark = pytest.mark.django_db(transaction=True)
CLIENT = "/admin/django_ratelimit_lua/client/"


def client_of(address: str) -> str:
    return digest(("ip", address)).decode()


@pytest.fixture
def rule() -> RateLimitRule:
    return RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")


@pytest.mark.usefixtures("rule")
@pytest.mark.parametrize("permissions", [("view_identities",), ()])
def test_clients_of_a_network_are_blocked_separately(permissions: tuple[str, ...]) -> None:
    """Their digests distinguish them. A client is blocked and unblocked in its row."""
    operator = staff("view_ratelimitrule", "block_identity", *permissions, name="desk")
    addresses = [f"203.0.113.{number}" for number in range(1, 11)]
    for address in addresses:
        assert visits(3, address) == [200, 200, 429]
    page = text(operator, name="site")
    assert ("203.0.113.0/24" in page) is bool(permissions)
    shown = set(re.findall(r"<code>([0-9a-f]{12})</code>", page))
    assert shown == {client_of(address)[:12] for address in addresses}
    victim, *others = addresses
    (link,) = set(re.findall(rf'href="([^"]*{client_of(victim)}[^"]*ask=block)"', page))
    asked = text(operator, unescape(link))
    assert client_of(victim) in asked
    RateLimitRule.objects.update(rate="100/h")
    RateLimitRule.objects.first().save()
    assert visits(1, victim) == [200]
    sent = {"action": "block", "duration": "3600"}
    operator.post(unescape(link).replace("&ask=block", ""), sent)
    override = RateLimitOverride.objects.get()
    assert (override.client_digest, override.effect) == (client_of(victim), "block")
    assert [visits(1, address) for address in addresses] == [[429]] + [[200]] * len(others)
    page = text(operator, name="site")
    assert page.count(">Unblock</a>") == page.count(f"digest={client_of(victim)}") // 3
    operator.post(f"{CLIENT}?digest={client_of(victim)}", {"action": f"end:{override.pk}"})
    assert visits(1, victim) == [200]
    assert ">Unblock</a>" not in text(operator, name="site")


@pytest.mark.usefixtures("rule")
def test_the_page_shows_what_refused_the_client(operator: Client) -> None:
    """Refusals and units of the last 24 hours are listed by limit."""
    RateLimitRule.objects.create(name="all", path="/", key="ip", rate="50/h", mode="shadow")
    visits(9, "203.0.113.1")
    visits(5, "203.0.113.2")
    page = words(text(operator, CLIENT, digest=client_of("203.0.113.1")))
    assert "The last 24 hours" in page
    assert re.search(r"limit refused units used .*site 7 2", page)
    assert "203.0.113.0/24 (" in page
    stranger = words(text(operator, CLIENT, digest=client_of("203.0.113.3")))
    assert "The last 24 hours" not in stranger
    reader = staff("view_ratelimitrule", name="reader")
    assert "203.0.113" not in text(reader, CLIENT, digest=client_of("203.0.113.1"))


def test_what_a_rule_in_shadow_mode_would_refuse_is_no_refusal(operator: Client) -> None:
    """The page of the client says that the requests would be refused."""
    RateLimitRule.objects.create(name="trial", path="/ok", key="ip", rate="1/h", mode="shadow")
    assert visits(3, "203.0.113.1") == [200] * 3
    page = words(text(operator, CLIENT, digest=client_of("203.0.113.1")))
    assert "trial would be refused: 2 1" in page


@pytest.mark.usefixtures("rule")
@pytest.mark.parametrize("shape", [str, str.lower, lambda text: text.replace("-", "")])
def test_a_reference_leads_to_the_client(operator: Client, shape: Any) -> None:
    """The reference is accepted with or without hyphens, in the search for clients too."""
    visits(2, "203.0.113.1")
    visitor = Client(REMOTE_ADDR="203.0.113.1")
    reference = visitor.get("/ok")["RateLimit-Reference"]
    assert re.fullmatch("([0-9A-Z]{4}-){2}[0-9A-Z]{4}", reference)
    page = text(operator, CLIENT, q=shape(reference))
    assert "Refused, " in page
    link = f"{CLIENT}?digest={client_of('203.0.113.1')}&amp;name=site"
    assert page.count(link) == 1
    assert "Refused by site: 2 of 2 used" in text(operator, unescape(link))


@pytest.mark.parametrize("shows", ["plain", "masked"])
def test_a_reference_leads_to_the_numbers_of_a_refusal(
    operator: Client, settings: Any, shows: str
) -> None:
    """The recorded name of the client leads to the counts of its address and of its user name."""
    settings.RATELIMIT_SHOW_IDENTITIES = shows
    settings.ROOT_URLCONF = "tests.acceptance.admin.test_admin_clients"
    visitor = Client(REMOTE_ADDR="203.0.113.1")
    answers = [visitor.post("/login", {"username": "mary"}) for _ in range(6)]
    used = [f"{state.used} / {state.limit}" for state in answers[-1].wsgi_request.ratelimit.limits]
    assert used == ["5 / 5", "5 / 30", "5 / 50"]
    page = text(operator, CLIENT, q=answers[-1]["RateLimit-Reference"])
    (link,) = re.findall(r'class="ratelimit-client"><a href="([^"]+)"', page)
    shown = re.findall(r"\d+ / \d+", text(operator, unescape(link)))
    assert shown == (used if shows == "plain" else used[:1])


@pytest.mark.usefixtures("rule")
def test_a_client_is_found_by_the_beginning_of_its_digest(operator: Client) -> None:
    """The search accepts the length that pages and the log show, in any letter case."""
    visits(3, "203.0.113.1")
    client = client_of("203.0.113.1")
    for shown in (client[:6], client[:12].upper(), client):
        found = operator.get(CLIENT, {"q": shown}, follow=True)
        assert f"<code>{client}</code>" in found.content.decode(), shown
    assert "No client found" in text(operator, CLIENT, q="0" * 13)
