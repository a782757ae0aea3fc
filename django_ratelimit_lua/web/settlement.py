"""The work after a view has returned or raised: refund, reset, charge.

A unit is taken before the view and refunded after it, so that simultaneous requests cannot all
pass. A view that is cancelled or interrupted has an outcome, too. If a worker dies in between, its
unit stays counted until it expires.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.http import HttpRequest

from ..engine import DecidedCharge
from ..engine.decide import build_call, deciding_call, forgetting, refunding
from ..engine.holding import Held
from ..engine.run import Waiting, calling
from ..identity.request_state import request_state
from ..limits.call import Charge, whole_cost
from ..limits.decision import Decision
from ..rules.rule import Rule

logger = logging.getLogger("django_ratelimit_lua")


def settle(
    request: HttpRequest,
    response: object,
    decision: Decision,
    decided_charges: Sequence[DecidedCharge],
    held: Held | None = None,
) -> Waiting[None]:
    """Settle the charges of a decision by the response, or by the exception that was raised.

    That exception may be the one that stopped the view: `CancelledError`, `KeyboardInterrupt`,
    `SystemExit` or `GeneratorExit`. An exception releases the `held` slots. Otherwise they are
    released when the response is closed.

    Each limit is settled by itself: an error of its functions is logged, and its units stay
    counted.
    """
    if held is not None and isinstance(response, BaseException):
        yield from held.releasing()
    if decision.source == "fallback":
        return  # Nothing was taken that could be given back.
    refunds: list[DecidedCharge] = []
    charges: list[Charge] = []
    resets: list[Charge] = []
    for decided in decided_charges:
        rule = decided.rule
        if rule is None or decided.charge.limit.holds:
            continue
        try:
            yield from _judge(request, response, decided, rule, refunds, charges, resets)
        except Exception:
            logger.exception(
                "A function of the limit %r failed after the view; its units stay counted",
                decided.name,
            )
    yield from refunding(refunds)
    if charges:
        yield from deciding_call(build_call(charges, "charge"))
    if resets:
        yield from forgetting(build_call(resets, "refund"))


def _judge(
    request: HttpRequest,
    response: object,
    decided: DecidedCharge,
    rule: Rule,
    refunds: list[DecidedCharge],
    charges: list[Charge],
    resets: list[Charge],
) -> Waiting[None]:
    """Call the functions of a rule, and add the charge to those lists that they decide.

    Raises the exceptions of these functions, and `LimitError` for an invalid cost.
    """
    charge = decided.charge
    if rule.reset_if is not None and (yield from calling(rule.reset_if, request, response)):
        resets.append(charge)
        return
    if rule.cost_after is not None:
        cost = whole_cost(
            (yield from calling(rule.cost_after, request, response)), "cost_after gave"
        )
        # Once for each request, however often it goes through the view.
        counter = (charge.digest, charge.limit.key_part)
        charged = request_state(request).charged
        if cost and counter not in charged:
            charged.add(counter)
            charges.append(charge._replace(cost=cost))
    if decided.token is None or rule.count_if is None:
        return
    if not (yield from calling(rule.count_if, request, response)):
        refunds.append(decided)
