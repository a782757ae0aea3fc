"""How a process ends, and what it does where it can have no thread."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.testing.server import Server

ENDS = """
import os, signal, sys, django
from django.conf import settings
settings.configure(
    SECRET_KEY="tests", INSTALLED_APPS=["django_ratelimit_lua"], RATELIMIT_RULES=[],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[1]}},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from django_ratelimit_lua import RateLimiter
limiter = RateLimiter("leased", "1000000/h", algorithm="fixed_window", lease=1000)
for _ in range(40):
    for number in range(30):
        limiter.hit(f"somebody {number}")
os.kill(int(sys.argv[2]), signal.SIGSTOP)
print("ends", flush=True)
"""


@pytest.fixture
def own(settings: Any) -> Iterator[Server]:
    """A server that this test may stop."""
    with Server(os.environ.get("RATELIMIT_TEST_BINARY")) as server:
        settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}}
        yield server
        os.kill(server.pid, signal.SIGCONT)


def test_a_silent_redis_keeps_no_process_from_ending(own: Server) -> None:
    """All that a process has still to say when it ends has one second in all, however many leases it holds."""
    command = [sys.executable, "-c", ENDS, own.url, str(own.pid)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ends\n"
        began = time.monotonic()
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - began < 5, "with one second for each it would be thirty"


def test_without_threads_nothing_fails_and_redis_is_found_again(
    own: Server, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that may start no thread decides all the same, also in an outage, and asks Redis again once it may."""
    settings.RATELIMIT_TIMEOUT = 0.1
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    plain, leased = RateLimiter("plain", "100/h"), RateLimiter("hot", "1000/h", algorithm="fixed_window", lease=10)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert [limiter.hit("ada").allowed for limiter in (plain, leased)] == [True, True]
    os.kill(own.pid, signal.SIGSTOP)
    assert {plain.hit("ada").source for _ in range(6)} == {"fallback"}
    monkeypatch.setattr(threading.Thread, "start", start)
    os.kill(own.pid, signal.SIGCONT)
    end = time.monotonic() + 20
    while plain.hit("ada").source != "redis":
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_server_that_runs_an_endless_script_ends_all_the_same() -> None:
    """It takes no signal that asks; nothing of it stays behind a test that was stopped."""
    server = Server().start()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b'EVAL "while true do end" 0\r\n')
        time.sleep(0.2)
        server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
