"""The settings of the benchmarks. Their processes share a database in a file."""

import os
import tempfile
from urllib.parse import urlsplit

from tests.annexes import ALL, VARIABLE
from tests.support.redis_server import url

os.environ.setdefault(VARIABLE, ALL)
from tests.settings import *  # noqa: F403

if "RATELIMIT_BENCH_DATABASE" not in os.environ:
    os.environ["RATELIMIT_BENCH_DATABASE"] = os.path.join(
        tempfile.mkdtemp(prefix="ratelimit-bench-"), "db.sqlite3"
    )
ROOT_URLCONF = "tests.bench.peers.site"
RATELIMIT_ON_STORE_ERROR = "local"  # The default, whose cost is in the figures.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["RATELIMIT_BENCH_DATABASE"],
        "OPTIONS": {"init_command": "PRAGMA synchronous = OFF"},
    }
}
REST_FRAMEWORK = {"UNAUTHENTICATED_USER": None}
TRAFFICWATCH = {"BACKEND": "redis"}
# django-smart-ratelimit's.
RATELIMIT_BACKEND = "redis"
_AT = urlsplit(url())
RATELIMIT_REDIS = {"host": _AT.hostname, "port": _AT.port, "db": 0}
