"""The changes that a project needs for a migration, found by reading its code."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import rest_framework
from django.core.management import CommandError, call_command

from django_ratelimit_lua.operations.migration import MAX_BYTES, find_changes

VIEWS = """\
from django_ratelimit import UNSAFE
from django_ratelimit.core import get_header, is_ratelimited as limited
from django_ratelimit.decorators import ratelimit
from django_ratelimit.exceptions import Ratelimited
import django_ratelimit.core

@ratelimit(
    key="header:x-api-key",
    rate="100/10",
)
def one(request): ...

@ratelimit("group", lambda group, request: "x", "5/m", "GET")
def two(request):
    limited(request, group="x", key="post:name", rate=rates, increment=False)
    limited(request, group="x", key="user", rate="shop.rates", increment=True)
    django_ratelimit.core.is_ratelimited(request, group="x", key="ip", rate="5/m")

@ratelimit(group="no key", rate="5/m")
def three(request): ...

@ratelimit(**options)
def four(request): ...
"""
OLD = """\
from ratelimit.decorators import ratelimit
from ratelimit.mixins import RatelimitMixin

@ratelimit(key="ip", rate="5/m")
def view(request): ...

@ratelimit(key="ip", rate="5/m", block=True)
def blocked(request): ...
"""
THROTTLES = """\
from rest_framework import throttling
from rest_framework.throttling import SimpleRateThrottle, UserRateThrottle as Base

class Plain(throttling.AnonRateThrottle):
    scope = "plain"

class Slow(Base):
    def wait(self):
        return self.history[0]

class Own(SimpleRateThrottle):
    def allow_request(self, request, view):
        return True
"""
SETTINGS = """\
INSTALLED_APPS = ["django_ratelimit"]
MIDDLEWARE = ["django_ratelimit.middleware.RatelimitMiddleware"]
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
RATELIMIT_FAIL_OPEN = True
RATELIMIT_EXCEPTION_CLASS = "django_ratelimit.exceptions.Ratelimited"
RATELIMIT_HASH_ALGORITHM = "hashlib.sha1"
REST_FRAMEWORK = {
    "DEFAULT_THROTTLE_CLASSES": ["rest_framework.throttling.AnonRateThrottle"],
    "DEFAULT_THROTTLE_RATES": {"anon": "100/day", "user": "5/fortnight", "off": None},
}
"""


def findings(folder: Path, **files: str) -> list[tuple[int, str, str]]:
    """Return the findings in files with these contents: line, text and remedy."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return [(found.line, found.text, found.remedy) for found in find_changes([folder])]


def found(folder: Path, **files: str) -> set[tuple[int, str]]:
    """Return the lines of the findings and the beginnings of their remedies."""
    return {(line, remedy[:30]) for line, _text, remedy in findings(folder, **files)}


def test_uses_of_django_ratelimit_are_found(tmp_path: Path) -> None:
    """Imports, rates, keys and calls are found with their lines. Code that works unchanged is not
    listed.
    """
    assert found(tmp_path, views=VIEWS) == {
        (1, "from django_ratelimit_lua impo"),
        (2, "from django_ratelimit_lua.core"),
        (2, "use request.headers"),
        (3, "from django_ratelimit_lua.deco"),
        (4, "from django_ratelimit_lua.exce"),
        (4, "a refused view answers 429 and"),
        (5, "import django_ratelimit_lua.co"),
        (8, "values that differ only in cas"),
        (9, "Rate '100/10': write N/unit wi"),
        (13, "it includes HEAD"),
        (13, "it is called with (group, requ"),
        (15, "requests of more than 64 KiB c"),
        (15, "without increment, it is true "),
        (16, "anonymous users share one coun"),
        (17, "without increment, it is true "),
        (19, "add a key; a missing key is an"),
    }


def test_the_default_of_block_before_version_4_is_named(tmp_path: Path) -> None:
    """The finding is listed only for calls without `block`."""
    assert found(tmp_path, views=OLD) == {
        (1, "from django_ratelimit_lua.deco"),
        (2, "use method_decorator(ratelimit"),
        (4, "add block=False, which was the"),
    }


def test_uses_of_drf_throttles_are_found(tmp_path: Path) -> None:
    """A class that reads the cache or the history stays a subclass of DRF's."""
    assert findings(tmp_path, throttles=THROTTLES) == [
        (
            1,
            "from rest_framework import throttling",
            "from django_ratelimit_lua import throttling",
        ),
        (
            2,
            "from rest_framework.throttling import SimpleRateThrottle, UserRateThrottle",
            "from django_ratelimit_lua.throttling import SimpleRateThrottle, UserRateThrottle",
        ),
        (7, "class Slow", "self.history: keep this class on DRF's class"),
        (
            11,
            "class Own",
            "it overrides allow_request, so it is decided in a call of its own",
        ),
    ]


def test_settings_are_found(tmp_path: Path) -> None:
    """Apps, middleware, caches, settings and rates of scopes are found."""
    assert found(tmp_path, settings=SETTINGS) == {
        (1, "'django_ratelimit_lua'"),
        (2, "remove it: RATELIMIT_VIEW need"),
        (3, "limits need an alias with 'dja"),
        (4, "it means the same. Without it,"),
        (5, "django_ratelimit_lua.exception"),
        (6, "remove it; identities are alwa"),
        (8, "django_ratelimit_lua.throttlin"),
        (9, "Rate '5/fortnight': write N/un"),
    }


def test_other_packages_of_that_name_are_not_found(tmp_path: Path) -> None:
    """PyPI's `ratelimit` and modules of the project are not part of django-ratelimit."""
    text = (
        "from ratelimit import limits\nfrom .ratelimit.core import x\nfrom shop import ratelimit\n"
    )
    assert findings(tmp_path, views=text + "@limits(calls=1)\ndef f(): ...\n") == []


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Such a file is listed if it mentions limits. Folders of libraries are skipped, and links do
    not cause a loop.
    """
    (tmp_path / "old.py").write_text("print 'ratelimit'\n")
    (tmp_path / "latin.py").write_bytes(b"ratelimit = '\xe9'\n")
    (tmp_path / "null.py").write_bytes(b"ratelimit = '\0'\n")
    (tmp_path / "large.py").write_text("ratelimit = 1\n" + "#" * MAX_BYTES)
    (tmp_path / "unrelated.py").write_text("print 'no limits'\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    library = tmp_path / "venv" / "lib"
    library.mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (library / "views.py").write_text(VIEWS)
    unread = {change.path.name: change.remedy for change in find_changes([tmp_path])}
    assert unread.keys() == {"old.py", "latin.py", "null.py", "large.py"}
    assert all(remedy.startswith("not read: ") for remedy in unread.values())


def test_code_that_cannot_be_evaluated_does_not_stop_the_reader() -> None:
    """The files of DRF and of this project, which mention limits often, are read without an
    exception.
    """
    own = Path(__file__).parents[3]
    folders = [Path(rest_framework.__file__).parent, own / "tests", own / "django_ratelimit_lua"]
    changes = list(find_changes(folders))
    assert "limiters.py" in {change.path.name for change in changes}
    assert all(change.line > 0 for change in changes)


def test_the_command_prints_findings_and_writes_nothing(tmp_path: Path) -> None:
    """Findings are grouped by file and followed by a summary. A path that does not exist is an
    error.
    """
    file = tmp_path / "views.py"
    file.write_text("from django_ratelimit.decorators import ratelimit\n")
    output = StringIO()
    call_command("ratelimit", "migrate-check", str(tmp_path), stdout=output)
    assert output.getvalue().splitlines()[:2] == [
        str(file),
        "  1: from django_ratelimit.decorators import ratelimit -> "
        "from django_ratelimit_lua.decorators import ratelimit",
    ]
    assert "1 finding in 1 file." in output.getvalue()
    assert [each.name for each in tmp_path.iterdir()] == ["views.py"]
    file.unlink()
    output = StringIO()
    call_command("ratelimit", "migrate-check", str(tmp_path), stdout=output)
    assert output.getvalue() == "nothing uses django-ratelimit or DRF's throttles\n"
    with pytest.raises(CommandError, match="there is no file or folder nowhere"):
        call_command("ratelimit", "migrate-check", "nowhere")
