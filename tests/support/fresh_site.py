"""A site for processes of their own, by rules that the environment gives."""

from __future__ import annotations

import json
import os

from django.conf import settings

from tests.support.redis_server import url

settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF="tests.support.fresh_urls",
    INSTALLED_APPS=["django_ratelimit_lua"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url()}},
    MIDDLEWARE=["django_ratelimit_lua.middleware.RateLimitMiddleware"],
    REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    RATELIMIT_TIMEOUT=10,
    RATELIMIT_ON_STORE_ERROR="closed",
    RATELIMIT_CACHE_PREFIX=os.environ["RATELIMIT_TEST_PREFIX"],
    RATELIMIT_RULES=json.loads(os.environ["RATELIMIT_TEST_RULES"]),
)

import django  # noqa: E402

django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402

application = get_wsgi_application()
asgi = get_asgi_application()
