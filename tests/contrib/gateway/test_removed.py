"""The fields of rules when their optional app is removed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from django_ratelimit_lua import extension
from django_ratelimit_lua.management.rules_yaml import export, plan
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
from django_ratelimit_lua.publishing.publisher import publish
from django_ratelimit_lua.rules import RuleError, provider
from django_ratelimit_lua.rules.ruleset import settings_rules
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import RULES, given, visits

site = test_admin.site
EDGE = {"descriptor": ["generic_key=edge", "remote_address"]}
LINE = 'Add "django_ratelimit_lua.contrib.gateway" to INSTALLED_APPS'


WITHOUT = """
from importlib import import_module
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
settings.configure(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_ratelimit_lua"])
for name in ("gateway.asgi", "gateway.urls", "statistics.urls"):
    try:
        import_module(f"django_ratelimit_lua.contrib.{name}")
    except ImproperlyConfigured as error:
        print(error)
try:
    call_command("ratelimit", "grpc")
except CommandError as error:
    print(error)
"""  # noqa: E501


@contextmanager
def removed() -> Iterator[None]:
    """Run as if no optional app were installed."""
    with patch.object(extension, "extensions", []):
        yield


def warnings() -> list[tuple[str, str]]:
    found = run_checks(tags=["database"], databases=["default"])
    return [(each.msg, each.hint) for each in found if each.id == "django_ratelimit_lua.W029"]


@pytest.mark.django_db(transaction=True)
def test_a_field_is_kept_when_its_optional_app_is_removed(operator: Client) -> None:
    """Other fields can be edited, the change undone, and the rule copied. A check warns."""
    edge = RateLimitRule.objects.create(name="edge", rate="1/h", options=EDGE)
    site = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h", options=EDGE)
    assert warnings() == []
    with removed():
        ((warning, hint),) = warnings()
        assert "descriptor of the rules 'edge', 'site' is ignored" in warning
        assert LINE in hint
        for rule in (edge, site):
            changed = {"rate": "2/h", "description": "now for 2"}
            form = given(name=rule.name, path=rule.path, key=rule.key, **changed)
            assert operator.post(f"{RULES}{rule.pk}/change/", form).status_code == 302
        copy = given(name="copy", path="/copy", key="ip", rate="2/h", _saveasnew="yes")
        operator.post(f"{RULES}{site.pk}/change/", copy)
        assert f"descriptor ({LINE})" in RateLimitRule.objects.get(pk=edge.pk).describe()
        assert RateLimitRule.objects.get(pk=edge.pk).options == EDGE
        edited = RateLimitChange.objects.filter(object_id=edge.pk).latest("pk")
        operator.post(f"{RULES}undo/{edited.pk}/")
    edge.refresh_from_db()
    assert (edge.rate, edge.options) == ("1/h", EDGE)
    assert RateLimitRule.objects.get(pk=site.pk).options == EDGE
    assert RateLimitRule.objects.get(name="copy").options == EDGE


@pytest.mark.django_db(transaction=True)
def test_a_rule_that_loses_its_only_place_applies_nowhere() -> None:
    """It limits no request and no call site. A rule with a path still applies."""
    words = {"rate": "1/h", "options": EDGE}
    for name in ("ok", "edge"):
        RateLimitRule.objects.create(**words, name=name)
    RateLimitRule.objects.create(**words, name="site", path="/ok", key="ip")
    with removed():
        publish()
        rules = provider.load_ruleset()
        assert ({"ok", "edge", "site"} & {*rules.by_name}, rules.problems) == ({"site"}, [])
        assert visits(2) == [200, 429]


@pytest.mark.django_db
def test_fields_of_a_missing_app_are_errors_in_settings_and_yaml(settings: Any) -> None:
    """Each error names the line to add. An exported row can be imported unchanged."""
    RateLimitRule.objects.create(name="edge", rate="1/h", options=EDGE)
    text = export()
    assert plan(text) == []
    settings.RATELIMIT_RULES = [{"name": "edge", "descriptor": ["generic_key=edge"], "rate": "1/h"}]
    assert settings_rules()
    with removed():
        assert plan(text) == []
        for attempt in (settings_rules, lambda: plan(text.replace("=edge", "=other"))):
            with pytest.raises((ImproperlyConfigured, RuleError), match=LINE):
                attempt()


def test_urls_servers_and_verbs_need_the_app() -> None:
    """The error names the line to add."""
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    gateway = f"django_ratelimit_lua.contrib.gateway is not installed. {LINE}."
    verb = f"Error: the app of the verb 'grpc' is not installed. {LINE}"
    printed = done.stdout.splitlines()
    assert [*printed[:2], printed[3]] == [gateway, gateway, verb]
    assert LINE.replace("gateway", "statistics") in printed[2]
