"""The settings of a project that only replays logs: it has no Redis and no database server."""

SECRET_KEY = "replay"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_ratelimit_lua",
    "django_ratelimit_lua.contrib.replay",
]
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
}
ROOT_URLCONF = "tests.contrib.replay.offline_settings"
urlpatterns: list[object] = []
