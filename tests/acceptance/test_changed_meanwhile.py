"""Two operators at the same rules: nobody undoes what the other has done without having seen it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from django_ratelimit_lua.admin.forms import CONFIRMED, versions_of
from django_ratelimit_lua.models import RateLimitRule, RateLimitTier
from tests.acceptance import test_admin
from tests.acceptance.test_admin import OPERATOR, RULES, errors, given

pytestmark = pytest.mark.django_db(transaction=True)
operator, site = test_admin.operator, test_admin.site


@pytest.fixture
def other() -> Client:
    client = Client(REMOTE_ADDR=OPERATOR)
    client.force_login(User.objects.create_superuser("ada"))
    return client


@pytest.fixture
def rule() -> RateLimitRule:
    return RateLimitRule.objects.create(name="api", path="/ok\n/api/", key="ip", limit=100, methods=["GET", "POST"])


def page_of(client: Client, rule: RateLimitRule) -> dict[str, Any]:
    """What a browser would send of the form of a rule, as it is now."""
    page = client.get(f"{RULES}{rule.pk}/change/")
    return {**fields(page), **hidden(page)}


def hidden(page: Any) -> dict[str, str]:
    """The signed values in a page."""
    return dict(re.findall(r'<input type="hidden" name="([a-z0-9-]*shown)" value="([^"]*)"', page.content.decode()))


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
                tier.add_prefix(bound.name): bound.value() for bound in tier if bound.value() not in (None, "", [])
            }
    return sent


def test_a_save_undoes_nothing_that_was_changed_meanwhile(operator: Client, other: Client, rule: RateLimitRule) -> None:
    """It says what was changed, keeps what was typed, shows the rest as it is now, and can be sent again."""
    url, stale = f"{RULES}{rule.pk}/change/", page_of(other, rule)
    assert operator.post(url, {**page_of(operator, rule), "limit": 70, "methods": ["GET"]}).status_code == 302
    answer = other.post(url, {**stale, "description": "Mine."})
    assert "This was changed meanwhile, and nothing is saved yet." in errors(answer)
    assert "Limit: 100 → 70" in errors(answer)
    assert "Methods: GET, POST → GET" in errors(answer)
    assert "Save again if both fit together" in errors(answer)
    rule.refresh_from_db()
    assert (rule.limit, rule.description) == (70, "")
    again = {**fields(answer), **hidden(answer)}
    assert (again["limit"], again["description"], again["methods"]) == ("70", "Mine.", ["GET"])
    assert other.post(url, again).status_code == 302
    rule.refresh_from_db()
    assert (rule.limit, rule.description, rule.methods) == (70, "Mine.", ["GET"])


def test_what_both_have_changed_is_kept_and_named(operator: Client, other: Client, rule: RateLimitRule) -> None:
    """The second may replace it, having seen it."""
    url, stale = f"{RULES}{rule.pk}/change/", page_of(other, rule)
    operator.post(url, {**page_of(operator, rule), "limit": 70})
    answer = other.post(url, {**stale, "limit": 80})
    assert "Limit: 100 → 70" in errors(answer)
    assert "What you have entered still stands here: Limit." in errors(answer)
    again = {**fields(answer), **hidden(answer)}
    assert again["limit"] == "80"
    assert other.post(url, again).status_code == 302
    rule.refresh_from_db()
    assert rule.limit == 80


def test_a_form_that_nobody_has_interfered_with_is_saved(operator: Client, rule: RateLimitRule) -> None:
    """Also with lines as browsers send them."""
    url = f"{RULES}{rule.pk}/change/"
    answer = operator.post(url, {**page_of(operator, rule), "limit": 70})
    assert answer.status_code == 302, errors(answer)
    rule.refresh_from_db()
    assert rule.limit == 70


def test_a_tier_that_was_changed_meanwhile_is_kept(operator: Client, other: Client, rule: RateLimitRule) -> None:
    """Tiers are a part of the rule's form."""
    Group.objects.create(name="pro")
    tier = RateLimitTier.objects.create(rule=rule, group="pro", limit=1000)
    url, stale = f"{RULES}{rule.pk}/change/", page_of(other, rule)
    assert operator.post(url, {**page_of(operator, rule), "tiers-0-limit": 700}).status_code == 302
    answer = other.post(url, {**stale, "description": "Mine."})
    assert "Limit: 1000 → 700" in answer.content.decode()
    tier.refresh_from_db()
    assert tier.limit == 700


def rows(client: Client) -> dict[str, Any]:
    """What a browser would send of the list, as it is now."""
    page = client.get(RULES)
    formset = page.context["cl"].formset
    sent = {f"form-{name}": value for name, value in formset.management_form.initial.items()}
    for form in formset.forms:
        sent |= {form.add_prefix(name): form[name].value() for name in ("id", "mode", "order")}
    return {**sent, **hidden(page), "_save": "Save"}


def of(sent: dict[str, Any], rule: RateLimitRule) -> str:
    """The prefix of a rule in the list."""
    return next(name for name, value in sent.items() if name.endswith("-id") and value == rule.pk).removesuffix("id")


def test_the_list_saves_only_what_was_changed_in_it(operator: Client, other: Client, rule: RateLimitRule) -> None:
    """A rule that was enforced meanwhile stays that, and nobody is asked about it."""
    rule.switch("shadow")
    second = RateLimitRule.objects.create(name="second", path="/ok", key="ip", limit=5)
    stale = rows(other)
    operator.post(f"{RULES}{rule.pk}/mode/enforce/", {CONFIRMED: versions_of([rule])})
    answer = other.post(RULES, {**stale, f"{of(stale, second)}order": 5})
    assert answer.status_code == 302
    rule.refresh_from_db()
    second.refresh_from_db()
    assert (rule.mode, second.order) == ("enforce", 5)
    stale = rows(other)
    rule.switch("off")
    assert other.post(RULES, {**stale, f"{of(stale, rule)}order": 7}).status_code == 302, "the same row"
    rule.refresh_from_db()
    assert (rule.mode, rule.order) == ("off", 7)


def test_a_switch_in_the_list_of_what_was_switched_meanwhile_is_an_error(
    operator: Client, other: Client, rule: RateLimitRule
) -> None:
    """It says from what to what; sent again, it is done."""
    stale = rows(other)
    operator.post(RULES, {"action": "switch_off", "_selected_action": rule.pk})
    answer = other.post(RULES, {**stale, f"{of(stale, rule)}mode": "shadow"})
    assert "Changed meanwhile: enforce → off. Save again to replace that." in answer.content.decode()
    rule.refresh_from_db()
    assert rule.mode == "off"
    again = {**stale, f"{of(stale, rule)}mode": "shadow", **hidden(answer)}
    assert other.post(RULES, again).status_code == 302
    rule.refresh_from_db()
    assert rule.mode == "shadow"


def test_who_sends_no_page_of_ours_saves_what_they_send(operator: Client, rule: RateLimitRule) -> None:
    """As a script does; what is made up is no page of ours either."""
    form = given(name="api", path="/ok", key="ip", limit=60)
    for shown in ({}, {"shown": "made:up"}):
        assert operator.post(f"{RULES}{rule.pk}/change/", {**form, **shown}).status_code == 302
    rule.refresh_from_db()
    assert rule.limit == 60
