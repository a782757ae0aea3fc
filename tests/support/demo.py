"""The process of the demo, and a real browser for its pages."""

from __future__ import annotations

import http.cookiejar
import os
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import axe_core_python
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.processes import ROOT, await_port, free_port

SCREENS = {"desktop": (1280, 900, "light"), "phone": (390, 844, "dark")}
AXE = Path(axe_core_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
DJANGO_PARTS = {
    ".object-tools",
    "#changelist-filter",
    ".actions",
    "#toggle-nav-sidebar",
    "#nav-filter",
    ".paginator",
    ".breadcrumbs",
    "#result_list thead",
    "#header",
    "#user-tools",
    ".select2",
}
"""Parts of Django's own pages, which axe leaves out."""


def start(**environment: str) -> tuple[subprocess.Popen[str], str, str]:
    """Start the demo, and return its process, its address and the URL of its Redis."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "example_project"],
        cwd=ROOT,
        env={
            **os.environ,
            "PORT": str(port),
            "DJANGO_SETTINGS_MODULE": "tests.demo_settings",
            **environment,
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    printed = [process.stdout.readline() for _ in range(3)]
    await_port(port)
    return process, f"http://127.0.0.1:{port}/", printed[1].split()[-1]


def run_in(database: Path, redis_url: str, code: str) -> str:
    """Run code in the shell of a demo, and return its output."""
    shell = ["-m", "example_project.manage", "shell", "--verbosity=0", "--command", code]
    environment = {
        **os.environ,
        "EXAMPLE_DATABASE": str(database),
        "REDIS_URL": redis_url,
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
    }
    done = subprocess.run(
        [sys.executable, *shell],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def headless(profile: Path) -> Any:
    """A headless Chromium with a profile of its own."""
    options = ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        f"user-data-dir={profile}",
    ):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=ChromeService(DRIVER))


def screenshot(browser: Any, name: str) -> None:
    """Save a picture of the page in the folder that the variable `SCREENSHOTS` names, if set."""
    if "SCREENSHOTS" in os.environ:
        browser.save_screenshot(f"{os.environ['SCREENSHOTS']}/{name}.png")


def await_page(browser: Any, act: Callable[[], Any]) -> None:
    """Do something that opens another page, and wait until it is loaded."""
    browser.execute_script("window.before = true")
    act()
    WebDriverWait(browser, 20, ignored_exceptions=[WebDriverException]).until(
        lambda page: page.execute_script(
            "return !window.before && document.readyState === 'complete'"
        )
    )


def press(browser: Any, selector: str) -> None:
    """Press a button that opens another page."""
    button = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    await_page(browser, button.click)


def fill(browser: Any, **fields: str) -> None:
    """Fill in a form by the names of its fields, and open collapsed sections for it."""
    for name, value in fields.items():
        field = browser.find_element("name", name)
        browser.execute_script("arguments[0].closest('details')?.setAttribute('open', '')", field)
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
        if field.tag_name == "select":
            Select(field).select_by_value(value)
        else:
            field.clear()
            field.send_keys(value)


@lru_cache
def session_of(demo: str) -> str:
    """Log the operator in, once for each demo, and return the session key."""
    cookies = http.cookiejar.CookieJar()
    client = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    client.open(f"{demo}admin/login/")
    token = next(cookie.value for cookie in cookies if cookie.name == "csrftoken")
    form = {
        "username": "grace",
        "password": "hopper",
        "csrfmiddlewaretoken": token,
        "next": "/admin/",
    }
    client.open(f"{demo}admin/login/", urllib.parse.urlencode(form).encode())
    return next(str(cookie.value) for cookie in cookies if cookie.name == "sessionid")


def sign_in(browser: Any, demo: str) -> None:
    """Set the session cookie, so the browser is logged in."""
    browser.execute_cdp_cmd(
        "Network.setCookie", {"name": "sessionid", "value": session_of(demo), "url": demo}
    )


def log_in(browser: Any, demo: str) -> None:
    """Log in and open the index of the admin."""
    sign_in(browser, demo)
    browser.get(f"{demo}admin/")


def set_screen(browser: Any, width: int, height: int, scheme: str = "light") -> None:
    """Set the size of the screen and the color scheme, and disable transitions.

    Emulation allows a narrower page than a headless window.
    """
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.execute_script(
        "const still = new CSSStyleSheet(); still.replaceSync('* {transition: none !important}');"
        "document.adoptedStyleSheets = [still];"
    )


def script_errors(browser: Any) -> list[str]:
    """Return script errors and violations of the Content-Security-Policy."""
    entries = browser.get_log("browser")
    return [entry["message"] for entry in entries if entry["level"] != "DEBUG"]


def axe_violations(browser: Any, *rules: str) -> list[Any]:
    """Return the problems that axe finds in the package's part of a page, by some or all rules."""
    if not browser.execute_script("return 'axe' in window"):
        browser.execute_script(AXE)
    problems: list[Any] = browser.execute_async_script(
        "const [excluded, rules, done] = arguments;"
        "const only = rules.length ? {runOnly: {type: 'rule', values: rules}} : {};"
        "const options = {resultTypes: ['violations'], ...only};"
        "axe.run({exclude: excluded.map(one => [one])}, options).then(found => "
        "done(found.violations.map("
        "one => [one.id, one.nodes.map(node => node.html.slice(0, 160))])), error => "
        "done([String(error)]));",
        sorted(DJANGO_PARTS),
        rules,
    )
    return problems
