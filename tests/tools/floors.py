"""`python -m tests.tools.floors`: the rooms of the package, on floors by their imports."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "django_ratelimit_lua"
# From the ground up. A room is a folder of the package, or a file at its top. It imports from
# floors below its own.
FLOORS = [
    ["limits", "conf", "exceptions", "extension", "signals", "process"],
    ["store", "identity"],
    ["rules"],
    ["engine", "views"],
    ["web", "models", "migrations", "asgi"],
    [
        "decorators",
        "middleware",
        "limiter",
        "core",
        "throttling",
        "testing",
        "operations",
        "publishing",
    ],
    ["admin", "management", "checks", "pytest_plugin", "debug_panel"],
    ["contrib", "templatetags", "apps", "__init__"],
]
# Rooms of the first floor: each may import from those before it.
GROUND = ["process", "limits", "extension", "exceptions", "signals", "conf"]


def room_of(path: Path) -> str:
    """Return the room of a file."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor_of(room: str) -> int:
    """Return the floor of a room from 1, or 0 if it is on no floor."""
    return next((number for number, rooms in enumerate(FLOORS, start=1) if room in rooms), 0)


def imports(path: Path) -> list[tuple[str, str]]:
    """Return the imports of a file: the top-level package, and the room of ours or nothing."""
    imported = []
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported += [(alias.name.partition(".")[0], "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.append((node.module.partition(".")[0], ""))
        elif isinstance(node, ast.ImportFrom) and node.level == depth:
            rooms = (
                [node.module.partition(".")[0]]
                if node.module
                else [alias.name for alias in node.names]
            )
            imported += [("django_ratelimit_lua", room) for room in rooms]
    return imported


def is_below(room: str, other: str) -> bool:
    """Return whether `room` may import from `other`."""
    if room in GROUND and other in GROUND:
        return GROUND.index(other) < GROUND.index(room)
    return floor_of(other) < floor_of(room)


def modules_imported(path: Path) -> set[Path]:
    """Return the files of the package that a file imports, also for types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                places = (base / alias.name, base)
                files = [
                    each
                    for place in places
                    for each in (place.with_suffix(".py"), place / "__init__.py")
                ]
                found.add(next(file for file in files if file.is_file()))
    return found - {path}


def drawing() -> str:
    """Return the floors from the highest: each room, its docstring, and the rooms it uses."""
    lines: list[str] = []
    for number, rooms in reversed(list(enumerate(FLOORS, start=1))):
        lines.append(f"─── floor {number} " + "─" * 97)
        for room in rooms:
            if room in ("__init__", "migrations"):
                continue
            folder = PACKAGE / room
            files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
            head = folder / "__init__.py" if folder.is_dir() else files[0]
            text = (
                (ast.get_docstring(ast.parse(head.read_text())) or "")
                .split("\n\n")[0]
                .replace("\n", " ")
            )
            below = {
                other for file in files for _, other in imports(file) if other and other != room
            }
            below = {other for other in below if floor_of(other) > 1}
            name = room + ("/" if folder.is_dir() else ".py")
            lines += textwrap.wrap(
                text, 108, initial_indent=f"{name:17}", subsequent_indent=" " * 17
            )
            if below:
                ordered = sorted(below, key=lambda other: (-floor_of(other), other))
                lines += textwrap.wrap(
                    " ".join(ordered),
                    108,
                    initial_indent=" " * 17 + "↓ ",
                    subsequent_indent=" " * 19,
                )
    return "\n".join(lines)


if __name__ == "__main__":
    print(drawing())
