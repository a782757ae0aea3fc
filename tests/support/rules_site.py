"""A site for servers of their own: its one view tells by which revision of the rules its request
was decided.
"""

from __future__ import annotations

import os

from django.conf import settings

from tests.support.redis_server import url

ANNEXES = os.environ.get("RATELIMIT_TEST_SITE_ANNEXES", "").split()

settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF="tests.support.rules_site",
    USE_TZ=True,
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django_ratelimit_lua",
        *ANNEXES,
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url()}},
    MIDDLEWARE=["django_ratelimit_lua.middleware.RateLimitMiddleware"],
    RATELIMIT_TIMEOUT=10,
    # With "local", each process would say every five seconds that it is there.
    RATELIMIT_ON_STORE_ERROR="closed",
    RATELIMIT_CACHE_PREFIX=os.environ["RATELIMIT_TEST_PREFIX"],
)

import django  # noqa: E402

django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpRequest, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402


def _report_call(request: HttpRequest) -> JsonResponse:
    decision = request.ratelimit
    return JsonResponse(
        {"revision": decision.revision, "limit": decision.limits[0].limit, "process": os.getpid()}
    )


def tell(request: HttpRequest) -> JsonResponse:
    return _report_call(request)


async def atell(request: HttpRequest) -> JsonResponse:
    return _report_call(request)


urlpatterns = [path("tell", tell), path("atell", atell)]
application = get_wsgi_application()
asgi = get_asgi_application()
