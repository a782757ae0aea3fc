"""gevent: greenlets instead of threads, in processes that are patched first."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT, free_port, running, until
from tests.support.redis_server import url

pytest.importorskip("gevent")
PATCH = "from gevent import monkey; monkey.patch_all()\n"
SITE = """
import faulthandler, gevent, time
faulthandler.dump_traceback_later(60, exit=True)
from django.conf import settings
settings.configure(
    SECRET_KEY="tests", INSTALLED_APPS=["django_ratelimit_lua", *ANNEXES], DATABASES={}, RATELIMIT_TIMEOUT=10,
    RATELIMIT_CACHE_PREFIX=PREFIX, RATELIMIT_SLOT_SECONDS=4,
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL}},
)
import django
django.setup()
from django_ratelimit_lua import RateLimiter
"""  # noqa: E501


def run(
    prefix: str, code: str, first: str = PATCH, then: str = "", annexes: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run code in a process of a site, after `first`."""
    given = f"PREFIX, URL, ANNEXES = {prefix!r}, {url()!r}, {annexes!r}\n"
    environment = {**os.environ}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    how: Any = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
    command = [sys.executable, "-W", "ignore", "-c", first + given + SITE + then + code]
    return subprocess.run(command, timeout=90, **how)


def test_two_hundred_greenlets_admit_exactly_n_and_get_their_own_replies(prefix: str) -> None:
    """Other greenlets are killed, and their slots are released."""
    done = run(
        prefix,
        """
import random
chance, wrong = random.Random(1), []
shared = RateLimiter("shared", "100/h", algorithm="sliding_log")
own = RateLimiter("own", "100000/h", algorithm="sliding_log")
slots = RateLimiter("slots", "3", algorithm="concurrency")

def ask(number):
    for used in range(1, 6):
        if own.hit(f"client {number}").remaining != 100_000 - used:
            wrong.append(number)

def hit_for_ever(number):
    while True:
        own.hit(f"victim {number}")

def hold():
    with slots.slot("ada", timeout=30):
        gevent.sleep(chance.uniform(0, 0.01))

jobs = [gevent.spawn(lambda: sum(bool(shared.hit("ada")) for _ in range(2))) for _ in range(200)]
gevent.joinall(jobs)
print(sum(job.value for job in jobs))
for place in range(5):
    victims = [gevent.spawn(hit_for_ever, number) for number in range(20)] + [gevent.spawn(hold) for _ in range(20)]
    others = [gevent.spawn(ask, 40 * place + number) for number in range(40)]
    gevent.sleep(chance.uniform(0.0, 0.05))
    gevent.killall(victims, block=False)
    gevent.joinall(victims + others)
print(wrong)
end = time.monotonic() + 30
while slots.peek("ada").limits[0].used and time.monotonic() < end:
    gevent.sleep(0.05)
print(slots.peek("ada").limits[0].used)
""",  # noqa: E501
    )
    assert done.stdout.split("\n")[:3] == ["100", "[]", "0"], done.stderr[-3000:]
    assert done.returncode == 0


SLOT = """
slots = RateLimiter("slots", "1", algorithm="concurrency")
with slots.slot("ada") as held:
    gevent.sleep(6)
    print(held.is_lost, slots.peek("ada").limits[0].used)
"""


def test_slots_of_greenlets_are_renewed(prefix: str) -> None:
    """Greenlets in the background renew them."""
    done = run(prefix, SLOT)
    assert (done.returncode, done.stdout.split("\n")[0]) == (0, "False 1"), done.stderr[-3000:]


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_patching_a_process_too_late_is_an_error(library: str, prefix: str) -> None:
    """Otherwise the process would hang, because its locks were created for threads."""
    pytest.importorskip(library)
    patch = PATCH if library == "gevent" else "import eventlet; eventlet.monkey_patch()\n"
    done = run(prefix, "RateLimiter('late', '1/h').hit('ada')\n", first="", then=patch)
    assert done.returncode == 1
    assert "patched the standard library after django_ratelimit_lua was imported" in done.stderr


CONFIG = "from gevent import monkey; monkey.patch_all()\npreload_app = True\n"
APPLICATION = """
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path
from django_ratelimit_lua import ratelimit

@ratelimit(group="view", key="header:x-client", rate="50/h")
def view(request):
    return HttpResponse("seen")

urlpatterns = [path("", view)]
settings.ROOT_URLCONF = __name__
settings.ALLOWED_HOSTS = ["*"]
application = WSGIHandler()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="gunicorn does not run there")
def test_gunicorn_preloads_an_application_that_is_patched_first(
    prefix: str, tmp_path: Path
) -> None:
    """Two workers admit exactly the limit, and end after SIGTERM."""
    port = free_port()
    (tmp_path / "gunicorn.conf.py").write_text(CONFIG)
    (tmp_path / "preloaded.py").write_text(
        f"PREFIX, URL, ANNEXES = {prefix!r}, {url()!r}, ()\n" + SITE + APPLICATION
    )
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    options = ("-k", "gevent", "-w", "2", "--graceful-timeout", "3", "-b", f"127.0.0.1:{port}")
    command = [sys.executable, "-m", "gunicorn", *options, "preloaded"]

    def visit(client: str) -> int:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/", headers={"X-Client": client})
        status = connection.getresponse().status
        connection.close()
        return status

    how: Any = {"cwd": tmp_path, "env": environment, "stderr": subprocess.DEVNULL}
    with running(command, port, **how) as server:
        until(lambda: visit("first") == 200, "the site answers")
        with ThreadPoolExecutor(50) as crowd:
            answers = list(crowd.map(visit, ["ada"] * 200))
        assert (answers.count(200), answers.count(429)) == (50, 150)
        server.terminate()
        assert server.wait(40) == 0
