"""The time of an operator's work with 10,000 rules: the list, the statistics, a save, an import."""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import django

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.bench.settings")
    django.setup()

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse

from django_ratelimit_lua.management import rules_yaml
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.publishing.publisher import publish
from django_ratelimit_lua.rules import provider
from tests.acceptance.admin.test_admin import given
from tests.support.users import ADMIN_MIDDLEWARE

RULES = 10_000
ROUNDS = 5
SITE = {
    "ROOT_URLCONF": "tests.acceptance.admin.test_admin",
    "MIDDLEWARE": [*ADMIN_MIDDLEWARE, "django_ratelimit_lua.middleware.RateLimitMiddleware"],
    "RATELIMIT_CACHE_PREFIX": "bench-operator:",
    "RATELIMIT_RULES": [],
}
RULE_LIST = "admin:django_ratelimit_lua_ratelimitrule_changelist"
OVERVIEW = "admin:django_ratelimit_lua_overview_changelist"
RULE_PAGE = "admin:django_ratelimit_lua_ratelimitrule_change"
AIMS = {
    "list of rules": 1,
    "statistics": 1,
    "form of a rule": 1,
    "save of a rule": 1,
    "request": 1,
    "import of all rules": 15,
}
"""Maximum number of seconds."""


class Cost:
    """The seconds of some work by the clock and of this process, and its number of queries."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, float]] = []
        self.queries = 0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure one round."""
        self.queries = 0
        wall, processor = time.perf_counter(), time.process_time()
        with connection.execute_wrapper(self._count):
            yield
        self.rounds.append((time.perf_counter() - wall, time.process_time() - processor))

    def _count(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        self.queries += 1
        return execute(*arguments)

    def row(self, name: str) -> str:
        wall, processor = (statistics.median(column) for column in zip(*self.rounds, strict=True))
        return f"{name:24}{wall:10.2f}{processor:14.2f}{self.queries:10}{AIMS[name]:8}"


def rules_text(count: int) -> str:
    """Return rules as YAML: prefixes and globs, some with tiers."""
    rules: list[dict[str, object]] = []
    for number in range(count):
        path = f"/app{number}/" if number % 3 else f"/shop{number}/*/items/**"
        rule = {"name": f"rule {number:05}", "path": path, "key": "ip", "rate": "100/m"}
        if number % 10 == 0:
            rule["tiers"] = [{"group": "staff", "rate": "1000/m"}]
        rules.append(rule)
    return rules_yaml.dump(rules)


def import_rules(text: str, *options: str) -> None:
    """Import rules with the command."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        file = Path(folder, "rules.yaml")
        file.write_text(text)
        with redirect_stderr(io.StringIO()):
            call_command("ratelimit", "rules", "import", str(file), *options)


def logged_in() -> Client:
    """Return a client that is logged in as a superuser."""
    user, _is_new = User.objects.get_or_create(
        username="bench", defaults={"is_staff": True, "is_superuser": True}
    )
    client = Client()
    client.force_login(user)
    return client


def open_page(client: Client, name: str) -> None:
    """Request a page of the admin."""
    response = client.get(reverse(name))
    assert response.status_code == 200, response.status_code


def open_form(client: Client) -> None:
    """Request the form of a rule."""
    pk = RateLimitRule.objects.get(name="rule 00001").pk
    response = client.get(reverse(RULE_PAGE, args=[pk]))
    assert response.status_code == 200, response.status_code


def send_request(client: Client) -> None:
    """Send a request to which one of the rules applies, after the rules have changed."""
    provider.reload_ruleset()
    assert client.get("/app1/").status_code == 404


def save_rule(client: Client, limit: int) -> None:
    """Save a rule with another limit, as the form does."""
    rule = RateLimitRule.objects.get(name="rule 00001")
    form = given(name=rule.name, path=rule.path, key=rule.key, rate=f"{limit}/m")
    response = client.post(reverse(RULE_PAGE, args=[rule.pk]), form)
    assert response.status_code == 302, response.content.decode()


def measured(name: str, work: Callable[[int], None], rounds: int) -> Cost:
    """Measure some work; the first of its rounds only warms it up."""
    cost = Cost()
    work(0)
    for number in range(1, rounds + 1):
        with cost.measure():
            work(number)
    return cost


def bench_many_rules(count: int = RULES) -> None:
    """Print one table: seconds by the clock, seconds of this process, and queries."""
    text = rules_text(count)
    with override_settings(**SITE):
        RateLimitRule.objects.all().delete()
        publish(rebuild=True, take_over=True)
        costs = _costs(text)
        RateLimitRule.objects.all().delete()
    print(f"{f'{count:,} rules':24}{'s by clock':>10}{'s of process':>14}{'queries':>10}{'aim':>8}")
    for name, cost in costs.items():
        print(cost.row(name))
    print("aim: seconds of a quiet machine, by the clock\n")


def _costs(text: str) -> dict[str, Cost]:
    first = Cost()
    with first.measure():
        import_rules(text, "--confirm")
    provider.reload_ruleset()
    client = logged_in()
    pages: Sequence[tuple[str, Callable[[int], None]]] = (
        ("list of rules", lambda number: open_page(client, RULE_LIST)),
        ("statistics", lambda number: open_page(client, OVERVIEW)),
        ("form of a rule", lambda number: open_form(client)),
        ("request", lambda number: send_request(client)),
        ("save of a rule", lambda number: save_rule(client, 100 + number)),
    )
    costs = {name: measured(name, work, ROUNDS) for name, work in pages}
    return {**costs, "import of all rules": first}


if __name__ == "__main__":
    from tests.support.redis_server import server

    call_command("migrate", verbosity=0)
    bench_many_rules(*map(int, sys.argv[1:2]))
    server.stop()
