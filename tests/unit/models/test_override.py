"""An override as a row: its subject, and combinations that are invalid."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError

from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.rate import Rate
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.rules.overrides import Override
from django_ratelimit_lua.views.call_sites import CallSite, compile_call_site, known_call_sites

MONDAY = datetime.datetime(2026, 1, 5, tzinfo=datetime.UTC)


def test_an_override_without_a_subject_is_refused() -> None:
    """A value that is empty when normalized, and a field that no override can have, are errors."""
    for field, value in (
        ("post:name", " \u3000"),
        ("exact:post:", "x"),
        ("exact:ip", "x"),
        ("os.system", "x"),
    ):
        override = RateLimitOverride(field=field, effect="block")
        override.set_value(value)
        assert override.subject == ""
        with pytest.raises(ValidationError) as error:
            override.clean()
        assert "field" in error.value.message_dict


@pytest.mark.parametrize(
    ("fields", "kind", "identity", "text"),
    [
        ({"network": "203.0.113.9"}, "ip4/32", ("network", "203.0.113.9/32"), "203.0.113.9"),
        ({"network": "203.0.113.9/32"}, "ip4/32", ("network", "203.0.113.9/32"), "203.0.113.9"),
        ({"network": "203.0.113.0/24"}, "ip4/24", ("network", "203.0.113.0/24"), "203.0.113.0/24"),
        ({"network": "::ffff:203.0.113.9"}, "ip4/32", ("network", "203.0.113.9/32"), "203.0.113.9"),
        ({"network": "2001:DB8::/48"}, "ip6/48", ("network", "2001:db8::/48"), "2001:db8::/48"),
        ({"user_id": 7}, "user", ("user", "7"), ""),
    ],
)
def test_the_subject_is_stored_normalized(fields: Any, kind: str, identity: Any, text: str) -> None:
    """The stored kind and digest are those with which requests look up overrides."""
    override = RateLimitOverride(effect="block", **fields)
    for _ in range(2):
        override.prepare()
        assert (override.kind, override.network) == (kind, text)
        assert override.digests() == [override.subject] == [digest(identity).decode()]


def test_the_subject_of_a_client_is_its_digest() -> None:
    """No key changes it."""
    override = RateLimitOverride(effect="block", client_digest="0f" * 16)
    override.prepare()
    found = (override.kind, override.subject, override.digests())
    assert found == ("digest", "0f" * 16, ["0f" * 16])


def test_only_the_digest_of_a_field_value_is_stored() -> None:
    """The digest is that of the normalized value, and the value itself is not stored."""
    override = RateLimitOverride(field="post:name", label="the loud one", effect="block")
    override.set_value(" ADA ")
    override.prepare()
    assert override.kind == "post:name"
    assert override.subject == digest(("post", "name", "ada")).decode()
    assert "ada" not in str(vars(override)).lower()
    assert str(override) == "post:name (the loud one)"


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({}, NON_FIELD_ERRORS),
        ({"network": "203.0.113.9", "user_id": 7}, NON_FIELD_ERRORS),
        ({"network": "203.0.113.9", "field": "post:name"}, NON_FIELD_ERRORS),
        ({"client_digest": "0f" * 16}, "ends"),
        ({"client_digest": "0f" * 16, "ends": MONDAY.replace(year=2099)}, "ends"),
        ({"client_digest": "0F" * 16, "ends": MONDAY}, "client_digest"),
        ({"client_digest": "0f" * 16, "ends": MONDAY}, None),
        ({"network": "nowhere"}, "network"),
        ({"network": "203.0.113.9", "effect": "limit", "rule": "api"}, "rate"),
        ({"network": "203.0.113.9", "effect": "limit", "rate": "5/m"}, "rule"),
        ({"network": "203.0.113.9", "rule": "apis"}, "rule"),
        ({"network": "203.0.113.9", "effect": "limit", "rate": "5/m", "rule": "api"}, None),
        ({"network": "203.0.113.9", "starts": MONDAY, "ends": MONDAY}, "ends"),
        ({"network": "203.0.113.9", "ends": MONDAY.replace(year=9999)}, "ends"),
    ],
)
@pytest.mark.django_db
def test_contradictions_are_errors_of_their_field(fields: Any, wrong: str | None) -> None:
    """`clean` raises the errors, so forms report them too."""
    RateLimitRule.objects.create(name="api", key="ip", rate="5/m")
    override = RateLimitOverride(**{"effect": "block", **fields})
    if wrong is None:
        override.clean()
        return
    with pytest.raises(ValidationError) as raised:
        override.clean()
    assert list(raised.value.update_error_dict({})) == [wrong]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "wrong"),
    [({"rate": "3"}, ["rate"]), ({"rate": "9/m", "burst": 5}, ["burst"]), ({"rate": "9/m"}, [])],
)
def test_another_limit_has_to_fit_the_limit_in_the_code(
    fields: Any, wrong: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it has to fit a rule: otherwise it would never apply."""
    site = CallSite.of_decorator(compile_call_site("search", "ip", "5/m", None, 1, {}), "search")
    monkeypatch.setattr(known_call_sites, "_by_name", {"search": (site,)})
    override = RateLimitOverride(network="203.0.113.9", rule="search", effect="limit", **fields)
    problems = {}
    try:
        override.clean()
    except ValidationError as error:
        problems = error.message_dict
    assert list(problems) == wrong


@pytest.mark.django_db
def test_an_override_keeps_the_name_of_a_deleted_rule() -> None:
    """A new one may not name it, and the error lists the names."""
    rules = [
        RateLimitRule.objects.create(name=name, key="ip", rate="5/m") for name in ("api", "0 first")
    ]
    override = RateLimitOverride.objects.create(network="203.0.113.9", effect="block", rule="api")
    rules[0].delete()
    override.clean()
    override.pk = None
    with pytest.raises(ValidationError, match=r"Names are: .*0 first"):
        override.clean()


def test_another_limit_without_a_rule_is_not_saved() -> None:
    """It would also raise the limit of a login."""
    with pytest.raises(ValueError, match="Another limit is for one rule"):
        RateLimitOverride(network="203.0.113.9", effect="limit", rate="5/m").prepare()


def test_a_row_is_converted_for_the_rules() -> None:
    """Times are converted to microseconds."""
    row = RateLimitOverride(pk=3, rule="api", effect="limit", rate="5/h", burst=9, starts=MONDAY)
    row.subject, row.kind = "0f" * 16, "user"
    starts = 1_767_571_200_000_000
    limit = Override(3, "api", "limit", Rate.parse("5/h"), 9, starts)
    assert row.override() == limit._replace(subject=b"0f" * 16, strength=130)
    row.effect = "block"
    assert row.override()[:7] == (3, "api", "block", None, None, starts, None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"rate": "banana"}, "rate"),
        ({"rate": ""}, "rate"),
        ({"rate": "5/m", "rule": ""}, "rule"),
        ({"rate": "5/m", "burst": -1}, "burst"),
        ({"effect": "zap"}, "effect"),
        ({"effect": "block", "rule": "a" * 201}, "rule"),
        ({"effect": "block", "starts": MONDAY, "ends": MONDAY}, "ends"),
        ({"effect": "block", "network": "nowhere"}, "network"),
        (
            {"effect": "block", "network": "", "client_digest": "zz", "ends": MONDAY},
            "client_digest",
        ),
    ],
)
def test_an_invalid_override_is_not_saved(fields: Any, wrong: str) -> None:
    """`save` checks all that does not depend on the rules, as for rules."""
    with pytest.raises(ValidationError) as raised:
        RateLimitOverride.objects.create(**{"network": "203.0.113.9", "rule": "api", **fields})
    assert list(raised.value.message_dict) == [wrong]
    assert not RateLimitOverride.objects.exists()
