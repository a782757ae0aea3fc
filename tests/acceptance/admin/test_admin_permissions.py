"""Operators with few permissions: the hidden data, and forged requests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils import timezone

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations import active_bans
from tests.acceptance.admin.test_admin import BANS, CHANGES, CLIENTS, page_text
from tests.acceptance.admin.test_admin_clients import banning
from tests.support.users import staff

pytestmark = pytest.mark.django_db(transaction=True)
APP = "/admin/django_ratelimit_lua/"
FORGED = {"confirmed": "1", "duration": "3600"}


@ratelimit(group="banning-users", key="user", rate="1/h", ban_after=2, ban_for="10m")
def banning_users(request: HttpRequest) -> HttpResponse:
    return HttpResponse("in")


urlpatterns = [
    path("admin/", admin.site.urls),
    path("banning/", banning),
    path("users/", banning_users),
]


@pytest.fixture(autouse=True)
def plain(settings: Any) -> None:
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"


class Treated(NamedTuple):
    """The digests of a user and an address, each with a ban, a block and another limit."""

    user: str
    address: str


@pytest.fixture
def treated(operator: Client) -> Treated:
    lovelace = User.objects.create_user("lovelace")
    user = digest(("user", str(lovelace.pk))).decode()
    address = digest(("ip", "203.0.113.77")).decode()
    visitor = Client(REMOTE_ADDR="203.0.113.77")
    member = Client(REMOTE_ADDR="203.0.113.78")
    member.force_login(lovelace)
    for _ in range(3):
        visitor.get("/banning/")
        member.get("/users/")
    assert {user, address} <= {active.identity for active in active_bans()}
    rule = RateLimitRule.objects.create(name="users", path="/users/", key="user", rate="5/m")
    RateLimitOverride.objects.create(user=lovelace, effect="block", reason="the office of lovelace")
    RateLimitOverride.objects.create(user=lovelace, rule=rule.name, rate="7/m")
    RateLimitOverride.objects.create(
        client_digest=address,
        effect="block",
        label="lovelace",
        ends=timezone.now() + timedelta(days=1),
    )
    RateLimitOverride.objects.create(network="203.0.113.77", rule=rule.name, rate="7/m")
    return Treated(user, address)


def state() -> tuple[set[bytes], set[int]]:
    """Return the keys of bans and overrides that are in force."""
    active = RateLimitOverride.objects.active().values_list("pk", flat=True)
    return {ban.key for ban in active_bans()}, set(active)


def test_pages_hide_names_and_reasons_from_users_without_permission(treated: Treated) -> None:
    """Bans and overrides have no names, also on the page of their client."""
    reader = staff("view_ratelimitrule")
    urls = [
        APP,
        BANS,
        f"{CLIENTS}?q=0.0.0.0/0",
        *(f"{CLIENTS}?digest={client}" for client in treated),
        *(f"{CLIENTS}?q={client[:10]}" for client in treated),
    ]
    for url in urls:
        page = reader.get(url, follow=True)
        assert page.status_code == 200
        for name in ("lovelace", "203.0.113.77"):
            assert name not in page.content.decode(), url
    assert "Override " in page_text(reader.get(f"{CLIENTS}?digest={treated.user}"))
    allowed = staff("view_ratelimitrule", "view_identities", name="allowed")
    shown = page_text(allowed.get(f"{CLIENTS}?digest={treated.user}"))
    assert "user lovelace (the office of lovelace)" in shown
    blocker = staff("block_identity", name="blocker")
    assert "the office of" not in page_text(blocker.get(BANS))


def test_the_history_hides_names_and_reasons_from_users_without_permission(
    treated: Treated,
) -> None:
    """An override is identified by its number, and a search does not find its name."""
    override = RateLimitOverride.objects.get(user__username="lovelace", effect="block")
    override.reason = "lovelace has paid"
    override.save()
    (active,) = [ban for ban in active_bans() if ban.identity == treated.user]
    blocker = staff("block_identity", "view_identities", name="blocker")
    blocker.post(f"{CLIENTS}?digest={treated.user}", {"action": f"lift:{active.key.decode()}"})
    changes = RateLimitChange.objects.exclude(kind="rule")
    urls = [
        APP,
        CHANGES,
        *(f"{CHANGES}{change.pk}/change/" for change in changes),
        *(f"{CHANGES}{change.pk}/history/" for change in changes),
    ]
    reader = staff("view_ratelimitrule", "view_ratelimitchange")
    for url in urls:
        page = reader.get(url)
        assert page.status_code == 200
        for name in ("lovelace", "203.0.113"):
            assert name not in page.content.decode(), url
    assert f"Override {override.pk}" in page_text(reader.get(CHANGES))
    assert "0 changes" in page_text(reader.get(f"{CHANGES}?q=lovelace"))
    for permission in ("view_identities", "view_ratelimitoverride"):
        allowed = staff("view_ratelimitchange", permission, name=permission)
        assert "lovelace has paid" in page_text(allowed.get(CHANGES))
        assert "0 changes" not in page_text(allowed.get(f"{CHANGES}?q=lovelace"))


def test_forged_requests_lift_and_block_nothing(treated: Treated, operator: Client) -> None:
    """No permission, no POST, no token, or the page of another client."""
    before = state()
    keys = {active.identity: active.key.decode() for active in active_bans()}
    reader, blocker = staff("view_ratelimitrule"), staff("block_identity", name="blocker")
    careless = Client(enforce_csrf_checks=True)
    careless.force_login(User.objects.get(username="grace"))
    pages = (BANS, f"{CLIENTS}?digest={treated.address}")
    actions = ("lift:all", f"lift:{keys[treated.address]}", "end:1", "reset", "block")
    for url in pages:
        for action in actions:
            form = {"action": action, **FORGED}
            assert reader.post(url, form).status_code == 403
            assert careless.post(url, form).status_code == 403
            operator.get(url, form)
    mine = f"{CLIENTS}?digest={treated.user}"
    others = [each.pk for each in RateLimitOverride.objects.exclude(user=None)]
    blocker.post(mine, {"action": f"lift:{keys[treated.address]}"})
    for override in RateLimitOverride.objects.filter(user=None):
        blocker.post(mine, {"action": f"end:{override.pk}"})
    for pk in others:
        blocker.post(f"{CLIENTS}?digest={treated.address}", {"action": f"end:{pk}"})
    assert state() == before


def test_an_action_of_two_operators_at_once_is_done_once(
    treated: Treated, operator: Client
) -> None:
    """The second operator gets a page that reports it."""
    other = staff("block_identity", name="other")
    url = f"{CLIENTS}?digest={treated.user}"
    (active,) = [ban for ban in active_bans() if ban.identity == treated.user]
    block = RateLimitOverride.objects.get(user__username="lovelace", effect="block")
    for action, again in (
        (f"lift:{active.key.decode()}", "This ban has ended already."),
        (f"end:{block.pk}", "This override has ended already."),
    ):
        assert again not in page_text(operator.post(url, {"action": action}, follow=True))
        assert again in page_text(other.post(url, {"action": action}, follow=True))
