"""What a rule in shadow mode has seen and would have refused, and of how many people: counted for each version of the
rule, so that it is judged by what it says now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_OF_NO_VERSION = frozenset({"id", "mode", "order", "description", "message", "durable"})
"""Words of a rule that change nothing of what it refuses."""


def version_of(given: Mapping[str, Any]) -> str:
    """What tells a version of a rule from others, by how it is declared."""
    words = {word: value for word, value in given.items() if word not in _OF_NO_VERSION}
    text = json.dumps(words, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
