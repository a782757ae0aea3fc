"""Questions that an operator asks the statistics during an attack, in a real browser with a bounded
number of clicks. The answers match requests that the test counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.operators import Operator, Site, demo_site

USERS = """
from django.contrib.auth.models import User
from django.core.management import call_command
call_command("migrate", verbosity=0)
User.objects.create_superuser("grace", password="hopper")
"""
SCREEN = "phone"
PREPARED = """
from django_ratelimit_lua.models import RateLimitRule
for name, path, mode in (
    ("steady", "/address/", "enforce"),
    ("tried out", "/trial/", "shadow"),
    ("logged", "/export/", "enforce"),
):
    RateLimitRule.objects.create(name=name, path=path, key="ip", rate="10/m", mode=mode)
"""


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A demo without sample statistics, which it creates only with its users."""
    with demo_site(request, tmp_path_factory, USERS) as running:
        yield running


def shown(operator: Operator, words: str) -> None:
    """Reload the page until it contains the text, because counts appear within a second."""

    def is_shown(page: object) -> bool:
        if words in operator.text("#content"):
            return True
        operator.browser.refresh()
        return False

    WebDriverWait(operator.browser, 20).until(is_shown)


def test_an_operator_finds_the_clients_refused_most(
    site: Site,
    operator_for: Callable[[str], Operator],
) -> None:
    """Two clients of one network and a client of another are listed with the numbers of their own
    refusals.
    """
    refused = [
        site.statuses("/address/", times, client).count(429)
        for client, times in (("127.0.9.9", 27), ("127.0.9.10", 19), ("127.0.11.1", 13))
    ]
    assert refused == [17, 9, 3]
    operator = operator_for("find the clients refused most in the last hour")
    operator.press("Overview")
    operator.press("last hour")
    operator.is_done()
    shown(operator, "steady")
    rows = operator.browser.find_elements(
        "css selector", "[aria-label='Clients refused most'] tbody tr"
    )
    numbers = [row.find_element("css selector", "td.number").text for row in rows]
    assert numbers == [str(number) for number in refused]
    tiles = operator.text(".ratelimit-tiles .refused")
    assert str(sum(refused)) in tiles
