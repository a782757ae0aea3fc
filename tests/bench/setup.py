"""The CPU time that the core adds to `django.setup()` in a site with django-redis."""

from __future__ import annotations

import os
import subprocess
import sys

ROUNDS = 7
SETUP = """
import sys, time
began = time.process_time()
from django.conf import settings
settings.configure(
    SECRET_KEY="bench", INSTALLED_APPS=sys.argv[1:],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1"}},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
import django
django.setup()
from django.core.cache import cache
cache.client
print(time.process_time() - began)
"""
APPS = [
    f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "messages", "sessions")
]


def setup() -> None:
    """Print the shortest of some measurements, because a busy machine only adds to them."""
    without, with_core = (
        min(seconds(apps) for _ in range(ROUNDS))
        for apps in (APPS, [*APPS, "django_ratelimit_lua"])
    )
    print(f"django.setup() with django-redis: {without * 1000:.0f} ms of CPU;", end=" ")
    print(f"with the core: {(with_core - without) * 1000:.0f} ms more\naim: at most 50 ms more\n")


def seconds(apps: list[str]) -> float:
    """Return the time of a process with compiled modules."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    done = subprocess.run(
        [sys.executable, "-c", SETUP, *apps], env=environment, capture_output=True, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    setup()
