"""The response to a request: all of its descriptors are decided in one call, all or nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.utils.functional import cached_property

from ....conf import conf
from ....engine import DecidedCharge
from ....engine.decide import adecide
from ....engine.holding import await_turn
from ....engine.run import Wait
from ....identity import Identity, digest
from ....limits.call import MAX_COST, MAX_HOLD_US, Charge, Operation
from ....limits.decision import Decision, LimitState
from ....limits.limit import Limit
from ....limits.rate import SECOND, Rate
from ....rules.overrides import Override
from ....rules.rule import Rule
from ....rules.ruleset import Ruleset
from ....web.headers import limit_headers
from ....web.overrides import RequestSubjects, find_overrides, override_fields
from ....web.plan import Party, Planner, is_never_banned
from ....web.responses import brief_refusal
from ..descriptors import rule_for
from . import messages
from .question import PERIODS, DescriptorCharge, DescriptorRequest, read_question

UNLIMITED = 2**32 - 1
_ACCEPT_HEADERS = ("HTTP_ACCEPT", "HTTP_ACCEPT_LANGUAGE")
_UNITS = {period: unit for unit, period in enumerate(PERIODS)}


class DescriptorResult:
    """The result for a descriptor: its rule, and the states of its limits."""

    def __init__(self, requested: DescriptorCharge) -> None:
        self.requested = requested
        self.rule: Rule | None = None
        self.states: list[LimitState] = []

    @cached_property
    def request(self) -> DescriptorRequest:
        """Return the values of the descriptor as a request."""
        return DescriptorRequest(self.requested)

    @property
    def is_refused(self) -> bool:
        """Return whether a limit refuses the descriptor."""
        return not self.requested.is_used and any(state.refuses for state in self.states)


class _Planner(Planner):
    """Plans the charges of descriptors for one operation. Only their entries are known."""

    adds_up = True

    def __init__(self, results: Sequence[DescriptorResult], operation: Operation) -> None:
        super().__init__(operation, longest_hold_us=MAX_HOLD_US)
        self._results = results

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        self.take([self._party(result, ruleset) for result in self._results])
        return ()

    def _party(self, result: DescriptorResult, ruleset: Ruleset) -> Party:
        charges = _charges(result, ruleset)
        overrides: Sequence[Override] = ()
        fields = override_fields(ruleset.overrides, charges, True)
        if fields:
            source = RequestSubjects(result.request, lambda: result.request.user)
            overrides = find_overrides(source, ruleset.overrides, fields, charges)
        return Party(charges, overrides, self.is_hit, (result,))

    def request_of(self, decided: DecidedCharge) -> DescriptorRequest:
        return _owners(decided)[0].request

    def finish(self, decision: Decision) -> Sequence[Wait]:
        """Record the decision, and the states of each descriptor."""
        for decided in self.charges:
            for result in _owners(decided):
                result.states.append(decided.state)
        return super().finish(decision)


def _owners(charge: DecidedCharge) -> Sequence[DescriptorResult]:
    return charge.owner  # type: ignore[return-value]


def _charges(result: DescriptorResult, ruleset: Ruleset) -> list[DecidedCharge]:
    """Return the charges of a descriptor, by the rate that the request brings or by a rule."""
    requested = result.requested
    if requested.rate is not None:
        keys = tuple([key for key, _ in requested.entries])
        limit = _limit_of_request(requested.domain, keys, requested.rate, conf.ALGORITHM)
        return [_planned(result, limit, requested.identity(), requested.hits)]
    rule = result.rule = rule_for(ruleset, requested.domain, requested.entries)
    if rule is None or rule.template is None:
        return []
    template = rule.template
    identity = requested.identity()
    if template.key is not None:
        identity = template.key.read(rule.name, result.request, result.request.user)
    limits = template.limits(rule.name)
    has_bans = any(limit.ban is not None for limit in limits)
    if has_bans and (identity is None or is_never_banned(result.request)):
        limits = tuple([limit.without_bans() for limit in limits])
    cost = 1
    if isinstance(template.cost, int):
        cost = template.cost
    cost = min(cost * requested.hits, MAX_COST)
    return [_planned(result, limit, identity, cost, rule) for limit in limits]


def _planned(
    result: DescriptorResult, limit: Limit, identity: Identity, cost: int, rule: Rule | None = None
) -> DecidedCharge:
    charge = Charge(limit, digest(identity), cost)
    return DecidedCharge(charge, limit.name, rule, (result,), identity)


@lru_cache(maxsize=1024)
def _limit_of_request(domain: str, keys: tuple[str, ...], rate: Rate, algorithm: str) -> Limit:
    """Return the limit for the rate that a request brings."""
    return Limit(":".join((domain, *keys)), rate, variant=str(rate), algorithm=algorithm)


async def answer(data: bytes) -> Any:
    """Return the `RateLimitResponse` to an encoded `RateLimitRequest`.

    Raises `QuestionError`.
    """
    results = [DescriptorResult(requested) for requested in read_question(data)]
    decision = Decision(True)
    # Units that were used already are charged first, and refuse nothing.
    used = [result for result in results if result.requested.is_used]
    if used:
        await adecide(_Planner(used, "charge"))
    if len(used) < len(results):
        hits = [result for result in results if not result.requested.is_used]
        planner = _Planner(hits, "hit")
        decision = await adecide(planner)
        if decision and decision.wait > 0:
            await await_turn(decision.wait, planner.charges)
    return _compose(results, decision)


def _compose(results: Sequence[DescriptorResult], decision: Decision) -> Any:
    style = conf.HEADERS or "ietf"
    response = messages.Response(overall_code=messages.OK)
    headers = limit_headers(decision, style)
    if not decision.allowed:
        refusal = brief_refusal(_refused_request(results), decision, style, only_status=429)
        headers = dict(refusal.items())
        response.overall_code = messages.OVER_LIMIT
        response.raw_body = refusal.content
    for result in results:
        _compose_status(response.statuses.add(), result)
    for key, value in headers.items():
        response.response_headers_to_add.add(key=key.lower(), value=value)
    return response


def _refused_request(results: Sequence[DescriptorResult]) -> DescriptorRequest:
    """Return the request of the first refused descriptor, with the client's accept headers."""
    refused = next((result for result in results if result.is_refused), results[0])
    for result in results:
        for header in _ACCEPT_HEADERS:
            if header in result.request.META:
                refused.request.META[header] = result.request.META[header]
    return refused.request


def _compose_status(status: Any, result: DescriptorResult) -> None:
    """Write the status of a descriptor, from the limit that refuses it or has the least left."""
    status.code = messages.OVER_LIMIT if result.is_refused else messages.OK
    if not result.states:
        # As envoyproxy/ratelimit reports a descriptor that a rule exempts.
        status.limit_remaining = UNLIMITED if result.rule is not None else 0
        return
    # Limits in shadow mode are not disclosed, unless there are no others.
    state = min(
        result.states, key=lambda state: (state.mode != "enforce", state.allowed, state.remaining)
    )
    status.limit_remaining = min(max(state.remaining, 0), UNLIMITED)
    status.duration_until_reset.seconds = math.ceil(state.reset_after)
    if not state.is_block:
        status.current_limit.name = state.name
        status.current_limit.requests_per_unit = min(state.limit, UNLIMITED)
        status.current_limit.unit = _UNITS.get(round(state.period * SECOND), 0)
