"""Whom an operator has banned, or whose ban or slot has ended, as the history keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..identity.names import Part

MOST_NAMED = 10
"""Of those whose bans are lifted together, so many are named."""


def whose(names: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
    """What the history keeps of identities: their digests, and the names of the first, as
    `RATELIMIT_SHOW_IDENTITIES` let them be told.

    >>> whose({"9d4e": [("ip", "203.0.113.0/24")], "07ab": []})
    {'digests': ['07ab', '9d4e'], 'who': {'9d4e': [['ip', '203.0.113.0/24']]}}
    """
    digests = sorted(names)
    named = {digest: [list(part) for part in names[digest]] for digest in digests[:MOST_NAMED]}
    return {"digests": digests, "who": {digest: parts for digest, parts in named.items() if parts}}
