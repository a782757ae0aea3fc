"""The state of the rules in this process: since when they are current, and which cannot be used.

On one server, the call that counts also compares the revision of the rules with the published one.
Some decisions make no such call: nothing is counted, the rules are in another hash slot than the
limits (a cluster), or limits are decided in this process. For these, `Freshness` decides whether a
separate comparison is needed. The listener (`engine/listener.py`) compares the revisions in the
background, twice a second and after each message, so requests rarely have to.

`Problems` are logged once, and kept for `ratelimit rules check` and for health.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ..identity.networks import networks
from ..limits.call import Call, Revision
from ..process import Clock
from ..store.availability import Failures

logger = logging.getLogger("django_ratelimit_lua")
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

    def claim_comparison(self, call: Call) -> bool:
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


class Problems:
    """The rules that this process could not use, and why.

    - `database`: why no rules of the database are used, if that is so;
    - `owner`: the problem if another database owns the prefix;
    - `unpublished`: why a saved change is left to processes of a newer version to publish.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Clear all problems; for tests, which use new rules."""
        self.database = ""
        self.owner = ""
        self.unpublished = ""
        self._skipped: Sequence[str] = ()
        self._failed: dict[str, tuple[object, str]] = {}
        self._declared: Mapping[str, object] = {}

    def record_ruleset(self, declared: Mapping[str, object], skipped: Sequence[str]) -> None:
        """Record that other rules are in force, and the problems of those that were skipped.

        The failure of a rule is dropped when the rule has changed.
        """
        for problem in skipped:
            if problem not in self._skipped:
                logger.error("Skipped: %s", problem)
        self._declared = declared
        self._skipped = tuple(skipped)
        self._failed = {
            name: failure
            for name, failure in self._failed.items()
            if declared.get(name) == failure[0]
        }

    def record_failure(self, name: str, error: Exception) -> None:
        """Record that a rule could not be applied to a request, which continues without it."""
        if name not in self._failed:
            text = f"rule {name!r} cannot be applied: {type(error).__name__}: {error}"
            self._failed[name] = (self._declared.get(name), text)
            logger.error("Skipped: %s", text, exc_info=error)
        failed_rules.add(name)

    def collect(self) -> list[str]:
        """Return all problems, in words."""
        general = [problem for problem in (self.database, self.owner, self.unpublished) if problem]
        return [
            *general,
            *networks.refresh(),
            *self._skipped,
            *(text for _, text in self._failed.values()),
        ]


problems = Problems()
failed_rules = Failures()
"""How often each rule could not be applied to a request, until an optional app reads it."""
