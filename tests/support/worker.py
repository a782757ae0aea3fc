"""Processes that are told, line by line, what to do: each is a site as a server's process is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.conf import settings as own_settings

from tests.support.nursery import Born
from tests.support.redis_server import url


class Worker:
    """A process of a site, with the annexes of the test: `worker("ask()")` is what that expression
    is there.
    """

    def __init__(
        self,
        prefix: str,
        databases: dict[str, Path],
        *,
        compare_seconds: float = 3600.0,
        at: str = "",
        annexes: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        given = {
            "url": at or url(),
            "prefix": prefix,
            "databases": {name: str(path) for name, path in databases.items()},
            "apps": _apps(annexes),
            "settings": settings,
            "compare_seconds": compare_seconds,
        }
        environment = {**os.environ, "RATELIMIT_TEST_SITE": json.dumps(given)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        self._process = Born(
            "from tests.support.worker_site import main; main()", environment=environment
        )

    def __call__(self, line: str) -> Any:
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        """Have that done, without waiting for it."""
        print(line, file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """What came of the line that was sent."""
        answer = self._process.stdout.readline()
        assert answer, "the process has ended"
        succeeded, value = json.loads(answer)
        assert succeeded, value
        return value

    def kill(self) -> None:
        """End it as an operator's `kill -9` does."""
        self._process.kill()
        self._process.wait(30)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *args: object) -> None:
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def _apps(annexes: Sequence[str] | None) -> list[str]:
    """The package and these annexes; None: those of the test session."""
    if annexes is None:
        return [
            app for app in own_settings.INSTALLED_APPS if app.startswith("django_ratelimit_lua")
        ]
    return ["django_ratelimit_lua", *(f"django_ratelimit_lua.contrib.{name}" for name in annexes)]


def migrated(path: Path, *annexes: str) -> Path:
    """A database of its own, as `migrate` makes it."""
    path.write_bytes(_migrated(annexes))
    return path


@cache
def _migrated(annexes: tuple[str, ...]) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "db.sqlite3")
        with Worker("migrations:", {"default": path}, annexes=annexes or None) as worker:
            worker("call_command('migrate', verbosity=0)")
        return path.read_bytes()


def copy(source: Path, target: Path) -> Path:
    """A backup, or what is restored from one: in one moment, as long as nobody writes."""
    beside = target.with_name(target.name + ".new")
    shutil.copyfile(source, beside)
    os.replace(beside, target)
    return target
