"""An operator's work with bans and slots in a real browser, verified by real requests."""

from __future__ import annotations

from collections.abc import Callable

from tests.acceptance.test_admin_browser import complaints, fill
from tests.operators import Hand, Site

SCREEN = "desktop"
PREPARED = """
from django_ratelimit_lua.models import RateLimitRule
RateLimitRule.objects.create(name="growing", path="/address/", key="ip", limit=1, unit="m")
RateLimitRule.objects.create(
    name="flood", path="/clock/", key="ip", limit=1, unit="m", ban_after=2, ban_for="10m"
)
RateLimitRule.objects.filter(name="reports at once").update(limit=3)
"""
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.long_reports_settings"}
ATTACKER, NETWORK = "127.0.9.9", "127.0.9.0/24"
MINUTE, HOUR, DAY = 60, 3600, 86_400


def is_banned_for(site: Site, seconds: int) -> bool:
    """Return whether the attacker is banned for this time, after at most two requests."""
    answers = [site.ask("/address/", source=ATTACKER) for _ in range(2)]
    assert answers[-1].status == 429
    return seconds - 30 < int(answers[-1].headers["Retry-After"]) <= seconds


def test_repeated_bans_grow(site: Site, hand_for: Callable[[str], Hand]) -> None:
    """The operator sets bans of 10 minutes, an hour and a day. A client that offends again after an
    unban is banned for longer, unless earlier bans are forgotten.
    """
    assert site.ask("/address/", source=ATTACKER).status == 200
    hand = hand_for("bans that grow")
    hand.press(".model-ratelimitrule th a")
    hand.press("growing")
    folded = "//*[@name='ban_after']/ancestor::details[not(@open)]/summary"
    for summary in hand.browser.find_elements("xpath", folded):
        summary.click()
    fill(hand.browser, ban_after="1", ban_for="10m,1h,1d")
    hand.press("[name=_save]")
    hand.press(".model-bans a" if site.width > 1000 else ".breadcrumbs a")
    if site.width < 1000:
        hand.press(".model-bans th a")
    for length in (10 * MINUTE, HOUR, DAY):
        assert is_banned_for(site, length)
        hand.browser.refresh()
        assert NETWORK in hand.text("#content-main tbody th")
        last = "lift" if length < DAY else "forget"
        hand.press(f"button[value^='{last}:']:not([value$='selected'])")
        assert "is lifted" in hand.text(".messagelist")
    assert is_banned_for(site, 10 * MINUTE)
    assert complaints(hand.browser) == []


def test_the_bans_of_a_network_are_lifted_together(
    site: Site, hand_for: Callable[[str], Hand]
) -> None:
    """The bans are found by a search. Other clients stay banned."""
    office = [f"127.0.11.{number}" for number in range(1, 5)]
    for address in (*office, "127.0.12.1"):
        assert site.statuses("/clock/", 3, address)[-1] == 429
    hand = hand_for("lift the bans of a network")
    hand.press(".model-bans th a")
    fill(hand.browser, q="127.0.11.0/24")
    hand.press("[role=search] button")
    assert hand.text("#ratelimit-banned") == "4 bans are found."
    hand.browser.find_element("css selector", "#content-main input[name=ban]").click()
    hand.press("button[value='lift:selected']")
    assert "1 ban is lifted." in hand.text(".messagelist")
    hand.press("button[value='lift:all']")
    assert hand.text(".ratelimit-confirm h2") == "Lift 3 bans?"
    hand.press(".ratelimit-confirm button[value='lift:all']")
    assert "3 bans are lifted." in hand.text(".messagelist")
    waits = [int(site.ask("/clock/", source=each).headers["Retry-After"]) for each in office]
    assert max(waits) <= MINUTE
    banned = site.ask("/clock/", source="127.0.12.1")
    assert int(banned.headers["Retry-After"]) > MINUTE
    assert complaints(hand.browser) == []
