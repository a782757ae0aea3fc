"""A saved change is published whatever other apps do, and an invalid row can be switched off."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.test import Client

from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance.rules.test_rules import get, rule

pytestmark = pytest.mark.django_db(transaction=True)
ADMIN = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.acceptance.rules.test_rules"
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]


def test_a_change_is_published_whatever_other_on_commit_callbacks_do() -> None:
    """Django runs no callback after one that raises. The change is published nevertheless, and
    never before the commit.
    """
    saved = rule(rate="100/h")
    assert get() == [200]

    def fail() -> None:
        raise RuntimeError("another app's")

    @transaction.atomic
    def edit() -> None:
        transaction.on_commit(fail)
        RateLimitRule.objects.filter(pk=saved.pk).update(rate="0/h")
        assert get() == [200]

    @transaction.atomic
    def edit_after_a_savepoint() -> None:
        transaction.on_commit(fail)
        with contextlib.suppress(KeyError), transaction.atomic():
            RateLimitRule.objects.filter(pk=saved.pk).update(rate="200/h")
            raise KeyError
        RateLimitRule.objects.filter(pk=saved.pk).update(rate="300/h")

    with pytest.raises(RuntimeError, match="another app's"):
        edit()
    assert get() == [429]
    with pytest.raises(RuntimeError, match="another app's"):
        edit_after_a_savepoint()
    assert get() == [200]


@pytest.mark.parametrize(
    ("column", "value"),
    [('"limit"', "'abc'"), ("period", "'x'"), ("cost", "'x'"), ("max_wait", "'x'"), ("key", "''")],
)
def test_an_invalid_row_can_be_switched_off(
    column: str, value: str, admin_client: Client, settings: Any
) -> None:
    """It can be switched off in the list of the admin and by the command, whatever the other fields
    contain.
    """
    for switch in ("admin", "command"):
        saved = rule(switch)
        with connection.cursor() as cursor:
            try:
                cursor.execute(
                    f"UPDATE django_ratelimit_lua_ratelimitrule SET {column} = {value} WHERE id = "
                    "%s",
                    [saved.pk],
                )
            except DatabaseError:
                return  # Not in this database.
        if switch == "admin":
            action = {"action": "off", "_selected_action": [saved.pk]}
            settings.ROOT_URLCONF = "tests.acceptance.admin.test_admin"
            settings.MIDDLEWARE = ADMIN
            url = "/admin/django_ratelimit_lua/ratelimitrule/"
            confirmed = admin_client.post(url, action).context["confirmed"]
            admin_client.post(url, {**action, "confirm": confirmed})
        else:
            call_command(
                "ratelimit", "rules", "mode", switch, "off", "--confirm", stdout=io.StringIO()
            )
        assert RateLimitRule.objects.values_list("mode", flat=True).get(pk=saved.pk) == "off"
