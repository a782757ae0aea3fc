"""What an operator does with rules, in a real browser: each task is followed by requests that show
its effect.

Clicks are counted, as in `test_operator_tasks.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.support.demo import fill
from tests.support.operators import Operator, Site

SCREEN = "phone"
PREPARED = """
from django_ratelimit_lua.models import RateLimitRule
RateLimitRule.objects.create(name="orders", path="/api/", key="ip", rate="3/h")
RateLimitRule.objects.create(name="user", rate="3/h")  # The scope of a DRF throttle.
"""


def test_an_operator_adds_a_lower_limit_to_a_limit_in_code(
    site: Site, operator_for: Callable[[str], Operator]
) -> None:
    """The headers have the limits in code and the new one."""
    visitor = "127.0.9.1"
    assert site.statuses("/search/", 3, visitor) == [200] * 3
    operator = operator_for("add a lower limit to that of the code")
    operator.press(".model-ratelimitrule th a")
    operator.press("a[href*='beside=search&']")
    fill(operator.browser, rate="2/5m")
    operator.press("[name=_save]")
    operator.is_done()
    assert site.statuses("/search/", 3, visitor) == [200, 200, 429]
    policies = site.ask("/search/", source=visitor).headers["RateLimit-Policy"]
    assert {("2", "300"), ("10", "1"), ("500", "3600")} <= set(
        re.findall(r"q=(\d+);w=(\d+)", policies)
    )


def test_two_rates_are_added_on_a_path(site: Site, operator_for: Callable[[str], Operator]) -> None:
    """The rates are written as in summaries, and each request needs both."""
    operator = operator_for("add two rates on a path")
    operator.press(".model-ratelimitrule .addlink")
    fill(operator.browser, name="exports", rate="4/m, 3 per 15 minutes", path="/export/")
    operator.choose("key", "ip")
    operator.press("[name=_save]")
    assert "4 per minute and 3 per 15 minutes per address, on /export/" in operator.text(
        "#result_list"
    )
    operator.is_done()
    assert site.statuses("/export/", 5, "127.0.9.2") == [200] * 3 + [429] * 2
    assert site.statuses("/export/", 3, "127.0.9.3") == [200] * 3
    policies = site.ask("/export/", source="127.0.9.2").headers["RateLimit-Policy"]
    assert {("4", "60"), ("3", "900")} <= set(re.findall(r"q=(\d+);w=(\d+)", policies))


def test_the_limit_of_one_customer_is_raised(
    site: Site, operator_for: Callable[[str], Operator]
) -> None:
    """A rule and a throttle of Django REST framework refuse. The page of the client shows both, and
    an override for each raises them. Other clients keep the limit.
    """
    customer, other = "127.0.9.4", "127.0.9.5"
    assert site.statuses("/api/", 5, customer) == [200] * 3 + [429] * 2
    operator = operator_for("raise the limit of one customer")
    operator.press(".model-client a")
    fill(operator.browser, q=customer)
    operator.press("form:has([name=q]) button")
    refusing = {
        row.find_element("css selector", "th").text.split()[0]
        for row in operator.browser.find_elements("css selector", ".ratelimit-row.refused")
    }
    assert refusing == {"orders", "user"}
    for name in sorted(refusing):
        operator.press("#site-name a")
        operator.press(".model-ratelimitoverride .addlink")
        fill(operator.browser, network=customer, rate="4/h")
        operator.choose("effect", "limit")
        operator.choose("rule", name)
        operator.press("[name=_save]")
        if name == "orders":
            operator.is_done()
    # The override has a count of its own.
    assert site.statuses("/api/", 6, customer) == [200] * 4 + [429] * 2
    assert site.statuses("/api/", 4, other) == [200] * 3 + [429]
