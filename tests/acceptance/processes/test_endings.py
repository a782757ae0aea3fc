"""The end of a process, and processes that cannot start threads."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import pytest
import redis
from django.core.asgi import get_asgi_application

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.asgi import finish_at_shutdown
from django_ratelimit_lua.conf import conf
from django_ratelimit_lua.engine.heartbeat import heartbeat
from django_ratelimit_lua.engine.listener import listener
from django_ratelimit_lua.management.verbs.site import background_tasks
from django_ratelimit_lua.process.tasks import stop
from django_ratelimit_lua.store import get_store
from django_ratelimit_lua.testing.server import Server
from tests.acceptance.slots.slot_urls import SlotsInUse
from tests.support.processes import ROOT, until
from tests.support.redis_server import caches
from tests.support.served_site import serve

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
        limiter.hit(f"client {number}")
os.kill(int(sys.argv[2]), signal.SIGSTOP)
print("ends", flush=True)
"""


@pytest.fixture
def own(settings: Any) -> Iterator[Server]:
    """Run a server that this test may stop."""
    with Server(os.environ.get("RATELIMIT_TEST_BINARY")) as server:
        settings.CACHES = caches(server.url)
        yield server
        os.kill(server.pid, signal.SIGCONT)


def test_a_silent_redis_does_not_delay_the_end_of_a_process(own: Server) -> None:
    """All final writes of a process share one second, for any number of leases."""
    command = [sys.executable, "-c", ENDS, own.url, str(own.pid)]
    pipe = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ends\n"
        began = time.monotonic()
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - began < 5, "with one second for each it would be thirty"


async def supports_lifespan(scope: Any, receive: Any, send: Any) -> None:
    for _ in range(2):
        await send({"type": f"{(await receive())['type']}.complete", "is": "its own"})


async def raises_at_once(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError(scope["type"])


async def raises_later(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError((await receive())["type"])


async def returns_at_once(scope: Any, receive: Any, send: Any) -> None:
    pass


async def fails_to_start(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed"})
    raise ValueError("as Starlette does")


APPLICATIONS = [supports_lifespan, raises_at_once, raises_later, returns_at_once, fails_to_start]


@pytest.mark.parametrize(
    "application",
    [*APPLICATIONS, get_asgi_application()],
    ids=lambda application: getattr(application, "__name__", "django"),
)
def test_the_asgi_lifespan_is_answered_once_and_ends_cleanly(application: Any) -> None:
    """The application may support, fail or ignore it. At the last reply no task is running."""
    limiter, sent = RateLimiter("plain", "100/h"), []
    events = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, str]:
        return {"type": next(events)}

    async def send(message: dict[str, str]) -> None:
        is_idle = not any(task.is_running for task in background_tasks())
        sent.append((message["type"].removeprefix("lifespan."), message.get("is"), is_idle))

    async def live() -> None:
        await finish_at_shutdown(application)({"type": "lifespan"}, receive, send)

    limiter.hit("ada")
    assert listener.task.is_running
    if application is fails_to_start:
        with pytest.raises(ValueError, match="Starlette"):
            asyncio.run(live())
        assert sent == [("startup.failed", None, False)]
        return
    asyncio.run(live())
    own = "its own" if application is supports_lifespan else None
    assert sent == [("startup.complete", own, False), ("shutdown.complete", own, True)]


WORKER = "uvicorn.workers.UvicornWorker"
SLOT_URLS = "tests.acceptance.slots.slot_urls"
ASGI_SERVERS = {
    "uvicorn": ["--workers=2", "--limit-max-requests=12", "--timeout-graceful-shutdown=1"],
    "gunicorn": [f"--worker-class={WORKER}", "--workers=2", "--max-requests=12"],
}


@pytest.mark.parametrize("kind", list(ASGI_SERVERS))
def test_workers_of_an_asgi_server_end_cleanly(
    kind: str, direct: redis.Redis, prefix: str, settings: Any
) -> None:
    """Workers that are replaced or terminated release the slot of a running view."""
    settings.RATELIMIT_CACHE_PREFIX = prefix
    slots = SlotsInUse(direct, prefix)
    application = "tests.support.served_site:asgi_with_shutdown"
    if kind == "gunicorn":
        application += "()"
    site = {"RATELIMIT_CACHE_PREFIX": prefix, "RATELIMIT_SLOT_SECONDS": 60}
    answered = 0

    def visit() -> None:
        nonlocal answered
        with suppress(OSError):  # The worker has just ended.
            with urlopen(f"http://127.0.0.1:{port}/async/plain/?who=ada", timeout=60) as response:
                response.read()
            answered += 1

    options = ASGI_SERVERS[kind]
    with serve(kind, SLOT_URLS, *options, application=application, **site) as (port, process):
        for number in range(24):
            visit()
            if number == 6 and kind == "gunicorn":
                process.send_signal(signal.SIGHUP)
        with socket.create_connection(("127.0.0.1", port)) as client:
            # gunicorn kills a worker whose view runs on.
            seconds = 60 if kind == "uvicorn" else 1
            line = f"GET /sync/plain/?who=bob&seconds={seconds} HTTP/1.1"
            client.sendall(f"{line}\r\nHost: localhost\r\n\r\n".encode())
            until(lambda: slots.held == 1, "a view holds a slot")
            process.terminate()
            process.wait(60)
    assert slots.held == 0
    assert answered >= 16


def test_a_process_without_threads_decides_and_detects_when_redis_is_back(
    own: Server, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides in an outage as well, and uses Redis again when it is available."""
    settings.RATELIMIT_TIMEOUT = 0.1
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    plain = RateLimiter("plain", "100/h")
    leased = RateLimiter("hot", "1000/h", algorithm="fixed_window", lease=10)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert [limiter.hit("ada").allowed for limiter in (plain, leased, leased, leased)] == [True] * 4
    os.kill(own.pid, signal.SIGSTOP)
    assert {plain.hit("ada").source for _ in range(6)} == {"fallback"}
    monkeypatch.setattr(threading.Thread, "start", start)
    os.kill(own.pid, signal.SIGCONT)
    until(lambda: plain.hit("ada").source == "redis", "Redis decides again", 20)


def test_background_tasks_end_and_restart(direct: redis.Redis) -> None:
    """No thread or subscription is left, and the next decision starts the tasks again."""
    limiter = RateLimiter("part", "100/h", algorithm="fixed_window", split=True)

    def hearers() -> int:
        ((_, count),) = direct.pubsub_numsub(get_store().channel(conf.CACHE_PREFIX))
        return int(count)

    for _ in range(2):
        limiter.hit("ada")
        until(lambda: hearers() == 1, "the listener subscribes")
        assert heartbeat.is_started
        stop(20)
        names = [thread.name for thread in threading.enumerate()]
        assert [name for name in names if name.startswith("ratelimit-")] == []
        assert not any(task.is_running for task in background_tasks())
        until(lambda: hearers() == 0, "no listener subscribes")
        assert not listener.is_listening


def test_a_server_with_an_endless_script_can_be_stopped() -> None:
    """It ignores a polite signal. No process is left after a test that was interrupted."""
    server = Server().start()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b'EVAL "while true do end" 0\r\n')
        time.sleep(0.2)
        server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
