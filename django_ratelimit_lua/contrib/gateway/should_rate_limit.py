"""`ShouldRateLimit`: decide all descriptors of a request in one call, all or nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from django.http import HttpHeaders, HttpRequest
from django.utils.functional import cached_property

from ...conf import conf
from ...engine import DecidedCharge
from ...engine.decide import adecide
from ...engine.holding import await_turn
from ...engine.run import Wait
from ...identity import Identity, digest
from ...identity.keys import registered_keys
from ...identity.request_state import request_state
from ...limits.call import MAX_COST, MAX_HOLD_US, Charge, Operation
from ...limits.decision import Decision, LimitState
from ...limits.limit import Limit
from ...limits.rate import SECOND, Rate
from ...rules.overrides import Override
from ...rules.rule import Rule
from ...rules.ruleset import Ruleset
from ...web.headers import limit_headers
from ...web.overrides import RequestSubjects, find_overrides, override_fields
from ...web.plan import Party, Planner, merge_counters
from ...web.refusal import Refusal, refusal_of
from ...web.request_plan import is_never_banned
from . import protocol
from .described_request import ReportedUser, log_in
from .descriptors import ADDRESS, find_rule
from .http import compose_refusal
from .protocol import PERIODS, DescriptorCharge

UNLIMITED = 2**32 - 1
_ACCEPT_HEADERS = ("HTTP_ACCEPT", "HTTP_ACCEPT_LANGUAGE")
_ADDRESS_HEADERS = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED")
_UNITS = {period: unit for unit, period in enumerate(PERIODS)}


async def should_rate_limit(message: bytes) -> Any:
    """Return the `RateLimitResponse` to an encoded `RateLimitRequest`.

    Raises `ProtocolError`.
    """
    results = [DescriptorResult(requested) for requested in protocol.read_request(message)]
    # Units that were used already are charged first, and refuse nothing.
    used = [result for result in results if result.requested.is_used]
    if used:
        await adecide(_DescriptorPlanner(used, "charge"))
    hits = [result for result in results if not result.requested.is_used]
    decision = Decision(True)
    if hits:
        planner = _DescriptorPlanner(hits, "hit")
        decision = await adecide(planner)
        if decision and decision.wait > 0:
            await await_turn(decision.wait, planner.charges)
    return _compose_response(results, decision)


class DescriptorRequest(HttpRequest):
    """The values of a descriptor as a request, for keys and overrides that read requests."""

    def __init__(self, requested: DescriptorCharge) -> None:
        """Set what the entries contain. The domain is the host, and the path without an entry."""
        super().__init__()
        values = dict(requested.entries)
        log_in(self, ReportedUser(values.get("user", "")))
        self.path = requested.domain
        self.META["SERVER_NAME"] = requested.domain
        for key, value in requested.entries:
            self._set_value(key, value)
        # The address is that of the entry. No header of the client is used.
        source = "REMOTE_ADDR"
        if isinstance(conf.IP_META_KEY, str):
            source = conf.IP_META_KEY
        for header in (*_ADDRESS_HEADERS, source):
            self.META.pop(header, None)
        if ADDRESS in values:
            self.META["REMOTE_ADDR"] = values[ADDRESS]
            self.META[source] = values[ADDRESS]

    def _set_value(self, key: str, value: str) -> None:
        """Set the part of the request that an entry stands for, if it stands for one."""
        kind, _, name = key.partition(":")
        if key == "path":
            self.path = self.path_info = value
        elif kind.lower() == "header" and name:
            self.META[str(HttpHeaders.to_wsgi_name(name))] = value
        elif kind == "cookie" and name:
            self.COOKIES[name] = value
        elif kind == "get" and name:
            query: Any = self.GET
            query[name] = value
        elif key in registered_keys():
            request_state(self).key_values[key] = value


class OverLimitRefusal(Refusal):
    """A refusal with the one status that Envoy sends to a client that is over a limit."""

    @property
    def status(self) -> int:
        return 429


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


class _DescriptorPlanner(Planner):
    """Plans the charges of descriptors for one operation. Only their entries are known."""

    def __init__(self, results: Sequence[DescriptorResult], operation: Operation) -> None:
        super().__init__(operation, longest_hold_us=MAX_HOLD_US)
        self._results = results

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        """Find the rule, the charges and the overrides of each descriptor."""
        for result in self._results:
            requested = result.requested
            if requested.rate is None:
                result.rule = find_rule(ruleset, requested.domain, requested.entries)
        self.set_parties([_build_party(result, ruleset, self.is_hit) for result in self._results])
        return ()

    def merge_charges(self, charges: Sequence[DecidedCharge]) -> Sequence[DecidedCharge]:
        """Add up the costs of the charges by one limit for one identity."""
        merged: dict[object, DecidedCharge] = {}
        for decided in charges:
            counter = decided.charge[:2]  # The limit and the digest.
            if counter in merged:
                decided = _add_cost(merged[counter], decided)
            merged[counter] = decided
        return merge_counters(list(merged.values()))

    def request_of(self, decided: DecidedCharge) -> DescriptorRequest:
        return _results_of(decided)[0].request

    def finish(self, decision: Decision) -> Sequence[Wait]:
        """Record the decision, and the states of each descriptor."""
        for decided in self.charges:
            for result in _results_of(decided):
                result.states.append(decided.state)
        return super().finish(decision)


def _add_cost(earlier: DecidedCharge, later: DecidedCharge) -> DecidedCharge:
    """Return one charge in place of two of the same limit, for the results of both."""
    cost = min(earlier.charge.cost + later.charge.cost, MAX_COST)
    results = (*_results_of(earlier), *_results_of(later))
    return replace(later, charge=later.charge._replace(cost=cost), owner=results)


def _results_of(decided: DecidedCharge) -> Sequence[DescriptorResult]:
    """Return the results that share a charge: several descriptors may be counted by one limit."""
    return decided.owner  # type: ignore[return-value]


def _build_party(result: DescriptorResult, ruleset: Ruleset, is_hit: bool) -> Party:
    """Return the charges of a descriptor, and the overrides that apply to them."""
    charges = _build_charges(result)
    overrides: Sequence[Override] = ()
    fields = override_fields(ruleset.overrides, charges, True)
    if fields:
        subjects = RequestSubjects(result.request, lambda: result.request.user)
        overrides = find_overrides(subjects, ruleset.overrides, fields, charges)
    return Party(charges, overrides, is_hit, (result,))


def _build_charges(result: DescriptorResult) -> list[DecidedCharge]:
    """Return the charges of a descriptor, by the rate that the request brings or by its rule.

    Without a rule, or if it exempts, there are no charges.
    """
    requested = result.requested
    identity = requested.identity()
    if requested.rate is not None:
        keys = tuple([key for key, _ in requested.entries])
        limit = _build_limit(requested.domain, keys, requested.rate, conf.ALGORITHM)
        return [_build_charge(result, limit, identity, requested.hits)]
    rule = result.rule
    if rule is None or rule.template is None:
        return []
    template = rule.template
    if template.key is not None:
        identity = template.key.read(rule.name, result.request, result.request.user)
    limits = template.limits(rule.name)
    has_bans = any(limit.ban is not None for limit in limits)
    if has_bans and (identity is None or is_never_banned(result.request)):
        limits = tuple([limit.without_bans() for limit in limits])
    unit_cost = template.cost if isinstance(template.cost, int) else 1
    cost = min(unit_cost * requested.hits, MAX_COST)
    return [_build_charge(result, limit, identity, cost, rule) for limit in limits]


def _build_charge(
    result: DescriptorResult, limit: Limit, identity: Identity, cost: int, rule: Rule | None = None
) -> DecidedCharge:
    """Return a charge of a descriptor; `rule` is None for the rate of the request."""
    charge = Charge(limit, digest(identity), cost)
    return DecidedCharge(charge, limit.name, rule, (result,), identity)


@lru_cache(maxsize=1024)
def _build_limit(domain: str, keys: tuple[str, ...], rate: Rate, algorithm: str) -> Limit:
    """Return the limit for the rate that a request brings."""
    return Limit(":".join((domain, *keys)), rate, variant=str(rate), algorithm=algorithm)


def _compose_response(results: Sequence[DescriptorResult], decision: Decision) -> Any:
    """Return the `RateLimitResponse`, with a status for each descriptor."""
    response = protocol.Response(overall_code=protocol.OK)
    headers: Mapping[str, str] = limit_headers(decision, conf.HEADERS or "ietf")
    if not decision.allowed:
        request = _prepare_refused_request(results)
        refusal = OverLimitRefusal(**vars(refusal_of(request, decision)))
        answer = compose_refusal(request, refusal)
        headers = answer.headers
        response.overall_code = protocol.OVER_LIMIT
        response.raw_body = answer.body
    for result in results:
        _write_status(response.statuses.add(), result)
    for key, value in headers.items():
        response.response_headers_to_add.add(key=key.lower(), value=value)
    return response


def _prepare_refused_request(results: Sequence[DescriptorResult]) -> DescriptorRequest:
    """Add the client's accept headers to the request of the first refused descriptor; return it."""
    refused = next((result for result in results if result.is_refused), results[0])
    for result in results:
        for header in _ACCEPT_HEADERS:
            if header in result.request.META:
                refused.request.META[header] = result.request.META[header]
    return refused.request


def _write_status(status: Any, result: DescriptorResult) -> None:
    """Write the status of a descriptor, from the limit that refuses it or has the least left."""
    status.code = protocol.OVER_LIMIT if result.is_refused else protocol.OK
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
