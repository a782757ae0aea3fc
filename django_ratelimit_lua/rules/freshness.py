"""When the rules of this process were last known to be current.

On one server, the call that counts also compares the revision of the rules with the published one.
Some decisions make no such call: nothing is counted, the rules are in another hash slot than the
limits (a cluster), or limits are decided in this process. For these, this module decides whether a
separate comparison is needed. The listener (`engine/listener.py`) compares the revisions in the
background, twice a second and after each message, so requests rarely have to.
"""

from __future__ import annotations

from ..limits.call import Call, Revision
from ..process import Clock

MAX_AGE = 1.0
"""Maximum age in seconds of rules that are used without a comparison."""
EARLY = 0.9
"""From this age on, one request compares for all, and the others continue until `MAX_AGE`."""

Known = tuple[bytes, Revision, float]
"""The key and the revision of the rules, and when they were the current ones (monotonic)."""


class Freshness:
    """When the rules and overrides of this process were last current."""

    def __init__(self) -> None:
        self._known: Known | None = None
        self._expired_at = self._asked_for = float("-inf")

    def expire(self) -> None:
        """Record a change: the next request has to compare."""
        self._expired_at = Clock.monotonic()
        self._known = None

    def is_due(self, call: Call) -> bool:
        """Return whether the caller has to compare its rules."""
        if call.revision is None:
            return False
        proof = self._known
        now = Clock.monotonic()
        if (
            proof is None
            or proof[2] <= now - MAX_AGE
            or (proof[0], proof[1]) != (call.fence, call.revision)
        ):
            return True
        if proof[2] > now - EARLY or self._asked_for == proof[2]:
            return False
        self._asked_for = proof[2]
        return True

    def confirm(self, fence: bytes, revision: Revision, asked_at: float) -> None:
        """Record that these rules were the current ones at that moment (monotonic) or later."""
        proof = self._known
        if proof is not None and proof[:2] == (fence, revision):
            asked_at = max(asked_at, proof[2])
        if asked_at > self._expired_at:
            self._known = (fence, revision, asked_at)


freshness = Freshness()
