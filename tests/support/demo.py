"""The real demo process, and a real browser to look at it with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from tests.support.processes import ROOT, await_port, free_port

SCREENS = {"desktop": (1280, 900, "light"), "phone": (390, 844, "dark")}
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def start(**environment: str) -> tuple[subprocess.Popen[str], str, str]:
    """The demo, the site's address, and its Redis."""
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
    said = [process.stdout.readline() for _ in range(3)]
    await_port(port)
    return process, f"http://127.0.0.1:{port}/", said[1].split()[-1]


def run_in(database: Path, redis_url: str, code: str) -> str:
    """Run code in a demo's database, as its own command line does; returns what it printed."""
    command = [
        sys.executable,
        "-m",
        "example_project.manage",
        "shell",
        "--verbosity",
        "0",
        "--command",
        code,
    ]
    places = {"EXAMPLE_DATABASE": str(database), "REDIS_URL": redis_url}
    settings = {"DJANGO_SETTINGS_MODULE": "example_project.settings"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **places, **settings},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def answers(address: str) -> bool:
    try:
        with redis.Redis.from_url(address) as connection:
            return bool(connection.ping())
    except redis.ConnectionError:
        return False


def headless(profile: Path) -> Any:
    """A headless Chromium with a profile of its own."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

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
    if "SCREENSHOTS" in os.environ:
        browser.save_screenshot(f"{os.environ['SCREENSHOTS']}/{name}.png")
