"""A rule as a row: its columns, its options, and the dict that contains both."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua.models import Conflict, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.rules import RuleError
from django_ratelimit_lua.views.call_sites import known_call_sites

BOTH: dict[str, Any] = {"name": "api", "order": 3, "description": "Two lines.\nSecond."}
BOTH |= {"mode": "shadow", "route": "shop:detail", "group": "search", "message": "Slower, please."}
TIERS = [{"group": "gold", "rate": ["50/s", "1000/h"], "burst": 5}]
OPTIONS = {"tiers": TIERS, "cost": 2, "algorithm": "token_bucket", "burst": 9}
COLUMNS: dict[str, Any] = {
    **BOTH,
    **{"rate": "10/s, 500/h", "key": "ip+post:username", "path": "/api/\n/v2/*"},
    **{"method": "GET, POST", "audience": "group:pro\ngroup:free", "options": OPTIONS},
}
SPEC: dict[str, Any] = {
    **BOTH,
    **{"path": ["/api/", "/v2/*"], "method": ["GET", "POST"], "rate": ["10/s", "500/h"]},
    **{"audience": ["group:pro", "group:free"], "key": ["ip", "post:username"], **OPTIONS},
}
ORDER = ["name", "description", "order", "path", "route", "group", "method", "audience", "key"]
ORDER += ["rate", "tiers", "cost", "message", "algorithm", "burst", "mode"]


def columns(row: RateLimitRule) -> dict[str, Any]:
    return {name: getattr(row, name) for name in COLUMNS}


def test_the_spec_of_a_row_has_its_columns_and_options_in_the_notation_of_rules() -> None:
    """Values are in the order of an exported file. A list of one value is the value alone."""
    spec = RateLimitRule(**COLUMNS).spec
    assert (spec, [*spec]) == (SPEC, ORDER)
    short = {"name": "site", "path": "/", "key": "ip", "rate": "5/m", "audience": "staff"}
    assert RateLimitRule(**short, method="GET").spec == {**short, "method": ["GET"]}


def test_a_row_is_made_from_its_spec() -> None:
    """Neither way compiles the rule. Columns that the spec does not have get their defaults."""
    row = RateLimitRule.from_spec(SPEC)
    assert columns(row) == COLUMNS
    assert row.pk is None
    row.assign({"name": "site", "path": "/", "key": "nonsense", "rate": "5/m"})
    assert columns(row) == columns(RateLimitRule(name="site", path="/", key="nonsense", rate="5/m"))


@pytest.mark.parametrize("rate", ["100/m", "5/15m", "5/60s", "0/h", "5"])
def test_a_rate_keeps_its_unit(rate: str) -> None:
    """60 seconds do not become a minute."""
    spec = {"name": "site", "path": "/", "key": "ip", "rate": rate}
    assert RateLimitRule.from_spec(spec).spec == spec


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": " a"}, "name"),
        ({"route": "a "}, "route"),
        ({"rate": "-1/h"}, "rate"),
        ({"rate": "5/0m"}, "rate"),
        ({"rate": "5/moon"}, "rate"),
        ({"rate": ""}, "rate"),
        ({"method": "PSOT"}, "method"),
        ({"audience": "group:"}, "audience"),
        ({"options": {"burst": 0}}, "burst"),
        ({"options": {"burst": 5}}, "burst"),
        ({"options": {"tiers": [{"group": "pro"}]}}, "tiers"),
        ({"options": {"cost": 10**9 + 1}}, "cost"),
        ({"options": {"algorithm": "token_bucket", "max_wait": 1e300}}, "max_wait"),
        ({"options": {"algorithm": "fixed_window", "align": "month"}}, "align"),
        ({"options": {"algorithm": "fixed_window", "time_zone": "../etc"}}, "time_zone"),
        ({"options": {"brust": 5}}, "name"),
        ({"options": 5}, "name"),
    ],
)
def test_a_save_raises_the_error_of_the_invalid_field(fields: dict[str, Any], field: str) -> None:
    """A save of other fields of a row that was invalid before does not."""
    row = RateLimitRule(**{"name": "api", "path": "/", "key": "ip", "rate": "5/m", **fields})
    with pytest.raises(RuleError) as raised:
        row.save()
    assert raised.value.field == field
    assert not RateLimitRule.objects.exists()
    RateLimitRule.objects.bulk_create([row])
    stored = RateLimitRule.objects.get()
    stored.mode = "off"
    stored.save(update_fields=["mode"])
    with pytest.raises(RuleError):
        stored.save(update_fields=["mode", "rate"])
    for field, value in (("mode", "zz"), ("order", 99999999999), ("description", "\0")):
        setattr(stored, field, value)
        with pytest.raises(RuleError, match=field):
            stored.save(update_fields=[field])


@pytest.mark.django_db
def test_the_second_of_two_editors_gets_the_stored_row() -> None:
    """Every save raises the revision of the row, and one that expects an earlier one is refused."""
    row = RateLimitRule.objects.create(name="api", path="/", key="ip", rate="5/m")
    first, second, third = (RateLimitRule.objects.get() for _ in range(3))
    begun = row.revision
    first.rate = "6/m"
    first.save(expected=begun)
    assert RateLimitRule.objects.get().revision == begun + 1
    second.rate = "7/m"
    with pytest.raises(Conflict) as raised:
        second.save(expected=begun)
    assert raised.value.stored is not None
    assert (raised.value.stored.rate, raised.value.stored.revision) == ("6/m", begun + 1)
    second.save(expected=begun + 1)
    assert RateLimitRule.objects.get().rate == "7/m"
    RateLimitRule.objects.all().delete()
    with pytest.raises(Conflict) as raised:
        third.save(expected=begun + 2)
    assert raised.value.stored is None
    assert not RateLimitRule.objects.exists()


def test_a_rule_with_the_name_of_a_call_site_needs_no_group() -> None:
    """At a path, the group is kept, because it restricts the rule to the call site."""
    bare = {"name": "login", "rate": "5/m"}
    assert RateLimitRule.from_spec({**bare, "group": "login"}).spec == bare
    at_path = {"name": "login", "path": "/", "group": "login", "rate": "5/m"}
    assert RateLimitRule.from_spec(at_path).spec == at_path


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([1], "unknown field 'options'"),
        ({"rate": "9/m"}, r"unknown field 'options\.rate'"),
        ({"id": 7}, r"unknown field 'options\.id'"),
        ({"moon": 1}, "moon"),
    ],
)
def test_options_that_were_edited_by_hand_are_reported(options: Any, text: str) -> None:
    """They neither raise other errors nor replace columns."""
    row = RateLimitRule(name="api", key="ip", path="/", rate="5/m", options=options)
    with pytest.raises(RuleError, match=text):
        row.compiled()


@pytest.mark.django_db
def test_every_way_to_save_raises_the_revision() -> None:
    """It is raised in the database, also by a save of some fields and by bulk changes."""
    row = RateLimitRule.objects.create(name="api", path="/", key="ip", rate="5/m")
    revisions = [row.revision]
    row.set_mode("off")
    revisions.append(row.revision)
    RateLimitRule.objects.update(order=3)
    revisions.append(RateLimitRule.objects.get().revision)
    RateLimitRule.objects.bulk_update([row], ["mode"])
    revisions.append(row.revision)
    row.save()  # It was read before.
    revisions.append(RateLimitRule.objects.get().revision)
    assert revisions == [1, 2, 3, 4, 5]


@pytest.mark.django_db
@pytest.mark.parametrize("place", ["code", "settings", "none"])
def test_overrides_of_a_renamed_rule_stay_if_the_code_has_its_old_name(
    place: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a block of the limit in the code would end with the rule's name."""
    monkeypatch.setattr(known_call_sites, "_by_name", {})
    if place == "settings":
        settings.RATELIMIT_RULES = [{"name": "search", "path": "/", "key": "ip", "rate": "5/m"}]
    if place == "code":
        known_call_sites.add_name("search")
    row = RateLimitRule.objects.create(name="search", path="/", key="ip", rate="5/m")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block", rule="search")
    row.name = "found"
    row.save()
    assert RateLimitOverride.objects.get().rule == ("found" if place == "none" else "search")
