"""Two operators edit the same rules, and neither overwrites a change of the other."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance import test_admin
from tests.acceptance.test_admin import OPERATOR, RULES, errors, given
from tests.tiers import add_tier

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site


@pytest.fixture
def other() -> Client:
    client = Client(REMOTE_ADDR=OPERATOR)
    client.force_login(User.objects.create_superuser("ada"))
    return client


@pytest.fixture
def rule() -> RateLimitRule:
    return RateLimitRule.objects.create(
        name="api", path="/ok\n/api/", key="ip", rate="100/m", method="GET, POST"
    )


def page_of(client: Client, rule: RateLimitRule) -> dict[str, Any]:
    """Return the data of a rule's current form as a browser sends it."""
    page = client.get(f"{RULES}{rule.pk}/change/")
    return {**fields(page), **hidden(page)}


def hidden(page: Any) -> dict[str, str]:
    """Return the hidden versions in a page."""
    return dict(
        re.findall(
            r'<input type="hidden" name="([a-z0-9-]*version)" value="([^"]*)"',
            page.content.decode(),
        )
    )


def fields(page: Any) -> dict[str, Any]:
    form = page.context["adminform"].form
    sent = {}
    for bound in form:
        value = bound.field.prepare_value(bound.value())
        if value is not False and value not in (None, "", []):
            sent[bound.name] = value.replace("\n", "\r\n") if isinstance(value, str) else value
    for formset in page.context["inline_admin_formsets"]:
        sent |= {bound.html_name: bound.value() for bound in formset.formset.management_form}
        for tier in formset.formset.initial_forms:
            sent |= {
                tier.add_prefix(bound.name): bound.value()
                for bound in tier
                if bound.value() not in (None, "", [])
            }
    return sent


REFUSED = "Another user changed this while you were editing it, so your changes were not saved."


def test_a_form_is_refused_if_the_rule_was_changed_since_it_was_opened(
    operator: Client, other: Client, rule: RateLimitRule
) -> None:
    """Sending it again does not save it either. After a reload, it is saved."""
    url, stale = f"{RULES}{rule.pk}/change/", page_of(other, rule)
    assert (
        operator.post(
            url, {**page_of(operator, rule), "rate": "70/h", "method": ["GET"]}
        ).status_code
        == 302
    )
    for _ in range(2):
        answer = other.post(url, {**stale, "description": "Mine."})
        assert REFUSED in errors(answer)
        stale = {**fields(answer), **hidden(answer)}
        assert stale["description"] == "Mine."
    rule.refresh_from_db()
    assert (rule.rate, rule.description) == ("70/h", "")
    assert other.post(url, {**page_of(other, rule), "description": "Mine."}).status_code == 302
    rule.refresh_from_db()
    assert (rule.rate, rule.description, rule.method) == ("70/h", "Mine.", "GET")


def test_a_form_without_concurrent_changes_is_saved(operator: Client, rule: RateLimitRule) -> None:
    """This includes the line breaks of browsers."""
    url = f"{RULES}{rule.pk}/change/"
    answer = operator.post(url, {**page_of(operator, rule), "rate": "70/h"})
    assert answer.status_code == 302, errors(answer)
    rule.refresh_from_db()
    assert rule.rate == "70/h"


def test_a_tier_changed_by_another_user_is_kept(
    operator: Client, other: Client, rule: RateLimitRule
) -> None:
    """Tiers are part of the rule's form and of its version."""
    Group.objects.create(name="pro")
    tier = add_tier(rule, "pro", "1000/m")
    url, stale = f"{RULES}{rule.pk}/change/", page_of(other, rule)
    assert (
        operator.post(url, {**page_of(operator, rule), "tiers-0-rate": "700/h"}).status_code == 302
    )
    answer = other.post(url, {**stale, "description": "Mine."})
    assert REFUSED in answer.content.decode()
    tier.refresh_from_db()
    assert tier.limit == 700


def rows(client: Client) -> dict[str, Any]:
    """Return the data of the current list as a browser sends it."""
    page = client.get(RULES)
    formset = page.context["cl"].formset
    sent = {f"form-{name}": value for name, value in formset.management_form.initial.items()}
    for form in formset.forms:
        sent |= {form.add_prefix(name): form[name].value() for name in ("id", "order")}
    return {**sent, **hidden(page), "_save": "Save"}


def of(sent: dict[str, Any], rule: RateLimitRule) -> str:
    """Return the prefix of a rule's fields in the list."""
    return next(
        name for name, value in sent.items() if name.endswith("-id") and value == rule.pk
    ).removesuffix("id")


def test_the_list_is_refused_if_a_listed_rule_was_changed_since_it_was_opened(
    operator: Client, other: Client, rule: RateLimitRule
) -> None:
    """A change in a field that is not in the list is kept, and causes no refusal."""
    second = RateLimitRule.objects.create(name="second", path="/ok", key="ip", rate="5/m")
    stale = rows(other)
    operator.post(f"{RULES}{rule.pk}/change/", {**page_of(operator, rule), "rate": "70/h"})
    assert other.post(RULES, {**stale, f"{of(stale, rule)}order": 7}).status_code == 302
    rule.refresh_from_db()
    assert (rule.rate, rule.order) == ("70/h", 7)
    stale = rows(other)
    assert operator.post(RULES, {**stale, f"{of(stale, rule)}order": 8}).status_code == 302
    for changed in (f"{of(stale, rule)}order", f"{of(stale, second)}order"):
        answer = other.post(RULES, {**stale, changed: 9})
        assert REFUSED in answer.content.decode()
    rule.refresh_from_db()
    second.refresh_from_db()
    assert (rule.order, second.order) == (8, 0)
    stale = rows(other)
    assert other.post(RULES, {**stale, f"{of(stale, second)}order": 9}).status_code == 302
    second.refresh_from_db()
    assert second.order == 9


def test_a_form_without_a_version_is_saved(operator: Client, rule: RateLimitRule) -> None:
    """A script may send a form without the version."""
    form = given(name="api", path="/ok", key="ip", rate="60/h")
    assert operator.post(f"{RULES}{rule.pk}/change/", form).status_code == 302
    rule.refresh_from_db()
    assert rule.rate == "60/h"
