"""A site in a process of its own, with its own databases, that evaluates the lines it reads."""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from typing import Any

import redis
from django.conf import settings

GIVEN = json.loads(os.environ["RATELIMIT_TEST_SITE"])


class Router:
    """The router of Django's documentation: reads go to the replica."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, *args: Any, **hints: Any) -> bool:
        return True


def _database(path: str) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {"init_command": "PRAGMA synchronous = OFF", "timeout": 1},
    }


settings.configure(
    **{
        "SECRET_KEY": "tests",
        "ALLOWED_HOSTS": ["*"],
        "ROOT_URLCONF": "tests.support.worker_site",
        "USE_TZ": True,
        "INSTALLED_APPS": [
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.messages",
            "django.contrib.sessions",
            *GIVEN["apps"],
        ],
        "DATABASES": {name: _database(path) for name, path in GIVEN["databases"].items()},
        "DATABASE_ROUTERS": [Router()] if "replica" in GIVEN["databases"] else [],
        "CACHES": {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": GIVEN["url"]}
        },
        "MIDDLEWARE": ["django_ratelimit_lua.middleware.RateLimitMiddleware"],
        "RATELIMIT_TIMEOUT": 10,
        # With "local", the process would register itself regularly.
        "RATELIMIT_ON_STORE_ERROR": "closed",
        "RATELIMIT_DENY_CACHE_SECONDS": 0,  # Every request asks Redis.
        "RATELIMIT_CACHE_PREFIX": GIVEN["prefix"],
        **GIVEN["settings"],
    }
)

log_lines: list[str] = []


class ListHandler(logging.Handler):
    """Appends messages to the list."""

    def emit(self, record: logging.LogRecord) -> None:
        log_lines.append(record.getMessage())


import django  # noqa: E402

django.setup()
logging.getLogger("django_ratelimit_lua").addHandler(ListHandler())
logging.getLogger("django_ratelimit_lua").propagate = False
# Tests ask for refusals themselves.
logging.getLogger("django_ratelimit_lua.refused").disabled = True

from django.contrib.auth.models import AnonymousUser, Group, User  # noqa: E402, F401
from django.core import checks  # noqa: E402, F401
from django.core.management import call_command  # noqa: E402, F401
from django.db import OperationalError, connections, transaction  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.test import RequestFactory, override_settings  # noqa: E402
from django.urls import path  # noqa: E402
from django.utils import timezone  # noqa: E402

from django_ratelimit_lua import RateLimiter  # noqa: E402
from django_ratelimit_lua.admin.history import restored_rule  # noqa: E402, F401
from django_ratelimit_lua.engine.listener import listener  # noqa: E402
from django_ratelimit_lua.identity import digest  # noqa: E402, F401
from django_ratelimit_lua.management import rules_yaml  # noqa: E402, F401
from django_ratelimit_lua.middleware import RateLimitMiddleware  # noqa: E402
from django_ratelimit_lua.models import (  # noqa: E402
    RateLimitChange,  # noqa: F401
    RateLimitOverride,
    RateLimitRevision,  # noqa: F401
    RateLimitRule,
)
from django_ratelimit_lua.operations.health import health  # noqa: E402, F401
from django_ratelimit_lua.publishing import publish, triggers  # noqa: E402
from django_ratelimit_lua.publishing import publisher as publishing  # noqa: E402, F401
from django_ratelimit_lua.rules import provider  # noqa: E402
from django_ratelimit_lua.rules.status import freshness  # noqa: E402
from django_ratelimit_lua.store import Subscription, get_store  # noqa: E402
from tests.support.limits import add_tier  # noqa: E402, F401

provider.COMPARE_SECONDS = GIVEN["compare_seconds"]


def _ok(request: HttpRequest) -> HttpResponse:
    met = request.ratelimit.limits if hasattr(request, "ratelimit") else ()
    return HttpResponse(json.dumps([[state.name, state.limit] for state in met]))


urlpatterns = [path("", _ok)]
_site = RateLimitMiddleware(_ok)


def ask(address: str = "127.0.0.1", user: Any = None, key: str | None = None) -> Any:
    """Return the limits of a request by name, or "refused"."""
    request = RequestFactory(headers={"X-API-Key": key} if key else None).get(
        "/", REMOTE_ADDR=address
    )
    request.user = (
        AnonymousUser() if user is None else User.objects.using("default").get(username=user)
    )
    response = _site(request)
    return dict(json.loads(response.content)) if response.status_code == 200 else "refused"


limiter = RateLimiter("limiter", "3/h")


def rule(name: str = "site", **fields: Any) -> int:
    given = {"path": "/", "key": "ip", "rate": "1000000/h", **fields}
    return RateLimitRule.objects.create(name=name, **given).pk


def block(key: str | None = None, **fields: Any) -> int:
    override = RateLimitOverride(effect="block", field="header:X-API-Key" if key else "", **fields)
    if key:
        override.set_value(key)
    if override.client_digest:
        override.ends = timezone.now() + timedelta(days=1)
    override.save()
    return override.pk


def edit(limit: int, name: str = "site") -> int:
    return RateLimitRule.objects.filter(name=name).update(rate=f"{limit}/h")


direct = redis.Redis.from_url(GIVEN["url"])


def watch(question: str, seconds: float = 5.0, *, pauses: bool = True) -> float:
    """Evaluate a line until its value changes, and return when the last equal evaluation began.

    The time is that of the monotonic clock, which all processes share. Without pauses, no other
    thread runs while this one does not wait for anything.
    """
    before, asked_at = run(question), time.monotonic()
    print(json.dumps([True, "watching"]), flush=True)
    end = asked_at + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        if run(question) != before:
            return asked_at
        asked_at = began
        if pauses:
            time.sleep(0.001)
    raise AssertionError(f"{question} is {before} for ever")


def asked(times: int) -> int:
    """Return the number of decisions that Redis makes for a number of requests."""
    before = direct.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    for _ in range(times):
        ask()
    return int(direct.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"] - before)


def timed(statement: str) -> float:
    """Execute a statement, and return the monotonic time of its end."""
    run(statement)
    return time.monotonic()


def longest_load(seconds: float) -> float:
    """Return how long the lock of the rules was held at a time, at most, within some seconds."""
    longest, began = 0.0, None
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        began = (began or now) if provider._lock.locked() else None
        longest = max(longest, now - began if began else 0.0)
        time.sleep(0.001)
    return longest


def refused() -> str:
    """Return the source of the decision about a client that is over the limit.

    The deny cache is not used while messages have not been read, so this tries for two seconds.
    """
    for _ in range(400):
        source = [limiter.hit("ada").source for _ in range(5)][-1]
        if source == "deny-cache":
            break
        time.sleep(0.005)
    return source


def is_listening() -> bool:
    """Return whether this process receives changes, and knows the current rules."""
    listener.task.start()
    return listener.is_listening and freshness._proof is not None


def keep_waiting() -> None:
    """Let the listener read no more messages."""
    is_waiting = threading.Event()

    def receive(subscription: Subscription, seconds: float) -> list[bytes]:
        is_waiting.set()
        threading.Event().wait()
        return []

    Subscription.receive = receive
    assert is_waiting.wait(20)


def empty_redis() -> None:
    """Delete all keys of the site, as a restart without persistence does."""
    direct.delete("nothing", *direct.keys(f"{GIVEN['prefix']}*"))


def restart(prefix: str | None = None) -> None:
    """Forget the rules, as a new process does, and use another prefix."""
    if prefix is not None:
        GIVEN["prefix"] = prefix
        override_settings(RATELIMIT_CACHE_PREFIX=prefix).enable()
    with provider._lock:  # Not while another thread loads rules.
        provider._ruleset = provider._snapshot = provider.database = None


def check_published() -> None:
    """Compare the published rules with the database, and wait until they are published."""
    triggers.check_published()
    while triggers.publishing.is_running:
        time.sleep(0.001)


def die_after(statement: str) -> None:
    """Commit a statement without publishing it, as if the process was killed in between."""
    original = triggers._publish_committed
    triggers._publish_committed = lambda: None
    try:
        run(statement)
    finally:
        triggers._publish_committed = original
    restart()


CLIENTS = [{}, {"address": "203.0.113.0"}, {"address": "203.0.113.1"}, {"key": "secret"}]


def ask_all() -> list[Any]:
    """Return the limits of a request of each client."""
    return [ask(**client) for client in CLIENTS]


def expected_answers() -> list[Any]:
    """Return the limits of each client by the rows of the database."""
    limits = {rule.name: int(rule.rate.partition("/")[0]) for rule in RateLimitRule.objects.all()}
    blocked = {one.network or "secret" for one in RateLimitOverride.objects.all()}
    return ["refused" if {*client.values()} & blocked else limits for client in CLIENTS]


def in_a_transaction(limit: int, *, commits: bool) -> Any:
    """Return the limits of requests within a transaction that edits, while Redis is emptied."""
    with transaction.atomic():
        edit(limit)
        empty_redis()
        with suppress(OperationalError):  # SQLite has one writer at a time.
            publish()
        answers = [ask(), ask()]
        transaction.set_rollback(not commits)
    return answers


def publish_with(emptied_at: int) -> None:
    """Publish all rules, and empty Redis before the command with this number."""
    commands = itertools.count(1)
    store = type(get_store(background=True))
    original = store.execute

    def ask_or_empty(self: Any, *parts: bytes, **options: Any) -> Any:
        if next(commands) == emptied_at:
            empty_redis()
        return original(self, *parts, **options)

    store.execute = ask_or_empty
    try:
        publish(rebuild=True)
    finally:
        store.execute = original


def run(line: str) -> Any:
    """Execute statements that ` ;; ` separates, and return the value of the last if it has one."""
    *statements, last = line.strip().split(" ;; ")
    for one in statements:
        exec(one, globals())
    try:
        expression = compile(last, "line", "eval")
    except SyntaxError:
        exec(last, globals())
        return None
    return eval(expression, globals())


def main() -> None:
    for line in sys.stdin:
        try:
            answer = [True, run(line)]
        except Exception:
            answer = [False, traceback.format_exc()]
        finally:
            connections.close_all()
        print(json.dumps(answer, default=str), flush=True)
