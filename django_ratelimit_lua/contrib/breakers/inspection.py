"""The inspector's part about breakers: those of a view, and their effect on a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...extension import Finding
from ...operations.formatting import moment_words, share_words
from ...rules.stacks import Mark
from ...web.durations import duration_words
from .breaker import Instead
from .operations import BreakerState, breakers

SEE = [
    f"ratelimit_breakers.{action}"
    for action in ("view_ratelimitbreaker", "change_ratelimitbreaker", "force_breaker")
]
"""Users with one of these see the page of a breaker."""

OUTCOMES: dict[Instead, Any] = {
    "503": gettext_lazy("a call that it stops is answered 503"),
    "fallback": gettext_lazy("its fallback answers a call that it stops"),
    "raises": gettext_lazy("a call that it stops raises CircuitOpen"),
}


@dataclass(frozen=True, slots=True)
class ExplainedBreaker:
    """A breaker that a request meets at its view.

    - `state`: as it is now; `instead`: what comes of a request that it does not let through;
    - `passes`: whether it lets the request through; None: chance decides, or what others do.
    """

    state: BreakerState
    instead: Instead

    @property
    def passes(self) -> bool | None:
        """Whether it lets such a request through now."""
        state, forced = self.state, self.state.forced
        if forced in ("open", "closed"):
            return forced == "closed"
        if state.state == "open" and state.seconds:
            return False
        if state.state == "half-open" and state.probes >= state.by.probes:
            return False
        return True if state.state in ("closed", "open") else None

    @property
    def words(self) -> str:
        """How it is, and what it does with such a request, in one line."""
        parts = [self._forced(), self._own()] if self.state.forced else [self._own()]
        if self.passes is not True:
            parts.append(str(OUTCOMES[self.instead]))
        return f"{self.state.name}: {'; '.join(parts)}"

    def _forced(self) -> str:
        row = self.state.row
        assert row is not None
        until = (
            _("until it is taken back")
            if row.until is None
            else _("until %s") % moment_words(row.until)
        )
        how = _("forced open %s") if row.forced == "open" else _("forced closed %s")
        return how % until

    def _own(self) -> str:
        state = self.state
        words = {
            "since": "" if state.since is None else moment_words(state.since),
            "time": duration_words(state.seconds),
            "share": share_words(state.share / 100),
            "probes": state.probes,
            "most": state.by.probes,
        }
        texts = {
            None: _("its own state is not known, as Redis does not answer"),
            "closed": _("closed"),
            "open": _("open since %(since)s, next probe in %(time)s")
            if state.seconds
            else _("open since %(since)s, the next call is a probe"),
            "half-open": _("half-open since %(since)s, %(probes)s of %(most)s probes on their way"),
            "ramp": _("recovering since %(since)s, %(share)s of the calls are let through"),
        }
        text: str = texts[state.state] % words
        return _("its own state: %s") % text if state.forced and state.state is not None else text


def inspect(marks: Sequence[Mark], has_handler: bool) -> list[Finding]:
    """The effects of a view's breakers on a request, outermost first."""
    states = {state.name: state for state in breakers({mark.value[0] for mark in marks})}
    found = []
    for mark in marks:
        name, instead = mark.value
        explained = ExplainedBreaker(
            states[name], "503" if instead == "raises" and has_handler else instead
        )
        verdict = _("The next request like this would be stopped by a breaker")
        query = urlencode({"name": name})
        url_name = "admin:ratelimit_breakers_breaker"
        found.append(
            Finding(_("Breaker"), explained.words, explained.passes, verdict, url_name, query, SEE)
        )
    return found
