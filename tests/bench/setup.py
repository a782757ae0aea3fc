"""What the core adds to `django.setup()`, in CPU: processes of a site with django-redis, with and
without the core.
"""

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
    """The shortest of some, as a busy machine only adds to them."""
    without, with_core = (
        min(seconds(apps) for _ in range(ROUNDS))
        for apps in (APPS, [*APPS, "django_ratelimit_lua"])
    )
    print(f"django.setup() with django-redis: {without * 1000:.0f} ms of CPU;", end=" ")
    print(f"with the core: {(with_core - without) * 1000:.0f} ms more\naim: at most 50 ms more\n")


def seconds(apps: list[str]) -> float:
    """The time of a process whose modules are compiled."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    done = subprocess.run(
        [sys.executable, "-c", SETUP, *apps], env=environment, capture_output=True, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    setup()
