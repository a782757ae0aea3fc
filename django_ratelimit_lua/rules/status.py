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
from typing import NamedTuple

from ..identity.networks import networks
from ..limits.call import Call, Revision
from ..process import Clock
from ..store.availability import Failures

logger = logging.getLogger("django_ratelimit_lua")
MAX_AGE = 1.0
"""Maximum age in seconds of rules that are used without a comparison."""
EARLY = 0.9
"""From this age on, one request compares for all, and the others continue until `MAX_AGE`."""


class _Proof(NamedTuple):
    """The rules that were the published ones at a moment (monotonic)."""

    fence: bytes
    revision: Revision
    at: float

    def is_about(self, fence: bytes, revision: Revision) -> bool:
        return (self.fence, self.revision) == (fence, revision)


class Freshness:
    """When the rules and overrides of this process were last current."""

    def __init__(self) -> None:
        self._proof: _Proof | None = None
        self._expired_at = float("-inf")
        self._claimed: _Proof | None = None
        """The proof for which one request has claimed the comparison."""

    def expire(self) -> None:
        """Record a change: the next request has to compare."""
        self._expired_at = Clock.monotonic()
        self._proof = None

    def claim_comparison(self, call: Call) -> bool:
        """Return whether the caller has to compare its rules, and record an early comparison.

        From the age `EARLY` on, only the first caller has to, until the rules are confirmed. From
        `MAX_AGE` on, each caller has to. A call without a revision never has to.
        """
        if call.revision is None:
            return False
        proof = self._proof
        if proof is None or not proof.is_about(call.fence, call.revision):
            return True
        age = Clock.monotonic() - proof.at
        if age >= MAX_AGE:
            return True
        if age < EARLY or self._claimed == proof:
            return False
        self._claimed = proof
        return True

    def confirm(self, fence: bytes, revision: Revision, asked_at: float) -> None:
        """Record that these rules were the published ones at a moment (monotonic).

        A moment before the last change, or before the latest one of the same rules, is ignored.
        """
        if asked_at <= self._expired_at:
            return
        proof = self._proof
        if proof is None or not proof.is_about(fence, revision) or proof.at < asked_at:
            self._proof = _Proof(fence, revision, asked_at)


freshness = Freshness()


class _Failure(NamedTuple):
    """Why a rule with that spec could not be applied to a request."""

    spec: object
    problem: str


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
        self._failed: dict[str, _Failure] = {}
        self._specs: Mapping[str, object] = {}

    def record_ruleset(self, specs: Mapping[str, object], skipped: Sequence[str]) -> None:
        """Record the rules in force, by name, and the problems of those that were skipped.

        The failure of a rule is dropped when the rule has changed.
        """
        for problem in skipped:
            if problem not in self._skipped:
                logger.error("Skipped: %s", problem)
        self._specs = specs
        self._skipped = tuple(skipped)
        self._failed = {
            name: failure
            for name, failure in self._failed.items()
            if specs.get(name) == failure.spec
        }

    def record_failure(self, name: str, error: Exception) -> None:
        """Record that a rule could not be applied to a request, which continues without it."""
        if name not in self._failed:
            text = f"rule {name!r} cannot be applied: {type(error).__name__}: {error}"
            self._failed[name] = _Failure(self._specs.get(name), text)
            logger.error("Skipped: %s", text, exc_info=error)
        failed_rules.add(name)

    def collect(self) -> list[str]:
        """Read the networks again, and return all problems, in words."""
        general = [problem for problem in (self.database, self.owner, self.unpublished) if problem]
        failures = [failure.problem for failure in self._failed.values()]
        return [*general, *networks.refresh(), *self._skipped, *failures]


problems = Problems()
failed_rules = Failures()
"""How often each rule could not be applied to a request, until an optional app reads it."""
