"""A site without time zones (`USE_TZ = False`): rules, overrides, the admin and commands work."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitOverride
from tests.acceptance.rules.test_rules import get, rule
from tests.support.users import ADMIN_MIDDLEWARE

pytestmark = pytest.mark.django_db(transaction=True)
PAGES = ("ratelimitrule", "ratelimitoverride", "ratelimitchange")


@pytest.fixture(autouse=True, params=["UTC", "Asia/Kolkata", "America/New_York"])
def site(request: pytest.FixtureRequest, settings: Any) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = request.param
    settings.ROOT_URLCONF = "tests.acceptance.admin.test_admin"
    settings.MIDDLEWARE = [*ADMIN_MIDDLEWARE, "django_ratelimit_lua.middleware.RateLimitMiddleware"]


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("root"))
    return client


def admin(name: str, *args: Any) -> str:
    return reverse(f"admin:django_ratelimit_lua_{name}", args=args)


def test_overrides_begin_and_end_on_time() -> None:
    """They follow the clock of Redis in every time zone of the site."""
    now, hour = timezone.now(), datetime.timedelta(hours=1)
    for number, (starts, ends) in enumerate(
        ((now - hour, now + hour), (None, now - hour), (now + hour, None), (None, now + hour)), 1
    ):
        RateLimitOverride.objects.create(
            network=f"203.0.113.{number}", effect="block", starts=starts, ends=ends
        )
    found = [get(REMOTE_ADDR=f"203.0.113.{number}") for number in range(1, 5)]
    assert found == [[429], [200], [200], [429]]
    assert RateLimitOverride.objects.active().count() == 2
    retry_after = int(Client(REMOTE_ADDR="203.0.113.4").get("/ok")["Retry-After"])
    assert 3500 <= retry_after <= 3600


def test_the_admin_shows_and_saves_naive_times(root: Client) -> None:
    """Lists, forms, filters, the history and the page of a client work with and without times."""
    saved = rule(rate="100/h")
    pages = [admin(f"{page}_changelist") for page in PAGES]
    pages += [
        admin("ratelimitoverride_changelist") + "?active=yes",
        admin("ratelimitrule_change", saved.pk),
    ]
    pages += [admin("ratelimitrule_history", saved.pk), admin("ratelimitoverride_add")]
    assert [root.get(page).status_code for page in pages] == [200] * len(pages)
    given = {"network": "203.0.113.9", "effect": "block", "duration": "3600"}
    assert root.post(admin("ratelimitoverride_add"), given).status_code == 302
    assert get(REMOTE_ADDR="203.0.113.9") == [429]
    made = RateLimitOverride.objects.get()
    assert made.ends is not None
    assert abs(made.ends - timezone.now() - datetime.timedelta(hours=1)) < datetime.timedelta(
        minutes=1
    )
    given |= {"duration": "", "ends_0": "2999-12-31", "ends_1": "12:00:00"}
    assert root.post(admin("ratelimitoverride_change", made.pk), given).status_code == 302
    made.refresh_from_db()
    assert made.ends == datetime.datetime(2999, 12, 31, 12)
    end = {"action": "end_now", "_selected_action": [made.pk]}
    assert root.post(admin("ratelimitoverride_changelist"), end).status_code == 302
    assert get(REMOTE_ADDR="203.0.113.9") == [200]
    block = {"action": "block", "duration": "3600"}
    page = f"{admin('client_changelist')}?digest={digest(('ip', '203.0.113.9')).decode()}"
    pages.append(page)
    assert root.post(page, block).status_code == 302
    assert get(REMOTE_ADDR="203.0.113.9") == [429]
    assert [root.get(page).status_code for page in pages] == [200] * len(pages)
