"""What is left to do when a view has answered or raised: give back, clear, charge.

A unit is taken before the view and given back after it, so that requests that run side by side cannot slip through
together. A view that is cancelled or interrupted has an outcome, too. A worker that dies in between loses its unit
until the limit forgets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.http import HttpRequest

from ..engine.decide import build_call
from ..engine.waiting import refunds
from ..identity.wrapped import kept_on
from ..limits.call import whole_cost
from ..limits.decision import Decision
from .charges import PlannedCharge, called
from .plan import Forget, Steps


def give_back(kept: Sequence[PlannedCharge], decision: Decision) -> Steps:
    """Give back all that a decision took, for a request that will not be served after all."""
    if decision.source != "fallback":
        taken = [
            (one.charge, state.counted_at)
            for one, state in zip(kept, decision.limits, strict=False)
            if state.allowed and one.charge.cost > 0
        ]
        for call in refunds(decision, taken):  # noqa: UP028 - a list cannot be sent what came of it
            yield call
    return decision


def settle(request: HttpRequest, outcome: Any, kept: Sequence[PlannedCharge], decision: Decision) -> Steps:
    """Settle the charges of a decision, by the outcome: a response, or the exception that was raised, which may be what
    stopped the view: `CancelledError`, `KeyboardInterrupt`, `SystemExit`, `GeneratorExit`."""
    if decision.source == "fallback":
        return decision  # Nothing was taken that could be given back.
    back, more, clear = [], [], []
    charged: set[tuple[bytes, bytes]] = kept_on(request).setdefault("_ratelimit_charged", set())
    for one, state in zip(kept, decision.limits, strict=False):
        rule, charge = one.rule, one.charge
        if rule is None:
            continue
        if rule.reset_if is not None and (yield from called(rule.reset_if, request, outcome)):
            clear.append(charge)
            continue
        if rule.cost_after is not None:
            cost = whole_cost((yield from called(rule.cost_after, request, outcome)), "cost_after gave")
            # Once for each request, however often it goes through the view.
            counter = (charge.digest, charge.limit.key_part)
            if cost and counter not in charged:
                charged.add(counter)
                more.append(replace(charge, cost=cost))
        taken = state.allowed and charge.cost > 0
        if taken and rule.count_if is not None and not (yield from called(rule.count_if, request, outcome)):
            back.append((charge, state.counted_at))
    for call in refunds(decision, back):  # noqa: UP028
        yield call
    if more:
        yield build_call(more, "charge")
    if clear:
        yield Forget(build_call(clear, "refund"))
    return decision
