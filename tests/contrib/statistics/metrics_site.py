"""A site that Prometheus scrapes, with several processes."""

from __future__ import annotations

import os

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from tests.support.redis_server import url

settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF="tests.contrib.statistics.metrics_site",
    INSTALLED_APPS=["django_ratelimit_lua", "django_ratelimit_lua.contrib.statistics"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url()}},
    RATELIMIT_TIMEOUT=10,
    RATELIMIT_CACHE_PREFIX=os.environ["RATELIMIT_TEST_PREFIX"],
    RATELIMIT_METRICS_TOKEN=os.environ["RATELIMIT_TEST_TOKEN"],
)

import django  # noqa: E402

django.setup()

from django.core.wsgi import get_wsgi_application  # noqa: E402

from django_ratelimit_lua import ratelimit  # noqa: E402


@ratelimit(group="search", key="get:who", rate="3/h")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(os.getpid()))


urlpatterns = [
    path("search/", search),
    path("ratelimit/", include("django_ratelimit_lua.contrib.statistics.urls")),
]
application = get_wsgi_application()
