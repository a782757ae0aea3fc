"""When the rules of this process were last known to be current.

On one server, the call that counts also compares the revision of the rules with the published one.
Some decisions make no such call: nothing is counted, the rules are in another hash slot than the
limits (a cluster), or limits are decided in this process. For these, this module decides whether a
separate comparison is needed. The listener (`engine/listener.py`) compares the revisions in the
background, twice a second and after each message, so requests rarely have to.
"""

from __future__ import annotations

from ..limits.call import Call, Revision, Subject
from ..process.bounded_map import BoundedMap
from ..process.clock import Clock

MAX_AGE = 1.0
"""Maximum age in seconds of rules that are used without a comparison."""
EARLY = 0.9
"""From this age on, one request compares for all, and the others continue until `MAX_AGE`."""
MAX_ENTRIES = 10_000
"""Subjects that are remembered: the latest."""

Known = tuple[bytes, Revision, float]
"""The key and the revision of the rules, and when they were the current ones (monotonic)."""


class Freshness:
    """When the rules of this process, and the known overrides, were last current.

    Each change of an override raises the revision as well, so the known overrides of a subject are
    current as long as the revision is.
    """

    def __init__(self) -> None:
        self._known: Known | None = None
        self._subjects: BoundedMap[tuple[bytes, bytes, bytes], bool] = BoundedMap(MAX_ENTRIES)
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
        if any(_key(call.revision, subject) not in self._subjects for subject in call.subjects):
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

    def confirm_call(self, call: Call, asked_at: float) -> None:
        """Record that the rules and the overrides of a call were current."""
        if call.revision is not None:
            self.confirm(call.fence, call.revision, asked_at)
            for subject in call.subjects:
                self._subjects.put(_key(call.revision, subject), True)


def _key(revision: Revision, subject: Subject) -> tuple[bytes, bytes, bytes]:
    return revision.text, subject.digest, subject.tag


freshness = Freshness()
