"""An operator's work on a phone, in a real browser, with a counted number of clicks, verified by
real requests. See `tests/support/operators.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from selenium.webdriver.support.wait import WebDriverWait

from tests.support.demo import fill
from tests.support.operators import Operator, Site

SCREEN = "phone"
ENVIRONMENT = {"EXAMPLE_SHOW_IDENTITIES": "masked"}
PREPARED = """
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitRule
RateLimitRule.objects.create(name="orders", path="/api/", key="ip", rate="3/h")
RateLimitRule.objects.create(name="user", rate="3/h")  # The scope of a DRF throttle.
RateLimitRule.objects.create(name="tried out", path="/clock/", key="ip", rate="2/h", mode="shadow")
RateLimitRule.objects.create(name="addresses", path="/address/", key="ip", rate="2/h")
of = lambda address: digest(("ip", address)).decode()
print(*[of(f"127.0.9.{number}") for number in (1, 2, 3)])
"""
NEIGHBOURS = ("127.0.9.1", "127.0.9.2", "127.0.9.3")


def test_a_refusal_is_explained_from_its_reference(
    site: Site, operator_for: Callable[[str], Operator]
) -> None:
    """The page shows the time, the limit, the client's counts and its refusals."""
    visitor = "127.0.6.7"
    answers = [
        site.ask("/login/", "POST", visitor, username="eve", password="guess") for _ in range(8)
    ]
    refused = [answer for answer in answers if answer.status == 429]
    assert len(refused) == 3
    operator = operator_for("explain a refusal by its reference")
    operator.press(".model-client a")
    fill(operator.browser, q=json.loads(refused[-1].body)["reference"].replace("-", "").lower())

    def is_linked(page: object) -> bool:
        # Numbers come within a second; until then, the page is loaded again.
        if operator.browser.find_elements("css selector", ".ratelimit-client a"):
            return True
        operator.browser.refresh()
        return False

    operator.press("form:has([name=q]) button")
    WebDriverWait(operator.browser, 20).until(is_linked)
    assert "Refused, " in operator.text("#opened")
    assert "5 per 15 minutes" in operator.text("section:has(#opened)")
    operator.press(".ratelimit-client a")
    assert "5 of 5 used" in operator.text("#found")
    (row,) = operator.browser.find_elements(
        "css selector", "section:has(#ratelimit-record-1) tbody tr"
    )
    assert "Login" in row.text
    assert row.find_elements("css selector", "td")[0].text == "3"
    operator.is_done()


def test_one_of_several_clients_of_a_masked_network_is_blocked(
    site: Site, operator_for: Callable[[str], Operator]
) -> None:
    """The rows have one name and several digests, and only the chosen client is refused."""
    digests = site.printed.split()
    for number, address in enumerate(NEIGHBOURS, start=3):
        assert site.statuses("/address/", number, address) == [200, 200] + [429] * (number - 2)
        assert site.statuses("/", 1, address) == [200]
    operator = operator_for("block one of several clients of a masked network")
    operator.press(".model-overview a")

    def is_counted(page: object) -> bool:
        found = operator.browser.find_elements("css selector", "a[href*='name=addresses']")
        if not found:
            operator.browser.refresh()
        return bool(found)

    WebDriverWait(operator.browser, 20).until(is_counted)
    operator.press("a[href*='name=addresses']")
    names = [
        row.text
        for row in operator.browser.find_elements("css selector", "tr:has([href$='ask=block']) th")
    ]
    assert all(name.startswith("127.0.9.0/24") for name in names)
    assert len(set(names)) == 3
    operator.press(f"a[href*='{digests[1]}'][href$='ask=block']")
    assert digests[1][:12] in operator.text(".ratelimit-confirm h2")
    operator.press(".ratelimit-confirm button")
    assert "Blocked by an override until" in operator.text("#found")
    operator.is_done()
    assert [site.statuses("/", 1, address) for address in NEIGHBOURS] == [[200], [429], [200]]


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
    assert site.statuses("/export/", 5, "127.0.10.2") == [200] * 3 + [429] * 2
    assert site.statuses("/export/", 3, "127.0.10.3") == [200] * 3
    policies = site.ask("/export/", source="127.0.10.2").headers["RateLimit-Policy"]
    assert {("4", "60"), ("3", "900")} <= set(re.findall(r"q=(\d+);w=(\d+)", policies))


def test_the_limit_of_one_customer_is_raised(
    site: Site, operator_for: Callable[[str], Operator]
) -> None:
    """A rule and a throttle of Django REST framework refuse."""
    customer, other = "127.0.10.4", "127.0.10.5"
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
