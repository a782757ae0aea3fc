"""Questions that an operator asks the statistics during an attack, in a real browser with a bounded
number of clicks. The answers match requests that the test counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from selenium.webdriver.support.wait import WebDriverWait

from tests.operators import Hand, Site, demo_site

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


def shown(hand: Hand, words: str) -> None:
    """Reload the page until it contains the text, because counts appear within a second."""

    def is_shown(page: object) -> bool:
        if words in hand.text("#content"):
            return True
        hand.browser.refresh()
        return False

    WebDriverWait(hand.browser, 20).until(is_shown)


def test_an_operator_finds_the_clients_refused_most(
    site: Site,
    hand_for: Callable[[str], Hand],
) -> None:
    """Two clients of one network and a client of another are listed with the numbers of their own
    refusals.
    """
    refused = [
        site.statuses("/address/", times, client).count(429)
        for client, times in (("127.0.9.9", 27), ("127.0.9.10", 19), ("127.0.11.1", 13))
    ]
    assert refused == [17, 9, 3]
    hand = hand_for("find the clients refused most in the last hour")
    hand.press(".app-django_ratelimit_lua caption a")
    hand.press("last hour")
    hand.is_done()
    shown(hand, "steady")
    rows = hand.browser.find_elements("css selector", "[aria-labelledby=ratelimit-who-1] tbody tr")
    numbers = [row.find_element("css selector", "td.number").text for row in rows]
    assert numbers == [str(number) for number in refused]
    tiles = hand.text(".ratelimit-tiles .refused")
    assert str(sum(refused)) in tiles


@pytest.mark.parametrize(("name", "path"), [("steady", "/address/"), ("tried out", "/trial/")])
def test_an_operator_tries_a_higher_limit_with_the_statistics(
    name: str,
    path: str,
    site: Site,
    hand_for: Callable[[str], Hand],
) -> None:
    """Of 40 requests of a client, a limit of 30 would have refused 10, also in shadow mode. If it
    is enforced, it refuses 10.
    """
    site.statuses(path, 40, "127.0.20.1")
    hand = hand_for("try another limit in the statistics, and use it")
    hand.press(".app-django_ratelimit_lua caption a")
    shown(hand, name)
    hand.press(name)
    field = hand.browser.find_element("name", "limit0")
    hand.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
    answers = {}
    for limit in ("40", "1000000", "30"):
        field.clear()
        field.send_keys(limit)
        answers[limit] = hand.text(".ratelimit-answer")
    assert answers["40"].startswith("40 per minute would have refused 0 of ")
    assert answers["1000000"].startswith("1,000,000 per minute would have refused 0 of ")
    assert answers["30"].startswith("30 per minute would have refused at most 10 of ")
    hand.press(".ratelimit-take")
    hand.press("[name=_save]")
    hand.is_done()
    refused = site.statuses(path, 40, "127.0.20.2").count(429)
    assert refused == (10 if name == "steady" else 0)


def test_without_scripts_the_page_answers_as_well(
    site: Site,
    hand_for: Callable[[str], Hand],
) -> None:
    """Without JavaScript, the form submits the limit and the server answers."""
    site.statuses("/orders/", 3, "127.0.30.1")
    hand = hand_for("without scripts")
    hand.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        hand.browser.get(
            f"{site.address}admin/ratelimit_statistics/statistics/one/?name=everything"
        )
        fill_plainly(hand, "17")
        assert hand.text(".ratelimit-answer").startswith("A burst of 17, at the same rate,")
        assert not hand.browser.find_element("css selector", "[type=range]").is_displayed()
    finally:
        hand.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def fill_plainly(hand: Hand, limit: str) -> None:
    """Enter a limit and submit the form on a page without JavaScript."""
    field = hand.browser.find_element("name", "limit0")
    field.clear()
    field.send_keys(limit)
    hand.browser.find_element("css selector", "button[form=ratelimit-choose]").click()
    WebDriverWait(hand.browser, 20).until(lambda page: f"limit0={limit}" in page.current_url)
