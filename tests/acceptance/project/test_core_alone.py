"""A site with only the core has no part of an optional app."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from tests.support.redis_server import url

ROOT = Path(__file__).parents[3]
OF_ANNEXES = re.compile(
    r"statistic|stats|breaker|circuit|replay|gateway|descriptor|envoy|metrics|opentelemetry", re.I
)
MODELS = ("change", "host", "override", "revision", "rule")
TABLES = {f"django_ratelimit_lua_ratelimit{name}" for name in MODELS}


@pytest.fixture(scope="module")
def site() -> Any:
    """Return the parts of a site with only the core after requests, commands and pages."""
    environment = {**os.environ}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    how: Any = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
    command = [
        sys.executable,
        "-m",
        "tests.acceptance.project.core_site",
        url(),
        f"core-alone-{os.getpid()}:",
    ]
    done = subprocess.run(command, timeout=120, **how)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_core_works_without_optional_apps(site: Any) -> None:
    """The pages of the admin respond, and an override blocks."""
    assert site["statuses"].pop("blocked") == 429
    assert {*site["statuses"].values()} == {200}


def test_the_core_creates_no_table_of_an_optional_app(site: Any) -> None:
    """The tables are exactly those of the core."""
    assert {table for table in site["tables"] if "ratelimit" in table} == TABLES


PARTS = ("columns", "URLs", "settings", "threads", "keys", "verbs", "tasks")


@pytest.mark.parametrize("what", PARTS)
def test_the_core_has_no_part_of_an_optional_app(what: str, site: Any) -> None:
    """No column, URL, setting, thread, key, command or task belongs to one."""
    assert site[what] or what == "tasks"
    assert [name for name in site[what] if OF_ANNEXES.search(name)] == []


def test_the_core_admin_does_not_mention_optional_apps(site: Any) -> None:
    """The pages have no link, field or column of an optional app."""
    assert [found[0] for page in site["pages"] if (found := OF_ANNEXES.search(page))] == []


def test_the_core_imports_no_module_of_an_optional_app(site: Any) -> None:
    """Dependencies of optional apps are not imported either."""
    named = ("django_ratelimit_lua.contrib.", "grpc", "prometheus_client")
    assert [name for name in site["modules"] if name.startswith(named)] == []


def test_a_process_starts_without_the_pages_of_the_admin(site: Any) -> None:
    """Nor does it import commands, DRF's throttles and optional libraries."""
    package = "django_ratelimit_lua"
    rooms = [f"{package}.{room}" for room in ("operations", "management", "throttling", "testing")]
    late = (*rooms, f"{package}.asgi", "django.middleware.locale", "http_sf", "yaml")
    started = site["modules after setup"]
    assert [name for name in started if name.startswith(late)] == []
    assert [name for name in started if name.startswith(f"{package}.admin.")] == [
        f"{package}.admin.pages",
    ]
    assert {f"{package}.admin.rules", f"{package}.operations.explain"} <= {*site["modules"]}


@pytest.mark.parametrize("name", ["breakers", "statistics"])
def test_the_models_of_an_optional_app_need_the_app(name: str) -> None:
    """Otherwise they would be models of the core, without tables."""
    app = f"django_ratelimit_lua.contrib.{name}"
    with pytest.raises(ImproperlyConfigured, match=f'Add "{app}" to INSTALLED_APPS'):
        importlib.import_module(f"{app}.models")
