"""An operator's work under pressure in a real browser, with a counted number of clicks, verified by
real requests. See `tests/support/operators.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from selenium.webdriver.support.wait import WebDriverWait

from tests.support.demo import fill
from tests.support.operators import Operator, Site

SCREEN = "desktop"
PREPARED = """
import datetime
from django.utils import timezone
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
rule = RateLimitRule.objects.create(name="addresses", path="/address/", key="ip", rate="2/h")
RateLimitChange.objects.filter(object_id=rule.pk).update(at=timezone.now() - datetime.timedelta(days=1))
rule.rate = "100/h"
rule.save()
RateLimitRule.objects.create(name="tried out", path="/clock/", key="ip", rate="2/h", mode="shadow")
"""  # noqa: E501


def test_an_operator_lowers_a_limit_in_the_code(
    site: Site, operator_for: Callable[[str], Operator]
) -> None:
    """500 per hour become 4. The headers still have the 10 per second of the same call site."""
    assert site.statuses("/search/", 5) == [200] * 5
    operator = operator_for("lower a limit of the code")
    operator.press(".model-ratelimitrule th a")
    operator.press("a[href*='instead=search&']")
    fill(operator.browser, rate="10/s, 4/h")
    operator.press("[name=_save]")
    operator.is_done()
    assert (
        site.statuses("/search/", 2) == [429] * 2
    )  # The rule goes on with the five that were counted.
    policies = site.ask("/search/").headers["RateLimit-Policy"]
    assert {("10", "1"), ("4", "3600")} <= set(re.findall(r"q=(\d+);w=(\d+)", policies))


def test_an_operator_unlocks_a_customer_at_the_login(
    site: Site, operator_for: Callable[[str], Operator]
) -> None:
    """The name and the address are entered, and the right password works afterwards."""
    customer = "127.0.3.3"
    guesses = [
        site.ask("/login/", "POST", customer, username="ada", password="guess").status
        for _ in range(6)
    ]
    assert guesses == [200] * 5 + [429]
    assert site.ask("/login/", "POST", customer, username="ada", password="lovelace").status == 429
    operator = operator_for("unblock a customer locked out at login")
    operator.press(".model-client a")
    fill(operator.browser, q=f"{customer} + ada")
    operator.press("form:has([name=q]) button")
    assert "Refused by" in operator.text("#found")
    operator.press("button[value=reset]")
    assert "Refused" not in operator.text("#found")
    operator.is_done()
    assert site.ask("/login/", "POST", customer, username="ada", password="lovelace").status == 302


def test_an_operator_blocks_a_network_for_an_hour(
    site: Site, operator_for: Callable[[str], Operator]
) -> None:
    """Every client in the network is refused immediately on every path. Another network is not."""
    assert site.ask("/", source="127.0.4.4").status == 200
    operator = operator_for("block a network for an hour")
    operator.press(".model-ratelimitoverride .addlink")
    fill(operator.browser, network="127.0.4.0/24")
    operator.choose("effect", "block")
    operator.choose("duration", "3600")
    operator.press("[name=_save]")
    assert "until" in operator.text("#result_list .field-lasts")
    operator.is_done()
    blocked = site.ask("/", source="127.0.4.4")
    assert blocked.status == 429
    assert 3500 < int(blocked.headers["Retry-After"]) <= 3600
    assert site.ask("/", source="127.0.5.4").status == 200


def test_an_operator_takes_over_a_rule_of_the_settings(
    site: Site, operator_for: Callable[[str], Operator]
) -> None:
    """Only the numbers change: the rule still limits scanners, and no other client."""
    scanner = "127.0.7.7"
    assert site.statuses("/wp-login.php", 3, scanner) == [404] * 3
    operator = operator_for("take over a rule of the settings")
    operator.press(".model-ratelimitrule th a")
    operator.press("a[href$='settings=scanners']")
    fill(operator.browser, rate="2/h")
    operator.press("[name=_save]")
    operator.is_done()
    assert site.statuses("/wp-login.php", 3, "127.0.7.8") == [404, 404, 429]
    assert site.statuses("/old/index.php", 1, "127.0.7.8") == [429]
    assert site.statuses("/", 3, "127.0.7.8") == [200] * 3


def test_an_operator_undoes_a_change(site: Site, operator_for: Callable[[str], Operator]) -> None:
    """The change is found in the history. What was before it applies to the next request."""
    assert site.statuses("/address/", 3) == [200] * 3
    operator = operator_for("undo a change of a rule")
    operator.press(".model-ratelimitchange th a")
    rows = operator.browser.find_elements("css selector", "#result_list tbody tr")
    (raised,) = [row for row in rows if "2 per hour → 100 per hour" in row.text]
    operator.press_on(raised.find_element("css selector", "th a"))
    operator.press(".ratelimit-tool button")
    assert "is as it was before the change: 2 per hour" in operator.text(".messagelist")
    operator.is_done()
    assert site.statuses("/address/", 1) == [429]


def test_an_operator_checks_and_enforces_a_shadow_rule(
    site: Site, operator_for: Callable[[str], Operator]
) -> None:
    """The list shows the number of requests that the rule would have refused."""
    assert site.statuses("/clock/", 3) == [200] * 3
    assert site.statuses("/clock/", 1, "127.0.8.8") == [200]
    operator = operator_for("check and enforce a rule in shadow mode")
    operator.press(".model-ratelimitrule th a")
    row = "#result_list tr:has([href='limit/?name=tried%20out'])"

    def judged(page: Any) -> bool:
        # Numbers come within a second; until then, the page is loaded again.
        if "would be refused: 1" in operator.text(row):
            return True
        page.refresh()
        return False

    WebDriverWait(operator.browser, 20).until(judged)
    operator.press(f"{row} .field-edit a")
    operator.choose("mode", "enforce")
    operator.press("[name=_save]")
    operator.is_done()
    assert site.statuses("/clock/", 1) == [429]
    assert site.statuses("/clock/", 1, "127.0.8.8") == [200]
