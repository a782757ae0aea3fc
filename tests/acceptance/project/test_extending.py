"""The page "Extending": an example algorithm works in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from django_ratelimit_lua.models import RateLimitRule
from tests.support.redis_server import url

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "django_ratelimit_lua"
DOCS = ROOT / "docs" / "design"
SITE = """
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="tests",
    INSTALLED_APPS=[
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
        "django_ratelimit_lua",
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": %r}},
    RATELIMIT_CACHE_PREFIX="extending:%d:",
    RATELIMIT_TIMEOUT=10,
)
django.setup()

from django.core.management import call_command
from django_ratelimit_lua import Limit, LimitError, RateLimiter
from django_ratelimit_lua.admin.forms import RuleForm
from django_ratelimit_lua.models import RateLimitRule

assert Limit.__module__ == "django_ratelimit_lua.limits.limit"
call_command("migrate", verbosity=0)
call_command("makemigrations", check=True, dry_run=True, verbosity=0)

limiter = RateLimiter("clock", "3/d", algorithm="clock_window")
decisions = [limiter.hit("ada") for _ in range(4)]
assert [decision.allowed for decision in decisions] == [True, True, True, False]
assert {decision.source for decision in decisions} <= {"redis", "deny-cache"}
assert 0 < decisions[-1].retry_after <= 86_400
assert limiter.hit("bob").allowed
assert limiter.refund("ada").remaining == 1
assert limiter.hit("ada").allowed

rule = RateLimitRule(name="daily", path="/", key="ip", rate="3/d", options={"algorithm": "clock_window"})
rule.full_clean()
assert "clock_window" in dict(RuleForm().fields["algorithm"].choices)
try:
    RateLimiter("burst", "3/d", algorithm="clock_window", burst=5)
except LimitError as error:
    assert "no option burst" in str(error)
else:
    raise AssertionError("it takes no burst")
print("works")
"""  # noqa: E501


def shown_files() -> list[Path]:
    """Return the files in the page's section about algorithms."""
    section = (DOCS / "extending.rst").read_text().partition("Add an algorithm\n")[2]
    return [DOCS / name for name in re.findall(r"\.\. literalinclude:: (\S+)", section)]


def test_an_algorithm_can_be_added_as_documented(tmp_path: Path) -> None:
    """It needs two files, two lines and no migration."""
    copy = tmp_path / "django_ratelimit_lua"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    algorithms = copy / "limits" / "algorithms"
    files = shown_files()
    assert [path.name for path in files] == ["clock_window.py", "clock_window.lua"]
    for path in files:
        shutil.copy(path, algorithms)
    registry = algorithms / "__init__.py"
    text = registry.read_text()
    text = text.replace(
        "from .concurrency", "from .clock_window import ClockWindow\nfrom .concurrency", 1
    )
    registry.write_text(text.replace("SlidingLog(),", "SlidingLog(), ClockWindow(),", 1))
    site = tmp_path / "run.py"
    site.write_text(SITE % (url(), os.getpid()))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    how: Any = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    found = subprocess.run([sys.executable, str(site)], timeout=120, **how)
    assert found.stdout.strip() == "works", found.stderr


WINDOWS = ("fixed_window", "sliding_window", "sliding_log")
NAMES = ("token_bucket", "leaky_bucket", *WINDOWS, "concurrency")
DEFAULTS = {
    "conf/__init__.py": {"sliding_window"},
    "contrib/replay/refusals.py": {"fixed_window", "sliding_log", "sliding_window", "token_bucket"},
    "contrib/replay/verbs.py": {"sliding_log"},
    "limits/options.py": {"sliding_window"},
    "store/cluster.py": {"fixed_window"},
    "throttling/classes.py": {"sliding_window", "sliding_log"},
}
"""Modules that choose an algorithm for a limit, and the replay, which has its own arithmetic."""


def test_no_module_names_an_algorithm_except_as_a_default() -> None:
    """Other modules read attributes of the algorithm instead."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        code = re.sub(r"^\s*(>>>|\.\.\. ).*", "", path.read_text(), flags=re.MULTILINE)
        text = re.sub(r'"""(?:.|\n)*?"""|f"[^"\n]*"|\'[^\'\n]*\'', "", code)
        names = {name for name in NAMES if f'"{name}"' in text}
        if names and not place.startswith("limits/algorithms/"):
            found[place] = names
    assert found == DEFAULTS


def test_the_key_of_a_rule_has_no_choices() -> None:
    """So no migration is needed for a key of the site. Algorithms are options, without a column."""
    assert RateLimitRule._meta.get_field("key").choices is None
