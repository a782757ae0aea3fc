"""The inspector's section about the breakers of a view, and their effect on a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...extension import Finding
from ...rules.stacks import Mark
from .breaker import Instead
from .operations import BreakerState, breakers

SEE = [
    f"ratelimit_breakers.{action}"
    for action in ("view_ratelimitbreaker", "change_ratelimitbreaker", "force_breaker")
]
"""Users with one of these see the page of a breaker."""

OUTCOMES: dict[Instead, object] = {
    "503": gettext_lazy("a stopped call gets a 503"),
    "fallback": gettext_lazy("a stopped call gets the fallback"),
    "raises": gettext_lazy("a stopped call raises CircuitOpen"),
}


@dataclass(frozen=True, slots=True)
class ExplainedBreaker:
    """A breaker of a view, and the result of a request that it stops."""

    state: BreakerState
    instead: Instead

    @property
    def passes(self) -> bool | None:
        """Return whether the breaker lets a request through now; None if it is uncertain."""
        state = self.state
        if state.forced:
            return state.forced == "closed"
        if state.state == "open":
            return not state.seconds
        if state.state == "half-open" and state.probes >= state.by.probes:
            return False
        return state.state == "closed" or None

    @property
    def words(self) -> str:
        """Its state, and its effect on a request, in one line."""
        parts = self.state.lines
        if self.passes is not True:
            parts.append(str(OUTCOMES[self.instead]))
        return f"{self.state.name}: {'; '.join(parts)}"


def inspect(marks: Sequence[Mark], has_handler: bool) -> list[Finding]:
    """Return the effects of a view's breakers on a request, outermost first."""
    states = {state.name: state for state in breakers({mark.value[0] for mark in marks})}
    found = []
    for mark in marks:
        name, instead = mark.value
        if instead == "raises" and has_handler:
            instead = "503"
        explained = ExplainedBreaker(states[name], instead)
        verdict = _("The next request like this would be stopped by a breaker")
        query = urlencode({"name": name})
        url_name = "admin:ratelimit_breakers_breaker"
        found.append(
            Finding(_("Breaker"), explained.words, explained.passes, verdict, url_name, query, SEE)
        )
    return found
