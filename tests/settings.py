"""The settings of the test project."""

import os
import tempfile
from importlib.util import find_spec

from tests.annexes import installed
from tests.support.redis_server import url

SECRET_KEY = "tests"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.urls"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_ratelimit_lua",
    *(f"django_ratelimit_lua.contrib.{name}" for name in installed().split(",") if name),
]
# In a file, so that threads have connections of their own, which can be closed.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "OPTIONS": {"init_command": "PRAGMA synchronous = OFF"},
        "TEST": {"NAME": os.path.join(tempfile.gettempdir(), f"ratelimit-{os.getpid()}.sqlite3")},
    }
}
if "RATELIMIT_TEST_POSTGRES" in os.environ:  # host:port of a server that trusts the user postgres
    HOST, _, PORT = os.environ["RATELIMIT_TEST_POSTGRES"].partition(":")
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "ratelimit",
        "USER": "postgres",
        "HOST": HOST,
        "PORT": PORT,
    }
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [],
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
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": url(),
    }
}
# Tests that count what is admitted must not lose a call to a busy machine.
RATELIMIT_TIMEOUT = 10
RATELIMIT_ON_STORE_ERROR = "closed"
# Hundreds of tests make a user; a slow hash of the password would take most of their time.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "/static/"
REST_FRAMEWORK = {
    "UNAUTHENTICATED_USER": None,
}
_TASKS = "django.tasks" if find_spec("django.tasks") else "django_tasks"
TASKS = {"default": {"BACKEND": f"{_TASKS}.backends.dummy.DummyBackend"}}  # It runs no task.
