"""The settings of a site in processes of its own, and functions that start these processes.

In the processes this module is `DJANGO_SETTINGS_MODULE`, and a variable has other settings as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support.processes import ROOT, free_port, running
from tests.support.redis_server import url

VARIABLE = "RATELIMIT_TEST_SITE_SETTINGS"
SERVERS = {
    "gunicorn": ("django.core.wsgi:get_wsgi_application()", "--bind=127.0.0.1:{port}"),
    "uvicorn": ("django.core.asgi:get_asgi_application", "--factory", "--port={port}"),
}
"""The application and the address, as each server takes them."""

SECRET_KEY = "tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_ratelimit_lua",
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url()}}
MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]
REST_FRAMEWORK = {"UNAUTHENTICATED_USER": None}
RATELIMIT_TIMEOUT = 10
# With "local", each process would register itself regularly.
RATELIMIT_ON_STORE_ERROR = "closed"
vars().update(json.loads(os.environ.get(VARIABLE, "{}")))


class Served(NamedTuple):
    """A running server."""

    port: int
    process: subprocess.Popen[bytes]


def site_environment(urls: str, **settings: Any) -> dict[str, str]:
    """Return the environment of a process with this URLconf and these settings."""
    site = {"ROOT_URLCONF": urls, **settings}
    return {**os.environ, "DJANGO_SETTINGS_MODULE": __name__, VARIABLE: json.dumps(site)}


def asgi_with_shutdown() -> Any:
    """Return an ASGI application that ends its background work when the server does."""
    from django.core.asgi import get_asgi_application

    application = get_asgi_application()
    from django_ratelimit_lua.asgi import finish_at_shutdown

    return finish_at_shutdown(application)


@contextmanager
def serve(
    server: str,
    urls: str,
    *options: str,
    application: str = "",
    niceness: int = 0,
    **settings: Any,
) -> Iterator[Served]:
    """Run gunicorn or uvicorn with this URLconf, these options and settings, until the end.

    Args:
        server: The name of the server.
        urls: The URLconf.
        options: Options of the server's command.
        application: The application, if it is not Django's own.
        niceness: The niceness that the processes add.
        settings: Settings of the site.
    """
    port = free_port()
    default, *address = SERVERS[server]
    command = ["nice", "-n", str(niceness), sys.executable, "-m", server]
    command += [application or default, "--log-level=critical", *options]
    command += [option.format(port=port) for option in address]
    environment = site_environment(urls, **settings)
    with running(command, port, cwd=ROOT, env=environment) as process:
        yield Served(port, process)
