"""The site of `tests.support.crawlers`.

As a program, it creates its database, and prints the session cookies of a number of users.
"""

from __future__ import annotations

import json
import os
import sys
import time

import django
from django.conf import settings

MIDDLEWARE = (
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_ratelimit_lua.middleware.RateLimitMiddleware",
)
settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF="tests.support.crawlers_site",
    USE_TZ=True,
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "django_ratelimit_lua",
    ],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["RATELIMIT_TEST_DATABASE"],
        }
    },
    CACHES={
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": os.environ["RATELIMIT_TEST_URL"],
        }
    },
    MIDDLEWARE=MIDDLEWARE,
    LOGGING={"version": 1, "loggers": {"django_ratelimit_lua": {"level": "CRITICAL"}}},
    RATELIMIT_CACHE_PREFIX=f"{os.environ['RATELIMIT_TEST_DATABASE']}:",
    RATELIMIT_TIMEOUT=10,
    **json.loads(os.environ["RATELIMIT_TEST_SETTINGS"]),
)
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402


def page(request: HttpRequest, milliseconds: int) -> HttpResponse:
    """A page that takes some time."""
    time.sleep(milliseconds / 1000)
    return HttpResponse("served")


urlpatterns = [path("<int:milliseconds>", page)]
application = get_wsgi_application()


def main() -> None:
    call_command("migrate", verbosity=0)
    for number in range(int(sys.argv[1])):
        client = Client()
        client.force_login(User.objects.create_user(f"user{number}"))
        print(client.cookies["sessionid"].value)


if __name__ == "__main__":
    main()
