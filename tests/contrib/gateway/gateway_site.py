"""A site with the gateway, for processes of its own."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

if not settings.configured:
    settings.configure(
        **{
            "SECRET_KEY": "tests",
            "ALLOWED_HOSTS": ["*"],
            "ROOT_URLCONF": "tests.contrib.gateway.gateway_site",
            "LOGGING_CONFIG": None,
            "INSTALLED_APPS": [
                "django.contrib.auth",
                "django.contrib.contenttypes",
                "django_ratelimit_lua",
                "django_ratelimit_lua.contrib.gateway",
            ],
            "MIDDLEWARE": [],
            **json.loads(os.environ["GATEWAY_SETTINGS"]),
        }
    )

    import django

    django.setup()

from django.core.asgi import get_asgi_application

from django_ratelimit_lua.contrib.gateway.asgi import application as alone  # noqa: F401


async def nothing(request: HttpRequest) -> HttpResponse:
    """Return an empty response, with which the bench compares."""
    return HttpResponse(status=204)


urlpatterns = [
    path("ratelimit/", include("django_ratelimit_lua.contrib.gateway.urls")),
    path("nothing", nothing),
]
asgi = get_asgi_application()


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Answer 204 to every request, for the bench: this is the cost of uvicorn."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
