"""The settings of a project that only replays logs: no Redis of its own, no database."""

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
ROOT_URLCONF = "tests.bench.replay_settings"
urlpatterns: list[object] = []
