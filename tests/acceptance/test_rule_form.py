"""The form of a rule: whatever is typed has an answer, and what would refuse everybody is asked about."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance import test_admin
from tests.acceptance.test_admin import RULES, errors, given

pytestmark = pytest.mark.django_db(transaction=True)
operator, site = test_admin.operator, test_admin.site


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"limit": -1}, "limit"),
        ({"limit": 10**13}, "limit"),
        ({"period": 600, "unit": "w"}, "limit"),
        ({"period": 10**25}, "period"),
        ({"limit": 10**25}, "limit"),
        ({"more_rates": "5/600w"}, "more_rates"),
    ],
)
@pytest.mark.parametrize("name", ["search", "other"])
def test_a_limit_that_is_none_is_an_error_of_its_field(
    name: str, fields: dict[str, Any], field: str, operator: Client
) -> None:
    """Also in the place of a call site, where it would be compared with what the code says."""
    answer = operator.post(f"{RULES}add/", given(**{"name": name, "path": "/ok", "key": "ip", "limit": 5, **fields}))
    assert field in answer.context["adminform"].form.errors
    assert not RateLimitRule.objects.exists()


def test_the_browser_is_told_which_limits_there_are(operator: Client) -> None:
    """And not which numbers the database can store."""
    widget = operator.get(f"{RULES}add/").context["adminform"].form.fields["limit"].widget
    assert (widget.attrs["min"], widget.attrs["max"]) == (0, 10**12)


@pytest.mark.parametrize(
    ("fields", "is_asked"),
    [
        ({"limit": 5, "cost": 6}, True),
        ({"limit": 9, "more_rates": "5/d", "cost": 6}, True),
        ({"limit": 5, "cost": 6, "algorithm": "token_bucket", "burst": 5}, True),
        ({"limit": 5, "cost": 6, "algorithm": "leaky_bucket", "queue": 4}, True),
        ({"limit": 5, "cost": 5}, False),
        ({"limit": 5, "cost": 6, "algorithm": "token_bucket", "burst": 6}, False),
        ({"limit": 5, "cost": 6, "algorithm": "leaky_bucket", "queue": 5}, False),
    ],
)
def test_a_cost_that_no_request_can_pay_is_asked_about(
    fields: dict[str, Any], is_asked: bool, operator: Client, client: Client
) -> None:
    """It refuses everybody, as a limit of 0 does; what is not asked about lets somebody in."""
    answer = operator.post(f"{RULES}add/", given(path="/ok", key="ip", **fields))
    assert ("The cost is more than the limit allows at once" in errors(answer)) is is_asked
    assert RateLimitRule.objects.exists() is not is_asked
    if not is_asked:
        assert client.get("/ok").status_code == 200


def test_what_is_confirmed_are_the_warnings_that_were_shown(operator: Client) -> None:
    """A box that was ticked for something else, or before anything was asked, confirms nothing."""
    add, form = f"{RULES}add/", given(key="ip", limit=0, path="/zzz/")
    answer = operator.post(add, {**form, "limit": -1, "confirm": "on"})
    assert "limit" in answer.context["adminform"].form.errors
    answer = operator.post(add, {**form, "confirm": "on"})
    assert "A limit of 0 refuses every request" in errors(answer)
    shown = answer.context["adminform"].form
    assert (shown["confirm"].value(), RateLimitRule.objects.exists()) == (False, False)
    meant = {**form, "confirm": "on", "asked": shown["asked"].value()}
    answer = operator.post(add, {**meant, "path": "/"})
    assert "matches every request of the site" in errors(answer)
    assert not RateLimitRule.objects.exists()
    assert f'name="asked" value="{answer.context["adminform"].form["asked"].value()}"' in answer.content.decode()
    assert operator.post(add, meant).status_code == 302
