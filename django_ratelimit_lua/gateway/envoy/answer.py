"""What Envoy is answered: all descriptors of a question are one call, all or nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from ...conf import conf
from ...engine.decide import Outcome, Plan, PlannedCharge, adecide, build_call, confirming, releasing
from ...engine.run import Wait, arun
from ...engine.waiting import ahold, to_the_end, unmasked
from ...identity import digest
from ...limits.algorithms.concurrency import new_slot
from ...limits.call import MOST_COST, Charge, Operation
from ...limits.decision import Decision, LimitState
from ...limits.limit import Limit
from ...limits.rate import SECOND, LimitError, Rate
from ...rules.descriptors import unread
from ...rules.overrides import SubjectRef, override_cache
from ...rules.problems import problems
from ...rules.rule import Rule
from ...rules.ruleset import Ruleset
from ...rules.template import LimitTemplate
from ...signals import limit_exceeded
from ...stats.recorder import recorder
from ...web.headers import limit_headers
from ...web.overrides import Applied, Sender, apply_overrides, override_kinds, override_subjects
from ...web.plan import is_never_banned
from ...web.responses import brief_refusal
from ..users import STRANGER
from . import messages
from .lease import CONFIRM, LEASE, Lease, read_leases, write_lease
from .question import PERIODS, Asked, DescribedRequest, Purpose, read_question

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
    """A rule that a descriptor names goes by what the descriptor does not have."""


@dataclass(slots=True)
class Met:
    """What a descriptor has met: whether a rule is for it that lifts all limits, and what of it was decided."""

    asked: Asked
    is_unlimited: bool = False
    states: Sequence[LimitState] = ()
    _request: DescribedRequest | None = None

    @property
    def request(self) -> DescribedRequest:
        """What the descriptor says of a request."""
        if self._request is None:
            self._request = DescribedRequest(self.asked)
        return self._request


class _Planner:
    """Plans what descriptors are charged that are asked about for one purpose. Nothing has to be gathered: what is not
    in their entries is not known."""

    units = 0
    gathers = False
    count = None

    def __init__(self, met: Sequence[Met], purpose: Operation) -> None:
        self._met = met
        self._purpose = purpose
        self.is_hit = purpose == "hit"
        self._slot = new_slot(SLOT_SECONDS)
        self._held: list[Charge] = []
        self._blocked: Met | None = None

    def gather(self, ruleset: Ruleset) -> None:
        """Nothing."""

    async def agather(self, ruleset: Ruleset) -> None:
        """Nothing."""

    def plan(self, ruleset: Ruleset) -> Plan:
        """See `Planner`."""
        planned: list[PlannedCharge] = []
        exempt: list[PlannedCharge] = []
        self._blocked = None
        block: tuple[LimitState, bytes] | None = None
        found = [(met, self._charges(met, ruleset)) for met in self._met]
        refs = [_subjects(met, charges, ruleset) for met, charges in found] if ruleset.kinds else [()] * len(found)
        known, subjects = override_cache.get_each(refs)
        for (met, charges), overrides in zip(found, known, strict=True):
            applied = apply_overrides(charges, overrides, ruleset, True) if overrides else Applied(charges)
            if applied.block is not None and block is None and self.is_hit:
                self._blocked, block = met, (applied.block, applied.subject)
            met.is_unlimited = met.is_unlimited or bool(applied.exempt and not applied.charges)
            planned += applied.charges
            exempt += applied.exempt
        charges, counted, is_refused = _one_of_each(planned), [], block is not None
        for each in charges:
            if each.blocked is None:
                counted.append(each.charge)
            else:
                is_refused = is_refused or each.blocked.enforced
        self._held = [charge for charge in counted if charge.limit.holds]
        call = build_call(
            counted, "peek" if is_refused and self.is_hit else self._purpose, slot=self._slot if self._held else b"",
            longest_hold_us=round(conf.MAX_WAIT * SECOND), ruleset=ruleset, subjects=subjects,
        )  # fmt: skip
        if self._held:
            wait_us = max(call.max_wait_us_of(charge.limit) for charge in counted)
            seconds = conf.TIMEOUT + SPARE_SECONDS + max(wait_us, 0) / SECOND
            call = call._replace(confirm_ms=round(1000 * min(seconds, SLOT_SECONDS)))
        state, subject = block or (None, b"")
        return Plan(call, charges, state, subject, exempt)

    def _charges(self, met: Met, ruleset: Ruleset) -> list[PlannedCharge]:
        planned = []
        for each in _charges(met, ruleset):
            limit = each.charge.limit
            if limit.holds and not self.is_hit:
                continue  # Slots are released by what was told when they were taken.
            if limit.ban is not None and (each.identity is None or is_never_banned(met.request)):
                each = each._replace(charge=each.charge._replace(limit=limit.without_bans()))
            planned.append(each)
        return planned

    async def leave(self) -> None:
        """Nobody hears the answer: give back the slot that was asked for, if it was taken."""
        if self._held:
            await to_the_end(arun(releasing(self._held, self._slot)))

    def finish(self, outcome: Outcome) -> Sequence[Wait]:
        """Note what was decided about each; tell the receivers of `limit_exceeded` who was refused."""
        if self._blocked is not None:
            self._blocked.states = outcome.decision.limits
            return ()
        waits: list[Wait] = []
        decided: dict[int, list[LimitState]] = {}
        for planned, state in zip(outcome.planned, outcome.decision.limits, strict=False):
            owners: Any = planned.owner
            for met in owners:
                decided.setdefault(id(met), []).append(state)
            if self.is_hit and not state.allowed and outcome.decision.source != "fallback" and limit_exceeded.receivers:
                arguments = {
                    "limit": state.name,
                    "rule": planned.rule.name if planned.rule is not None else None,
                    "identity": planned.charge.digest.decode(),
                    "mode": state.mode,
                    "decision": outcome.decision,
                    "request": owners[0].request,
                }
                waits.append(
                    Wait(
                        partial(limit_exceeded.send_robust, Decision, **arguments),
                        partial(limit_exceeded.asend_robust, Decision, **arguments),
                    )
                )
        for met in self._met:
            met.states = decided.get(id(met), ())
        return waits


def _charges(met: Met, ruleset: Ruleset) -> list[PlannedCharge]:
    """What a descriptor is charged by these rules."""
    asked, met.is_unlimited = met.asked, False
    rule = ruleset.for_descriptor(asked.domain, asked.entries)
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
        recorder.add_failed(rule.name)
        return []


def _charges_by(rule: Rule, met: Met) -> list[PlannedCharge]:
    """What a rule charges a descriptor. Raises `LimitError` where it cannot be applied."""
    asked, template = met.asked, rule.template
    assert template is not None
    rates: Sequence[Rate] = [rate for rate in template.rates if isinstance(rate, Rate)]
    if len(rates) < len(template.rates) or callable(template.cost):
        raise UnreadableKeyError("a function of the site says its rate or cost, and knows only requests of Django's")
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
    subject, cost = digest(identity), min((1 if template.cost is None else template.cost) * asked.hits, MOST_COST)
    planned = []
    for rate in rates:
        charge = Charge(_limit(template, rule.name, rate), subject, cost)
        planned.append(PlannedCharge(charge, rule.name, rule, (met,), identity=identity))
    return planned


def _limit(template: LimitTemplate, name: str, rate: Rate) -> Limit:
    """The limit of a rule at a rate; at one of Envoy's that its options do not fit, without them."""
    try:
        return template.limit(name, rate)
    except LimitError:
        mode = template.options.get("mode", "enforce")
        return Limit(name, rate, algorithm=template.options.get("algorithm") or conf.ALGORITHM, mode=mode)


@lru_cache(maxsize=1024)
def _of_envoy(domain: str, keys: tuple[str, ...], rate: Rate, algorithm: str) -> Limit:
    """The limit of Envoy's own configuration, where no rule is for the descriptor."""
    return Limit(":".join((domain, *keys)), rate, algorithm=algorithm)


def _subjects(met: Met, charges: Sequence[PlannedCharge], ruleset: Ruleset) -> Sequence[SubjectRef]:
    """Whom overrides may be about that say something of a descriptor."""
    sender = Sender(met.request, partial(getattr, met.request, "user", None))
    return override_subjects(sender, ruleset, override_kinds(ruleset, charges, True))


def _one_of_each(planned: Sequence[PlannedCharge]) -> list[PlannedCharge]:
    """The same with no counter twice: what two descriptors take of one count is taken together."""
    if len(planned) < 2:
        return list(planned)
    by_counter: dict[tuple[bytes, bytes], PlannedCharge] = {}
    for each in planned:
        charge = each.charge
        number, limit = 1, charge.limit
        while (other := by_counter.get((charge.digest, limit.key_part))) is not None and other.charge.limit != limit:
            limit = charge.limit.renamed(f"{charge.limit.name}:{charge.limit.rate}" + f"*{number}" * (number > 1))
            number += 1
        cost, owners = charge.cost, each.owner
        if other is not None:
            cost, owners = min(cost + other.charge.cost, MOST_COST), (*other.owner, *owners)  # type: ignore[misc]
        charge = charge._replace(limit=limit, cost=cost)
        by_counter[charge.digest, limit.key_part] = each._replace(charge=charge, owner=owners)
    return list(by_counter.values())


async def answer(data: bytes) -> bytes:
    """The answer to a `RateLimitRequest`, each as it is on the wire. Raises `QuestionError` and `SlotEndedError`."""
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
            planner = _Planner(of_purpose, purpose)
            try:
                outcome = await adecide(planner)
            except BaseException as error:
                with unmasked(error):
                    await planner.leave()
                raise
            if purpose == "hit":
                decision = outcome.decision
                if outcome.held:
                    lease = write_lease(outcome.held, needs_confirmation=decision.source == "redis")
                if decision and decision.wait > 0:
                    await ahold(outcome)
    return _written(met, decision, lease)


def _leases(met: Sequence[Met], purpose: Purpose, name: str) -> list[Lease]:
    """The leases in the entries of that name, of the descriptors for one purpose."""
    entries = [entry for each in met if each.asked.purpose == purpose for entry in each.asked.entries]
    return [lease for key, value in entries if key == name for lease in read_leases(value)]


def _written(met: Sequence[Met], decision: Decision, lease: str) -> bytes:
    response = messages.Response(overall_code=messages.OK if decision.allowed else messages.OVER_LIMIT)
    if lease:
        response.request_headers_to_add.add(key=LEASE, value=lease)
    refused: Met | None = None
    for each in met:
        is_refused = each.asked.purpose == "hit" and any(state.refuses for state in each.states)
        refused = refused or (each if is_refused else None)
        _write_status(response.statuses.add(), each, messages.OVER_LIMIT if is_refused else messages.OK)
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
    """The request with what the client accepts, where any descriptor of the question says that."""
    for each in met:
        for key, value in each.asked.entries:
            header = _ACCEPT_HEADERS.get(key.lower())
            if header is not None:
                request.META[header] = value
    return request


def _write_status(status: Any, met: Met, code: int) -> None:
    """One descriptor's part of the answer: of several limits, by the one that refuses, or has least left."""
    status.code = code
    if not met.states:
        status.limit_remaining = UNLIMITED if met.is_unlimited else 0
        return
    # Shadow mode is no client's business, but where there is nothing else.
    state = min(met.states, key=lambda state: (state.mode != "enforce", state.allowed, state.remaining))
    status.limit_remaining = min(max(state.remaining, 0), UNLIMITED)
    status.duration_until_reset.seconds = math.ceil(state.reset_after)
    if not state.is_block:
        status.current_limit.name = state.name
        status.current_limit.requests_per_unit = min(state.limit, UNLIMITED)
        status.current_limit.unit = _UNITS.get(round(state.period * SECOND), 0)
