"""The statistics that a process writes when it ends."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.testing.server import Server
from tests.acceptance.processes import test_endings
from tests.contrib.statistics.counts import last, total

own = test_endings.own
ROOT = Path(__file__).parents[3]
SITE = """
import multiprocessing, os, signal, sys, time, django
from concurrent.futures import ProcessPoolExecutor
from django.conf import settings
settings.configure(
    SECRET_KEY="tests", INSTALLED_APPS=["django_ratelimit_lua", "django_ratelimit_lua.contrib.statistics"],
    RATELIMIT_RULES=[], RATELIMIT_TIMEOUT=5,
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[1]}},
    RATELIMIT_CACHE_PREFIX=sys.argv[2],
)
django.setup()
"""  # noqa: E501
CHILDREN = f"""{SITE}
def work(name):
    from django_ratelimit_lua import RateLimiter
    limiter = RateLimiter(name, "1000/h", algorithm="fixed_window", lease=100 if name == "leased" else None)
    for _ in range(10):
        limiter.hit("ada")

if __name__ == "__main__":
    if sys.argv[4] == "known":
        work("plain")
    context = multiprocessing.get_context(sys.argv[3])
    children = [context.Process(target=work, args=(name,)) for name in ("plain", "plain", "leased")]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    with ProcessPoolExecutor(1, context) as pool:
        assert list(pool.map(work, ["pooled"])) == [None]
"""  # noqa: E501
ENDS_WRITING = f"""{SITE}
from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics.recorder import recorder
limiter = RateLimiter("plain", "1000/h")
limiter.hit("ada")
os.kill(int(sys.argv[3]), signal.SIGSTOP)
while not recorder._flushing.locked():
    time.sleep(0.01)
print("ends", flush=True)
"""


def test_a_silent_redis_does_not_delay_the_end_of_a_process(own: Server, prefix: str) -> None:
    """A write that has begun may take five seconds, but the process does not wait for it."""
    command = [sys.executable, "-c", ENDS_WRITING, own.url, prefix, str(own.pid)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ends\n"
        began = time.monotonic()
        assert process.wait(timeout=60) == 0
        assert time.monotonic() - began < 3.5


@pytest.mark.parametrize("known", ["known", "new"])
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_children_end_cleanly(
    method: str, known: str, own: Server, prefix: str, tmp_path: Path
) -> None:
    """Forked and spawned children write their counts and return their leased units."""
    path = tmp_path / "children.py"
    path.write_text(CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, path, own.url, prefix, method, known]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    day = last(86_400, 3600)
    found = {name: total(name, day).counts["a"] for name in ("plain", "leased", "pooled")}
    assert found == {"plain": 30 if known == "known" else 20, "leased": 10, "pooled": 10}
    assert RateLimiter("leased", "1000/h", algorithm="fixed_window").peek("ada").remaining == 990
