"""Settings of the demo. Those of rate limits are at the end."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = (
    "the example has no secrets"  # A real project has one: it is the key of the digests of clients.
)
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
ROOT_URLCONF = "example_project.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_ratelimit_lua",
    "django_ratelimit_lua.contrib.statistics",
    "django_ratelimit_lua.contrib.breakers",
    "django_ratelimit_lua.contrib.replay",
    "django_ratelimit_lua.contrib.gateway",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "example_project.csp.strict",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_ratelimit_lua.middleware.RateLimitMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("EXAMPLE_DATABASE", BASE_DIR / "db.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
LOGIN_REDIRECT_URL = "/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"),
    }
}
RATELIMIT_CACHE_PREFIX = "example:"
RATELIMIT_VIEW = "example_project.views.blocked"
RATELIMIT_HEADERS = "ietf"
# The addresses of a demo need no mask.
RATELIMIT_SHOW_IDENTITIES = os.environ.get("EXAMPLE_SHOW_IDENTITIES", "plain")
RATELIMIT_NEVER_BAN: list[str] = []  # By default this host is never banned.

# Keys in addition to the built-in ones: see the rule "tenants" in `rules.yaml`.
RATELIMIT_KEYS = {"tenant": "example_project.keys.tenant", "plan": "example_project.keys.plan"}

# The middleware applies these rules to every request, before any view, also for paths that do not
# exist. An operator edits the rules of the admin while the site runs: at the start those of
# `rules.yaml`.
RATELIMIT_RULES = [
    {"name": "static", "path": "/static/", "exempt": True},
    {
        "name": "everything",
        "path": "/",
        "key": "ip",
        "rate": "1200/m",
        "algorithm": "token_bucket",
        "burst": 200,
    },
    {"name": "scanners", "path": ["/wp-*", "/**.php"], "key": "ip", "rate": "8/10s"},
]

# For proxies in front of other services, see `make demo-gateway`.
RATELIMIT_GATEWAY_DIALECT = os.environ.get("RATELIMIT_GATEWAY_DIALECT")
RATELIMIT_GATEWAY_SECRET = os.environ.get("RATELIMIT_GATEWAY_SECRET")
RATELIMIT_TRUSTED_PROXIES = ["127.0.0.1/32"] if RATELIMIT_GATEWAY_DIALECT else None

REST_FRAMEWORK = {
    "DEFAULT_THROTTLE_RATES": {"anon": "5/s", "user": "100/h"},
}
