"""Takes the moving picture of the README, docs/screenshots/edit.webp: `make screenshots`.

An operator edits a rule of the demo in the admin, and the next requests meet the new limit. There
are six frames, each with a caption.
"""

from __future__ import annotations

import io
import sys
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.demo import await_page, fill, headless, press, run_in, set_screen, sign_in, start

FILE = Path(__file__).parent / "screenshots" / "edit.webp"
WIDTH, HEIGHT, CAPTION = 960, 560, 48
SECONDS = 2.5
REPEATS = 3
COLORS = 96
MAX_BYTES = 250_000
RULE = """
from django_ratelimit_lua.models import RateLimitRule

rule = RateLimitRule.objects.create(name="search", path="/search/", key="ip", rate="20/m")
print(rule.pk)
"""
BURST = """
const form = document.getElementById("burst");
for (const [name, value] of [["target", "search"], ["count", 8], ["spread", 0]])
    form.elements[name].value = value;
form.requestSubmit();
"""
RULES = "admin/django_ratelimit_lua/ratelimitrule/"


def send_burst(browser: Any, site: str) -> None:
    """Send eight requests from the page of the demo, and show what became of them."""
    browser.get(site)
    browser.execute_script(BURST)
    WebDriverWait(browser, 20).until(
        lambda page: (
            page.find_elements("css selector", "#limits progress")
            and not page.find_elements("css selector", "#burst button:disabled")
        )
    )
    show(browser, "#summary")


def show(browser: Any, selector: str) -> None:
    """Scroll so that an element is near the top."""
    element = browser.find_element("css selector", selector)
    browser.execute_script("scrollTo(0, arguments[0].offsetTop - 24)", element)


def frames(browser: Any, site: str, rule: str) -> Iterator[str]:
    """Open each page of the story. Yields the caption of the page that is open."""
    send_burst(browser, site)
    yield "1. The limit is 20 a minute. Eight requests are admitted."
    browser.get(f"{site}{RULES}?q=search")
    yield "2. An operator opens the rules in the Django admin ..."
    link = browser.find_element("css selector", f"a[href$='{rule}/change/']")
    await_page(browser, link.click)
    yield "3. ... and the rule of the search."
    fill(browser, rate="9/m")
    browser.execute_script("scrollTo(0, 0)")
    yield "4. Nine a minute are enough."
    press(browser, "[name=_save]")
    yield "5. Saved. No process is restarted."
    send_burst(browser, site)
    yield "6. The next requests: eight of nine are used, so one is admitted."


def take(browser: Any, caption: str) -> Image.Image:
    """Return the page that is open, with its caption below it."""
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {})
    page = Image.open(io.BytesIO(b64decode(shot["data"]))).convert("RGB")
    frame = Image.new("RGB", (WIDTH, HEIGHT + CAPTION), "#0c4b33")
    frame.paste(page.crop((0, 0, WIDTH, HEIGHT)))
    font = ImageFont.load_default(22)
    ImageDraw.Draw(frame).text((20, HEIGHT + 12), caption, "white", font)
    return frame.quantize(COLORS, dither=Image.Dither.NONE).convert("RGB")


def main() -> None:
    """Take the frames, and write the picture. Exits with 1 if it is too large."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = folder / "db.sqlite3"
        process, site, redis_url = start(
            EXAMPLE_DATABASE=str(database), DJANGO_SETTINGS_MODULE="docs.screenshots_settings"
        )
        stack.callback(process.communicate, timeout=20)
        stack.callback(process.terminate)
        rule = run_in(database, redis_url, RULE)
        browser = headless(folder / "profile")
        stack.callback(browser.quit)
        sign_in(browser, site)
        browser.get(site)
        browser.execute_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
        set_screen(browser, WIDTH, HEIGHT)
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        first, *others = [take(browser, caption) for caption in frames(browser, site, rule)]
    first.save(
        FILE,
        save_all=True,
        append_images=others,
        duration=round(SECONDS * 1000),
        loop=REPEATS,
        lossless=True,
        method=6,
    )
    size = FILE.stat().st_size
    print(f"{FILE.name}: {len(others) + 1} frames, {size:,} bytes")
    if size > MAX_BYTES:
        sys.exit(f"larger than {MAX_BYTES:,} bytes: {FILE.name}")


if __name__ == "__main__":
    main()
