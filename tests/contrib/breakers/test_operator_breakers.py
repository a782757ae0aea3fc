"""An operator forces a breaker in a real browser, and real requests are stopped."""

from __future__ import annotations

from typing import Any

from tests.acceptance.admin.test_admin_browser import complaints
from tests.support.operators import Hand, Site

SCREEN = "desktop"


def pays(site: Site) -> list[int]:
    """Return the statuses of three payments."""
    return [site.ask("/payments/pay/", "POST").status for _ in range(3)]


def test_a_breaker_is_forced_open_and_released(site: Site, browser: Any) -> None:
    """Every payment is stopped until the breaker is automatic again."""
    assert pays(site) == [200] * 3
    hand = Hand(browser, site, "force a breaker")
    hand.press(".model-ratelimitbreaker th a")
    hand.press("[name=forced][value=open]")
    assert hand.text("#content-main tbody tr").startswith("payments closed open")
    assert pays(site) == [503] * 3
    hand.press("[name=forced][value='']")
    assert "automatic" in hand.text("#content-main tbody tr")
    assert pays(site) == [200] * 3
    assert complaints(browser) == []
