"""The Lua script that decides calls.

It is assembled from `program.lua` and, in `algorithms/`, the files of the algorithms that a call
uses, and that of bans.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from itertools import chain
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
    """Read the text of a `.lua` file, given its path without the ending: "engine/heartbeat"."""
    return Path(__file__).parents[1].joinpath(f"{name}.lua").read_text(encoding="utf-8")


# The functions of an algorithm that `program.lua` calls.
_FUNCTION = re.compile(r"^local function (check|take|refund|ban|unban)\(", re.MULTILINE)


@lru_cache(maxsize=64)
def program_for(names: tuple[str, ...]) -> Program:
    """Return the script that decides states of these algorithms: a sorted tuple of names.

    Every process assembles the same text, so all of them use the same digest.

    >>> program_for(("leaky_bucket", "sliding_log")).source.count(b"-- 4. Allowed")
    1
    """
    parts = [ALGORITHMS[name].lua_parts for name in names if name in ALGORITHMS]
    texts = [source(f"limits/algorithms/{part}") for part in dict.fromkeys(chain(*parts))]
    for place, name in enumerate(names, 1):
        text = source(f"limits/algorithms/{name}")
        functions = ", ".join(f"{each} = {each}" for each in _FUNCTION.findall(text))
        texts.append(f"do\n{text}algorithms[{place}] = {{{functions}}}\nend\n")
    return Program.of(source("limits/program").replace("-- algorithms\n", "".join(texts)))
