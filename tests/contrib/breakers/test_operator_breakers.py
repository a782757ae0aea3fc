"""An operator forces a breaker in a real browser, and real requests are stopped."""

from __future__ import annotations

from typing import Any

from tests.acceptance.test_admin_browser import complaints, fill
from tests.operators import Hand, Site

SCREEN = "desktop"


def pays(site: Site) -> list[int]:
    """Return the statuses of three payments."""
    return [site.ask("/payments/pay/", "POST").status for _ in range(3)]


def test_a_breaker_is_forced_open_and_released(site: Site, browser: Any) -> None:
    """It is forced for ten minutes, with a reason that the list and the page show first. Every
    payment is stopped until the breaker is automatic again.
    """
    assert pays(site) == [200] * 3
    hand = Hand(browser, site, "force a breaker")
    hand.press(".model-ratelimitbreaker th a")
    hand.press("payments")
    browser.find_element("css selector", "[name=how][value=open]").click()
    fill(browser, period="10m", why="the bank is down")
    hand.press(".submit-row [type=submit]")
    state = hand.text(".ratelimit-tiles > div")
    assert state.splitlines()[1].startswith("Forced open until ")
    assert state.splitlines()[2:] == ["the bank is down", "Its own state: closed"]
    assert pays(site) == [503] * 3
    hand.press(".breadcrumbs a[href$='/ratelimitbreaker/']")
    assert "Forced open until " in hand.text("tr.refusing")
    hand.press("payments")
    browser.find_element("css selector", "[name=how][value=auto]").click()
    hand.press(".submit-row [type=submit]")
    assert hand.text(".ratelimit-tiles > div").splitlines()[1:] == ["Closed"]
    assert pays(site) == [200] * 3
    assert complaints(browser) == []
