"""A site with the core alone. As a program, it prints its parts; it takes a URL and a prefix."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from django.conf import settings

CONFIGURED: dict[str, Any] = {
    "SECRET_KEY": "tests",
    "ALLOWED_HOSTS": ["*"],
    "ROOT_URLCONF": "tests.acceptance.project.core_site",
    "USE_TZ": True,
    "INSTALLED_APPS": [
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django_ratelimit_lua",
    ],
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    "RATELIMIT_TIMEOUT": 10,
}
urlpatterns: list[Any] = []
PAGES = (
    "",
    "ratelimitrule/",
    "ratelimitrule/add/",
    "ratelimitrule/1/change/",
    "ratelimitrule/1/history/",
    "overview/",
    "client/",
    "bans/",
    "ratelimitoverride/",
    "ratelimitoverride/add/",
    "ratelimitchange/",
)


def names_of(patterns: Any, prefix: str = "") -> list[str]:
    """Return the routes and names of URL patterns."""
    found = []
    for pattern in patterns:
        route = f"{prefix}{pattern.pattern}"
        found += (
            names_of(pattern.url_patterns, route) if hasattr(pattern, "url_patterns") else [route]
        )
    return found


def main(location: str, prefix: str) -> None:
    """Let requests, limiters and operators do what they do, and print what there is then."""
    settings.configure(
        **CONFIGURED,
        RATELIMIT_CACHE_PREFIX=prefix,
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}},
    )
    import django

    django.setup()
    after_setup = sorted(sys.modules)
    import redis
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connection
    from django.test import Client
    from django.urls import path

    from django_ratelimit_lua import RateLimiter
    from django_ratelimit_lua.conf import SETTINGS
    from django_ratelimit_lua.management.verbs import verbs
    from django_ratelimit_lua.management.verbs.site import background_tasks
    from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule

    urlpatterns.append(path("admin/", admin.site.urls))
    call_command("migrate", verbosity=0)
    RateLimitRule.objects.create(name="all", path="/", key="ip", rate="100/h")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    client = Client()
    client.force_login(User.objects.create_superuser("grace"))
    answers = {page: client.get(f"/admin/django_ratelimit_lua/{page}") for page in PAGES}
    answers["blocked"] = client.get("/admin/", REMOTE_ADDR="203.0.113.9")
    banned = RateLimiter("logins", "1/h", ban_after=1, ban_for="1h")
    for _ in range(3):
        banned.hit("ada")
    with RateLimiter("exports", "1", algorithm="concurrency").slot("ada"):
        time.sleep(2)  # Background tasks have run by now.
    call_command("ratelimit", "health", stdout=sys.stderr)
    with redis.Redis.from_url(location) as direct:
        keys = [key.decode("latin-1").removeprefix(prefix) for key in direct.keys(f"{prefix}*")]
    print(
        json.dumps(
            {
                "statuses": {page: answer.status_code for page, answer in answers.items()},
                "tables": connection.introspection.table_names(),
                "columns": [field.name for field in RateLimitRule._meta.get_fields()],
                "URLs": names_of(urlpatterns),
                "pages": [answer.content.decode() for answer in answers.values()],
                "settings": list(SETTINGS),
                "tasks": [state.name for state in background_tasks()],
                "threads": [thread.name for thread in threading.enumerate()],
                "keys": keys,
                "verbs": list(verbs),
                "modules after setup": after_setup,
                "modules": sorted({*after_setup, *sys.modules}),
            }
        )
    )


if __name__ == "__main__":
    from tests.acceptance.project import core_site

    core_site.main(*sys.argv[1:])
