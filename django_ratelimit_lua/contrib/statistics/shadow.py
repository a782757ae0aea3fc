"""The versions of rules in shadow mode.

Requests in shadow mode are counted for each version of a rule, so that the numbers are those of its
current version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

_OF_NO_VERSION = frozenset({"id", "mode", "order", "description", "message", "durable"})
"""Fields of a rule that make no difference to its refusals."""


def version_of(given: Mapping[str, object]) -> str:
    """Return a hash of a rule's declaration, which identifies its version."""
    words = {word: value for word, value in given.items() if word not in _OF_NO_VERSION}
    text = json.dumps(words, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
