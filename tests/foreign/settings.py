"""The settings of the migration guides, with the server of this session."""

from tests.support.redis_server import url

SECRET_KEY = "tests"
USE_TZ = True
ROOT_URLCONF = "tests.foreign.settings"
urlpatterns: list[object] = []
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "rest_framework",
    "django_ratelimit_lua",
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}

REDIS = "django_redis.cache.RedisCache"
NOBODY = "redis://127.0.0.1:1"
CACHES = {
    "default": {"BACKEND": REDIS, "LOCATION": url()},
    "connection-errors": {"BACKEND": REDIS, "LOCATION": NOBODY},
    "connection-errors-redis": {"BACKEND": REDIS, "LOCATION": NOBODY},
    "instant-expiration": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "TIMEOUT": 0,
    },
}
RATELIMIT_TIMEOUT = 10

# The settings in docs/how-to/from-django-ratelimit.rst that keep the old behaviour.
RATELIMIT_EXCEPTION_CLASS = "django_ratelimit_lua.exceptions.Ratelimited"
RATELIMIT_FAIL_OPEN = False
RATELIMIT_ALGORITHM = "fixed_window"
RATELIMIT_DENY_CACHE_SECONDS = 0
