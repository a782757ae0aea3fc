"""What Envoy is answered: all descriptors of a question are one call, all or nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from ....conf import conf
from ....engine.decide import Outcome, Plan, PlannedCharge, adecide, confirming, releasing
from ....engine.run import Wait, arun
from ....engine.waiting import ahold
from ....identity import digest
from ....limits.algorithms.concurrency import new_slot
from ....limits.call import MAX_COST, MAX_HOLD_US, Charge, Operation
from ....limits.decision import Decision, LimitState
from ....limits.limit import Limit
from ....limits.rate import SECOND, LimitError, Rate
from ....rules.overrides import SubjectRef
from ....rules.problems import problems
from ....rules.rule import Rule
from ....rules.ruleset import Ruleset
from ....rules.template import LimitTemplate
from ....web.headers import limit_headers
from ....web.overrides import Sender, override_kinds, override_subjects
from ....web.plan import Party, Planner, is_never_banned
from ....web.responses import brief_refusal
from ..descriptors import rule_for, unread
from ..users import STRANGER
from . import messages
from .lease import CONFIRM, LEASE, Lease, read_leases, write_lease
from .question import PERIODS, DescribedRequest, DescriptorCharge, Purpose, read_question

UNLIMITED = 2**32 - 1
_ACCEPT_HEADERS = {"header:accept": "HTTP_ACCEPT", "header:accept-language": "HTTP_ACCEPT_LANGUAGE"}
_UNITS = {period: unit for unit, period in PERIODS.items()}


SLOT_SECONDS = 60
"""Seconds after which a slot ends that Envoy does not give back."""
SPARE_SECONDS = 2
"""How long Envoy may take to confirm a slot once it is answered."""


class SlotEndedError(Exception):
    """A slot ended before Envoy confirmed it."""


class UnreadableKeyError(LimitError):
    """A rule that a descriptor names needs a value that the descriptor lacks."""


@dataclass(slots=True)
class Met:
    """The result for a descriptor: whether a rule exempts it from all limits, and its decision."""

    asked: DescriptorCharge
    is_unlimited: bool = False
    states: Sequence[LimitState] = ()
    _request: DescribedRequest | None = None

    @property
    def request(self) -> DescribedRequest:
        """The values of the descriptor as those of a request."""
        if self._request is None:
            self._request = DescribedRequest(self.asked)
        return self._request


class _Planner(Planner):
    """Plans what descriptors are charged that are asked about for one purpose: what is not in their
    entries is not known.
    """

    adds_up = True

    def __init__(self, met: Sequence[Met], purpose: Operation) -> None:
        super().__init__(purpose, slot=new_slot(SLOT_SECONDS), longest_hold_us=MAX_HOLD_US)
        self._met = met

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        parties = []
        for met in self._met:
            charges = []
            for each in _charges(met, ruleset):
                limit = each.charge.limit
                if limit.holds and not self.is_hit:
                    # Slots are released by the lease that was returned when they were taken.
                    continue
                if limit.ban is not None and (
                    each.identity is None or is_never_banned(met.request)
                ):
                    each = each._replace(charge=each.charge._replace(limit=limit.without_bans()))
                charges.append(each)
            subjects = _subjects(met, charges, ruleset) if ruleset.kinds else ()
            parties.append(Party(charges, subjects, self.is_hit, (met,)))
        self.take(parties)
        return ()

    def plan(self, ruleset: Ruleset) -> Plan:
        """See `Planner`. A slot lasts only for a few seconds until it is confirmed."""
        plan = super().plan(ruleset)
        charged = _by_met(plan.charges)
        for planned in plan.exempt:
            for met in _owners(planned):
                met.is_unlimited = met.is_unlimited or id(met) not in charged
        call = plan.call
        if any(charge.limit.holds for charge in call.charges):
            wait_us = max(call.max_wait_us_of(charge.limit) for charge in call.charges)
            seconds = conf.TIMEOUT + SPARE_SECONDS + max(wait_us, 0) / SECOND
            call = call._replace(confirm_ms=round(1000 * min(seconds, SLOT_SECONDS)))
        else:
            call = call._replace(slot=b"")
        return plan._replace(call=call)

    def request_of(self, planned: PlannedCharge) -> DescribedRequest:
        return _owners(planned)[0].request

    def finish(self, outcome: Outcome) -> Sequence[Wait]:
        """Note what was decided about each, too."""
        places = _by_met(outcome.planned)
        for met in self._met:
            met.states = [outcome.decision.limits[place] for place in places.get(id(met), ())]
        return super().finish(outcome)


def _owners(planned: PlannedCharge) -> Sequence[Met]:
    return planned.owner  # type: ignore[return-value]


def _by_met(charges: Sequence[PlannedCharge]) -> dict[int, list[int]]:
    """The places of the charges of each descriptor."""
    places: dict[int, list[int]] = {}
    for place, planned in enumerate(charges):
        for met in _owners(planned):
            places.setdefault(id(met), []).append(place)
    return places


def _charges(met: Met, ruleset: Ruleset) -> list[PlannedCharge]:
    """The charges of a descriptor by these rules."""
    asked, met.is_unlimited = met.asked, False
    rule = rule_for(ruleset, asked.domain, asked.entries)
    if rule is not None and rule.template is None:
        met.is_unlimited = asked.rate is None
        rule = None
    if rule is None:
        if asked.rate is None:
            return []
        identity, keys = asked.identity(), tuple([key for key, _ in asked.entries])
        limit = _of_envoy(asked.domain, keys, asked.rate, conf.ALGORITHM)
        charge = Charge(limit, digest(identity), asked.hits)
        return [PlannedCharge(charge, limit.name, None, (met,), identity=identity)]
    try:
        return _charges_by(rule, met)
    except LimitError as error:
        problems.failed(rule.name, error)
        return []


def _charges_by(rule: Rule, met: Met) -> list[PlannedCharge]:
    """The charge of a rule for a descriptor. Raises `LimitError` if it cannot be applied."""
    asked, template = met.asked, rule.template
    assert template is not None
    rates: Sequence[Rate] = [rate for rate in template.rates if isinstance(rate, Rate)]
    if len(rates) < len(template.rates) or callable(template.cost):
        raise UnreadableKeyError(
            "a function of the site says its rate or cost, and knows only requests of Django's"
        )
    if asked.rate is not None and not any(rate.is_slots for rate in rates):
        rates = [asked.rate]
    key = template.key
    if key is None:
        identity = asked.identity()
    else:
        missing = unread(key.name, [key for key, _ in asked.entries])
        if missing:
            raise UnreadableKeyError(f"the descriptor has nothing to count by {', '.join(missing)}")
        identity = key.read(rule.name, met.request, getattr(met.request, "user", STRANGER))
    subject, cost = (
        digest(identity),
        min((1 if template.cost is None else template.cost) * asked.hits, MAX_COST),
    )
    planned = []
    for rate in rates:
        charge = Charge(_limit(template, rule.name, rate), subject, cost)
        planned.append(PlannedCharge(charge, rule.name, rule, (met,), identity=identity))
    return planned


def _limit(template: LimitTemplate, name: str, rate: Rate) -> Limit:
    """The limit of a rule at a rate; without its options if a rate of Envoy does not fit them."""
    try:
        return template.limit(name, rate)
    except LimitError:
        mode = template.options.get("mode", "enforce")
        return Limit(
            name, rate, algorithm=template.options.get("algorithm") or conf.ALGORITHM, mode=mode
        )


@lru_cache(maxsize=1024)
def _of_envoy(domain: str, keys: tuple[str, ...], rate: Rate, algorithm: str) -> Limit:
    """The limit of Envoy's own configuration, if no rule matches the descriptor."""
    return Limit(":".join((domain, *keys)), rate, algorithm=algorithm)


def _subjects(met: Met, charges: Sequence[PlannedCharge], ruleset: Ruleset) -> Sequence[SubjectRef]:
    """The subjects of overrides for a descriptor."""
    sender = Sender(met.request, partial(getattr, met.request, "user", None))
    return override_subjects(sender, ruleset, override_kinds(ruleset, charges, True), charges)


async def answer(data: bytes) -> bytes:
    """The answer to a `RateLimitRequest`, each as it is on the wire.

    Raises `QuestionError` and `SlotEndedError`.
    """
    met = [Met(asked) for asked in read_question(data)]
    decision = Decision(True)
    # What was used or is given back is settled first, and refuses nothing.
    lease = ""
    for leased in _leases(met, "release", LEASE):
        await arun(releasing(leased.charges, leased.slot))
    for leased in _leases(met, "confirm", CONFIRM):
        if leased.needs_confirmation and not await arun(confirming(leased.charges, leased.slot)):
            raise SlotEndedError("the slot ended before it was confirmed")
    purposes: Sequence[Operation] = ("refund", "charge", "hit")
    for purpose in purposes:
        of_purpose = [each for each in met if each.asked.purpose == purpose]
        if of_purpose:
            outcome = await adecide(_Planner(of_purpose, purpose))
            if purpose == "hit":
                decision = outcome.decision
                if outcome.held:
                    lease = write_lease(outcome.held, needs_confirmation=decision.source == "redis")
                if decision and decision.wait > 0:
                    await ahold(outcome)
    return _written(met, decision, lease)


def _leases(met: Sequence[Met], purpose: Purpose, name: str) -> list[Lease]:
    """The leases in the entries of that name, of the descriptors for one purpose."""
    entries = [
        entry for each in met if each.asked.purpose == purpose for entry in each.asked.entries
    ]
    return [lease for key, value in entries if key == name for lease in read_leases(value)]


def _written(met: Sequence[Met], decision: Decision, lease: str) -> bytes:
    response = messages.Response(
        overall_code=messages.OK if decision.allowed else messages.OVER_LIMIT
    )
    if lease:
        response.request_headers_to_add.add(key=LEASE, value=lease)
    refused: Met | None = None
    for each in met:
        is_refused = each.asked.purpose == "hit" and any(state.refuses for state in each.states)
        refused = refused or (each if is_refused else None)
        _write_status(
            response.statuses.add(), each, messages.OVER_LIMIT if is_refused else messages.OK
        )
    style = conf.HEADERS or "draft-10"
    if decision.allowed:
        headers = limit_headers(decision, style)
    else:
        refusal = brief_refusal(
            _with_accept_headers((refused or met[0]).request, met), decision, style, only_status=429
        )
        headers = dict(refusal.items())
        response.raw_body = refusal.content
    for key, value in headers.items():
        response.response_headers_to_add.add(key=key.lower(), value=value)
    data: bytes = response.SerializeToString()
    return data


def _with_accept_headers(request: DescribedRequest, met: Sequence[Met]) -> DescribedRequest:
    """The request with the formats that the client accepts, if a descriptor contains them."""
    for each in met:
        for key, value in each.asked.entries:
            header = _ACCEPT_HEADERS.get(key.lower())
            if header is not None:
                request.META[header] = value
    return request


def _write_status(status: Any, met: Met, code: int) -> None:
    """One descriptor's part of the answer: of several limits, by the one that refuses, or has least
    left.
    """
    status.code = code
    if not met.states:
        status.limit_remaining = UNLIMITED if met.is_unlimited else 0
        return
    # Limits in shadow mode are not disclosed, unless there are no others.
    state = min(
        met.states, key=lambda state: (state.mode != "enforce", state.allowed, state.remaining)
    )
    status.limit_remaining = min(max(state.remaining, 0), UNLIMITED)
    status.duration_until_reset.seconds = math.ceil(state.reset_after)
    if not state.is_block:
        status.current_limit.name = state.name
        status.current_limit.requests_per_unit = min(state.limit, UNLIMITED)
        status.current_limit.unit = _UNITS.get(round(state.period * SECOND), 0)
