"""What would surprise its author has to be confirmed, and what would not is saved unasked."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from tests.acceptance import test_admin
from tests.acceptance.test_admin import NO_TIERS, OPERATOR, OVERRIDES, RULES, errors, given

pytestmark = pytest.mark.django_db(transaction=True)
operator, site = test_admin.operator, test_admin.site


@pytest.mark.parametrize(
    "fields",
    [
        {"path": "/admin/"},
        {"path": "/ok\n/admin/login/"},
        {"path": "/adm"},
        {"path": "/admin/django_ratelimit_lua/"},
        {"path": "/**/login/"},
        {"path": "", "route": "admin:login"},
        {"path": "/admin/", "mode": "shadow"},
    ],
)
def test_a_rule_that_limits_the_admin_itself_is_asked_about(
    fields: dict[str, Any], operator: Client, settings: Any
) -> None:
    """It would lock its author out; not where the admin is exempt, by the settings or by another rule."""
    settings.RATELIMIT_RULES = []
    form = given(**{"key": "ip", "limit": 1000, **fields})
    answer = operator.post(f"{RULES}add/", form)
    assert "The rule also limits this admin" in errors(answer)
    assert not RateLimitRule.objects.exists()
    exempt = RateLimitRule.objects.create(name="exempt", path="/admin/", exempt=True)
    assert operator.post(f"{RULES}add/", form).status_code == 302
    exempt.delete()
    rule = RateLimitRule.objects.get()
    assert "The rule also limits this admin" in errors(operator.post(f"{RULES}{rule.pk}/change/", form))
    assert operator.post(f"{RULES}{rule.pk}/change/", {**form, "confirm": "on"}).status_code == 302
    settings.RATELIMIT_RULES = [{"name": "admin", "path": "/admin/", "exempt": True}]
    assert operator.post(f"{RULES}{rule.pk}/change/", form).status_code == 302


@pytest.mark.parametrize("fields", [{"path": "/ok"}, {"path": "/admin/", "mode": "off"}, {"path": "/administration"}])
def test_a_rule_that_leaves_the_admin_alone_is_saved_unasked(
    fields: dict[str, Any], operator: Client, settings: Any
) -> None:
    """Whatever its path looks like."""
    settings.RATELIMIT_RULES = []
    answer = operator.post(f"{RULES}add/", given(**{"key": "ip", "limit": 1000, **fields}))
    assert answer.status_code == 302, errors(answer)


def test_a_limit_of_0_is_asked_about_wherever_it_stands(operator: Client) -> None:
    """As the limit, as a further one, in a tier, in an override."""
    Group.objects.create(name="pro")
    tier = {**NO_TIERS, "tiers-TOTAL_FORMS": 1, "tiers-0-group": "pro", "tiers-0-limit": 0, "tiers-0-period": 1}
    tier |= {"tiers-0-unit": "s"}
    form = given(path="/ok", key="ip", limit=1)
    for fields in ({"limit": 0}, {"more_rates": "0/s"}, tier):
        answer = operator.post(f"{RULES}add/", {**form, **fields})
        assert "A limit of 0 refuses every request" in errors(answer), fields
    assert operator.post(f"{RULES}add/", {**form, **tier, "confirm": "on"}).status_code == 302
    zero = {"network": "203.0.113.9", "effect": "limit", "limit": 0, "period": 1, "unit": "m"}
    assert "refuses every request, as a block does" in errors(operator.post(f"{OVERRIDES}add/", zero))
    assert operator.post(f"{OVERRIDES}add/", {**zero, "confirm": "on"}).status_code == 302


@pytest.mark.parametrize(
    ("trusted", "network", "is_asked"),
    [
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.1.2.3"], "10.0.0.0/8", True),
        (["2001:db8::/32"], "10.0.0.0/8", False),
        (["10.0.0.0/8"], "203.0.113.9", False),
        (1, "192.0.2.1", True),
        (1, "192.0.2.2", False),
    ],
)
def test_a_block_of_a_known_proxy_is_asked_about(trusted: Any, network: str, is_asked: bool, settings: Any) -> None:
    """Known by the settings, or because the operator comes through it."""
    settings.RATELIMIT_TRUSTED_PROXIES = trusted
    client = Client(REMOTE_ADDR="192.0.2.1", headers={"x-forwarded-for": OPERATOR})
    client.force_login(User.objects.create_superuser("grace"))
    form = {"network": network, "effect": "block", "period": 1, "unit": "m"}
    answer = client.post(f"{OVERRIDES}add/", form)
    assert ("is a proxy of this site" in errors(answer)) is is_asked
    assert RateLimitOverride.objects.exists() is not is_asked
    client.post(f"{OVERRIDES}add/", {**form, "effect": "exempt"})
    assert RateLimitOverride.objects.filter(effect="exempt").exists()
    if is_asked:
        assert client.post(f"{OVERRIDES}add/", {**form, "confirm": "on"}).status_code == 302


def test_a_rule_that_is_looser_than_one_of_the_settings_is_asked_about(operator: Client, settings: Any) -> None:
    """It takes the place of that one by its name."""
    settings.RATELIMIT_RULES += [{"name": "posts", "path": "/ok", "key": "ip", "rate": ["5/m", "50/d"]}]
    form = given(name="posts", path="/ok", key="ip", limit=9, unit="m")
    problems = errors(operator.post(f"{RULES}add/", form))
    assert "Looser than the code, which has 5 per minute per address (RATELIMIT_RULES)" in problems
    assert "The code also has 50 per day per address (RATELIMIT_RULES)" in problems
    assert operator.post(f"{RULES}add/", {**form, "limit": 2, "more_rates": "50/d"}).status_code == 302
