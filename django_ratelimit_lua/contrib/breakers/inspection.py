"""The inspector's section about the breakers of a view, and their effect on a request."""

from __future__ import annotations

from collections.abc import Sequence
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


def explain(state: BreakerState, instead: Instead) -> tuple[str, bool | None]:
    """Return a breaker's state and effect in one line, and whether it lets a request through.

    None: that is uncertain.
    """
    passes = _passes(state)
    parts = state.lines
    if not passes:
        parts.append(str(OUTCOMES[instead]))
    return f"{state.name}: {'; '.join(parts)}", passes


def _passes(state: BreakerState) -> bool | None:
    if state.forced:
        return state.forced == "closed"
    if state.state == "open":
        return not state.seconds
    if state.state == "half-open" and state.probes >= state.by.probes:
        return False
    return state.state == "closed" or None


def inspect(marks: Sequence[Mark], has_handler: bool) -> list[Finding]:
    """Return the effects of a view's breakers on a request, outermost first."""
    states = {state.name: state for state in breakers({mark.value[0] for mark in marks})}
    found = []
    for mark in marks:
        name, instead = mark.value
        if instead == "raises" and has_handler:
            instead = "503"
        words, passes = explain(states[name], instead)
        verdict = _("The next request like this would be stopped by a breaker")
        query = urlencode({"name": name})
        url_name = "admin:ratelimit_breakers_breaker"
        found.append(Finding(_("Breaker"), words, passes, verdict, url_name, query, SEE))
    return found
