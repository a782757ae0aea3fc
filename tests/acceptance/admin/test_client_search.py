"""Clients, bans and overrides are found by a part of a client, and each limit has its own count."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

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
from tests.support.users import serve_admin, staff

pytestmark = pytest.mark.django_db(transaction=True)
APP = "/admin/django_ratelimit_lua/"
CLIENTS, BANS, OVERRIDES = (f"{APP}{page}/" for page in ("client", "bans", "ratelimitoverride"))
ADDRESS = "127.5.5.5"


@ratelimit(key=("ip", "post:username"), rate="5/15m", method="POST", ban_after=2, ban_for="10m")
@ratelimit(key="ip", rate="30/15m", method="POST")
@ratelimit(key="post:username", rate="50/h", method="POST")
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("in")


urlpatterns = [path("admin/", admin.site.urls), path("login", login)]
PLACE = f"{__name__}.login"


@pytest.fixture(autouse=True)
def site(settings: Any, no_others: None) -> None:
    serve_admin(settings, __name__)
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"


def of(*identity: Any) -> str:
    return digest(identity).decode()


def pair(name: str = "mary", address: str = ADDRESS) -> str:
    return of(("ip", address), ("post", "username", name))


def guess(times: int, name: str = "mary", address: str = ADDRESS) -> Any:
    visitor = Client(REMOTE_ADDR=address)
    return [visitor.post("/login", {"username": name}) for _ in range(times)][-1]


def text(response: Any) -> str:
    html = response.content.decode().replace("<wbr>", "")
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


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


def test_every_limit_has_the_count_of_the_part_that_it_counts(operator: Client) -> None:
    """The page of an address with a name has the counts of the address and of the name, too, as
    the refusal. A reset applies to the count of the row.
    """
    refusal = guess(6)
    assert refusal.status_code == 429
    guess(1, name="eve")
    shown = find(operator, f"{ADDRESS} + mary")
    assert counts(shown) == {
        "5 per 15 minutes per address and post:username": ("5", "5"),
        "30 per 15 minutes per address": ("6", "30"),
        "50 per hour per post:username": ("5", "50"),
    }
    assert "Refused by" in text(shown)
    assert f"digest={of('ip', ADDRESS)}" in shown.content.decode()
    own = of("post", "username", "mary")
    (name,) = (
        limit.name
        for limit in shown.context["client"].found.limits
        if limit.charge.digest.decode() == own
    )
    url = shown.redirect_chain[-1][0]
    operator.post(url, {"action": f"reset:{name}"})
    shown = operator.get(url)
    assert set(counts(shown).values()) == {("5", "5"), ("6", "30"), ("0", "50")}
    change = text(operator.get(f"{APP}ratelimitchange/"))
    assert "The counts of post:username mary" in change


def test_the_page_of_a_digest_omits_limits_that_count_by_something_else(
    operator: Client, settings: Any
) -> None:
    """Without a name, other counts are unknown. They are not shown as unused."""
    settings.RATELIMIT_SHOW_IDENTITIES = "masked"
    guess(6)
    shown = operator.get(CLIENTS, {"digest": pair(), "name": PLACE})
    assert counts(shown) == {"5 per 15 minutes per address and post:username": ("5", "5")}
    assert "Only the digest of this client is known" in text(shown)


def test_a_part_of_a_client_finds_it_with_its_ban_on_every_page(operator: Client) -> None:
    """An address, a name, both, and a network find the client on all three pages."""
    guess(8)
    guess(8, name="eve", address="127.9.9.9")
    assert len(active_bans()) == 2
    RateLimitOverride.objects.create(network=ADDRESS, effect="exempt", reason="only this")
    RateLimitOverride.objects.create(network="127.5.0.0/16", effect="block")
    for words in (ADDRESS, "mary", "127.5.0.0/16", f"{ADDRESS} mary", f"mary + {ADDRESS}"):
        bans = text(find(operator, words, BANS))
        assert "1 ban is found" in bans, words
        assert pair()[:12] in bans
    rows = found(operator, ADDRESS)
    assert rows == {
        f"address: {ADDRESS}": of("ip", ADDRESS),
        f"{ADDRESS}, post:username mary": pair(),
    }
    listed = text(find(operator, ADDRESS))
    assert "banned by login, line" in listed
    network = find(operator, "127.5.0.0/16")
    assert pair() in network.redirect_chain[-1][0]  # The only known client within it.
    for words in (ADDRESS, "127.5.5.0/24", "127.0.0.0/8"):
        shown = text(find(operator, words, OVERRIDES))
        assert "127.5.0.0/16" in shown, words
        assert "only this" in shown
    assert "only this" not in text(find(operator, "127.5.7.7", OVERRIDES))


def test_an_override_by_digest_is_found_by_the_name_of_its_client(operator: Client) -> None:
    """The page of the client adds it, with the recorded name as its label."""
    guess(8)
    url = f"{CLIENTS}?digest={pair()}"
    operator.post(url, {"action": "exempt", "duration": "3600"})
    (override,) = RateLimitOverride.objects.all()
    assert override.label == f"address {ADDRESS}, post:username mary"
    for words in (ADDRESS, "mary", f"{ADDRESS} + mary"):
        assert "1 override" in text(find(operator, words, OVERRIDES)), words


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
    assert "1 ban is found" in text(find(operator, f"{ADDRESS} + ada", BANS))
    assert "1 ban is found" in text(find(operator, "ada", BANS))
    assert both not in str(find(operator, f"{ada.pk}9").content)


@pytest.mark.parametrize("words", ["nonsense", "127.0.0.256", "mary + nonsense", "0" * 12])
def test_nonsense_finds_nothing_and_the_page_reports_it(operator: Client, words: str) -> None:
    """The pages of clients, bans and overrides do so, although each has an entry."""
    guess(8)
    assert f"No client found for “{words}”" in text(find(operator, words))
    assert f"No ban is found for “{words}”" in text(find(operator, words, BANS))
    RateLimitOverride.objects.create(network=ADDRESS, effect="block")
    assert "No results match the search" in text(find(operator, words, OVERRIDES))


def test_a_network_without_known_clients_shows_how_many_overrides_concern_it(
    operator: Client,
) -> None:
    """They are linked for operators who may see them."""
    RateLimitOverride.objects.create(network="127.6.6.0/24", effect="block")
    RateLimitOverride.objects.create(network="127.6.6.9", effect="exempt")
    RateLimitOverride.objects.create(network="127.7.7.0/24", effect="block")
    shown = text(find(operator, "127.6.6.0/24"))
    assert "Overrides of this network (2)" in shown
    assert "No client of the network 127.6.6.0/24 is known." in shown
    assert "no ban, override" not in shown
    reader = staff("view_ratelimitrule", "view_identities", name="reader")
    assert "Overrides of this network" not in text(find(reader, "127.6.6.0/24"))


def test_a_network_lists_its_clients_only_if_names_are_shown(
    operator: Client, settings: Any
) -> None:
    """With masked names, or without the permission to see names, the page explains the reason."""
    guess(8)
    guess(8, name="eve", address="127.5.5.77")
    assert set(found(operator, "127.5.5.0/24").values()) == {pair(), pair("eve", "127.5.5.77")}
    reader = staff("view_ratelimitrule", name="reader")
    shown = text(find(reader, "127.5.5.0/24"))
    assert "you need the permission" in shown
    assert "mary" not in shown
    settings.RATELIMIT_SHOW_IDENTITIES = "masked"
    assert "cannot be listed" in text(find(operator, "127.5.5.0/24"))


def test_a_reference_shows_only_the_limits_that_may_have_refused(operator: Client) -> None:
    """A known client has the key of the limit. Otherwise, all limits of the place are listed."""
    unknown = text(find(operator, guess(6)["RateLimit-Reference"]))
    assert "One of these limits refused the request:" in unknown
    assert "30 per 15 minutes per address" in unknown
    shown = text(find(operator, guess(2)["RateLimit-Reference"]))
    assert "5 per 15 minutes per address and post:username" in shown
    assert "30 per 15 minutes per address" not in shown
    assert "One of these limits" not in shown


def test_a_reference_lists_the_known_clients_with_such_a_digest(operator: Client) -> None:
    """The page shows the limit and the second. A block is possible once a client is chosen."""
    RateLimitRule.objects.create(name="names", path="/login", key="post:username", rate="9/h")
    refusal = guess(6)
    reference = refusal["RateLimit-Reference"]
    shown = find(operator, reference)
    assert "No known client has such a digest" in text(shown)
    guess(2)
    shown = find(operator, reference.lower().replace("-", " "))
    at = open_reference(reference).at
    assert f"{at:%M:%S}" in text(shown)
    assert "5 per 15 minutes per address and post:username" in text(shown)
    assert "ask=block" not in shown.content.decode()
    (link,) = re.findall(r'class="ratelimit-client"><a href="([^"]+)"', shown.content.decode())
    assert pair() in link
    assert set(counts(operator.get(unescape(link))).values()) == {
        ("5", "5"),
        ("5", "30"),
        ("5", "50"),
        ("8", "9"),
    }


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
