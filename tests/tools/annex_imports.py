"""`python -m tests.tools.annex_imports`: the names that each annex imports from the core."""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tests.tools.floors import PACKAGE


class Import(NamedTuple):
    """A name that a file of the package imports from a module of it, with relative paths."""

    file: Path
    module: str
    name: str

    @property
    def annex(self) -> str:
        """Return the importing annex, or an empty text for the core."""
        return annex_of(self.file.parts)

    @property
    def is_public(self) -> bool:
        """Return whether the `__all__` of a core room lists the name or the module."""
        room, _, inner = self.module.partition(".")
        if self.name.startswith("_") and not self.name.endswith("__"):
            return False
        if not (PACKAGE / room).is_dir():
            return True
        return (inner.partition(".")[0] or self.name) in exported(room)


def annex_of(parts: tuple[str, ...]) -> str:
    """Return the annex of a path, or an empty text."""
    return parts[1] if parts[0] == "contrib" and len(parts) > 2 else ""


def exported(room: str) -> list[str]:
    """Return what the `__all__` of a room lists."""
    for node in ast.parse((PACKAGE / room / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def imports() -> list[Import]:
    """Return all imports of the package from itself."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                module = ".".join(
                    [*file.parts[: len(file.parts) - node.level], *filter(None, [node.module])]
                )
                found += [Import(file, module, alias.name) for alias in node.names]
    return found


def imported_annex(found: Import) -> str:
    """Return the annex that something is imported from, or nothing."""
    return annex_of((*found.module.split("."), found.name, ""))


def table() -> str:
    """Return the modules of the core that annexes use, with the names and the annexes."""
    annexes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for found in imports():
        if found.annex and not imported_annex(found):
            annexes[found.module, found.name].add(found.annex)
    groups: defaultdict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (module, name), users in sorted(annexes.items()):
        groups[module, tuple(sorted(users))].append(name)
    lines = []
    before = ""
    for (module, users), names in sorted(groups.items()):
        text = f"{', '.join(names)} ({', '.join(users)})"
        head = "" if module == before else module
        lines += textwrap.wrap(text, 112, initial_indent=f"{head:31}", subsequent_indent=" " * 33)
        before = module
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
