"""The Lua program, assembled once at import: what is shared, how each algorithm opens a limit, then the call itself."""

from __future__ import annotations

import hashlib
from importlib.resources import files

ALGORITHMS = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log")


def source(name: str) -> str:
    """The text of one file of this folder."""
    return (files(__package__) / f"{name}.lua").read_text(encoding="utf-8")


def _assemble() -> bytes:
    # An algorithm's file is the body of a function: it reads a limit's state into locals and returns the functions
    # that work on them. Behind a branch, so that a call only pays for the algorithms it uses.
    branches = "else".join(f"if name == '{name}' then\n{source(name)}\n" for name in ALGORITHMS)
    opening = f"local open\nfunction open(name, key, limit, period, a, b, c, d, e, f, more)\n{branches}end\nend\n"
    return "\n".join([source("state"), opening, source("program")]).encode()


PROGRAM = _assemble()
SHA = hashlib.sha1(PROGRAM, usedforsecurity=False).hexdigest().encode()
