"""The demo as a real process, in a real browser if there is one."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import http_sf
import pytest
import redis
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.demo import CHROMIUM, DRIVER, screenshot, start
from tests.support.redis_server import url
from tests.tools.tutorial import follow


def answers(address: str) -> bool:
    try:
        with redis.Redis.from_url(address) as connection:
            return bool(connection.ping())
    except redis.ConnectionError:
        return False


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_demos_redis_ends_with_the_demo(signal_number: int) -> None:
    """This holds after Ctrl-C, SIGTERM and SIGKILL."""
    process, _, address = start()
    assert answers(address)
    process.send_signal(signal_number)
    process.communicate(timeout=20)
    for _ in range(100):
        if not answers(address):
            return
        time.sleep(0.05)
    pytest.fail("the embedded server outlived the demo")


def test_the_demo_uses_an_existing_redis_and_does_not_stop_it() -> None:
    """Its address is in `REDIS_URL`."""
    process, _, address = start(REDIS_URL=url())
    assert address == url()
    process.terminate()
    process.communicate(timeout=20)
    assert answers(url())


def burst(browser: Any, target: str, count: int) -> str:
    browser.find_element("css selector", f"input[value='{target}']").click()
    for field, value in (("count", count), ("spread", 0)):
        browser.execute_script(
            "const f = document.getElementById(arguments[0]); f.value = arguments[1];"
            "f.dispatchEvent(new Event('input', {bubbles: true}));",
            field,
            value,
        )
    browser.find_element("css selector", "#burst button").click()
    for _ in range(300):
        summary = browser.find_element("id", "summary").text
        if (
            "to come" not in summary
            and browser.find_element("css selector", "#burst button").is_enabled()
        ):
            return str(summary)
        time.sleep(0.05)
    raise AssertionError(summary)


@pytest.mark.alone
def test_the_demo_shows_how_many_requests_were_allowed(browser: Any, demo: str) -> None:
    """No target causes an error in the console, and the page fits a phone."""
    browser.set_window_size(1280, 1000)
    browser.get(demo)
    expected = {
        "login": "5 admitted, 7 refused.",
        "export": "10 admitted, 2 refused.",
        "webhook": "12 admitted, 11 of them waiting their turn, 0 refused.",
        "clock": "12 admitted, 0 refused.",
        "api": "5 admitted, 7 refused.",
        "wp-login.php": "8 admitted, 4 refused.",
        "search": "10 admitted, 2 refused.",
    }
    for target, summary in expected.items():
        assert burst_at_once(browser, target, 12, summary) == summary, target
        assert len(browser.find_elements("css selector", "#plot .mark")) == 12
    refused = browser.find_element("css selector", "#plot .mark.refused")
    assert "refused by 10/s; it would fit in" in refused.get_attribute("aria-label")
    for size in ((1280, 1000), (390, 844)):
        browser.set_window_size(*size)
        assert browser.execute_script(
            "return document.documentElement.scrollWidth <= window.innerWidth"
        )
        browser.execute_script("window.scrollTo(0, 0)")
        height = browser.execute_script("return document.documentElement.scrollHeight")
        browser.set_window_size(size[0], height + 140)
        screenshot(browser, f"home-{size[0]}")
    messages = [entry["message"] for entry in browser.get_log("browser")]
    assert [text for text in messages if "status of 4" not in text] == []


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desktop", "phone"])
def test_the_demo_shows_the_counted_address_and_the_reason(
    size: tuple[int, int], browser: Any, demo: str
) -> None:
    """It helps to configure a proxy."""
    browser.set_window_size(*size)
    browser.get(demo + "address/")
    text = browser.find_element("tag name", "main").text
    assert "You are counted as 127.0.0.1" in text
    assert "Because it is REMOTE_ADDR; no proxy is trusted." in text
    assert browser.execute_script(
        "return document.documentElement.scrollWidth <= window.innerWidth"
    )
    screenshot(browser, f"address-{size[0]}")


def test_the_browsable_api_shows_the_remaining_units(browser: Any, demo: str) -> None:
    """The page is the browsable API, and its headers have throttles and rules together."""
    browser.get(demo)
    forget(browser)
    browser.get(demo + "api/")
    assert "one decision about both" in browser.page_source
    with urllib.request.urlopen(demo + "api/") as response:
        policies = response.headers["RateLimit-Policy"].encode()
    names = [name for name, _ in http_sf.parse(policies, tltype="list")]
    assert names == ["everything", "anon", "user"]


def burst_at_once(browser: Any, target: str, count: int, expected: str) -> str:
    """Send a burst with empty counts, again if a busy machine spreads it over seconds."""
    for _ in range(3):
        forget(browser)
        found = burst(browser, target, count)
        if found == expected:
            break
    return found


def forget(browser: Any) -> None:
    browser.execute_script("document.getElementById('summary').textContent = ''")
    browser.find_element("id", "reset").click()
    WebDriverWait(browser, 20).until(
        lambda page: "forgotten" in page.find_element("id", "summary").text
    )


@pytest.mark.browser
@pytest.mark.skipif(
    not CHROMIUM or not DRIVER,
    reason="NO TUTORIAL: chromium and chromedriver are not installed (Debian: chromium, "
    "chromium-driver)",
)
def test_the_tutorial_leads_to_a_429_an_edited_rule_and_statistics(tmp_path: Path) -> None:
    """It is followed in an empty folder, with a server, a site and a browser."""
    assert list(follow(tmp_path)) == [
        "the first 429",
        "the first request after an edited rule",
        "the first statistics page",
    ]
