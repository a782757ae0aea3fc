"""The first requests of a new process, and the effect of a `SCRIPT_NAME` header on paths."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import await_port, free_port

ROOT = Path(__file__).parents[3]
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
COMMANDS = {
    "wsgi": [
        "gunicorn",
        "tests.support.fresh_site:application",
        "--threads=2",
        "--log-level=warning",
        "--bind",
    ],
    "asgi": [
        "uvicorn",
        "tests.support.fresh_site:asgi",
        "--log-level=warning",
        "--host=127.0.0.1",
        "--port",
    ],
}
REFUSED = [{"name": "all", "path": "/", "key": "ip", "rate": "0/s"}]

FIRST = """
import asyncio, os, sys
from tests.support import fresh_site
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


def environment(prefix: str, rules: list[dict[str, object]]) -> dict[str, str]:
    given = {
        **os.environ,
        "RATELIMIT_TEST_PREFIX": prefix,
        "RATELIMIT_TEST_RULES": json.dumps(rules),
    }
    given.pop("DJANGO_SETTINGS_MODULE", None)
    return given


@contextmanager
def server(kind: str, prefix: str, rules: list[dict[str, object]]) -> Iterator[int]:
    """Run a server with a process that has not handled a request yet, and yield its port."""
    port = free_port()
    where = f"127.0.0.1:{port}" if kind == "wsgi" else str(port)
    process = subprocess.Popen(
        [sys.executable, "-m", *COMMANDS[kind], where], cwd=ROOT, env=environment(prefix, rules)
    )
    try:
        await_port(port)
        yield port
    finally:
        process.terminate()
        process.wait(30)


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
    command = [sys.executable, "-c", FIRST, kind, *EXEMPT, "limited"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(prefix, REFUSED), capture_output=True, text=True
    )
    expected = [f"{name} [200, 200, 200]" for name in EXEMPT] + ["limited [429, 429, 429]"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_a_check_finds_wrong_dotted_paths_in_unimported_views(prefix: str) -> None:
    """`check --tag caches` in a new process finds a dotted path that cannot be imported."""
    code = (
        "from tests.support import fresh_site; from django.core.management import "
        "execute_from_command_line as run; "
    )
    command = [sys.executable, "-c", code + "run(['manage.py', 'check', '--tag', 'caches'])"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(prefix, []), capture_output=True, text=True
    )
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
    with server("wsgi", prefix, rules) as port:
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
