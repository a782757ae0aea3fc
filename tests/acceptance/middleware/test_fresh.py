"""The first request and the checks of a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.processes import ROOT
from tests.support.served_site import site_environment

EXEMPT = [
    *("function", "coroutine", "decorated", "as-view", "on-class", "on-dispatch", "drf-class"),
    *("drf-view-set", "by-hand", "included", "lazy"),
]
REFUSED = [{"name": "all", "path": "/", "key": "ip", "rate": "0/s"}]

FIRST = """
import os, sys
import django
django.setup()
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client

kind, *names = sys.argv[1:]
for name in names:  # Each in a process that has not handled a request yet.
    child = os.fork()
    if not child:
        get = async_to_sync(AsyncClient().get) if kind == "asgi" else Client().get
        print(name, [get(f"/{name}/").status_code for _ in range(3)], flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def run(prefix: str, rules: list[dict[str, object]], *arguments: str) -> Any:
    """Run Python in a process of the site."""
    site = {"RATELIMIT_CACHE_PREFIX": prefix, "RATELIMIT_RULES": rules}
    environment = site_environment("tests.acceptance.middleware.fresh_urls", **site)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(os.name == "nt", reason="forks")
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_every_kind_of_exempt_view_is_exempt_on_its_first_request(kind: str, prefix: str) -> None:
    """Each view is tested in a process of its own."""
    done = run(prefix, REFUSED, "-c", FIRST, kind, *EXEMPT, "limited")
    expected = [f"{name} [200, 200, 200]" for name in EXEMPT] + ["limited [429, 429, 429]"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_a_check_finds_wrong_dotted_paths_in_unimported_views(prefix: str) -> None:
    """`check --tag caches` in a new process finds a dotted path that cannot be imported."""
    done = run(prefix, [], "-m", "django", "check", "--tag", "caches")
    assert "(django_ratelimit_lua.E003) Key 'nowhere.key' cannot be imported" in done.stderr
    assert done.returncode == 1
