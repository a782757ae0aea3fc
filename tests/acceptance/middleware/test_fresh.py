"""The first requests of a new process, and the effect of a `SCRIPT_NAME` header on paths."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.processes import ROOT
from tests.support.served_site import serve, site_environment

EXEMPT = [
    "function",
    "coroutine",
    "decorated",
    "as-view",
    "on-class",
    "on-dispatch",
    "drf-class",
    "drf-view-set",
    "by-hand",
    "included",
    "lazy",
]
URLS = "tests.acceptance.middleware.fresh_urls"
REFUSED = [{"name": "all", "path": "/", "key": "ip", "rate": "0/s"}]

FIRST = """
import asyncio, os, sys
import django
django.setup()
from django.test import AsyncClient, Client

async def asked(path):
    return [(await AsyncClient().get(path)).status_code for _ in range(3)]

kind, *names = sys.argv[1:]
for name in names:  # Each in a process in which nothing was asked for yet.
    child = os.fork()
    if not child:
        path = f"/{name}/"
        found = asyncio.run(asked(path)) if kind == "asgi" else [Client().get(path).status_code for _ in range(3)]
        print(name, found, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""  # noqa: E501


def run(prefix: str, rules: list[dict[str, object]], *arguments: str) -> Any:
    """Run Python in a process of the site."""
    environment = site_environment(URLS, RATELIMIT_CACHE_PREFIX=prefix, RATELIMIT_RULES=rules)
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def visit(port: int, path: str, headers: dict[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=headers or {})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.skipif(os.name == "nt", reason="forks")
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_every_kind_of_exempt_view_is_exempt_on_its_first_request(kind: str, prefix: str) -> None:
    """Functions, classes, DRF's views, `as_view()`, and included and lazily imported URLs are each
    tested in a separate process.
    """
    done = run(prefix, REFUSED, "-c", FIRST, kind, *EXEMPT, "limited")
    expected = [f"{name} [200, 200, 200]" for name in EXEMPT] + ["limited [429, 429, 429]"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_a_check_finds_wrong_dotted_paths_in_unimported_views(prefix: str) -> None:
    """`check --tag caches` in a new process finds a dotted path that cannot be imported."""
    done = run(prefix, [], "-m", "django", "check", "--tag", "caches")
    assert "(django_ratelimit_lua.E003) Key 'nowhere.key' cannot be imported" in done.stderr
    assert done.returncode == 1


def test_a_script_name_in_a_header_evades_no_rule(prefix: str) -> None:
    """gunicorn reads the header from a client on the same host. Rules by path, pattern, route and
    key still match the view.
    """
    rules: list[dict[str, object]] = [
        {"name": "prefix", "path": "/api/", "key": "ip", "rate": "3/h"},
        {"name": "glob", "path": "/*b/", "key": "ip", "rate": "4/h"},
        {"name": "route", "route": "c", "key": "ip", "rate": "5/h"},
        {"name": "paths", "path": "/", "key": ("ip", "path"), "rate": "6/h"},
    ]
    site = {"RATELIMIT_CACHE_PREFIX": prefix, "RATELIMIT_RULES": rules}
    with serve("gunicorn", URLS, "--threads=2", **site) as (port, _):
        walks = [f"/z{number}" for number in range(7)]
        names = ("api", "b", "c", "d")
        found = [
            visit(port, f"{walk}/{name}/", {"SCRIPT_NAME": walk})
            for name in names
            for walk in walks
        ]
    assert found == [
        *[200] * 3,
        *[429] * 4,
        *[200] * 4,
        *[429] * 3,
        *[200] * 5,
        *[429] * 2,
        *[200] * 6,
        429,
    ]
