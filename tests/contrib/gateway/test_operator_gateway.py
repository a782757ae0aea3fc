"""An operator creates a client of the gateway in a real browser, and runs the command on
the page.
"""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.acceptance.test_admin_browser import complaints, fill
from tests.operators import Hand, Site

SCREEN = "phone"
PREPARED = """
from django_ratelimit_lua.models import RateLimitRule
RateLimitRule.objects.create(name="mail", group="mail", key="user", limit=3, unit="h")
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="NO CURL TEST: curl is not installed")
def test_a_client_of_the_gateway_is_made_and_used_by_curl(site: Site, browser: object) -> None:
    """The command takes a unit, and after three of them the limit refuses. The token is refused for
    another limit.
    """
    hand = Hand(browser, site, "make a client of the gateway")
    hand.press(".model-ratelimitclient .addlink")
    fill(hand.browser, name="shop", limits="mail")
    hand.press("[name=_save]")
    command = hand.text("pre.ratelimit-token")
    assert complaints(hand.browser) == []
    answers = [run(command) for _ in range(4)]
    assert [answer["allowed"] for answer in answers] == [True, True, True, False]
    assert [answer["decisions"][0]["remaining"] for answer in answers] == [2, 1, 0, 0]
    assert run(command.replace('"mail"', '"api"'))["status"] == 403
    assert hand.clicks == 2
    hand.press("Done")
    hand.press("shop")
    token = command.partition("Bearer ")[2].partition("'")[0]
    assert token.startswith("rl_")
    assert token not in hand.browser.page_source


def run(command: str) -> dict[str, object]:
    """Run a command in a shell, and return the JSON that it prints."""
    done = subprocess.run(
        ["bash", "-c", f"{command} --silent"], capture_output=True, text=True, check=True
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer
