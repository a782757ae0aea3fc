"""The requests that the current version of a rule has seen and would have refused."""

from __future__ import annotations

import pytest
from django.test import Client

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics.reading import ShadowNumbers, read_shadow_numbers
from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import RULES, visits

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
parcels = RateLimiter("shadow.parcels", "100/h")


def rule(**fields: object) -> RateLimitRule:
    given = {"name": "site", "path": "/ok", "key": "ip", "rate": "2/h", "mode": "shadow"}
    return RateLimitRule.objects.create(**given | fields)


def test_shadow_mode_counts_requests_refusals_and_identities() -> None:
    """A request counts once, whatever number of rates the rule has."""
    one = rule(rate="2/h, 2/d")
    for address, times in (("203.0.113.1", 4), ("203.0.113.2", 1), ("203.0.113.3", 3)):
        assert visits(times, address) == [200] * times
    assert read_shadow_numbers(one.spec) == ShadowNumbers(8, 3, people=3, refused_people=2)
    one.set_mode("enforce")
    assert visits(2, "203.0.113.9") == [200, 200]
    assert read_shadow_numbers(one.spec).seen == 8


def test_another_version_of_a_rule_starts_with_new_counts() -> None:
    """A change of the limit starts a new version, but that of a message does not."""
    one = rule()
    assert visits(3) == [200] * 3
    one.description, one.order, one.message = "Better.", 5, "Slower."
    one.save()
    assert visits() == [200]
    assert read_shadow_numbers(one.spec).seen == 4
    one.rate = "50/h"
    one.save()
    assert visits() == [200]
    assert read_shadow_numbers(one.spec) == ShadowNumbers(1, 0, 1, 0)
    one.rate = "2/h"
    assert read_shadow_numbers(one.spec).refused == 2


def test_shadow_requests_of_a_replaced_limiter_are_counted() -> None:
    """The limiter's identities are counted as clients."""
    one = rule(name="shadow.parcels", path="", key="", rate="1/h")
    assert [parcels.hit(who).allowed for who in ("ada", "ada", "grace")] == [True] * 3
    assert read_shadow_numbers(one.spec) == ShadowNumbers(3, 1, 2, 1)


def test_the_page_of_the_limit_shows_the_numbers(operator: Client) -> None:
    """They are those of this version of the rule. Enforcing it needs no confirmation."""
    rule()
    assert visits(3) == [200] * 3
    words = (
        "seen 3 requests, from about 1 client. Would have refused: 1 (33%), from about 1 client."
    )
    assert words in operator.get(f"{RULES}limit/?name=site").content.decode()
    assert "would be refused: 1</div>" in operator.get(RULES).content.decode()
    chosen = {"action": "enforce", "_selected_action": [RateLimitRule.objects.get().pk]}
    operator.post(RULES, chosen)
    assert visits() == [429]
