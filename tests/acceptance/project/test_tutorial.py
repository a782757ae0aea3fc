"""The tutorial works as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.demo import CHROMIUM, DRIVER
from tests.tools.tutorial import follow


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
