"""The form of a rule: whatever is typed has an answer, and what would refuse everybody is asked about."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group
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
        ({"more_rates": "5/0m"}, "more_rates"),
        ({"more_rates": "much"}, "more_rates"),
        ({"limit": "", "more_rates": "much"}, "more_rates"),
        ({"limit": ""}, "limit"),
        ({"key": "http"}, "key"),
        ({"key": "k" * 301}, "key"),
        ({"cost": -1}, "cost"),
    ],
)
@pytest.mark.parametrize("name", ["search", "other"])
def test_a_limit_that_is_none_is_an_error_of_its_field(
    name: str, fields: dict[str, Any], field: str, operator: Client
) -> None:
    """Also in the place of a call site, where it would be compared with what the code says."""
    answer = operator.post(f"{RULES}add/", given(**{"name": name, "path": "/ok", "key": "ip", "limit": 5, **fields}))
    found = answer.context["adminform"].form.errors
    assert len(found[field]) == 1, "what follows from it is not said as well"
    assert not any(re.search("[{}]|None|True|rule '", text) for texts in found.values() for text in texts), found
    assert not RateLimitRule.objects.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("5/0m", "“5/0m” is for no time at all: write for example 5/m, or 5/15m."),
        ("5/600w", "“5/600w” is too large: at most 1000000000000 in at most ten years."),
        (f"{10**13}/h", f"“{10**13}/h” is too large: at most 1000000000000 in at most ten years."),
        ("5 per m", "“5 per m” is no limit: write for example 500/h, or 10/15m. Units: s, m, h, d, w."),
        ("5/y", "“5/y” is no limit: write for example 500/h, or 10/15m. Units: s, m, h, d, w."),
    ],
)
def test_a_further_limit_that_is_none_says_why(text: str, problem: str, operator: Client) -> None:
    """In words of the form, for each reason there is."""
    answer = operator.post(f"{RULES}add/", given(path="/ok", key="ip", limit=5, more_rates=text))
    assert answer.context["adminform"].form.errors["more_rates"] == [problem]


def test_a_tier_that_was_deleted_meanwhile_is_said_to_be(operator: Client) -> None:
    """And not that its hidden id is no valid choice."""
    Group.objects.create(name="pro")
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", limit=5)
    tier = rule.tiers.create(group="pro", limit=50)
    form = given(path="/ok", key="ip", limit=6, unit="m")
    form |= {"tiers-TOTAL_FORMS": 1, "tiers-INITIAL_FORMS": 1, "tiers-0-id": tier.pk, "tiers-0-rule": rule.pk}
    form |= {"tiers-0-group": "pro", "tiers-0-limit": 60, "tiers-0-period": 1, "tiers-0-unit": "m"}
    tier.delete()
    page = operator.post(f"{RULES}{rule.pk}/change/", form).content.decode()
    assert "Somebody has deleted tiers meanwhile: pro." in page


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
