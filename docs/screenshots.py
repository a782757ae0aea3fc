"""Takes the pictures of the operator's guide, docs/screenshots/*.png: `make screenshots`.

The pages are those of the demo, in headless Chromium, in light and dark. The demo makes up the
statistics of two weeks. A few clients send real requests, and two operators make changes.
"""

from __future__ import annotations

import http.client
import io
import re
import sys
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from PIL import Image
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.demo import await_page, fill, headless, run_in, set_screen, sign_in, start

FOLDER = Path(__file__).parent / "screenshots"
ADMIN = "admin/django_ratelimit_lua/"
WIDTH, HEIGHT = 1280, 1000
MARGIN = 24
MAX_BYTES = 100_000
COLORS = 128
ATTACKERS = ("203.0.113.6", "203.0.113.7", "203.0.113.8")
VISITOR = "198.51.100.23"
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
SCRIPT = "python-requests/2.32.3"
CHANGES = """
import datetime
from django.utils import timezone
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.models.audit import acting

now = timezone.now()
api = RateLimitRule.objects.get(name="api")


def record(user, hours, row, **values):
    newest = RateLimitChange.objects.order_by("-pk").first().pk
    with acting(user):
        for name, value in values.items():
            setattr(row, name, value)
        row.save()
    changes = RateLimitChange.objects.filter(pk__gt=newest)
    changes.update(at=now - datetime.timedelta(hours=hours))


record("alan", 170, api, description="Users who pay get more.")
(tier,) = api.options["tiers"]
for user, hours, rate in (("alan", 27, "300/m"), ("grace", 26, "600/m")):
    record(user, hours, api, options={**api.options, "tiers": [{**tier, "rate": rate}]})
record("grace", 5, api, message="You may send 60 requests a minute.")
until = now + datetime.timedelta(days=30)
scraper = RateLimitOverride(network="192.0.2.0/24", effect="block", ends=until, reason="scraper")
record("alan", 3, scraper, created_by="alan")
partner = RateLimitOverride(
    network="198.51.100.80", effect="limit", rule=api.name, rate="200/m", reason="partner"
)
record("grace", 2, partner, created_by="grace")
print(api.pk)
"""

RECTANGLE = """
const [selector, height] = arguments;
const rectangle = element => element.getBoundingClientRect();
const shown = document.querySelector(selector || "#content");
const top = selector ? rectangle(shown).top + scrollY - 24 : 0;
const ends = [...shown.querySelectorAll("tr, p, li, figure, form, fieldset")]
    .filter(element => element.checkVisibility({contentVisibilityAuto: true}))
    .map(element => rectangle(element).bottom + scrollY)
    .filter(bottom => bottom <= top + height);
return [top, Math.max(...ends)];
"""


class Picture(NamedTuple):
    """A picture: its name, the page, and optionally the element to show and a preparation."""

    name: str
    path: str
    selector: str = ""
    prepare: Callable[[Any], object] = lambda browser: None
    height: int = HEIGHT
    """The maximum height. The picture ends with the last row or paragraph that fits."""


class Client(NamedTuple):
    """A client that sends requests to the demo through a proxy."""

    site: str
    address: str
    agent: str

    def send(self, path: str, **form: str) -> int:
        """Send a request, or a form if fields are given. Returns the status."""
        headers = {
            "X-Forwarded-For": self.address,
            "User-Agent": self.agent,
            "Accept": "application/json",
        }
        connection = http.client.HTTPConnection(urlsplit(self.site).netloc)
        method = "GET"
        if form:
            method = "POST"
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            response.read()
            token = re.search(r"csrftoken=(\w+)", response.headers["Set-Cookie"] or "")
            assert token is not None
            form["csrfmiddlewaretoken"] = token[1]
            headers["Cookie"] = token[0]
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path, urlencode(form), headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status


def send_traffic(site: str) -> None:
    """Let three clients guess passwords until they are banned, and lock out a visitor."""
    for number, address in enumerate(ATTACKERS):
        attacker = Client(site, address, SCRIPT)
        guesses = [attacker.send("/login/", username="admin", password="123456") for _ in range(11)]
        assert guesses == [200] * 5 + [429] * 6, guesses
        for _ in range(6 + 4 * number):
            attacker.send("/wp-login.php")
    visitor = Client(site, VISITOR, BROWSER)
    for _ in range(3):
        visitor.send("/search/")
    for _ in range(7):
        visitor.send("/login/", username="ada", password="lovelace1")


def rule_form(browser: Any) -> None:
    """Lower a limit in the form of a rule, and wait for the plot."""
    fill(browser, rate="5/m")
    WebDriverWait(browser, 20).until(lambda page: "requests at once, 5 are" in page.page_source)


def open_client(browser: Any) -> None:
    """Open the client that is an address with a user name, if the search found several."""
    links = browser.find_elements("partial link text", "address and post:username")
    if links:
        await_page(browser, links[0].click)


def pictures(api: str) -> Iterator[Picture]:
    """Yield all pictures. `api` is the primary key of the rule of that name."""
    rules = f"{ADMIN}ratelimitrule/"
    yield Picture("overview", f"{ADMIN}overview/?period=day", height=1160)
    yield Picture("rules", rules)
    yield Picture("limit", f"{rules}limit/?name=everything&period=day")
    yield Picture("rule", f"{rules}add/?beside=search", prepare=rule_form)
    search = urlencode({"q": f"{VISITOR} + ada"})
    yield Picture("client", f"{ADMIN}client/?{search}", prepare=open_client)
    yield Picture("changes", f"{rules}{api}/history/")
    yield Picture("bans", f"{ADMIN}bans/")


@contextmanager
def demo() -> Iterator[tuple[str, str]]:
    """Start a demo, with its traffic and changes. Yields its URL and the key of the rule `api`."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "db.sqlite3")
        process, site, redis_url = start(
            EXAMPLE_DATABASE=str(database), DJANGO_SETTINGS_MODULE="docs.screenshots_settings"
        )
        try:
            api = run_in(database, redis_url, CHANGES)
            send_traffic(site)
            yield site, api
        finally:
            process.terminate()
            process.communicate(timeout=20)


def await_statistics(browser: Any, site: str) -> None:
    """Wait until the statistics of two weeks are written, and all bans listed."""

    def are_written(page: Any) -> bool:
        page.get(f"{site}{ADMIN}ratelimitrule/limit/?name=everything&period=week")
        return len(page.find_elements("css selector", "svg rect")) >= 14

    def are_listed(page: Any) -> bool:
        page.get(f"{site}{ADMIN}bans/")
        return len(page.find_elements("css selector", "td.why")) == len(ATTACKERS)

    for condition in (are_written, are_listed):
        WebDriverWait(browser, 120).until(condition)


def take(browser: Any, picture: Picture) -> bytes:
    """Return the picture of the page that is open, as a PNG of few colors."""
    y, bottom = browser.execute_script(RECTANGLE, picture.selector, picture.height)
    clip = {"x": 0, "y": y, "width": WIDTH, "height": bottom - y + MARGIN, "scale": 1}
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
    )
    image = Image.open(io.BytesIO(b64decode(shot["data"]))).convert("RGB")
    file = io.BytesIO()
    image.quantize(COLORS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def main() -> None:
    """Take all pictures. Exits with 1 if one is too large."""
    FOLDER.mkdir(exist_ok=True)
    too_large = []
    with ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory())
        site, api = stack.enter_context(demo())
        browser = headless(Path(profile))
        stack.callback(browser.quit)
        sign_in(browser, site)
        await_statistics(browser, site)
        browser.find_element("id", "toggle-nav-sidebar").click()
        for picture in pictures(api):
            browser.get(site + picture.path)
            for scheme in ("light", "dark"):
                set_screen(browser, WIDTH, HEIGHT, scheme)
                if scheme == "light":
                    picture.prepare(browser)
                    browser.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
                name = picture.name if scheme == "light" else f"{picture.name}-dark"
                data = take(browser, picture)
                (FOLDER / f"{name}.png").write_bytes(data)
                print(f"{name}.png: {len(data):,} bytes")
                if len(data) >= MAX_BYTES:
                    too_large.append(name)
    if too_large:
        sys.exit(f"larger than {MAX_BYTES:,} bytes: {', '.join(too_large)}")


if __name__ == "__main__":
    main()
