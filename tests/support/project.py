"""A project as `startproject` creates it, with this package, in a folder and processes of its own.

A test of the session's own settings cannot leave out the admin, for example.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from tests.support.redis_server import url

ROOT = Path(__file__).parents[2]
PACKAGE = "django_ratelimit_lua"
EVERY_CONTRIB = ("statistics", "breakers", "replay", "gateway")
SETTINGS = """
CACHES = {{"default": {{"BACKEND": "django_redis.cache.RedisCache", "LOCATION": {url!r}}}}}
ALLOWED_HOSTS = ["*"]
RATELIMIT_CACHE_PREFIX = {prefix!r}
RATELIMIT_TIMEOUT = 10
DATABASES["default"]["OPTIONS"] = {{"timeout": 60}}
MIDDLEWARE += ["django_ratelimit_lua.middleware.RateLimitMiddleware"]
INSTALLED_APPS += {apps!r}
WITHOUT = {without!r}
INSTALLED_APPS = [name for name in INSTALLED_APPS if name not in WITHOUT]
MIDDLEWARE = [name for name in MIDDLEWARE if not name.startswith(WITHOUT)]
"""


class Project:
    """A project.

    Args:
        folder: An empty folder.
        annexes: The optional apps that it installs.
        without: The apps of Django that it does not install, with their middleware.
        settings: Python that follows its settings.
        urls: Its URLconf, as Python.
    """

    def __init__(
        self,
        folder: Path,
        annexes: Collection[str] = (),
        without: Collection[str] = (),
        settings: str = "",
        urls: str = "urlpatterns = []",
    ) -> None:
        self.folder = folder
        self._run("-m", "django", "startproject", "shop", str(folder))
        apps = [PACKAGE, *(f"{PACKAGE}.contrib.{name}" for name in annexes)]
        added = SETTINGS.format(
            url=url(), prefix=f"{folder.name}-{os.getpid()}:", apps=apps, without=tuple(without)
        )
        with (folder / "shop" / "settings.py").open("a") as file:
            file.write(added + settings)
        (folder / "shop" / "urls.py").write_text(urls)

    def _run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def manage(self, *arguments: str) -> str:
        """Return the output of a command, with its errors, which must succeed."""
        done = self._run("manage.py", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def execute(self, code: str) -> str:
        """Return the output of Python code in the project, without that on standard error."""
        start = "import django, os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'shop.settings'\n"
        done = self._run("-", text=f"{start}django.setup()\n{code}")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
