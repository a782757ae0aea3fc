"""The Lua script that decides calls.

It is assembled from the `.lua` files in `limits/` and in `limits/algorithms/`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from .algorithms import ALGORITHMS


class Program(NamedTuple):
    """The source of a script, and the digest by which it is called."""

    source: bytes
    sha: bytes

    @classmethod
    def of(cls, text: str) -> Program:
        """Return the script with that source."""
        source = text.encode()
        return cls(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


def source(name: str) -> str:
    """Return the text of a `.lua` file, given its path without the ending: "engine/heartbeat"."""
    return Path(__file__).parents[1].joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _assembled() -> Program:
    branches = []
    parts = {part: source(f"limits/{part}") for part in ("cost", "state", "verdict")}
    for lua in dict.fromkeys(algorithm.lua_name for algorithm in ALGORITHMS.values()):
        names = [
            f"name == '{name}'"
            for name, algorithm in ALGORITHMS.items()
            if algorithm.lua_name == lua
        ]
        text = source(f"limits/algorithms/{lua}")
        for part, lua_code in parts.items():
            text = text.replace(f"-- {part}\n", lua_code)
        branches.append(f"if {' or '.join(names)} then\n{text}")
    text = source("limits/program").replace("-- algorithms\n", "else".join(branches))
    return Program.of(text.replace("-- bans\n", source("limits/ban")))


PROGRAM = _assembled()
"""Decides every call."""
