"""A panel of Django Debug Toolbar: the limits that were decided for a request.

Add `"django_ratelimit_lua.debug_panel.RateLimitPanel"` to `DEBUG_TOOLBAR_PANELS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from debug_toolbar.panels import Panel
from django.http import HttpRequest, HttpResponseBase
from django.utils.translation import gettext, gettext_lazy, ngettext

from .engine import DecidedCharge
from .extension import decision_hooks
from .limits.decision import Decision
from .operations.known_limits import place_words

SOURCES = {
    "redis": gettext_lazy("Redis"),
    "deny-cache": gettext_lazy("memory: a refusal of the last second"),
    "lease": gettext_lazy("memory: units taken ahead"),
    "split": gettext_lazy("memory: the part of this process"),
    "fallback": gettext_lazy("memory: Redis is unavailable"),
}
_decisions: ContextVar[list[dict[str, Any]] | None] = ContextVar("_decisions", default=None)
"""The decisions of the present request; None if no panel records them."""


def record_decision(
    charges: Sequence[DecidedCharge],
    decision: Decision,
    seconds: float,
    exempt: Sequence[DecidedCharge] = (),
    state: object = None,
) -> None:
    """Record a decision for the panel of the present request. See `Extension.on_decision`."""
    decisions = _decisions.get()
    if decisions is None or not (charges or exempt):
        return
    limits = [_describe_charge(decided) for decided in charges]
    limits += [{"name": place_words(each.name), "is_exempt": True} for each in exempt]
    decisions.append(
        {
            "limits": limits,
            "source": str(SOURCES[decision.source]),
            "is_refused": not decision.allowed,
            "microseconds": round(seconds * 1_000_000),
        }
    )


def _describe_charge(decided: DecidedCharge) -> dict[str, object]:
    """Return the values that the template shows about one limit."""
    state = decided.state
    return {
        "name": place_words(decided.name),
        "rate": str(decided.charge.limit.rate),
        "mode": state.mode,
        "allowed": state.allowed,
        "cost": decided.charge.cost,
        "used": state.used,
        "remaining": state.remaining,
        "retry_after": state.retry_after,
        "reset_after": round(state.reset_after, 3),
    }


class RateLimitPanel(Panel):
    """Shows each decision about a request: its limits, what is left, and how long it took."""

    title = gettext_lazy("Rate limits")
    template = "django_ratelimit_lua/debug_panel.html"
    is_async = True

    @classmethod
    def ready(cls) -> None:
        """Record the decisions of requests for which a panel is enabled."""
        if record_decision not in decision_hooks:
            decision_hooks.append(record_decision)

    @property
    def nav_subtitle(self) -> str:
        """Return the number of decisions and refusals."""
        decisions = self.get_stats().get("decisions", [])
        refused = sum(each["is_refused"] for each in decisions)
        words = ngettext("%(count)d decision", "%(count)d decisions", len(decisions))
        text = words % {"count": len(decisions)}
        if refused:
            text += gettext(", %(refused)d refused") % {"refused": refused}
        return text

    def enable_instrumentation(self) -> None:
        """Record decisions from now on."""
        self.decisions: list[dict[str, Any]] = []
        _decisions.set(self.decisions)

    def disable_instrumentation(self) -> None:
        """Stop recording."""
        _decisions.set(None)

    def generate_stats(self, request: HttpRequest, response: HttpResponseBase) -> None:
        """Keep the recorded decisions for the page."""
        total = sum(each["microseconds"] for each in self.decisions)
        self.record_stats({"decisions": self.decisions, "microseconds": total})
