"""gevent: greenlets instead of threads, in processes that are patched before the package is
imported.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.redis_server import url

pytest.importorskip("gevent")
ROOT = Path(__file__).parents[3]
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
    environment = {
        name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"
    }
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", first + given + SITE + then + code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_two_hundred_greenlets_admit_exactly_n_and_get_their_own_replies(prefix: str) -> None:
    """This holds while other greenlets are killed during a decision. Their slots are released, and
    the process ends.
    """
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
    assert (done.returncode, done.stdout.split("\n")[:3]) == (0, ["100", "[]", "0"]), done.stderr[
        -3000:
    ]


def test_slots_of_greenlets_are_renewed(prefix: str) -> None:
    """Greenlets in the background renew them."""
    done = run(
        prefix,
        """
slots = RateLimiter("slots", "1", algorithm="concurrency")
with slots.slot("ada") as held:
    gevent.sleep(6)
    print(held.is_lost, slots.peek("ada").limits[0].used)
""",
    )
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
    import concurrent.futures
    import socket
    import urllib.error
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "gunicorn.conf.py").write_text(CONFIG)
    (tmp_path / "preloaded.py").write_text(
        f"PREFIX, URL, ANNEXES = {prefix!r}, {url()!r}, ()\n" + SITE + APPLICATION
    )
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    command = (
        "-m",
        "gunicorn",
        "-k",
        "gevent",
        "-w",
        "2",
        "--graceful-timeout",
        "3",
        "-b",
        f"127.0.0.1:{port}",
        "preloaded",
    )
    server = subprocess.Popen(
        [sys.executable, *command], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    )

    def visit(client: str) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"X-Client": client})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    try:
        end = time.monotonic() + 30
        while True:
            try:
                assert visit("first") == 200
                break
            except urllib.error.URLError:
                assert time.monotonic() < end
                time.sleep(0.1)
        with concurrent.futures.ThreadPoolExecutor(50) as crowd:
            answers = list(crowd.map(visit, ["ada"] * 200))
        assert (answers.count(200), answers.count(429)) == (50, 150)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(40) == 0
