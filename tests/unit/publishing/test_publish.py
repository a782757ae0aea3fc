"""The snapshot of rules and overrides that is published from a database, without Redis."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from django_ratelimit_lua.identity import digest, key_id
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.publishing.publisher import is_in_transaction, snapshot_of
from django_ratelimit_lua.rules.ruleset import Ruleset
from django_ratelimit_lua.rules.snapshot import section_number
from tests.support.limits import add_tier

pytestmark = pytest.mark.django_db


def rule(name: str, **fields: Any) -> RateLimitRule:
    return RateLimitRule.objects.create(
        name=name, **{"path": "/", "key": "ip", "rate": "5/m", **fields}
    )


def test_a_snapshot_contains_all_rules_and_overrides() -> None:
    """It lists the values of requests that overrides refer to, by rule."""
    api = rule("api", rate="5/h")
    add_tier(api, "pro", "50/h")
    ada = User.objects.create(username="ada")
    block = RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    exempt = RateLimitOverride.objects.create(network="203.0.113.0/24", effect="exempt", rule="api")
    faster = RateLimitOverride.objects.create(user=ada, rate="9/m", rule="api")
    RateLimitOverride.objects.create(user=ada, effect="block", ends=timezone.now())
    snapshot = snapshot_of("default")
    (published,) = snapshot.rules["rules"]
    assert published == {**api.spec, "id": api.pk}
    sections = {
        number: section for number, section in enumerate(snapshot.overrides) if section["entries"]
    }
    assert sections.keys() == {section_number(each.pk) for each in (block, exempt, faster)}
    subject = digest(("user", str(ada.pk))).decode()
    others = {"keys": [key_id()], "value_keys": [], "problems": []}
    assert sections[section_number(block.pk)] == {
        **{"fields": {"": ["network"]}, "blocks": True, "networks": ["ip4/32"], **others},
        "tag": sections[section_number(block.pk)]["tag"],
        "entries": {"ip4/32:cb007109": [[block.pk, "", "block"]]},
    }
    assert sections[section_number(exempt.pk)] == {
        **{"fields": {"api": ["network"]}, "blocks": False, "networks": ["ip4/24"], **others},
        "tag": sections[section_number(exempt.pk)]["tag"],
        "entries": {"ip4/24:cb0071": [[exempt.pk, "api", "exempt"]]},
    }
    assert sections[section_number(faster.pk)] == {
        **{"fields": {"api": ["user"]}, "blocks": False, "networks": [], **others},
        "tag": sections[section_number(faster.pk)]["tag"],
        "entries": {subject: [[faster.pk, "api", "limit", None, None, {"rate": "9/m"}]]},
    }
    ruleset = Ruleset((), snapshot)
    assert (ruleset.by_name["api"].pk, ruleset.problems) == (api.pk, [])


def test_each_part_has_a_revision_of_its_own() -> None:
    """An edit of an override leaves that of the rules, and the reverse."""
    tags = [snapshot_of("default").revision.tags()]
    api = rule("api")
    tags.append(snapshot_of("default").revision.tags())
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block", rule="api")
    tags.append(snapshot_of("default").revision.tags())
    api.name = "search"
    api.save()
    tags.append(snapshot_of("default").revision.tags())
    assert RateLimitOverride.objects.get().rule == "search"
    rules, overrides = zip(*tags, strict=True)
    assert rules[1] == rules[2] != rules[3]
    assert overrides[1] != overrides[2] != overrides[3]


@pytest.mark.parametrize(
    "edit",
    [
        {"rate": "banana"},
        {"rate": ""},
        {"burst": -1},
        {"effect": "zap"},
        {"rule": ""},
        {"network": "nowhere"},
        {"network": "", "client_digest": "zz"},
        {"ends": timezone.now() + timedelta(days=1), "starts": timezone.now() + timedelta(days=2)},
    ],
)
def test_an_override_edited_by_hand_is_left_out_and_reported(edit: Any) -> None:
    """Every process that loads the others reports it, as health does."""
    row = RateLimitOverride.objects.create(network="203.0.113.9", rule="api", rate="9/m")
    RateLimitOverride.objects.create(network="203.0.113.8", effect="block")
    RateLimitOverride._base_manager.filter(pk=row.pk).update(**edit)
    ruleset = Ruleset((), snapshot_of("default"))
    assert ruleset.overrides.number == 1
    (problem,) = ruleset.problems
    assert problem.startswith(f"the override of row {row.pk} is invalid: ")


def test_a_test_cases_transaction_does_not_delay_publishing() -> None:
    """Only a transaction begun within it does."""
    assert not is_in_transaction("default")
    with transaction.atomic():
        assert is_in_transaction("default")
