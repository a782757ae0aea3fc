"""The rules about files and imports that a test can check."""

from __future__ import annotations

import ast
import re
from collections import Counter
from configparser import ConfigParser
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from django.utils import translation

from django_ratelimit_lua.extension import ANNEXES
from django_ratelimit_lua.limits import program
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.rules.describe import describe_spec
from tests.tools import annex_imports
from tests.tools.floors import (
    PACKAGE,
    drawing,
    floor_of,
    imports,
    is_below,
    modules_imported,
    room_of,
)

ROOT = Path(__file__).parents[2]
FORBIDDEN = {"limits": {"django", "redis", "django_redis"}}
REDIS_ONLY_IN = "store"
ROOMS = sorted(
    {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"contrib", "migrations"}
)


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_imports_only_go_to_lower_floors(path: Path) -> None:
    """Each module belongs to a room, and a room imports only from rooms on lower floors."""
    room = room_of(path)
    assert floor_of(room), f"{room} is on no floor"
    for package, other in imports(path):
        assert package not in FORBIDDEN.get(room, set()), f"{room} must not know {package}"
        assert package not in ("redis", "django_redis") or room == REDIS_ONLY_IN, (
            f"only {REDIS_ONLY_IN} knows {package}"
        )
        if other and other != room:
            assert is_below(room, other), (
                f"{room} (floor {floor_of(room)}) imports {other} (floor {floor_of(other)})"
            )


def test_no_modules_import_each_other() -> None:
    """There is no circle of imports, inside a room either, and also not for types only."""
    files = sorted(PACKAGE.rglob("*.py"))
    TopologicalSorter({path: modules_imported(path) for path in files}).prepare()


def test_optional_apps_import_only_public_names_of_the_core() -> None:
    """No optional app imports from another one, and the core imports from none. `__all__` of a room
    lists names and public modules.
    """
    annex_of = annex_imports.imported_annex
    everything = annex_imports.imports()
    of_annexes = [found for found in everything if found.annex]
    assert of_annexes
    assert [found for found in everything if annex_of(found) not in ("", found.annex)] == []
    assert [found for found in of_annexes if not annex_of(found) and not found.is_public] == []


def test_the_table_of_imports_by_optional_apps_is_current() -> None:
    """Run `python -m tests.tools.annex_imports > docs/annexes.txt`."""
    assert (ROOT / "docs" / "annexes.txt").read_text() == annex_imports.table() + "\n"


def test_the_drawing_of_the_floors_is_current() -> None:
    """Run `python -m tests.tools.floors > docs/floors.txt`."""
    assert (ROOT / "docs" / "floors.txt").read_text() == drawing() + "\n"


@pytest.mark.parametrize(
    ("what", "where"),
    [
        (r"register_at_fork|[!=]= os\.getpid\(\)", {"process/forks.py"}),
        (r"\bThread\(|start_new_thread|\bTimer\(|Executor\(|\batexit\b", {"process/tasks.py"}),
        (r"\bsetting_changed\b", {"conf/__init__.py"}),
        (r"\bOrderedDict\(|popitem\(last=False\)", {"process/bounded_map.py"}),
        (r"lru_cache\(maxsize=None\)|from functools import .*\bcached_property\b", set()),
    ],
    ids=["forks", "threads", "changes of settings", "bounded maps", "caches without a bound"],
)
def test_forks_threads_and_settings_are_handled_in_one_module_each(
    what: str, where: set[str]
) -> None:
    """So are bounds of maps. No cache is unbounded."""
    assert {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(what, path.read_text())
    } <= where


def test_no_room_has_a_catch_all_name() -> None:
    """No file or folder is named utils, helpers, common, misc or constants."""
    catch_all = re.compile(r"(utils|helpers|common|misc|constants)\b")
    assert [path for path in PACKAGE.rglob("*") if catch_all.match(path.name)] == []


PARTS = sorted(path.stem for path in (PACKAGE / "limits" / "algorithms").glob("*.lua"))
LONG = ("sliding_window", "sliding_log", "concurrency", "ban")
"""The algorithms that may have 90 lines instead of 60."""
PROGRAM = program.program_for((*sorted(program.ALGORITHMS), "ban")).source.decode()


def functions(name: str) -> list[str]:
    """Return the source of each function of a Lua file."""
    text = program.source(name)
    return re.findall(r"^local function .*?^end$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", PARTS)
def test_the_header_of_an_algorithm_documents_its_state(name: str) -> None:
    """It has record, state and promise in at most twelve lines."""
    header, end, _code = program.source(f"limits/algorithms/{name}").partition("]]\n")
    assert header.startswith("--[[\n")
    assert end
    assert len(header.splitlines()) + 1 <= 12
    words = {"record", "state", "promise"}
    if name == "bucket":
        words.remove("promise")
    assert set(re.findall(r"^(\w+)  ", header, re.MULTILINE)) == words


@pytest.mark.parametrize("name", PARTS)
def test_an_algorithm_consists_of_short_functions(name: str) -> None:
    """They have at most 40 lines, files 60 or 90. No algorithm knows another one."""
    text = program.source(f"limits/algorithms/{name}")
    assert len(text.splitlines()) <= (90 if name in LONG else 60)
    found = functions(f"limits/algorithms/{name}")
    assert found
    assert max(len(each.splitlines()) for each in found) <= 40
    code = re.sub(r"--\[\[.*?\]\]|--.*", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not [other for other in program.ALGORITHMS if other in code]


def test_the_program_is_short_and_documents_its_arguments() -> None:
    """Its header explains each ARGV and operation that the code reads."""
    text = program.source("limits/program")
    header, _, code = text.partition("]]\n")
    assert len(text.splitlines()) <= 110
    for argument in set(re.findall(r"ARGV\[(\d)\]", code)):
        assert f"ARGV[{argument}]" in header
    operations = re.search(r"operation: (.*)", header)
    assert operations
    named = set(re.findall(r"\w+", operations[1]))
    assert {"hit", "peek", "charge", "refund", "ban", "unban"} <= named
    assert set(re.findall(r"operation [=~]= '(\w+)'", code)) <= named


def test_a_script_contains_every_line_of_its_files() -> None:
    """The same algorithms have the same digest in any order."""
    lines = {*PROGRAM.splitlines(), "-- algorithms"}
    pieces = {"limits/program", *(f"limits/algorithms/{name}" for name in PARTS)}
    for name in pieces:
        assert lines >= {*program.source(name).splitlines()}
    limits = [Limit("a", "5/h"), Limit("b", "5/h", algorithm="token_bucket")]
    digests = {
        program.program_for(Call([Charge(limit, b"0" * 32) for limit in order]).algorithms).sha
        for order in (limits, limits[::-1])
    }
    assert len(digests) == 1
    others = {"publishing/publish", "rules/read", "engine/heartbeat", "engine/renew"}
    others |= {f"contrib/{name}" for name in ("breakers/breaker", "statistics/note")}
    others |= {"contrib/statistics/write"}
    assert {
        path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.lua")
    } == pieces | others


def test_proxy_files_are_packaged_by_their_folder() -> None:
    """A file for another proxy is installed whatever its extension."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packaged = setup["options.package_data"][PACKAGE.name].split()
    assert len(packaged) == len(set(packaged))
    folder = "contrib/gateway/proxies/"
    assert [pattern for pattern in packaged if pattern.startswith(folder)] == [f"{folder}*"]


def test_comments_name_files_that_exist() -> None:
    """A path is relative to one of the folders of the file."""
    paths = [path for path in ROOT.glob("*/**/*") if path.is_file()]
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in paths]
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]):
        for named in re.findall(r"[`( ]((?:\w+/)*\w+\.(?:lua|py))\b", path.read_text()):
            assert any(file.endswith(f"/{named}") for file in files), (
                f"{path.relative_to(ROOT)}: {named}"
            )


def test_pictures_are_small_and_shown() -> None:
    """Each has a light and a dark version, and less than 100 kB."""
    pages = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.rst"))
    shown = {*re.findall(r"^\.\. screenshot:: ([\w-]+)$", pages, re.MULTILINE)}
    pictures = (ROOT / "docs" / "screenshots").glob("*.png")
    sizes = {path.stem: path.stat().st_size for path in pictures}
    assert sizes.keys() == shown | {f"{name}-dark" for name in shown}
    assert max(sizes.values()) < 100_000


def test_no_function_is_used_only_by_tests() -> None:
    """Each function is used in the package or named in the documentation."""
    paths = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html"), *(ROOT / "docs").rglob("*.rst")]
    used = Counter(word for path in paths for word in re.findall(r"\w+", path.read_text()))
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            if is_function and not node.decorator_list and node.name != "__getattr__":
                assert used[node.name] > 1, f"{path.relative_to(ROOT)}: {node.name}"


def test_every_test_has_a_docstring() -> None:
    """Each test function has a docstring."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"


@pytest.mark.parametrize(
    "catalogue", sorted(PACKAGE.rglob("*.po")), ids=lambda path: path.parts[-3]
)
def test_a_compiled_translation_is_used(catalogue: Path) -> None:
    """Its texts appear if its language is active."""
    rule = {"name": "x", "key": "ip", "rate": "5/15m", "mode": "shadow"}
    assert catalogue.with_suffix(".mo").exists()
    with translation.override(catalogue.parts[-3]):
        assert str(RateLimitRule._meta.verbose_name) != "rule"
        assert (
            describe_spec(rule)
            == "5 je 15 Minuten je Adresse, an der Aufrufstelle x, Schattenmodus"
        )


@pytest.mark.parametrize("room", sorted(set(ROOMS) - {"templatetags", "contrib"}))
def test_a_room_describes_its_purpose_and_its_limits(room: str) -> None:
    """Its docstring has what it may import and what it does not do."""
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text())
    summary, rest = (ast.get_docstring(tree) or "").split("\n\n", 1)
    assert summary
    assert "import" in rest
    assert re.search(r"\bnot\b|No\s+other\s+room", rest)


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_a_folder_of_unit_tests(room: str) -> None:
    """Each folder of code has a folder of unit tests."""
    assert list((ROOT / "tests" / "unit" / room).glob("test_*.py"))


@pytest.mark.parametrize("name", ANNEXES)
def test_each_optional_app_has_a_folder_of_tests(name: str) -> None:
    """Each optional app has a folder in tests/contrib."""
    assert list((ROOT / "tests" / "contrib" / name).glob("test_*.py"))


def test_every_folder_of_unit_tests_has_a_room() -> None:
    """So tests move together with their code."""
    assert {path.parent.name for path in (ROOT / "tests" / "unit").glob("*/*.py")} == set(ROOMS)
