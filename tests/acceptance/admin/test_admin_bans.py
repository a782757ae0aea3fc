"""The page of bans shows the bans of real requests, and its actions apply to them."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.engine.run import run
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations import active_bans
from tests.acceptance.admin.test_admin import BANS, CLIENTS, page_text
from tests.support.users import staff

pytestmark = pytest.mark.django_db(transaction=True)
ATTACKER, OFFICE = "203.0.113.9", "198.51.100.7"


def banning(group: str, key: Any) -> Any:
    """Return a view that bans a client after two refusals."""

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("in")

    return ratelimit(group, key, "1/h", ban_after=2, ban_for="10m")(view)


urlpatterns = [
    path("admin/", admin.site.urls),
    path("ip/", banning("banned-by-ip", "ip")),
    path("both/", banning("banned-by-both", ("ip", "post:username"))),
    path("user/", banning("banned-by-user", "user")),
    path("as-both/", banning("banned-as-both", ("ip", "user"))),
    path("secret/", banning("banned-by-secret", "header:X-Api-Key")),
]


@pytest.fixture(autouse=True)
def plain(settings: Any) -> None:
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"


def attack(where: str = "/ip/", times: int = 3, address: str = ATTACKER, **data: str) -> Any:
    client = Client(REMOTE_ADDR=address)
    for _ in range(times):
        response = client.post(where, data)
    return response


def act(operator: Client, action: str, **more: str) -> Any:
    """Press a button of the only ban."""
    (active,) = active_bans()
    return operator.post(BANS, {"action": f"{action}:{active.key.decode()}", **more}, follow=True)


def block(operator: Client, duration: str = "3600") -> Any:
    """Block the only banned client on the page that *Block* links to."""
    (active,) = active_bans()
    links = re.findall(r'href="([^"]*ask=block)"', operator.get(BANS).content.decode())
    assert [unescape(link).partition("&")[0] for link in links] == [
        f"{CLIENTS}?digest={active.identity}"
    ]
    assert "Block" in page_text(operator.get(unescape(links[0])))
    sent = {"action": "block", "duration": duration}
    return operator.post(f"{CLIENTS}?digest={active.identity}", sent, follow=True)


def test_the_page_shows_the_client_and_the_reason(operator: Client) -> None:
    """It shows the client, the limit and the number of refusals."""
    assert "No client is banned." in page_text(operator.get(BANS))
    attack()
    text = page_text(operator.get(BANS))
    assert "1 ban is in force." in text
    for words in (ATTACKER, "banned-by-ip", "2 refusals"):
        assert words in text, words


def test_unbanning_takes_effect_immediately(operator: Client) -> None:
    """It applies to the next request."""
    assert attack().status_code == 429
    page = act(operator, "lift")
    assert "is lifted." in page_text(page)
    assert "No client is banned." in page_text(page)
    attack(times=2)
    (active,) = active_bans()
    assert active.times == 2
    assert "first" in page_text(act(operator, "forget"))
    attack(times=2)
    (active,) = active_bans()
    assert active.times == 1
    changes = RateLimitChange.objects.filter(action=RateLimitChange.Action.UNBANNED)
    assert [change.by for change in changes] == ["grace", "grace"]
    assert "ban lifted" in page_text(operator.get("/admin/django_ratelimit_lua/ratelimitchange/"))


@pytest.mark.parametrize("shows", ["plain", "off"])
def test_a_ban_can_be_converted_to_a_temporary_block_of_the_same_client(
    operator: Client, settings: Any, shows: str
) -> None:
    """The block uses the digest, and lasts at most 30 days."""
    settings.RATELIMIT_SHOW_IDENTITIES = shows
    RateLimitRule.objects.create(
        name="banned-by-both",
        rate="1/h",
        key="ip+post:username",
        options={"ban_after": 2, "ban_for": "10m"},
    )
    attack("/both/", username="Ada")
    (active,) = active_bans()
    page = operator.get(f"{CLIENTS}?digest={active.identity}&ask=block")
    durations = re.findall(r'<option value="(\d+)"', page.content.decode())
    assert durations == ["3600", "86400", "604800", "2592000"]
    assert block(operator, "2592001").status_code == 403
    assert not RateLimitOverride.objects.exists()
    assert "is blocked for 30 days." in page_text(block(operator, "2592000"))
    override = RateLimitOverride.objects.get()
    assert (override.effect, override.client_digest) == ("block", active.identity)
    assert override.rule == ""
    assert (override.created_by, (override.ends - override.created_at).days) == ("grace", 29)
    act(operator, "forget")
    assert attack("/both/", times=1, username="ada").status_code == 429
    assert attack("/both/", times=1, username="bob").status_code == 200
    assert attack("/both/", times=1, username="ada", address=OFFICE).status_code == 200


@pytest.mark.parametrize("shows", ["plain", "masked"])
def test_a_block_of_a_banned_client_shows_and_stores_no_secret(
    settings: Any, shows: str, direct: redis.Redis, prefix: str
) -> None:
    """A secret value is blocked, but is not on the pages, in the override or in the history."""
    settings.RATELIMIT_SHOW_IDENTITIES = shows
    client = Client(REMOTE_ADDR=ATTACKER, headers={"x-api-key": "s3cr3t-of-ada"})
    for _ in range(3):
        client.post("/secret/")
    (active,) = active_bans()
    told = json.loads(direct.get(active.key + b":about"))
    assert {*told} == {"since", "offences", "times", "limit", "name", "rule", "who", "why"}
    assert ("s3cr3t" in str(told)) is (shows == "plain")
    blocker = staff("block_identity")
    pages = page_text(block(blocker))
    override = RateLimitOverride.objects.get()
    kept = [*RateLimitOverride.objects.values(), *RateLimitChange.objects.values()]
    assert "s3cr3t" not in pages + str(kept) + str(override)
    assert active.identity[:12] in pages
    act(blocker, "forget")
    assert client.post("/secret/").status_code == 429
    assert Client(headers={"x-api-key": "other"}).post("/secret/").status_code == 200


@pytest.mark.parametrize("where", ["/ip/", "/user/", "/as-both/"])
@pytest.mark.parametrize("secrets", [["old"], ["new", "old"]])
def test_operators_cannot_ban_or_block_themselves(
    operator: Client, settings: Any, where: str, secrets: list[str]
) -> None:
    """Neither their address nor their user, also under an earlier key secret."""
    settings.RATELIMIT_KEY_SECRET = ["old"]
    for _ in range(3):
        operator.post(where)
    active_bans()  # Which lists them, before the settings change.
    settings.RATELIMIT_KEY_SECRET = secrets
    assert "you would lock yourself out" in page_text(block(operator))
    assert not RateLimitOverride.objects.exists()


def test_bans_of_a_limit_are_found_and_listed_in_pages(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest bans come first."""
    monkeypatch.setattr("django_ratelimit_lua.admin.bans.MAX_ROWS", 3)
    RateLimitRule.objects.create(
        name="banned-by-ip", rate="1/h", key="ip", options={"ban_after": 2, "ban_for": "10m"}
    )
    for number in range(5):
        attack(address=f"203.0.113.{number}")
    attack("/both/", username="ada", address=OFFICE)
    text = page_text(operator.get(BANS))
    assert "6 bans are in force." in text
    assert "Page 1 of 2" in text
    assert "203.0.113.4" in text
    assert "203.0.113.1" not in text
    for number in ("2", "99", "-1"):
        page = operator.get(BANS, {"p": number}).content.decode()
        assert "203.0.113.0" in page
        assert "203.0.113.3" not in page
    assert "203.0.113.4" in page_text(operator.get(BANS, {"p": "٣x"}))
    page = operator.get(BANS, {"q": "banned-by-ip"}).content.decode()
    assert "5 bans are found." in page
    assert OFFICE not in page
    assert 'href="?q=banned-by-ip&amp;p=2"' in page


@pytest.mark.parametrize("shows", ["plain", "masked", "off"])
def test_bans_are_searched(operator: Client, settings: Any, shows: str) -> None:
    """A search matches an address, also if names are not stored, a network, the beginning of the
    digest, or a part of the limit or the reason. An address matches no longer address.
    """
    settings.RATELIMIT_SHOW_IDENTITIES = shows
    attack(address="203.0.113.1")
    attack(address="203.0.113.10")
    attack("/both/", username="ada", address=OFFICE)
    shops = RateLimiter("shops", "1/h", ban_after=1, ban_for="1h")
    shops.ban("prices", why="Scraper of prices")
    found = {active.identity[:12]: active for active in active_bans()}
    identities = [active.identity[:12] for active in sorted(found.values(), key=lambda x: x.since)]
    first, second, both, by_hand = identities

    def searched(text: str, client: Client = operator) -> set[str]:
        page = client.get(BANS, {"q": text}).content.decode()
        return {identity for identity in identities if f"<code>{identity}</code>" in page}

    assert searched("203.0.113.1") == {first}
    assert searched(" 203.0.113.10 ") == {second}
    assert searched(both) == {both}
    assert searched("BY-BOTH") == {both}
    assert searched("scraper") == {by_hand}
    assert searched("") == set(identities)
    if shows != "off":
        assert searched("203.0.113.0/24") == {first, second}
        assert searched("198.51.100.0/24") == {both}
    page = operator.get(BANS, {"q": "<b>"})
    assert "No ban is found for “<b>”." in page_text(page)
    for odd in ("\x00", "\ud800", "x" * 5000, "::/0/", "'%s"):
        assert operator.get(f"{BANS}?{urlencode({'q': odd}, errors='replace')}").status_code == 200
    colleague = staff("view_ratelimitrule")
    assert searched("scraper", colleague) == searched("203.0.113.0/24", colleague) == set()
    assert searched("203.0.113.1", colleague) == {first}


def test_a_search_in_hidden_names_asks_for_all_parts_of_a_client(
    operator: Client, settings: Any
) -> None:
    """One part finds nothing then, which does not mean that the client is not banned."""
    settings.RATELIMIT_SHOW_IDENTITIES = "masked"
    attack("/both/", username="ada", address=OFFICE)
    hint = "search for all of them: 192.0.2.9 + ada"
    assert hint in page_text(operator.get(BANS, {"q": OFFICE}))
    assert "1 ban is found." in page_text(operator.get(BANS, {"q": f"{OFFICE} + ada"}))
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"
    assert hint not in page_text(operator.get(BANS, {"q": "192.0.2.77"}))
    assert hint in page_text(staff("view_ratelimitrule").get(BANS, {"q": OFFICE}))


def test_several_bans_are_lifted_together(operator: Client) -> None:
    """Selected bans are lifted, or after a confirmation all bans of the search."""
    attackers = [f"203.0.113.{number}" for number in range(5)]
    for address in (*attackers, OFFICE):
        attack(address=address)
    keys = {active.who[0][1]: active.key.decode() for active in active_bans()}
    page = operator.post(BANS, {"action": "lift:selected"}, follow=True)
    assert "No bans were lifted: select bans that are still in force." in page_text(page)
    chosen = {"action": "lift:selected", "ban": [keys[address] for address in attackers[:2]]}
    page = operator.post(BANS, chosen, follow=True)
    assert "2 bans are lifted." in page_text(page)
    assert [attack(times=1, address=address).status_code for address in attackers] == [429] * 5
    assert len(active_bans()) == 4
    network = f"{BANS}?{urlencode({'q': '203.0.113.0/24'})}"
    page = operator.post(network, {"action": "lift:all"})
    assert "Lift 3 bans? These are all bans of the search." in page_text(page)
    assert len(active_bans()) == 4
    page = operator.post(network, {"action": "forget:all", "confirmed": "1"}, follow=True)
    assert "3 bans are lifted." in page_text(page)
    (left,) = active_bans()
    assert left.key.decode() == keys[OFFICE]
    changes = RateLimitChange.objects.filter(action=RateLimitChange.Action.UNBANNED)
    assert [len(change.after["digests"]) for change in changes.order_by("pk")] == [2, 3]
    assert staff("view_ratelimitrule").post(BANS, chosen).status_code == 403
    assert "Lift 1 ban?" in page_text(operator.post(BANS, {"action": "lift:all"}))


def test_ten_thousand_bans_are_lifted_in_few_calls(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call lifts a hundred bans."""
    limiter = RateLimiter("mail", "1/h", ban_after=1, ban_for="10m")
    for number in range(250):
        limiter.ban(f"client {number}")
    runs = []
    monkeypatch.setattr(
        "django_ratelimit_lua.operations.bans.run", lambda call: runs.append(1) or run(call)
    )
    page = operator.post(BANS, {"action": "lift:all", "confirmed": "1"}, follow=True)
    assert "250 bans are lifted." in page_text(page)
    assert len(runs) == 3
    assert active_bans() == []


def test_text_from_attackers_is_escaped_on_the_page(operator: Client) -> None:
    """Markup in a name is displayed as text."""
    attack("/both/", username="<img src=x onerror=alert(1)>")
    page = operator.get(BANS).content.decode()
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
