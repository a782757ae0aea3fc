"""The Lua program, assembled once at import: what is shared, how each algorithm opens a limit, then the call itself."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from .algorithms import ALGORITHMS


def source(name: str) -> str:
    """The text of a `.lua` file, by its path in the package without the ending: "engine/heartbeat"."""
    return files("django_ratelimit_lua").joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _assemble() -> bytes:
    # An algorithm's file is the body of a function: it reads a limit's state into locals and returns the functions
    # that work on them. Behind a branch, so that a call only pays for the algorithms it uses.
    bodies = {name: source(f"limits/algorithms/{name}") for name in ALGORITHMS}
    branches = "else".join(f"if name == '{name}' then\n{body}\n" for name, body in bodies.items())
    opening = f"local open\nfunction open(name, key, limit, period, a, b, c, d, e, f, more)\n{branches}end\nend\n"
    return "\n".join([source("limits/algorithms/state"), opening, source("limits/program")]).encode()


PROGRAM = _assemble()
SHA = hashlib.sha1(PROGRAM, usedforsecurity=False).hexdigest().encode()
