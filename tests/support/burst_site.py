"""A site whose views receive bursts of requests."""

from __future__ import annotations

import os
from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

if not settings.configured:
    settings.configure(
        SECRET_KEY="tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.support.burst_site",
        LOGGING_CONFIG=None,
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django_ratelimit_lua",
        ],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": os.environ["BURST_DATABASE"],
            }
        },
        CACHES={
            "default": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": os.environ["BURST_REDIS"],
            }
        },
    )
    django.setup()

from django_ratelimit_lua import ratelimit


def burst(group: str, request: HttpRequest) -> str:
    return request.GET["burst"]


def views(policy: str) -> list[Any]:
    """Return the URL patterns of a sync and an async view with a limit of 10 under a policy."""

    @ratelimit(f"{policy}-sync", key=burst, rate="10/h", on_store_error=policy)
    def blocking(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    @ratelimit(f"{policy}-async", key=burst, rate="10/h", on_store_error=policy)
    async def coroutine(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    return [path(f"{policy}/sync", blocking), path(f"{policy}/async", coroutine)]


urlpatterns = [*views("open"), *views("closed"), *views("local")]


def application(*args: Any) -> Any:
    """Serve the site by WSGI (two arguments) or ASGI (three)."""
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler

    kind = WSGIHandler if len(args) == 2 else ASGIHandler
    if kind not in _handlers:
        _handlers[kind] = kind()
    return _handlers[kind](*args)


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """Serve the site by ASGI."""
    await application(scope, receive, send)


_handlers: dict[Any, Any] = {}

if __name__ == "__main__":
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
