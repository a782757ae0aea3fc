"""The request of a service, planned by the rules and overrides in force; and the result as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.http import HttpRequest

from ...engine.decide import Outcome, Plan, PlannedCharge, adecide, build_call
from ...engine.run import Wait
from ...identity import digest
from ...identity.address import UNKNOWN, client_address
from ...identity.keys import ALL_CALLERS
from ...identity.names import own
from ...limits.algorithms.concurrency import new_slot
from ...limits.call import Call, Charge, Operation
from ...limits.decision import Decision, LimitState
from ...limits.limit import Limit
from ...limits.rate import SECOND, LimitError, Rate
from ...rules.callsite import LIMITER, known_call_sites
from ...rules.overrides import SubjectRef
from ...rules.provider import current
from ...rules.rule import Rule
from ...rules.ruleset import Ruleset
from ...web.overrides import NOTHING, override_kinds, override_subjects
from ...web.plan import Party, Planner, is_spared
from ...web.refusal_log import refusal_log
from .clients import clients_of
from .decide_request import DecideRequest, RequestedCharge, write_slot
from .named_identities import NamedIdentities
from .problems import ProblemError

WRONG_TOKENS = Limit("gateway tokens", "10/m", on_store_error="open")
"""Wrong tokens of one address."""
_CALLS: Mapping[str, Operation] = {"peek": "peek", "refund": "refund", "release": "peek"}


class Caller(NamedTuple):
    """The service that asks: the digest of its token, and the `META` of its request."""

    client: str
    meta: Mapping[str, Any]

    @property
    def request(self) -> HttpRequest:
        """A request with that `META`."""
        request = HttpRequest()
        request.META = dict(self.meta)
        return request


def unauthorised() -> ProblemError:
    """The answer to a request without a client's token."""
    detail = "Authorization: Bearer with the token of a client is missing, or another."
    return ProblemError(401, detail, WWW_Authenticate="Bearer")


def _too_many_tokens(decision: Decision) -> ProblemError:
    return ProblemError(
        429, "Too many wrong tokens from this address.", math.ceil(decision.retry_after or 1)
    )


class DecidePlanner(Planner):
    """Plans what a service asks, if its token is one that may ask that by the rules in force."""

    def __init__(self, caller: Caller, asked: DecideRequest) -> None:
        charges = asked.charges
        super().__init__(
            _CALLS.get(asked.operation, "hit"), partial=any(charge.partial for charge in charges)
        )
        if asked.operation == "slot":
            self.options["slot"] = new_slot(asked.seconds)
        if asked.operation in ("reserve", "acquire"):
            self.options["max_wait_us"] = round(asked.timeout * SECOND)
        self._caller = caller
        self._asked = asked
        self._problem: ProblemError | None = None
        self._takes = self.is_hit
        self.units = max((charge.cost for charge in charges), default=0) if self._takes else 0
        self._only_checks = False
        self._identities = [
            (charge, digest(charge.identity), own(charge.identity)) for charge in charges
        ]
        pairs = {(charge.limit, subject) for charge, subject, _identity in self._identities}
        if asked.together and len(pairs) < len(charges):
            raise ProblemError(
                422,
                "A limit and an identity stand twice: add up the costs, or ask with "
                "together=false.",
            )
        if (
            self.options["partial"]
            and len({(charge.partial, charge.cost) for charge in charges}) > 1
        ):
            raise ProblemError(
                422,
                "Charges that are partial together take the same units: give each the same cost "
                "and partial=true, "
                "or ask with together=false.",
            )

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        """See `Planner`.

        Errors and missing rights are decided by the current rules: a call that changes nothing
        checks whether these are.
        """
        self._problem = None
        try:
            self._gather(ruleset)
        except ProblemError as error:
            self._problem = error
        return ()

    def plan(self, ruleset: Ruleset) -> Plan:
        if self._problem is None and not self._only_checks:
            self.is_hit = self._takes
            return super().plan(ruleset)
        self.is_hit = False
        if self._problem is not None and self._problem.status == 401:
            wrong = Charge(WRONG_TOKENS, digest(("gateway token", self._network())))
            return Plan(
                build_call([wrong], ruleset=ruleset), [PlannedCharge(wrong, WRONG_TOKENS.name)]
            )
        probe = Charge(NOTHING, digest(("client", self._caller.client)), 0)
        return Plan(build_call([probe], "peek", ruleset=ruleset), ())

    def _network(self) -> str | None:
        """The network of the caller's address, as `client_address` counts it."""
        try:
            return client_address(self._caller.request).network
        # A function of the project's for RATELIMIT_IP_META_KEY; it expects requests of Django's.
        except Exception:
            return UNKNOWN

    async def check(self) -> None:
        """Raises the `ProblemError` that `decided` would, and decides nothing."""
        ruleset = current()
        if ruleset is not None:
            self.gather(ruleset)
        if self._problem is not None:
            self._only_checks = True  # By newer rules it may be unknown.
            await self.decided()

    async def decided(self) -> Outcome:
        outcome = await adecide(self)
        if self._problem is None:
            return outcome
        if self._problem.status == 401 and outcome.planned:
            refusal_log.write_wrong_token(
                self._caller.request, self._caller.client, outcome.planned[0].charge
            )
            if not outcome.decision:
                raise _too_many_tokens(outcome.decision)
        raise self._problem

    def _gather(self, ruleset: Ruleset) -> None:
        client = clients_of(ruleset).get(self._caller.client)
        if client is None:
            raise unauthorised()
        if self._asked.operation == "refund" and not client.may_refund:
            raise ProblemError(403, f"{client.name} may not give units back.")
        parties: list[Party] = []
        for asked, subject, identity in self._identities:
            if not client.may_ask(asked.limit):
                raise ProblemError(
                    403, f"{client.name} may not ask about the limit {asked.limit!r}."
                )
            limits, rule = _limits(ruleset, asked.limit)
            if rule is not None and rule.key is not None and rule.key.name == ALL_CALLERS:
                subject, identity = digest(None), None
            if identity is None or _is_spared(asked.client):
                limits = [limit.without_bans() for limit in limits]
            charges = [
                PlannedCharge(
                    Charge(limit, subject, asked.cost), asked.limit, rule, asked, identity=identity
                )
                for limit in limits
            ]
            # A block for all rules refuses where the rule itself does not: as in a request, unless
            # it exempts.
            has_blocks = (
                rule is not None and rule.template is not None and self.operation != "refund"
            )
            subjects: Sequence[SubjectRef] = ()
            # A slot is released whatever overrides exist.
            if ruleset.kinds and rule is not None and self._asked.operation != "release":
                kinds = override_kinds(ruleset, charges, has_blocks)
                subjects = override_subjects(
                    asked.client or NamedIdentities({}), ruleset, kinds, charges
                )
            parties.append(Party(charges, subjects, has_blocks, asked))
        self.take(parties)
        self._check_slots([planned.charge.limit for planned in self.charges])
        try:
            Call([planned.charge for planned in self.charges]).keys()
        except LimitError as error:  # A counter stands twice.
            raise ProblemError(422, f"{error}.") from None

    def _check_slots(self, limits: Sequence[Limit]) -> None:
        held = [limit.name for limit in limits if limit.holds]
        if held and self._takes and "slot" not in self.options:
            raise ProblemError(
                422,
                f"The limit {held[0]!r} has slots: take one with slot, give it back with release.",
            )
        if "slot" in self.options and not held:
            raise ProblemError(422, "None of these limits has slots.")

    def _granted(self, charge: RequestedCharge, limits: int, decision: Decision) -> int:
        """The units that a charge of this number of limits took."""
        if not self._takes or not decision.allowed:
            return 0
        return decision.granted if charge.partial and limits else charge.cost

    def answer(self, outcome: Outcome) -> dict[str, Any]:
        """The result, for the service."""
        decision = outcome.decision
        decided = list(zip(outcome.planned, decision.limits, strict=True))
        decisions = []
        for charge in self._asked.charges:
            states = [state for planned, state in decided if planned.owner is charge]
            granted = self._granted(charge, len(states), decision)
            decisions.append(_decision(charge, states, granted, decision))
        answer: dict[str, Any] = {"allowed": decision.allowed, "decisions": decisions}
        if "slot" in self.options and decision.allowed:
            answer["slot"] = write_slot(self.options["slot"])
        return answer


def _decision(
    asked: RequestedCharge, states: list[LimitState], granted: int, whole: Decision
) -> dict[str, Any]:
    refusing = [state for state in states if state.refuses]
    own_states = Decision(not refusing, tuple(states))
    block = (
        next((state.block for state in refusing if state.block is not None), None)
        if refusing
        else None
    )
    is_timed = block is None or not block.forbids
    answer = {
        "limit": asked.limit,
        "allowed": own_states.allowed,
        "granted": granted,
        "remaining": own_states.remaining,
        "retry_after": own_states.retry_after if is_timed else None,
        "reset_after": own_states.reset_after if is_timed else 0.0,
        "wait": max((state.wait for state in own_states.enforced), default=0.0),
        "source": whole.source,
    }
    if block is not None:
        answer["block"] = {"status": 403 if block.forbids else 429, "message": block.message}
    return answer


def _limits(ruleset: Ruleset, name: str) -> tuple[Sequence[Limit], Rule | None]:
    """Return the limits of a name: of the rule, or of an imported `RateLimiter`."""
    rule = ruleset.by_name.get(name)
    found = [site.limits for site in known_call_sites.of(name) if site.kind == LIMITER]
    if rule is not None:
        template = rule.template
        if template is None or rule.mode == "off":
            return (), rule
        if all(isinstance(rate, Rate) for rate in template.rates):
            if found and rule.group == name:
                template = template.in_place_of(found[0])
            return template.limits(name), rule
        raise ProblemError(422, f"The rates of the rule {name!r} are functions of a request.")
    if not found:
        raise ProblemError(422, f"There is no limit {name!r}.")
    return found[0], None


def _is_spared(who: NamedIdentities | None) -> bool:
    """Whether the named address is never banned."""
    address = None if who is None else who.address()
    return address is not None and is_spared(address)
