"""The response to Envoy: all descriptors of a request are decided in one call, all or nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from django.utils.functional import cached_property

from ....conf import conf
from ....engine.decide import adecide
from ....engine.decided_charge import DecidedCharge
from ....engine.run import Wait
from ....engine.waiting import ahold
from ....identity import Identity, digest
from ....limits.call import MAX_COST, MAX_HOLD_US, Call, Charge, Operation
from ....limits.decision import Decision, LimitState
from ....limits.limit import Limit
from ....limits.rate import SECOND, LimitError, Rate
from ....rules.problems import problems
from ....rules.rule import Rule
from ....rules.ruleset import Ruleset
from ....rules.template import LimitTemplate
from ....web.headers import limit_headers
from ....web.overrides import RequestSubjects, find_overrides, override_fields
from ....web.plan import Party, Planner, is_never_banned
from ....web.responses import brief_refusal
from ..descriptors import check_rule, rule_for
from ..users import STRANGER
from . import messages
from .question import PERIODS, DescriptorCharge, DescriptorRequest, read_question

UNLIMITED = 2**32 - 1
_ACCEPT_HEADERS = ("HTTP_ACCEPT", "HTTP_ACCEPT_LANGUAGE")
_UNITS = {period: unit for unit, period in PERIODS.items()}


class DescriptorResult:
    """The result for a descriptor: its states, and whether a rule exempts it from all limits."""

    def __init__(self, requested: DescriptorCharge) -> None:
        self.requested = requested
        self.is_unlimited = False
        self.states: list[LimitState] = []

    @cached_property
    def request(self) -> DescriptorRequest:
        """Return the values of the descriptor as a request."""
        return DescriptorRequest(self.requested)


class _Planner(Planner):
    """Plans the charges of descriptors with the same purpose. Only their entries are known."""

    adds_up = True

    def __init__(self, results: Sequence[DescriptorResult], purpose: Operation) -> None:
        super().__init__(purpose, longest_hold_us=MAX_HOLD_US)
        self._results = results

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        self.take([self._party(result, ruleset) for result in self._results])
        return ()

    def _party(self, result: DescriptorResult, ruleset: Ruleset) -> Party:
        charges = []
        for planned in _charges(result, ruleset):
            limit = planned.charge.limit
            if limit.ban is not None and (
                planned.identity is None or is_never_banned(result.request)
            ):
                charge = planned.charge._replace(limit=limit.without_bans())
                planned = replace(planned, charge=charge)
            charges.append(planned)
        fields = override_fields(ruleset.overrides, charges, True)
        if not fields:
            return Party(charges, (), self.is_hit, (result,))
        sender = RequestSubjects(result.request, partial(getattr, result.request, "user", None))
        overrides = find_overrides(sender, ruleset.overrides, fields, charges)
        return Party(charges, overrides, self.is_hit, (result,))

    def plan(self, ruleset: Ruleset) -> Call:
        """Set the charges, and mark the results that only exempt charges concern."""
        call = super().plan(ruleset)
        charged = {result for planned in self.charges for result in _owners(planned)}
        for planned in self.exempt:
            for result in set(_owners(planned)) - charged:
                result.is_unlimited = True
        return call

    def request_of(self, decided: DecidedCharge) -> DescriptorRequest:
        return _owners(decided)[0].request

    def finish(self, decision: Decision) -> Sequence[Wait]:
        """Record the decision, and the states of each descriptor."""
        for decided in self.charges:
            for result in _owners(decided):
                result.states.append(decided.state)
        return super().finish(decision)


def _owners(planned: DecidedCharge) -> Sequence[DescriptorResult]:
    return planned.owner  # type: ignore[return-value]


def _charges(result: DescriptorResult, ruleset: Ruleset) -> list[DecidedCharge]:
    """Return the charges of a descriptor, by the rule that matches it or Envoy's own rate."""
    requested = result.requested
    rule = rule_for(ruleset, requested.domain, requested.entries)
    is_exempt = rule is not None and rule.template is None
    result.is_unlimited = is_exempt and requested.rate is None
    if rule is not None and not is_exempt:
        try:
            return _charges_by(rule, result)
        except LimitError as error:
            problems.failed(rule.name, error)
            return []
    if requested.rate is None:
        return []
    keys = tuple([key for key, _ in requested.entries])
    limit = _of_envoy(requested.domain, keys, requested.rate, conf.ALGORITHM)
    return [_planned(result, limit, requested.identity(), requested.hits)]


def _charges_by(rule: Rule, result: DescriptorResult) -> list[DecidedCharge]:
    """Return the charge of a rule for a descriptor. Raises `LimitError` if it cannot be applied."""
    requested = result.requested
    template = rule.template
    assert template is not None
    check_rule(rule, [key for key, _ in requested.entries])
    rates = [rate for rate in template.rates if isinstance(rate, Rate)]
    if requested.rate is not None:
        rates = [requested.rate]
    cost = template.cost if isinstance(template.cost, int) else 1
    cost = min(cost * requested.hits, MAX_COST)
    identity = requested.identity()
    if template.key is not None:
        user = getattr(result.request, "user", STRANGER)
        identity = template.key.read(rule.name, result.request, user)
    limits = [_limit(template, rule.name, rate) for rate in rates]
    return [_planned(result, limit, identity, cost, rule) for limit in limits]


def _planned(
    result: DescriptorResult, limit: Limit, identity: Identity, cost: int, rule: Rule | None = None
) -> DecidedCharge:
    charge = Charge(limit, digest(identity), cost)
    return DecidedCharge(charge, limit.name, rule, (result,), identity)


def _limit(template: LimitTemplate, name: str, rate: Rate) -> Limit:
    """Return the limit of a rule at a rate, without its options if these do not fit the rate."""
    try:
        return template.limit(name, rate)
    except LimitError:
        options = template.options
        algorithm = options.get("algorithm") or conf.ALGORITHM
        mode = options.get("mode", "enforce")
        return Limit(name, rate, variant=str(rate), algorithm=algorithm, mode=mode)


@lru_cache(maxsize=1024)
def _of_envoy(domain: str, keys: tuple[str, ...], rate: Rate, algorithm: str) -> Limit:
    """Return the limit of Envoy's own configuration, if no rule matches the descriptor."""
    return Limit(":".join((domain, *keys)), rate, variant=str(rate), algorithm=algorithm)


async def answer(data: bytes) -> bytes:
    """Return the encoded response to an encoded `RateLimitRequest`.

    Raises `QuestionError`.
    """
    results = [DescriptorResult(requested) for requested in read_question(data)]
    decision = Decision(True)
    # Units that were used or are refunded are settled first, and refuse nothing.
    purposes: Sequence[Operation] = ("refund", "charge", "hit")
    for purpose in purposes:
        of_purpose = [result for result in results if result.requested.purpose == purpose]
        if of_purpose:
            planner = _Planner(of_purpose, purpose)
            decided = await adecide(planner)
            if purpose == "hit":
                decision = decided
                if decision and decision.wait > 0:
                    await ahold(decision.wait, planner.charges)
    return _write(results, decision)


def _write(results: Sequence[DescriptorResult], decision: Decision) -> bytes:
    style = conf.HEADERS or "draft-10"
    response = messages.Response(overall_code=messages.OK)
    headers = limit_headers(decision, style)
    if not decision.allowed:
        refusal = brief_refusal(_refused_request(results), decision, style, only_status=429)
        headers = dict(refusal.items())
        response.overall_code = messages.OVER_LIMIT
        response.raw_body = refusal.content
    for result in results:
        _write_status(response.statuses.add(), result)
    for key, value in headers.items():
        response.response_headers_to_add.add(key=key.lower(), value=value)
    data: bytes = response.SerializeToString()
    return data


def _is_refused(result: DescriptorResult) -> bool:
    return result.requested.purpose == "hit" and any(state.refuses for state in result.states)


def _refused_request(results: Sequence[DescriptorResult]) -> DescriptorRequest:
    """Return the request of the first refused descriptor, with the client's accept headers."""
    refused = next(filter(_is_refused, results), results[0])
    for result in results:
        for header in _ACCEPT_HEADERS:
            if header in result.request.META:
                refused.request.META[header] = result.request.META[header]
    return refused.request


def _write_status(status: Any, result: DescriptorResult) -> None:
    """Write the status of a descriptor, from the limit that refuses it or has the least left."""
    status.code = messages.OVER_LIMIT if _is_refused(result) else messages.OK
    if not result.states:
        status.limit_remaining = UNLIMITED if result.is_unlimited else 0
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
