"""Problems of rules: logged once, and kept for `ratelimit rules check` and for health."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ..identity.networks import networks
from ..store.availability import Failures

logger = logging.getLogger("django_ratelimit_lua")


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

    def in_force(self, declared: Mapping[str, object], skipped: Sequence[str]) -> None:
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

    def failed(self, name: str, error: Exception) -> None:
        """Record that a rule could not be applied to a request, which continues without it."""
        if name not in self._failed:
            text = f"rule {name!r} cannot be applied: {type(error).__name__}: {error}"
            self._failed[name] = (self._declared.get(name), text)
            logger.error("Skipped: %s", text, exc_info=error)
        failed_rules.add(name)

    def found(self) -> list[str]:
        """Return all problems, in words."""
        general = [problem for problem in (self.database, self.owner, self.unpublished) if problem]
        return [
            *general,
            *networks.read(),
            *self._skipped,
            *(text for _, text in self._failed.values()),
        ]


problems = Problems()
failed_rules = Failures()
"""How often each rule could not be applied to a request, until an optional app reads it."""
