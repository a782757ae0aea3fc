"""Since when this process is known to go by the current rules, for decisions in which Redis does not compare them.

On one server the call that counts compares them as well. Where nothing is to be counted, where the rules are in another
slot than the limits (a cluster), and where limits are decided in this process, this tells whether somebody has to ask.
The listener (`engine/listener.py`) asks beside the requests, twice a second and whenever it hears of a change, so
mostly no request has to.
"""

from __future__ import annotations

import time

from ..limits.call import Call, Revision
from ..process.bounded_map import BoundedMap

MAX_AGE = 1.0
"""Seconds that a process may go by rules without asking whether they are the current ones."""
EARLY = 0.9
"""From this age on, one of those who come asks for all, and the others go on until `MAX_AGE`."""
MOST = 10_000
"""Subjects that are remembered: the latest."""

Known = tuple[bytes, Revision, float]
"""The key and the revision of the rules, and when they were the current ones (monotonic)."""


class Freshness:
    """When the rules of this process were the current ones last, and what overrides say by these rules.

    Each change of an override raises the revision as well: so what was found to be written about a subject holds for as
    long as the revision does.
    """

    def __init__(self) -> None:
        self._known: Known | None = None
        self._subjects: BoundedMap[tuple[bytes, bytes, bytes], bool] = BoundedMap(MOST)
        self._expired_at = self._asked_for = float("-inf")

    def expire(self) -> None:
        """Something has changed: whoever comes next has to ask."""
        self._expired_at, self._known = time.monotonic(), None

    def is_due(self, call: Call) -> bool:
        """Whether it has to be asked, by whoever calls this, whether a call goes by what is current."""
        if call.revision is None:
            return False
        proof, now = self._known, time.monotonic()
        if proof is None or proof[2] <= now - MAX_AGE or (proof[0], proof[1]) != (call.fence, call.revision):
            return True
        if any(_key(call.revision, subject.digest, subject.tag) not in self._subjects for subject in call.subjects):
            return True
        if proof[2] > now - EARLY or self._asked_for == proof[2]:
            return False
        self._asked_for = proof[2]
        return True

    def confirm(self, fence: bytes, revision: Revision, asked_at: float) -> None:
        """These rules were the current ones at that moment (monotonic) or later."""
        proof = self._known
        if proof is not None and proof[:2] == (fence, revision):
            asked_at = max(asked_at, proof[2])
        if asked_at > self._expired_at:
            self._known = (fence, revision, asked_at)

    def confirm_call(self, call: Call, asked_at: float) -> None:
        """So were the rules and the overrides that a call goes by."""
        if call.revision is not None:
            self.confirm(call.fence, call.revision, asked_at)
            for subject in call.subjects:
                self._subjects.put(_key(call.revision, subject.digest, subject.tag), True)


def _key(revision: Revision, digest: bytes, tag: bytes) -> tuple[bytes, bytes, bytes]:
    return revision.text, digest, tag


freshness = Freshness()
