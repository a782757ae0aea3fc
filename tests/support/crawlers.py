"""A site that crawlers flood: gunicorn behind nginx, with the settings of the how-to page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.contrib.gateway.proxies import started
from tests.support.processes import ROOT, free_port, running
from tests.support.redis_server import url

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
    """Return the blocks of the how-to page in a language."""
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


@contextmanager
def crawled_site(
    folder: Path, settings: Mapping[str, Any], workers: int = 1, users: int = 1
) -> Iterator[Site]:
    """Run gunicorn with the site behind nginx, until the end."""
    environment = {
        **os.environ,
        "RATELIMIT_TEST_URL": url(),
        "RATELIMIT_TEST_DATABASE": str(folder / "db.sqlite3"),
        "RATELIMIT_TEST_SETTINGS": json.dumps(settings),
    }
    made = subprocess.run(
        [sys.executable, "-m", "tests.support.crawlers_site", str(users)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    port, upstream = free_port(), free_port()
    command = [sys.executable, "-m", "gunicorn", "tests.support.crawlers_site:application"]
    command += [
        f"--bind=127.0.0.1:{upstream}",
        f"--workers={workers}",
        "--log-level=error",
        "--preload",
    ]
    lines = textwrap.indent(blocks("nginx")[0], " " * 6)
    text = CONFIGURATION.format(folder=folder, port=port, upstream=upstream, lines=lines)
    with (
        running(command, upstream, cwd=ROOT, env=environment),
        started("nginx", text, port, folder),
    ):
        yield Site(port, upstream, made.stdout.split())
