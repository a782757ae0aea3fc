"""The pages of the statistics in a real browser: the refresh, and the slider on the curve."""

from __future__ import annotations

import re
from typing import Any

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.wait import WebDriverWait

from tests.acceptance.test_admin_browser import PAGES, complaints, sign_in, status

OVERVIEW = PAGES["statistics"]
HIDDEN = """
Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true});
const started = [], before = window.setTimeout;
window.setTimeout = (...what) => { started.push(what[1]); return before(...what); };
document.dispatchEvent(new Event("visibilitychange"));
window.setTimeout = before;
return started.length;
"""
SOON = """
document.querySelector(".ratelimit-fresh").dataset.every = "0.2";
document.querySelector(".ratelimit-fresh input").dispatchEvent(new Event("change"));
"""


def requests_of(browser: Any, name: str) -> int:
    """Return the number of requests that the overview shows for a name."""
    for row in browser.find_elements("css selector", "[aria-labelledby=ratelimit-rows] tbody tr"):
        cells = row.find_elements("css selector", "td[data-label=requests]")
        if row.find_element("css selector", "th a").text == name and cells:
            return int(cells[0].text.replace(",", ""))
    return 0


def test_the_overview_refreshes_itself_until_the_session_ends(browser: Any, demo: str) -> None:
    """New requests appear without a click. A hidden page does not refresh, and when the session has
    ended, the page reports it once without a script error.
    """
    sign_in(browser, demo)
    browser.get(demo + OVERVIEW)
    before = requests_of(browser, "example_project.views.clock")
    link = browser.find_element("css selector", "#ratelimit-live thead a")
    assert [status(f"{demo}clock/") for _ in range(3)] == [200] * 3
    browser.execute_script(SOON)
    wait = WebDriverWait(browser, 30)
    wait.until(staleness_of(link))
    wait.until(
        lambda page: page.execute_script(
            "return document.querySelector('.ratelimit-fresh "
            "[role=status]').textContent.startsWith('updated')"
        )
    )
    browser.execute_script("document.querySelector('.ratelimit-fresh').dataset.every = '1000'")
    browser.refresh()
    assert requests_of(browser, "example_project.views.clock") == before + 3
    assert browser.execute_script(HIDDEN, True) == 0
    assert browser.execute_script(HIDDEN, False) == 1
    browser.delete_all_cookies()
    browser.execute_script(SOON)
    wait.until(
        lambda page: (
            "not signed in any more" in page.find_element("class name", "ratelimit-fresh").text
        )
    )
    assert not browser.find_element("css selector", ".ratelimit-fresh input").is_enabled()
    assert browser.execute_script(HIDDEN, False) == 0
    assert complaints(browser) == []


def test_a_refresh_keeps_the_focus(browser: Any, demo: str) -> None:
    """The focused element is replaced by the refresh, and its replacement gets the focus."""
    sign_in(browser, demo)
    browser.get(demo + OVERVIEW)
    link = browser.find_element("css selector", "#ratelimit-live thead .column-refused a")
    browser.execute_script("arguments[0].focus()", link)
    href = browser.execute_script("return document.activeElement.getAttribute('href')")
    browser.execute_script(SOON)
    WebDriverWait(browser, 30).until(staleness_of(link))
    browser.execute_script("document.querySelector('.ratelimit-fresh').dataset.every = '1000'")
    assert browser.execute_script("return document.activeElement.getAttribute('href')") == href


def test_a_slider_moves_along_the_curve(browser: Any, demo: str) -> None:
    """The slider works by the keyboard. The text equals the server's text without JavaScript, the
    line moves to the limit, and the link fills the limit in.
    """
    sign_in(browser, demo)
    assert [status(f"{demo}search/") for _ in range(4)] == [200] * 4
    page = f"{demo}{OVERVIEW}one/?name=search&period=hour"
    browser.get(page)
    box = browser.find_element("class name", "ratelimit-choose")
    slider = box.find_element("css selector", "[type=range]")
    assert slider.is_displayed()
    line = box.find_element("css selector", "line.chosen")
    at = line.get_attribute("x1")
    slider.send_keys(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    limit = box.find_element("css selector", "[type=number]").get_attribute("value")
    assert limit == "2"
    said = box.find_element("class name", "ratelimit-answer").text
    assert said.startswith("2 per second would have refused")
    assert re.search(
        r"limit=2$", box.find_element("class name", "ratelimit-take").get_attribute("href")
    )
    assert line.get_attribute("x1") != at
    assert slider.get_attribute("aria-valuetext") == "2"
    number, link = (
        box.find_element("css selector", "[type=number]"),
        box.find_element("class name", "ratelimit-take"),
    )
    for typed, is_one in (
        ("999999999", True),
        ("2", True),
        ("-5", False),
        ("", False),
        ("2.5", False),
    ):
        browser.execute_script("arguments[0].value = ''", number)
        number.send_keys(typed or "1", *([] if typed else [Keys.BACKSPACE]))
        assert link.is_displayed() is is_one, typed
        assert (
            "would have refused" in box.find_element("class name", "ratelimit-answer").text
        ) is is_one, typed
    slider.send_keys(Keys.HOME)
    assert link.is_displayed()
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(f"{page}&limit0=2")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    box = browser.find_element("class name", "ratelimit-choose")
    assert box.find_element("class name", "ratelimit-answer").text == said
    assert not box.find_element("css selector", "[type=range]").is_displayed()
    assert complaints(browser) == []
