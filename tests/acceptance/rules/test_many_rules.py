"""The number of queries for an operator's work does not depend on the number of rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_ratelimit_lua.management import rules_yaml
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
from django_ratelimit_lua.publishing.publisher import publish
from django_ratelimit_lua.rules import provider
from tests.acceptance.admin.test_admin import RULES, given, site  # noqa: F401 - a fixture
from tests.bench.many_rules import rules_text

pytestmark = pytest.mark.django_db(transaction=True)
FEW, MANY = 20, 220


def queries(work: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        work()
    return len(captured)


def with_few_and_many(work: Callable[[], Any]) -> tuple[int, int]:
    """Return the number of queries with few rules, and with many."""
    numbers = []
    for count in (FEW, MANY):
        rules_yaml.apply(rules_yaml.plan(rules_text(count)))
        work()
        numbers.append(queries(work))
    return numbers[0], numbers[1]


def test_the_list_of_rules_takes_a_constant_number_of_queries(operator: Client) -> None:
    """The last page, which has the limits in the code, takes one more."""
    few, many = with_few_and_many(lambda: operator.get(RULES))
    assert many == few - 1
    rules = (RULES, f"{RULES}?p={-(-MANY // 100)}")
    assert [queries(lambda url=url: operator.get(url)) for url in rules] == [many, few]  # type: ignore[misc]


def test_saving_a_rule_takes_a_constant_number_of_queries(operator: Client) -> None:
    """The rule is saved in its form, with few and with many rules."""

    def save() -> None:
        rule = RateLimitRule.objects.get(name="rule 00001")
        form = given(
            name=rule.name,
            path=rule.path,
            key="ip",
            rate=f"{int(rule.rate.partition('/')[0]) + 1}/h",
        )
        response = operator.post(f"{RULES}{rule.pk}/change/", form)
        assert response.status_code == 302

    few, many = with_few_and_many(save)
    assert few == many


def test_an_import_takes_less_than_one_query_per_ten_rules() -> None:
    """This includes changed rules and tiers. Each rule has its history entry."""
    numbers: dict[str, list[int]] = {"new": [], "changed": []}
    for count in (FEW, MANY):
        RateLimitRule.objects.all().delete()
        RateLimitChange.objects.all().delete()
        text = rules_text(count)
        numbers["new"].append(queries(lambda text=text: rules_yaml.apply(rules_yaml.plan(text))))  # type: ignore[misc]
        changed = text.replace("00/m", "01/m")
        numbers["changed"].append(
            queries(lambda text=changed: rules_yaml.apply(rules_yaml.plan(text)))
        )  # type: ignore[misc]
        assert RateLimitRule.objects.filter(rate="101/m").count() == count
        with_tiers = RateLimitRule.objects.filter(options__tiers__0__rate="1001/m")
        assert with_tiers.count() == count / 10
        assert RateLimitChange.objects.filter(action="created").count() == count
        assert RateLimitChange.objects.filter(action="changed").count() == count
    for few, many in numbers.values():
        assert many - few < (MANY - FEW) / 10


def test_an_import_keeps_rows_and_replaces_their_values() -> None:
    """A value that is not in the file is deleted."""
    tiers = [{"group": "a", "rate": "5/m"}, {"group": "b", "rate": "6/m"}]
    rule: dict[str, Any] = {"name": "one", "path": "/", "key": "ip", "rate": "1/m", "tiers": tiers}
    other = {"name": "two", "path": "/two", "key": "ip", "rate": "1/m", "description": "old"}
    rules_yaml.apply(rules_yaml.plan(rules_yaml.dump([rule, other])))
    pk = RateLimitRule.objects.get(name="one").pk
    rule["tiers"] = [{"group": "b", "rate": "7/m"}, {"group": "c", "rate": "8/m"}]
    del other["description"]
    rules_yaml.apply(rules_yaml.plan(rules_yaml.dump([rule, other])))
    assert RateLimitRule.objects.get(name="one").pk == pk
    assert RateLimitRule.objects.get(name="two").description == ""
    assert RateLimitRule.objects.get(name="one").options == {"tiers": rule["tiers"]}
    change = RateLimitChange.objects.filter(name="one").first()
    assert change is not None
    assert [tier["group"] for tier in change.before["tiers"]] == ["a", "b"]
    assert change.after["tiers"] == rule["tiers"]


def test_published_rules_are_loaded_again_only_if_they_have_changed() -> None:
    """The same object is returned until the revision changes."""
    rules_yaml.apply(rules_yaml.plan(rules_text(FEW)))
    publish()
    first = provider.refresh_ruleset()
    assert provider.refresh_ruleset() is first
    rules_yaml.apply(rules_yaml.plan(rules_text(FEW).replace("100/m", "101/m")))
    assert provider.refresh_ruleset().revision.number == first.revision.number + 1
