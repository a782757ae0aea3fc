"""System checks of breakers."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage, Tags, register

from ...checks import Problem
from ...rules.stacks import url_patterns
from .circuits import circuits

TWO_BREAKERS = Problem("W021", "Make one CircuitBreaker, and use it in both places.")


@register(Tags.caches)
def check_breakers(**kwargs: object) -> Iterator[CheckMessage]:
    """Report breakers that are declared twice with different thresholds."""
    list(url_patterns())  # Imports the views, which declare breakers.
    for name, circuit in sorted(circuits.by_name.items()):
        if circuit.is_ambiguous:
            yield TWO_BREAKERS.message(
                f"The breaker {name!r} is declared twice, with different thresholds."
            )
