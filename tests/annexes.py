"""Which annexes a test session installs: one session has one Django.

- Tests in `tests/contrib/NAME`: that annex alone.
- Tests in `tests/contrib/all`, and the pages of `docs`: all of them.
- All other tests: none.

The paths on the command line decide; the variable `RATELIMIT_TEST_ANNEXES` (names, separated by
commas) overrides them. `python -m tests` starts one session for each group of paths.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
VARIABLE = "RATELIMIT_TEST_ANNEXES"
NAMES = ("statistics", "breakers", "replay", "gateway")
CORE, ALL = "", ",".join(NAMES)
ROOTS = {
    CORE: ["tests"],
    **{name: [f"tests/contrib/{name}"] for name in NAMES},
    ALL: ["tests/contrib/all", "docs"],
}
"""The annexes of each group of tests, and the folders of the group. A group leaves out what is in
another's folders.
"""


def paths_in(arguments: Iterable[str]) -> list[str]:
    """Return the files and folders, or tests in them, among the arguments of pytest."""
    return [word for word in arguments if not word.startswith("-") and path_of(word).exists()]


def path_of(word: str) -> Path:
    """Return the file or folder that an argument of pytest names."""
    return Path(word.partition("::")[0]).resolve()


def annexes_of(path: Path) -> str:
    """Return the annexes that the tests in a file or folder need."""
    for annexes, roots in ROOTS.items():
        if annexes != CORE and any(path.is_relative_to(ROOT / root) for root in roots):
            return annexes
    return CORE


def installed() -> str:
    """Return the annexes of this session. Processes that it starts have the same ones."""
    if VARIABLE not in os.environ:
        paths = paths_in(sys.argv[1:])
        os.environ[VARIABLE] = annexes_of(path_of(paths[0])) if paths else CORE
    return os.environ[VARIABLE]


def parts(paths: list[str]) -> dict[str, list[str]]:
    """Return these paths by the annexes that they need. A folder that holds folders of a group is
    in that group, too.

    >>> parts(["tests/contrib/gateway/test_json.py", "docs"])["gateway"]
    ['tests/contrib/gateway/test_json.py']
    """
    found: dict[str, list[str]] = {}
    for word in paths:
        path = path_of(word)
        own = annexes_of(path)
        if own != CORE or path != ROOT / "tests" / "contrib":
            found.setdefault(own, []).append(word)
        for annexes, roots in ROOTS.items():
            inner = [
                root for root in roots if (ROOT / root).exists() and path in (ROOT / root).parents
            ]
            if inner and annexes != own:
                found.setdefault(annexes, []).extend(inner)
    return {annexes: found[annexes] for annexes in ROOTS if annexes in found}
