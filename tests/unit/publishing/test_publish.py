"""The snapshot of rules and the records of overrides that are published from a database, without
Redis.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule, RateLimitTier
from django_ratelimit_lua.publishing.publish import (
    first_records,
    is_in_transaction,
    snapshot_of,
    values_by_key,
)
from django_ratelimit_lua.rules.overrides import read_record
from django_ratelimit_lua.rules.ruleset import Ruleset
from django_ratelimit_lua.rules.snapshot import FORMAT

pytestmark = pytest.mark.django_db


def rule(name: str, **fields: Any) -> RateLimitRule:
    return RateLimitRule.objects.create(
        name=name, **{"path": "/", "key": "ip", "limit": 5, **fields}
    )


def test_a_snapshot_contains_all_rules() -> None:
    """The snapshot has each rule as it is declared, with its primary key. It lists the kinds of
    subjects by rule, and the kinds of blocks that apply without a rule.
    """
    api = rule("api", unit="h")
    RateLimitTier.objects.create(rule=api, group="pro", limit=50, unit="h")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    RateLimitOverride.objects.create(network="198.51.100.0/24", effect="exempt", rule=api)
    snapshot = snapshot_of("default")
    assert snapshot["format"] == FORMAT
    assert snapshot["rules"] == [
        {
            "name": "api",
            "path": "/",
            "key": "ip",
            "rate": "5/h",
            "tiers": [{"group": "pro", "rate": "50/h"}],
            "id": api.pk,
        }
    ]
    assert (snapshot["kinds"], snapshot["blocks"]) == (
        {"": ["ip4/32"], "api": ["ip4/24"]},
        ["ip4/32"],
    )
    ruleset = Ruleset((), snapshot)
    assert (ruleset.by_name["api"].pk, ruleset.blocks, ruleset.problems) == (api.pk, ["ip4/32"], [])


def test_all_overrides_of_one_subject_are_one_record() -> None:
    """The record is stored under the subject's digest. A subject without overrides has no
    record.
    """
    api = rule("api")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="exempt", rule=api)
    records = first_records("default")
    who = digest(("network", "203.0.113.9/32"))
    assert list(records) == [who]
    assert [(override.effect, override.rule) for override in read_record(records[who])] == [
        ("block", None),
        ("exempt", api.pk),
    ]


def test_values_digested_with_another_key_are_reported(settings: Any) -> None:
    """Only the digest of a field's value is stored, so operators need the number of values that no
    current key digests.
    """
    override = RateLimitOverride(field="post:name", effect="block")
    override.set_value("ada")
    override.save()
    assert values_by_key("default") == {}
    before = override.digested_by
    settings.SECRET_KEY = "another"
    assert values_by_key("default") == {before: 1}


def test_a_test_cases_transaction_does_not_delay_publishing() -> None:
    """Other connections cannot see changes inside a test case's transaction, so only a transaction
    begun within it delays publishing.
    """
    assert not is_in_transaction("default")
    with transaction.atomic():
        assert is_in_transaction("default")
