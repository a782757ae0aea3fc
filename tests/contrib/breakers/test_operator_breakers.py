"""An operator forces a breaker in a real browser, and real requests are stopped."""

from __future__ import annotations

from typing import Any

from tests.support.demo import script_errors
from tests.support.operators import Operator, Site

SCREEN = "desktop"


def pays(site: Site) -> list[int]:
    """Return the statuses of three payments."""
    return [site.ask("/payments/pay/", "POST").status for _ in range(3)]


def test_a_breaker_is_forced_open_and_released(site: Site, browser: Any) -> None:
    """Every payment is stopped until the breaker is automatic again."""
    assert pays(site) == [200] * 3
    operator = Operator(browser, site, "force a breaker")
    operator.press(".model-ratelimitbreaker th a")
    operator.press("[name=forced][value=open]")
    assert operator.text("#content-main tbody tr").startswith("payments closed open")
    assert pays(site) == [503] * 3
    operator.press("[name=forced][value='']")
    assert "automatic" in operator.text("#content-main tbody tr")
    assert pays(site) == [200] * 3
    assert script_errors(browser) == []
