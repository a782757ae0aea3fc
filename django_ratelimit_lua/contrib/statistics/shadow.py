"""The requests that a rule in shadow mode has seen and would have refused, and the number of their
identities: counted for each version of the rule, so that its current version is judged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_OF_NO_VERSION = frozenset({"id", "mode", "order", "description", "message", "durable"})
"""Words of a rule that change nothing of what it refuses."""


def version_of(given: Mapping[str, Any]) -> str:
    """A hash of a rule's declaration, which identifies its version."""
    words = {word: value for word, value in given.items() if word not in _OF_NO_VERSION}
    text = json.dumps(words, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
