"""What an operator does with rules, in a real browser: each task is followed by requests that show
its effect.

Clicks are counted, as in `test_operator_tasks.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.acceptance.admin.test_admin_browser import fill
from tests.support.operators import Hand, Site

SCREEN = "phone"
PREPARED = """
from django_ratelimit_lua.models import RateLimitRule
RateLimitRule.objects.create(name="orders", path="/api/", key="ip", rate="3/h")
RateLimitRule.objects.create(name="user", rate="3/h")  # The scope of a DRF throttle.
"""


def test_an_operator_adds_a_lower_limit_to_a_limit_in_code(
    site: Site, hand_for: Callable[[str], Hand]
) -> None:
    """The headers have the limits in code and the new one."""
    visitor = "127.0.9.1"
    assert site.statuses("/search/", 3, visitor) == [200] * 3
    hand = hand_for("add a lower limit to that of the code")
    hand.press(".model-ratelimitrule th a")
    hand.press("a[href*='beside=search&']")
    fill(hand.browser, rate="2/5m")
    hand.press("[name=_save]")
    hand.is_done()
    assert site.statuses("/search/", 3, visitor) == [200, 200, 429]
    policies = site.ask("/search/", source=visitor).headers["RateLimit-Policy"]
    assert {("2", "300"), ("10", "1"), ("500", "3600")} <= set(
        re.findall(r"q=(\d+);w=(\d+)", policies)
    )


def test_two_rates_are_added_on_a_path(site: Site, hand_for: Callable[[str], Hand]) -> None:
    """The rates are written as in summaries, and each request needs both."""
    hand = hand_for("add two rates on a path")
    hand.press(".model-ratelimitrule .addlink")
    fill(hand.browser, name="exports", rate="4/m, 3 per 15 minutes", path="/export/")
    hand.choose("key", "ip")
    hand.press("[name=_save]")
    assert "4 per minute and 3 per 15 minutes per address, on /export/" in hand.text("#result_list")
    hand.is_done()
    assert site.statuses("/export/", 5, "127.0.9.2") == [200] * 3 + [429] * 2
    assert site.statuses("/export/", 3, "127.0.9.3") == [200] * 3
    policies = site.ask("/export/", source="127.0.9.2").headers["RateLimit-Policy"]
    assert {("4", "60"), ("3", "900")} <= set(re.findall(r"q=(\d+);w=(\d+)", policies))


def test_the_limit_of_one_customer_is_raised(site: Site, hand_for: Callable[[str], Hand]) -> None:
    """A rule and a throttle of Django REST framework refuse. The page of the client shows both, and
    an override for each raises them. Other clients keep the limit.
    """
    customer, other = "127.0.9.4", "127.0.9.5"
    assert site.statuses("/api/", 5, customer) == [200] * 3 + [429] * 2
    hand = hand_for("raise the limit of one customer")
    hand.press(".model-client a")
    fill(hand.browser, q=customer)
    hand.press("form:has([name=q]) button")
    refusing = {
        row.find_element("css selector", "th").text.split()[0]
        for row in hand.browser.find_elements("css selector", ".ratelimit-row.refused")
    }
    assert refusing == {"orders", "user"}
    for name in sorted(refusing):
        hand.press("#site-name a")
        hand.press(".model-ratelimitoverride .addlink")
        fill(hand.browser, network=customer, rate="4/h")
        hand.choose("effect", "limit")
        hand.choose("rule", name)
        hand.press("[name=_save]")
        if name == "orders":
            hand.is_done()
    # The override has a count of its own.
    assert site.statuses("/api/", 6, customer) == [200] * 4 + [429] * 2
    assert site.statuses("/api/", 4, other) == [200] * 3 + [429]
