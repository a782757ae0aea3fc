"""An operator of the demo in a real browser, and requests of visitors that verify the effects.

A press of a link or button is a click, and so is a choice in a list; typing is not. Each task
begins at the admin's index, logged in, and takes the number of clicks in `CLICKS`.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest
from selenium.webdriver.support.select import Select

from tests.support.demo import (
    SCREENS,
    await_page,
    axe_violations,
    log_in,
    run_in,
    screenshot,
    script_errors,
    set_screen,
    start,
)

CLICKS = {
    "add two rates on a path": 3,
    "check and enforce a rule in shadow mode": 4,
    "explain a refusal by its reference": 3,
    "unblock a customer locked out at login": 3,
    "raise the limit of one customer": 7,
    "block one of several clients of a masked network": 4,
}
"""The clicks that each task takes."""


class Answer(NamedTuple):
    """The response to a visitor."""

    status: int
    headers: Mapping[str, str]
    body: str


class Site(NamedTuple):
    """A demo, and the screen of its operator."""

    address: str
    width: int
    height: int
    scheme: str
    printed: str = ""
    """The output of the preparation."""

    def ask(self, path: str, method: str = "GET", source: str = "127.0.0.1", **form: str) -> Answer:
        """Send a request from an address of the loopback network."""
        place = urlsplit(self.address)
        assert place.hostname is not None
        connection = http.client.HTTPConnection(
            place.hostname, place.port, source_address=(source, 0)
        )
        headers = {"Accept": "application/json"}
        if method == "POST":
            connection.request("GET", "/login/", headers=headers)
            page = connection.getresponse()
            page.read()
            token = re.search(r"csrftoken=(\w+)", page.headers["Set-Cookie"] or "")
            assert token is not None
            form |= {"csrfmiddlewaretoken": token[1]}
            headers |= {"Cookie": token[0], "Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method, path, urlencode(form), headers)
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read().decode())
        connection.close()
        return answer

    def statuses(self, path: str, times: int, source: str = "127.0.0.1") -> list[int]:
        """Return the statuses of a number of requests."""
        return [self.ask(path, source=source).status for _ in range(times)]


class Operator:
    """A logged-in operator. Clicks are counted, and axe checks each dark page after a click."""

    def __init__(self, browser: Any, site: Site, task: str) -> None:
        self.browser, self.site, self.task, self.clicks = browser, site, task, 0
        log_in(browser, site.address)
        set_screen(browser, site.width, site.height, site.scheme)

    def press(self, selector: str) -> None:
        """Press a link or button that opens a page, found by a CSS selector or the link's text."""
        how = "css selector" if re.search(r"[.#\[>]", selector) else "link text"
        self.press_on(self.browser.find_element(how, selector))

    def press_on(self, element: Any) -> None:
        """Press an element that opens a page."""
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        await_page(self.browser, element.click)
        self.clicks += 1
        if self.site.scheme == "dark":
            # The light pages are checked by the tests in a browser.
            assert axe_violations(self.browser) == []
        name = (
            f"task-{self.task.replace(' ', '-')}-{self.clicks}-{self.site.width}-{self.site.scheme}"
        )
        screenshot(self.browser, name)
        assert self.browser.execute_script(
            "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        ), name

    def choose(self, name: str, value: str) -> None:
        """Choose an option of the list with this name."""
        self.choose_on(self.browser.find_element("name", name), value)

    def choose_on(self, element: Any, value: str) -> None:
        """Choose an option of a list."""
        Select(element).select_by_value(value)
        self.clicks += 1

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(self.browser.find_element("css selector", selector).text)

    def is_done(self) -> None:
        """Assert that the task took the promised clicks, without errors in the browser."""
        assert (self.task, self.clicks) == (self.task, CLICKS[self.task])
        assert script_errors(self.browser) == []


@contextmanager
def demo_site(
    request: pytest.FixtureRequest,
    factory: pytest.TempPathFactory,
    before: str = "",
) -> Iterator[Site]:
    """Run a demo for a module. The code `before` runs in its database before the start.

    The module names one of the `SCREENS` in `SCREEN`. It may have `PREPARED`, code that the started
    demo runs, and `ENVIRONMENT`, variables of its process.
    """
    database = factory.mktemp("demo") / "db.sqlite3"
    if before:
        run_in(database, "redis://127.0.0.1:1/0", before)
    environment = getattr(request.module, "ENVIRONMENT", {})
    process, address, redis_url = start(EXAMPLE_DATABASE=str(database), **environment)
    prepared = getattr(request.module, "PREPARED", "")
    printed = run_in(database, redis_url, prepared) if prepared else ""
    yield Site(address, *SCREENS[request.module.SCREEN], printed)
    process.terminate()
    process.communicate(timeout=20)
