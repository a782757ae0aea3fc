"""Rules for Envoy's descriptors in the admin, in YAML and in the history."""

from __future__ import annotations

import pytest
from django.test import Client

from django_ratelimit_lua.management.rules_yaml import apply, export, plan
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import RULES, given, staff, visits
from tests.contrib.gateway.test_envoy_answers import ADA, LOGIN, OK, OVER, code

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site  # A fixture that serves the admin.
FORM = {
    "name": "edge login",
    "descriptor": "domain=edge\r\n generic_key=login \r\n\r\nremote_address",
    "rate": "1/h",
}
DECLARED = ["domain=edge", "generic_key=login", "remote_address"]


def test_a_rule_for_descriptors_is_edited_in_the_form_and_undone(operator: Client) -> None:
    """Each edit applies to the next descriptor, and to no request of Django's."""
    assert operator.post(f"{RULES}add/", given(**FORM)).status_code == 302
    rule = RateLimitRule.objects.get()
    assert rule.spec["descriptor"] == DECLARED
    assert [code([LOGIN, ADA]), code([LOGIN, ADA])] == [OK, OVER]
    assert code([LOGIN, ADA], domain="other") == OK
    assert visits(3) == [200] * 3
    changed = given(**{**FORM, "descriptor": "generic_key=logout\nremote_address"})
    assert operator.post(f"{RULES}{rule.pk}/change/", changed).status_code == 302
    assert code([LOGIN, ADA]) == OK
    operator.post(f"{RULES}undo/{RateLimitChange.objects.latest('pk').pk}/")
    assert RateLimitRule.objects.get().spec["descriptor"] == DECLARED
    assert code([LOGIN, ADA]) == OVER
    page = operator.get(RULES).content.decode()
    assert "1 per hour per descriptor, for Envoy&#x27;s descriptor domain=edge, generic_key" in page
    history = operator.get(f"{RULES}{rule.pk}/history/").content.decode()
    assert "generic_key=logout" in history
    assert "edge login" in operator.get(f"{RULES}?q=generic_key").content.decode()
    assert "edge login" not in operator.get(f"{RULES}?q=logout").content.decode()
    viewer = staff("view_ratelimitrule", name="looks")
    seen = viewer.get(f"{RULES}{rule.pk}/change/").content.decode()
    assert [entry for entry in DECLARED if entry not in seen] == []


def test_a_descriptor_survives_yaml_export_and_import(operator: Client) -> None:
    """It is exported as a list of its entries."""
    operator.post(f"{RULES}add/", given(**FORM))
    text = export()
    assert "descriptor:\n  - domain=edge\n  - generic_key=login\n  - remote_address\n" in text
    assert plan(text) == []
    apply(plan(text.replace("generic_key=login", "generic_key=log*")))
    stored = RateLimitRule.objects.get().options
    assert stored == {"descriptor": ["domain=edge", "generic_key=log*", "remote_address"]}
    assert [code([LOGIN, ADA]), code([LOGIN, ADA])] == [OK, OVER]
