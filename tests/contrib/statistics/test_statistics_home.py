"""The statistics on the page of the app: refused requests, limits and clients."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance.test_admin import given, site, staff, visits  # noqa: F401 - fixtures
from tests.acceptance.test_admin_home import HOME, shown

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_page_shows_what_was_refused(operator: Client) -> None:
    """For each period, it shows the site's requests and refusals, the limits that refuse, and the
    clients.
    """
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    RateLimiter("idle", "5/h").hit("ada")
    statuses = visits(5, "203.0.113.1") + visits(3, "203.0.113.2")
    assert statuses.count(429) == 4
    for period in ("hour", "day", "week"):
        text = shown(operator, period=period)
        assert "requests 9 refused 4 share of requests 44%" in text
        limits = text.partition(f"Limits, last {period}")[2].partition("Clients refused")[0]
        assert re.search(r"site .* 8 4 50%", limits)
        clients = text.partition("Clients refused most")[2]
        assert re.search(r"203\.0\.113\.0/24.* 3 .*203\.0\.113\.0/24.* 1 ", clients)
    page = operator.get(HOME, {"period": "hour"}).content.decode()
    assert 'statistics/?name=site&amp;period=hour"' in page
    assert 'statistics/?period=hour"' in page


def test_names_of_clients_need_a_permission() -> None:
    """The numbers are shown without the permission to see identities."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h")
    assert visits(3, "203.0.113.1").count(429) == 2
    text = shown(staff("view_ratelimitrule"))
    assert "refused 2 share of requests 67%" in text
    assert "203.0.113" not in text
    assert "203.0.113" in shown(staff("view_ratelimitrule", "view_identities", name="who"))
