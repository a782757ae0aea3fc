"""The identities in history entries about bans and slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..identity.names import Part

MAX_NAMED = 10
"""Maximum number of names if bans are lifted together."""


def history_names(names: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
    """The identities in a history entry: their digests, and the names of the first, as
    `RATELIMIT_SHOW_IDENTITIES` allows.

    >>> history_names({"9d4e": [("ip", "203.0.113.0/24")], "07ab": []})
    {'digests': ['07ab', '9d4e'], 'who': {'9d4e': [['ip', '203.0.113.0/24']]}}
    """
    digests = sorted(names)
    named = {digest: [list(part) for part in names[digest]] for digest in digests[:MAX_NAMED]}
    return {"digests": digests, "who": {digest: parts for digest, parts in named.items() if parts}}
