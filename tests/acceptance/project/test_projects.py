"""Projects with other apps and settings than the tests: without the admin, and in any language."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.project import EVERY_CONTRIB, Project

ADMIN = ("django.contrib.admin",)
SESSIONS = ("django.contrib.sessions", "django.contrib.messages", "django.contrib.auth.middleware")
NO_CHANGES = "No changes detected"
VIEWS = """
from django.shortcuts import render
from django.urls import path
from django_ratelimit_lua import ratelimit

@ratelimit(key="ip", rate="1/h")
def page(request):
    return render(request, "page.html")

urlpatterns = [path("", page)]
"""
REQUESTS = """
from django.test import Client
for accept in ("text/html", "application/json"):
    print(*[Client().get("/", headers={"accept": accept}).status_code for _ in range(2)])
"""
COMMANDS = (
    "rules list",
    "rules show all",
    "history",
    "overrides list",
    "rules export",
    "publish",
    "rules mode all shadow",
    "rules explain --path / --ip 192.0.2.1",
    "rules explain --cookie sessionid=abcdefghijklmnop",
    "reset --path / --ip 192.0.2.1",
    "block --ip 192.0.2.2 --for 1h",
    "unblock --ip 192.0.2.2",
    "bans list",
    "history --prune 90d",
    "forget --ip 192.0.2.1",
    "health",
    "proxy nginx --timeout 30",
)
TOKENS = """
RATELIMIT_GATEWAY_SECRET = RATELIMIT_METRICS_TOKEN = "secret" * 8
RATELIMIT_GATEWAY_DIALECT = "nginx"
RATELIMIT_TRUSTED_PROXIES = ["127.0.0.1"]
"""
URLS = """
from django.urls import include, path

annexes = ("gateway", "statistics")
urlpatterns = [path("", include(f"django_ratelimit_lua.contrib.{name}.urls")) for name in annexes]
"""
RUN = f"""
from django.core.management import call_command
from django.test import Client
from django_ratelimit_lua.models import RateLimitRule

RateLimitRule.objects.create(name="all", path="/", key="ip", rate="100/h")
for command in {COMMANDS!r}:
    call_command("ratelimit", *command.split())
headers = {{
    "Authorization": f"Bearer {{'secret' * 8}}",
    "X-Ratelimit-Secret": "secret" * 8,
    "X-Original-URI": "/",
    "X-Original-Method": "GET",
    "X-Original-Host": "shop.example",
    "X-Original-Address": "192.0.2.1",
}}
print(*[Client().get(path, headers=headers).status_code for path in ("/check", "/metrics")])
"""


@pytest.mark.parametrize("removed", [ADMIN, ADMIN + SESSIONS], ids=["admin", "admin and sessions"])
@pytest.mark.parametrize("annex", ["", *EVERY_CONTRIB])
def test_a_project_without_the_admin_limits_requests(
    annex: str, removed: tuple[str, ...], tmp_path: Path
) -> None:
    """The templates keep the context processors of apps that are not installed."""
    project = Project(tmp_path, [annex] if annex else [], removed, urls=VIEWS)
    templates = tmp_path / "shop" / "templates"
    templates.mkdir()
    (templates / "page.html").write_text("found")
    with (tmp_path / "shop" / "settings.py").open("a") as file:
        file.write(f"TEMPLATES[0]['DIRS'] = [{str(templates)!r}]\n")
    assert "no issues" in project.manage("check")
    project.manage("migrate")
    assert project.execute(REQUESTS).splitlines() == ["200 429", "429 429"]


def test_commands_and_urls_work_without_the_admin_and_sessions(tmp_path: Path) -> None:
    """This includes those of all optional apps."""
    project = Project(tmp_path, EVERY_CONTRIB, ADMIN + SESSIONS, TOKENS, URLS)
    project.manage("migrate")
    lines = project.execute(RUN).splitlines()
    assert "all (admin): 100 per hour per address, on /, shadow mode" in lines
    assert lines[-1] == "200 200"


SETTINGS = {
    **dict.fromkeys(["", *EVERY_CONTRIB], ""),
    "language": "LANGUAGE_CODE = 'de'",
    "no translations": "USE_I18N = False",
    "naive times": "USE_TZ = False",
    "small keys": "DEFAULT_AUTO_FIELD = 'django.db.models.AutoField'",
    "algorithm": "RATELIMIT_ALGORITHM = 'token_bucket'",
    "key": "RATELIMIT_KEYS = {'tenant': 'shop.urls.tenant'}",
    "secrets": "SECRET_KEY_FALLBACKS = ['earlier']",
    "order of apps": "INSTALLED_APPS.reverse()",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_migrations_match_the_models(name: str, tmp_path: Path) -> None:
    """`makemigrations` finds no change with one optional app, or with all and other settings."""
    urls = "urlpatterns = []\n\ndef tenant(request):\n    return 'acme'\n"
    apps = EVERY_CONTRIB if SETTINGS[name] else [annex for annex in [name] if annex]
    project = Project(tmp_path, apps, (), SETTINGS[name] + "\n", urls)
    assert NO_CHANGES in project.manage("makemigrations", "--check", "--dry-run")


MIGRATE = """
import sys
import time
from django.core.management import call_command
from django.db.models.signals import pre_migrate
from django.test import Client
from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.models import RateLimitRule

sys.stderr = sys.stdout

def decide(**kwargs):
    RateLimiter("x", "9/h").hit("ada")
    time.sleep(0.5)  # The rules of the database are compared in the background.

pre_migrate.connect(decide)
call_command("migrate", verbosity=0)
decide()
RateLimitRule.objects.create(name="all", path="/", key="ip", rate="0/m")
print(Client().get("/").status_code)
"""


@pytest.mark.parametrize("database", ["shop.sqlite3", ":memory:"])
def test_a_script_that_migrates_logs_nothing(database: str, tmp_path: Path) -> None:
    """Rules apply afterwards, also those of a database in memory."""
    settings = f"DATABASES['default']['NAME'] = {database!r}\nLOGGING = {{'version': 1}}\n"
    project = Project(tmp_path, EVERY_CONTRIB, settings=settings)
    lines = project.execute(MIGRATE).splitlines()
    assert len(lines) == 2, lines
    refusal, status = lines
    assert refusal.startswith("Refused by all (rule: all)")
    assert status == "429"


def test_pages_of_a_second_admin_site_link_within_it(tmp_path: Path) -> None:
    """Every model and page can be registered with another site, with those of optional apps."""
    site = "from tests.acceptance.project.second_site import"
    project = Project(tmp_path, EVERY_CONTRIB, urls=f"{site} urlpatterns\n")
    project.manage("migrate")
    found = json.loads(project.execute(f"{site} crawl\ncrawl()"))
    assert found["links to the first site"] == []
    assert len(found["pages"]) >= 40
