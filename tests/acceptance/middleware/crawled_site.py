"""A site that crawlers flood: gunicorn behind nginx, with the settings of the how-to page.

As a program, it creates users and prints their session cookies.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.contrib.gateway.proxies import started
from tests.support.processes import ROOT, free_port
from tests.support.served_site import serve, site_environment

PAGE = ROOT / "docs/how-to/crawlers.rst"
GOOGLE = "127.66.249.0/24"
CONFIGURATION = """
worker_processes 1;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://127.0.0.1:{upstream};
      proxy_set_header Host $host;
{lines}
    }}
  }}
}}
"""


def blocks(language: str) -> list[str]:
    """Return the code blocks of the how-to page in a language."""
    found = re.findall(
        rf"\.\. code-block:: {language}\n\n((?:   .*\n|\n)+)", PAGE.read_text(encoding="utf-8")
    )
    return [textwrap.dedent(block) for block in found]


def documented_settings(networks: Path) -> dict[str, Any]:
    """Return the settings of the how-to page, with its file of networks at another path."""
    document = {"creationTime": "2026-01-01", "prefixes": [{"ipv4Prefix": GOOGLE}]}
    networks.write_text(json.dumps(document))
    settings: dict[str, Any] = {}
    exec(blocks("python")[0].replace("/var/lib/networks/google.json", str(networks)), settings)
    return {name: value for name, value in settings.items() if name.startswith("RATELIMIT_")}


class Site(NamedTuple):
    """The ports of nginx and of gunicorn, and the session cookies of signed-in users."""

    proxy: int
    direct: int
    cookies: list[str]


def page(request: HttpRequest, milliseconds: int) -> HttpResponse:
    """Respond after some time."""
    time.sleep(milliseconds / 1000)
    return HttpResponse("served")


urlpatterns = [path("<int:milliseconds>", page)]


@contextmanager
def crawled_site(
    folder: Path, settings: Mapping[str, Any], workers: int = 1, users: int = 1
) -> Iterator[Site]:
    """Run gunicorn with the site behind nginx, until the end."""
    database = str(folder / "db.sqlite3")
    site = {
        "INSTALLED_APPS": [
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django_ratelimit_lua",
        ],
        "MIDDLEWARE": [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django_ratelimit_lua.middleware.RateLimitMiddleware",
        ],
        "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": database}},
        "LOGGING": {"version": 1, "loggers": {"django_ratelimit_lua": {"level": "CRITICAL"}}},
        "RATELIMIT_CACHE_PREFIX": f"{database}:",
        **settings,
    }
    created = subprocess.run(
        [sys.executable, "-m", __name__, str(users)],
        cwd=ROOT,
        env=site_environment(__name__, **site),
        capture_output=True,
        text=True,
        check=True,
    )
    port = free_port()
    lines = textwrap.indent(blocks("nginx")[0], " " * 6)
    with serve("gunicorn", __name__, f"--workers={workers}", "--preload", **site) as served:
        text = CONFIGURATION.format(folder=folder, port=port, upstream=served.port, lines=lines)
        with started("nginx", text, port, folder):
            yield Site(port, served.port, created.stdout.split())


def create_users(count: int) -> None:
    """Create a database with some users, and print their session cookies."""
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    for number in range(count):
        client = Client()
        client.force_login(User.objects.create_user(f"user{number}"))
        print(client.cookies["sessionid"].value)


if __name__ == "__main__":
    create_users(int(sys.argv[1]))
