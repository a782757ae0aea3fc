"""The page of clients: how they are found, their counts, bans and overrides, and its actions."""

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
from django_ratelimit_lua.operations import active_bans, open_reference
from tests.acceptance.admin.test_admin import BANS, CHANGES, CLIENTS, OVERRIDES, page_text
from tests.support.users import staff

pytestmark = pytest.mark.django_db(transaction=True)


@ratelimit(key=("ip", "post:username"), rate="5/15m", method="POST", ban_after=2, ban_for="10m")
@ratelimit(key="ip", rate="30/15m", method="POST")
@ratelimit(key="post:username", rate="50/h", method="POST")
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
ADDRESS = "127.5.5.5"


@pytest.fixture(autouse=True)
def plain(settings: Any) -> None:
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"


def of(*identity: Any) -> str:
    return digest(identity).decode()


def page(operator: Client, client: str, **query: str) -> str:
    """Return the text of the page of a client."""
    response = operator.get(CLIENTS, {"digest": client, **query})
    assert response.status_code == 200
    return page_text(response)


def press(operator: Client, client: str, action: str, **more: str) -> Any:
    return operator.post(f"{CLIENTS}?digest={client}", {"action": action, **more}, follow=True)


def statuses(where: str, times: int, address: str, **data: str) -> list[int]:
    visitor = Client(REMOTE_ADDR=address)
    return [visitor.post(where, data).status_code for _ in range(times)]


def pair(name: str = "mary", address: str = ADDRESS) -> str:
    return of(("ip", address), ("post", "username", name))


def guess(times: int, name: str = "mary", address: str = ADDRESS) -> Any:
    visitor = Client(REMOTE_ADDR=address)
    return [visitor.post("/login", {"username": name}) for _ in range(times)][-1]


def find(operator: Client, words: str, page: str = CLIENTS) -> Any:
    response = operator.get(page, {"q": words}, follow=True)
    assert response.status_code == 200
    return response


def found(operator: Client, words: str) -> dict[str, str]:
    rows = find(operator, words).context["found"]
    return {row["words"]: row["digest"] for row in rows}


def counts(shown: Any) -> dict[str, tuple[str, ...]]:
    """Return the used and remaining units of each row, by its sentence."""
    rows = re.findall(r'<tr class="ratelimit-row.*?</tr>', shown.content.decode(), re.DOTALL)
    cells = [re.findall(r'<div class="help">(.*?)</div>|(\d+) / (\d+)', row) for row in rows]
    return {unescape(words[0][0]).partition(",")[0]: words[1][1:] for words in cells}


def test_the_page_shows_the_counts_of_every_limit_that_has_some(operator: Client) -> None:
    """Limits of rules and of code are shown, except those without counts."""
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
    assert "Counts are reset: first." in page_text(press(operator, client, "reset:first"))
    shown = page(operator, client)
    assert "No limit refuses this client now" in shown
    assert "2 / 9" in shown
    assert "Counts are reset: second." in page_text(press(operator, client, "reset"))
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


def test_a_token_bucket_shows_its_burst_as_the_most_that_a_client_can_use(operator: Client) -> None:
    """The used and the remaining units make up the burst, not the rate."""
    options = {"algorithm": "token_bucket", "burst": 2}
    RateLimitRule.objects.create(name="bucket", path="/ok", key="ip", rate="60/h", options=options)
    assert statuses("/ok", 1, "203.0.113.9") == [200]
    assert "Allowed 1 / 2 1" in page(operator, of("ip", "203.0.113.9"))
    assert statuses("/ok", 2, "203.0.113.9") == [200, 429]
    assert "Refused by bucket: 2 of 2 used" in page(operator, of("ip", "203.0.113.9"))


def test_a_block_keeps_the_counts_and_can_be_ended(operator: Client) -> None:
    """The end of the block is shown once, and the counts stay visible."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="9/m")
    assert statuses("/ok", 2, "203.0.113.1") == [200, 200]
    client = of("ip", "203.0.113.1")
    asked = page(operator, client, ask="block")
    assert f"Block {client[:12]}?" in asked
    assert "for good" not in asked
    done = page_text(press(operator, client, "block", duration="3600"))
    assert f"Client {client[:12]} is blocked for 1 hour." in done
    assert done.count("Blocked by an override until") == 1
    assert "2 / 9" in done
    assert statuses("/ok", 1, "203.0.113.1") == [429]
    assert statuses("/ok", 1, "203.0.113.2") == [200]
    override = RateLimitOverride.objects.get()
    assert override.client_digest == client
    ended = page_text(press(operator, client, f"end:{override.pk}"))
    assert f"Ended: client {client[:12]}." in ended
    assert statuses("/ok", 1, "203.0.113.1") == [200]
    assert "has ended already" in page_text(press(operator, client, f"end:{override.pk}"))


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
    url = f"{CLIENTS}?{urlencode({'digest': client, 'q': '203.0.113.1'})}"
    operator.post(url, {"action": f"end:{block.pk}"})
    assert statuses("/ok", 1, "203.0.113.1") == [200]


def test_a_ban_is_shown_on_the_page_of_its_client(operator: Client) -> None:
    """It has the limit and the number of refusals."""
    statuses("/banning", 4, "203.0.113.1")
    shown = page(operator, of("ip", "203.0.113.1"))
    assert "Banned by banning" in shown
    assert "2 refusals" in shown


def test_an_override_names_the_address_or_user_that_was_searched(
    operator: Client, settings: Any
) -> None:
    """The digest has to match the searched value."""
    ada = User.objects.create_user("ada")
    for query, identity, wanted in (
        ("203.0.113.1", ("ip", "203.0.113.1"), "network=203.0.113.1"),
        ("2001:db8::7", ("ip", "2001:db8::"), "network=2001%3Adb8%3A%3A%2F64"),
        ("ada", ("user", str(ada.pk)), f"user={ada.pk}"),
        ("203.0.113.2", ("ip", "203.0.113.1"), f"client_digest={of('ip', '203.0.113.1')}"),
    ):
        html = operator.get(CLIENTS, {"digest": of(*identity), "q": query}).content.decode()
        assert f"ratelimitoverride/add/?{wanted}" in html, query


def test_each_action_needs_its_permission(operator: Client) -> None:
    """Viewing and each action need separate permissions, and operators cannot block themselves."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="9/m")
    client = of("ip", "203.0.113.1")
    assert staff("view_ratelimitchange", name="other").get(CLIENTS).status_code == 403
    reader = staff("view_ratelimitrule", name="reader")
    assert "ask=block" not in reader.get(CLIENTS, {"digest": client}).content.decode()
    for action in ("block", "exempt", "reset", "end:1", "lift:x"):
        sent = {"action": action, "duration": "3600"}
        assert reader.post(f"{CLIENTS}?digest={client}", sent).status_code == 403
    assert press(operator, client, "block", duration="2592001").status_code == 403
    assert press(operator, client, "nonsense").status_code == 403
    assert operator.post(CLIENTS, {"action": "block", "duration": "3600"}).status_code == 403
    own = of("ip", "198.51.100.1")
    assert "lock yourself out" in page_text(press(operator, own, "block", duration="3600"))
    assert not RateLimitOverride.objects.exists()
    checking = Client(enforce_csrf_checks=True)
    checking.force_login(User.objects.get(username="grace"))
    sent = {"action": "block", "duration": "3600"}
    assert checking.post(f"{CLIENTS}?digest={client}", sent).status_code == 403
    done = page_text(press(operator, client, "exempt", duration="86400"))
    assert f"Client {client[:12]} is exempt for 1 day." in done
    assert RateLimitChange.objects.latest("pk").by == "grace"


def test_every_limit_has_the_count_of_the_part_that_it_counts(operator: Client) -> None:
    """An address with a name has the counts of both, and of each part."""
    refusal = guess(6)
    assert refusal.status_code == 429
    guess(1, name="eve")
    shown = find(operator, f"{ADDRESS} + mary")
    assert counts(shown) == {
        "5 per 15 minutes per address and post:username": ("5", "5"),
        "30 per 15 minutes per address": ("6", "30"),
        "50 per hour per post:username": ("5", "50"),
    }
    assert "Refused by" in page_text(shown)
    assert f"digest={of('ip', ADDRESS)}" in shown.content.decode()
    own = of("post", "username", "mary")
    (name,) = (
        limit.name
        for limit in shown.context["client"].explanation.limits
        if limit.charge.digest.decode() == own
    )
    url = shown.redirect_chain[-1][0]
    operator.post(url, {"action": f"reset:{name}"})
    shown = operator.get(url)
    assert set(counts(shown).values()) == {("5", "5"), ("6", "30"), ("0", "50")}
    change = page_text(operator.get(CHANGES))
    assert "The counts of post:username mary" in change


def test_the_page_of_a_digest_omits_limits_that_count_by_something_else(
    operator: Client, settings: Any
) -> None:
    """Without a name, other counts are unknown. They are not shown as unused."""
    settings.RATELIMIT_SHOW_IDENTITIES = "masked"
    guess(6)
    shown = operator.get(CLIENTS, {"digest": pair(), "name": f"{__name__}.login"})
    assert counts(shown) == {"5 per 15 minutes per address and post:username": ("5", "5")}
    assert "Only the digest of this client is known" in page_text(shown)


def test_a_part_of_a_client_finds_it_with_its_ban_on_every_page(operator: Client) -> None:
    """An address, a name, both, and a network find the client on all three pages."""
    guess(8)
    guess(8, name="eve", address="127.9.9.9")
    assert len(active_bans()) == 2
    RateLimitOverride.objects.create(network=ADDRESS, effect="exempt", reason="only this")
    RateLimitOverride.objects.create(network="127.5.0.0/16", effect="block")
    for words in (ADDRESS, "mary", "127.5.0.0/16", f"{ADDRESS} mary", f"mary + {ADDRESS}"):
        bans = page_text(find(operator, words, BANS))
        assert "1 ban is found" in bans, words
        assert pair()[:12] in bans
    rows = found(operator, ADDRESS)
    assert rows == {
        f"address: {ADDRESS}": of("ip", ADDRESS),
        f"{ADDRESS}, post:username mary": pair(),
    }
    listed = page_text(find(operator, ADDRESS))
    assert "banned by login, line" in listed
    network = find(operator, "127.5.0.0/16")
    assert pair() in network.redirect_chain[-1][0]  # The only known client within it.
    for words in (ADDRESS, "127.5.5.0/24", "127.0.0.0/8"):
        shown = page_text(find(operator, words, OVERRIDES))
        assert "127.5.0.0/16" in shown, words
        assert "only this" in shown
    assert "only this" not in page_text(find(operator, "127.5.7.7", OVERRIDES))


def test_an_override_by_digest_is_found_by_the_name_of_its_client(operator: Client) -> None:
    """The page of the client adds it, with the recorded name as its label."""
    guess(8)
    url = f"{CLIENTS}?digest={pair()}"
    operator.post(url, {"action": "exempt", "duration": "3600"})
    (override,) = RateLimitOverride.objects.all()
    assert override.label == f"address {ADDRESS}, post:username mary"
    for words in (ADDRESS, "mary", f"{ADDRESS} + mary"):
        assert "1 override" in page_text(find(operator, words, OVERRIDES)), words


def test_the_name_of_a_user_finds_a_client_that_counts_by_user_and_address(
    operator: Client,
) -> None:
    """A record has the primary key of the user, which is no part of another number."""
    ada = User.objects.create_user("ada")
    RateLimitRule.objects.create(
        name="both",
        path="/login",
        key="ip+user",
        rate="1/h",
        options={"ban_after": 1, "ban_for": "10m"},
    )
    visitor = Client(REMOTE_ADDR=ADDRESS)
    visitor.force_login(ada)
    for _ in range(3):
        visitor.post("/login")
    both = of(("ip", ADDRESS), ("user", str(ada.pk)))
    assert both in found(operator, "ada").values()
    assert "1 ban is found" in page_text(find(operator, f"{ADDRESS} + ada", BANS))
    assert "1 ban is found" in page_text(find(operator, "ada", BANS))
    assert both not in str(find(operator, f"{ada.pk}9").content)


@pytest.mark.parametrize("words", ["nonsense", "127.0.0.256", "mary + nonsense", "0" * 12])
def test_nonsense_finds_nothing_and_the_page_reports_it(operator: Client, words: str) -> None:
    """The pages of clients, bans and overrides do so, although each has an entry."""
    guess(8)
    assert f"No client found for “{words}”" in page_text(find(operator, words))
    assert f"No ban is found for “{words}”" in page_text(find(operator, words, BANS))
    RateLimitOverride.objects.create(network=ADDRESS, effect="block")
    assert "No results match the search" in page_text(find(operator, words, OVERRIDES))


def test_a_network_without_known_clients_links_the_overrides_that_concern_it(
    operator: Client,
) -> None:
    """The link is for operators who may see them."""
    RateLimitOverride.objects.create(network="127.6.6.0/24", effect="block")
    shown = page_text(find(operator, "127.6.6.0/24"))
    assert "Overrides of this network" in shown
    assert "No client of the network 127.6.6.0/24 is known." in shown
    assert "no ban, override" not in shown
    reader = staff("view_ratelimitrule", "view_identities", name="reader")
    assert "Overrides of this network" not in page_text(find(reader, "127.6.6.0/24"))


def test_a_network_lists_its_clients_only_if_names_are_shown(
    operator: Client, settings: Any
) -> None:
    """With masked names, or without the permission to see names, the page explains the reason."""
    guess(8)
    guess(8, name="eve", address="127.5.5.77")
    assert set(found(operator, "127.5.5.0/24").values()) == {pair(), pair("eve", "127.5.5.77")}
    reader = staff("view_ratelimitrule", name="reader")
    shown = page_text(find(reader, "127.5.5.0/24"))
    assert "you need the permission" in shown
    assert "mary" not in shown
    settings.RATELIMIT_SHOW_IDENTITIES = "masked"
    assert "cannot be listed" in page_text(find(operator, "127.5.5.0/24"))


def test_a_reference_shows_only_the_limits_that_may_have_refused(operator: Client) -> None:
    """A known client has the key of the limit. Otherwise, all limits of the place are listed."""
    unknown = page_text(find(operator, guess(6)["RateLimit-Reference"]))
    assert "One of these limits refused the request:" in unknown
    assert "30 per 15 minutes per address" in unknown
    shown = page_text(find(operator, guess(2)["RateLimit-Reference"]))
    assert "5 per 15 minutes per address and post:username" in shown
    assert "30 per 15 minutes per address" not in shown
    assert "One of these limits" not in shown


def test_a_reference_lists_the_known_clients_with_such_a_digest(operator: Client) -> None:
    """The page shows the limit and the second. A block is possible once a client is chosen."""
    RateLimitRule.objects.create(name="names", path="/login", key="post:username", rate="9/h")
    refusal = guess(6)
    reference = refusal["RateLimit-Reference"]
    shown = find(operator, reference)
    assert "No known client has such a digest" in page_text(shown)
    guess(2)
    shown = find(operator, reference.lower().replace("-", " "))
    at = open_reference(reference).at
    assert f"{at:%M:%S}" in page_text(shown)
    assert "5 per 15 minutes per address and post:username" in page_text(shown)
    assert "ask=block" not in shown.content.decode()
    (link,) = re.findall(r'class="ratelimit-client"><a href="([^"]+)"', shown.content.decode())
    assert pair() in link
    result = set(counts(operator.get(unescape(link))).values())
    assert result == {("5", "5"), ("5", "30"), ("5", "50"), ("8", "9")}


def test_a_user_is_found_with_each_limit_that_counts_by_user(operator: Client) -> None:
    """A user without a count is found as well, so that it can be blocked."""
    ada = User.objects.create_user("ada")
    shown = find(operator, "ada")
    assert f"digest={of('user', str(ada.pk))}" in shown.redirect_chain[-1][0]
    guess(1, name="ada")
    assert found(operator, "ada") == {
        "user: ada": of("user", str(ada.pk)),
        "post:username: ada": of("post", "username", "ada"),
    }
    assert RateLimitChange.objects.count() == 0
