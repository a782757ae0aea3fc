"""Plans the request of a service by the rules and overrides in force; the result is JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.http import HttpRequest

from ...engine.decide import adecide, build_call
from ...engine.decided_charge import DecidedCharge
from ...engine.run import Wait
from ...identity import digest
from ...identity.address import UNKNOWN, client_address
from ...identity.keys import ALL_CALLERS
from ...identity.names import own
from ...limits.algorithms.concurrency import new_slot
from ...limits.call import Call, Charge, Operation
from ...limits.decision import Decision, LimitState
from ...limits.limit import Limit
from ...limits.rate import SECOND, Rate
from ...rules.callsite import LIMITER, known_call_sites
from ...rules.provider import current
from ...rules.rule import Rule
from ...rules.ruleset import Ruleset
from ...web.overrides import NOTHING, find_overrides, override_fields
from ...web.plan import Party, Planner, is_spared
from ...web.refusal_log import refusal_log
from .answer import ProblemError
from .clients import Client
from .decide_request import DecideRequest, RequestedCharge, write_slot

WRONG_TOKENS = Limit("gateway tokens", "10/m", on_store_error="open")
"""Wrong tokens of one address."""
_CALLS: Mapping[str, Operation] = {"peek": "peek", "refund": "refund", "release": "peek"}


class Caller(NamedTuple):
    """The calling service: the digest of its token, and the `META` of its request."""

    client: str
    meta: Mapping[str, object]

    @property
    def request(self) -> HttpRequest:
        """Return a request with that `META`."""
        request = HttpRequest()
        request.META = dict(self.meta)
        return request


def unauthorised() -> ProblemError:
    """Return the answer to a request without a client's token."""
    detail = "Missing or invalid token: send Authorization: Bearer with the token of a client."
    return ProblemError(401, detail, WWW_Authenticate="Bearer")


class DecidePlanner(Planner):
    """Plans a request of a service, if the current rules have a client with its token and rights.

    Errors and missing rights are decided by the current rules, too: a call that changes nothing
    checks whether the rules are current.
    """

    def __init__(self, caller: Caller, request: DecideRequest) -> None:
        super().__init__(
            _CALLS.get(request.operation, "hit"),
            partial=any(charge.partial for charge in request.charges),
        )
        if request.operation == "slot":
            self.options["slot"] = new_slot(request.seconds)
        if request.operation in ("reserve", "acquire"):
            self.options["max_wait_us"] = round(request.timeout * SECOND)
        if self.is_hit:
            self.units = max((charge.cost for charge in request.charges), default=0)
        self._caller = caller
        self._request = request
        self._problem: ProblemError | None = None
        self._only_checks = False

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        self._problem = None
        try:
            self._gather(ruleset)
        except ProblemError as error:
            self._problem = error
        return ()

    def _gather(self, ruleset: Ruleset) -> None:
        clients: Mapping[str, Client] = ruleset.parts.get("gateway") or {}
        client = clients.get(self._caller.client)
        if client is None:
            raise unauthorised()
        operation = self._request.operation
        if operation == "refund" and not client.may_refund:
            raise ProblemError(403, f"{client.name} is not allowed to refund units.")
        for charge in self._request.charges:
            if not client.may_ask(charge.limit):
                detail = f"{client.name} is not allowed to use the limit {charge.limit!r}."
                raise ProblemError(403, detail)
        self.take([self._party(charge, ruleset) for charge in self._request.charges])
        charges = [planned.charge for planned in self.gathered]
        slots = [charge.limit.name for charge in charges if charge.limit.holds]
        if operation in ("slot", "release") and not slots:
            raise ProblemError(422, f"The operation {operation} needs a concurrency limit.")
        if slots and self.operation == "hit" and operation != "slot":
            raise ProblemError(
                422,
                f"The limit {slots[0]!r} is a concurrency limit: use the operations slot "
                "and release.",
            )
        if len({(charge.digest, charge.limit.key_part) for charge in charges}) < len(charges):
            raise ProblemError(
                422,
                "Two charges have the same limit and identity: add their costs, or use "
                "together=false.",
            )

    def _party(self, requested: RequestedCharge, ruleset: Ruleset) -> Party:
        limits, rule = _limits(ruleset, requested.limit)
        identity = requested.identity
        if rule is not None and rule.key is not None and rule.key.name == ALL_CALLERS:
            identity = None
        address = requested.client.address()
        if identity is None or (address is not None and is_spared(address)):
            limits = [limit.without_bans() for limit in limits]
        subject = digest(identity)
        charges = [
            DecidedCharge(
                Charge(limit, subject, requested.cost),
                requested.limit,
                rule,
                requested,
                own(identity),
            )
            for limit in limits
        ]
        if rule is None:
            return Party(charges, (), False, requested)
        # A block for all rules refuses where the rule itself does not: as in a request, unless it
        # exempts.
        has_blocks = rule.template is not None and self.operation != "refund"
        fields = override_fields(ruleset.overrides, charges, has_blocks)
        if self._request.operation == "release":  # Whatever overrides exist.
            fields = ()
        overrides = find_overrides(requested.client, ruleset.overrides, fields, charges)
        return Party(charges, overrides, has_blocks, requested)

    def plan(self, ruleset: Ruleset) -> Call:
        if self._problem is None and not self._only_checks:
            self.is_hit = self.operation == "hit"
            return super().plan(ruleset)
        self.is_hit = False
        operation: Operation = "peek"
        charge = Charge(NOTHING, digest(("client", self._caller.client)), 0)
        if self._problem is not None and self._problem.status == 401:
            operation = "hit"
            charge = Charge(WRONG_TOKENS, digest(("gateway token", self._network())))
        self.charges = [DecidedCharge(charge, charge.limit.name)]
        return build_call([charge], operation, ruleset=ruleset)

    def _network(self) -> str | None:
        """Return the network of the caller's address, like `client_address`."""
        try:
            return client_address(self._caller.request).network
        # A function of the project's for RATELIMIT_IP_META_KEY; it expects requests of Django's.
        except Exception:
            return UNKNOWN

    async def check(self) -> None:
        """Raise the `ProblemError` that `decide` would raise, without deciding."""
        ruleset = current()
        if ruleset is not None:
            self.gather(ruleset)
            if self._problem is None:
                return
        # By newer rules there may be no problem.
        self._problem = None
        self._only_checks = True
        await self.decide()

    async def decide(self) -> Decision:
        decision = await adecide(self)
        if self._problem is None:
            return decision
        if self._problem.status == 401 and self.charges:
            charge = self.charges[0].charge
            refusal_log.write_wrong_token(self._caller.request, self._caller.client, charge)
            if not decision:
                seconds = math.ceil(decision.retry_after or 1)
                raise ProblemError(429, "Too many wrong tokens from this address.", seconds)
        raise self._problem

    def answer(self, decision: Decision) -> dict[str, Any]:
        """Return the result for the service."""
        answer: dict[str, Any] = {"allowed": decision.allowed, "decisions": []}
        for requested in self._request.charges:
            states = [decided.state for decided in self.charges if decided.owner is requested]
            granted = requested.cost
            if not self.is_hit or not decision.allowed:
                granted = 0
            elif requested.partial and states:
                granted = decision.granted
            answer["decisions"].append(
                {
                    "limit": requested.limit,
                    "granted": granted,
                    "source": decision.source,
                    **_numbers(states),
                }
            )
        if "slot" in self.options and decision.allowed:
            answer["slot"] = write_slot(self.options["slot"])
        return answer


def _numbers(states: Sequence[LimitState]) -> dict[str, object]:
    """Return the members about the limits of one charge."""
    decision = Decision(not any(state.refuses for state in states), tuple(states))
    numbers: dict[str, Any] = {
        "allowed": decision.allowed,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
        "reset_after": decision.reset_after,
        "wait": max((state.wait for state in decision.enforced), default=0.0),
    }
    block = next((state.block for state in decision.refusing if state.block is not None), None)
    if block is not None:
        numbers["block"] = {"status": 429, "message": block.message}
        if block.forbids:
            numbers["block"]["status"] = 403
            numbers.update(retry_after=None, reset_after=0.0)
    return numbers


def _limits(ruleset: Ruleset, name: str) -> tuple[Sequence[Limit], Rule | None]:
    """Return the limits of a rule or, without a rule, of an imported `RateLimiter`."""
    limiters = [site.limits for site in known_call_sites.of(name) if site.kind == LIMITER]
    rule = ruleset.by_name.get(name)
    if rule is None:
        if not limiters:
            raise ProblemError(422, f"There is no limit {name!r}.")
        return limiters[0], None
    template = rule.template
    if template is None or rule.mode == "off":
        return (), rule
    if not all(isinstance(rate, Rate) for rate in template.rates):
        raise ProblemError(
            422, f"The rule {name!r} cannot be used here: its rates are functions of a request."
        )
    if limiters and rule.group == name:
        template = template.in_place_of(limiters[0])
    return template.limits(name), rule
