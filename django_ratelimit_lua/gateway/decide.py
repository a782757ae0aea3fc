"""`decide`: for services that ask about limits themselves.

A service names limits and who is counted; it has a token, whose client may ask about some limits. Clients are published
with the rules, so a token is refused from the very call on that would go by newer ones: nothing is asked of the
database, and a revoked token is over at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connections
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from ..conf import conf
from ..engine.decide import Outcome, Plan, PlannedCharge, adecide, build_call, releasing
from ..engine.run import Wait, arun
from ..engine.waiting import ahold, to_the_end, unmasked
from ..identity import Identity, digest
from ..identity.forwarded import parse_address
from ..limits.algorithms.concurrency import new_slot
from ..limits.call import Charge
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..limits.rate import SECOND, LimitError, Rate
from ..models import RateLimitClient
from ..models.client import token_digest
from ..process.tasks import Errand
from ..publishing.publish import primary
from ..rules.callsite import known_call_sites
from ..rules.exempt import ratelimit_exempt
from ..rules.provider import current
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..stats.names import own
from ..web.plan import is_spared
from .answer import Answer
from .asked import MOST_BYTES, Asked, AskedCharge, read_asked, write_slot
from .problems import ProblemError

LIMITER = "RateLimiter"
PROBE = Limit("gateway", "1/s")
"""Of which nothing is ever taken."""
NOTE_SECONDS = 60
"""How often it is written down, by each process, that a token was used."""
Gone = Callable[[], Awaitable[Any]]
_CALLS = {"peek": "peek", "refund": "refund"}
_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store"}
_noted: dict[str, float] = {}
MOST_NOTED = 10_000
noting = Errand("clients")


@ratelimit_exempt
@login_not_required
@csrf_exempt
async def decide(request: HttpRequest) -> HttpResponse:
    """`answer_decide`, for Django, which cancels a view whose client has gone."""
    try:
        body = request.read(MOST_BYTES + 1)  # Not `request.body`: what is sent in chunks may have any size.
    except UnreadablePostError:
        body = b""  # The client has gone.
    answer = await answer_decide(str(request.method), request.META.get("HTTP_AUTHORIZATION", ""), body)
    return answer.response()


async def answer_decide(method: str, authorization: str, body: bytes, gone: Gone | None = None) -> Answer:
    """The decisions that a service asks for, as JSON, or a problem document. `gone`: waits until the client is."""
    try:
        if method != "POST":
            raise ProblemError(405, "Ask by POST.", Allow="POST")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorised()
        client = token_digest(token.strip())
        # Who may not ask at all is told nothing about the body; that this is still so, the decision finds out itself.
        ruleset = current()
        if ruleset is None or client not in ruleset.clients:
            await _Planner(client, Asked("peek", ())).decided()
        asked = read_asked(body)
        if asked.operation == "release":
            answer = await _released(client, asked)
        elif asked.together:
            answer = await _together(client, asked, gone)
        else:
            answer = await _apart(client, asked, gone)
        _note(client)
    except ProblemError as error:
        return error.answer
    return Answer(200, _HEADERS, json.dumps(answer).encode())


def _unauthorised() -> ProblemError:
    detail = "Authorization: Bearer with the token of a client is missing, or another."
    return ProblemError(401, detail, WWW_Authenticate="Bearer")


async def _together(client: str, asked: Asked, gone: Gone | None) -> dict[str, Any]:
    planner = _Planner(client, asked)
    try:
        outcome = await planner.decided()
    except BaseException as error:
        with unmasked(error):
            await planner.leave()
        raise
    if asked.operation == "acquire" and outcome.decision and outcome.decision.wait > 0:
        await _turn(outcome, gone)
    return planner.answer(outcome)


async def _apart(client: str, asked: Asked, gone: Gone | None) -> dict[str, Any]:
    """Each charge for itself; but what may not be asked at all is found out before any of them is made."""
    alone = [replace(asked, charges=(charge,)) for charge in asked.charges]
    for each in alone:
        await _Planner(client, each).check()
    answers = await asyncio.gather(*[_together(client, each, gone) for each in alone])
    decisions = [
        {**decision, "slot": each["slot"]} if "slot" in each else decision
        for each in answers for decision in each["decisions"]
    ]  # fmt: skip
    return {"allowed": all(each["allowed"] for each in answers), "decisions": decisions}


async def _turn(outcome: Outcome, gone: Gone | None) -> None:
    """Wait for the turn; a client that goes away meanwhile gives it back."""
    if gone is None:
        await ahold(outcome)
        return
    turn, left = asyncio.ensure_future(ahold(outcome)), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({turn, left}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        left.cancel()
        turn.cancel()
        with suppress(asyncio.CancelledError):
            await turn


async def _released(client: str, asked: Asked) -> dict[str, Any]:
    planner = _Planner(client, replace(asked, operation="peek"))
    outcome = await planner.decided()  # Who may not ask, may not release either.
    charges = [planned.charge for planned in outcome.planned if planned.charge.limit.holds]
    if not charges and conf.ENABLE:
        raise ProblemError(422, "None of these limits has slots.")
    await arun(releasing(charges, asked.slot))
    return {"allowed": True, "decisions": []}


class _Planner:
    """Plans what a service asks, if its token is one that may ask that by the rules in force."""

    gathers = False

    def __init__(self, client: str, asked: Asked) -> None:
        self._client, self._asked = client, asked
        self._problem: ProblemError | None = None
        self.is_hit = self._takes = asked.operation not in ("peek", "refund")
        self.units = max((charge.cost for charge in asked.charges), default=0) if self._takes else 0
        self._slot = new_slot(asked.seconds) if asked.operation == "slot" else b""
        self._only_checks = False
        self._held: list[Charge] = []
        self._counts: list[int] = []
        self._charges = [(charge, digest(charge.identity), own(charge.identity)) for charge in asked.charges]
        pairs = {(charge.limit, subject) for charge, subject, _identity in self._charges}
        if asked.together and len(pairs) < len(self._charges):
            raise ProblemError(
                422, "A limit and an identity stand twice: add up the costs, or ask with together=false."
            )

    def gather(self, ruleset: Ruleset) -> None:
        """Nothing."""

    async def agather(self, ruleset: Ruleset) -> None:
        """Nothing."""

    def plan(self, ruleset: Ruleset) -> Plan:
        """See `Planner`. What this client may not ask, or nobody can, is found out by the current rules: a call that
        changes nothing asks whether these are."""
        self._problem, self.is_hit = None, self._takes
        try:
            plan = self._planned(ruleset)
            if not self._only_checks:
                return plan
        except ProblemError as error:
            self._problem = error
        self.is_hit = False
        probe = Charge(PROBE, digest(("client", self._client)), 0)
        return Plan(build_call([probe], "peek", ruleset=ruleset), ())

    async def check(self) -> None:
        """Raises the `ProblemError` that `decided` would, and decides nothing."""
        ruleset = current()
        try:
            if ruleset is not None:
                self._planned(ruleset)
        except ProblemError:
            self._only_checks = True  # By newer rules it may be none.
            await self.decided()

    async def decided(self) -> Outcome:
        """The decision. Raises `ProblemError`."""
        outcome = await adecide(self)
        if self._problem is not None:
            raise self._problem
        return outcome

    def _planned(self, ruleset: Ruleset) -> Plan:
        client = ruleset.clients.get(self._client)
        if client is None:
            raise _unauthorised()
        planned: list[PlannedCharge] = []
        self._counts = []
        for asked, subject, identity in self._charges:
            if not client.may_ask(asked.limit):
                raise ProblemError(403, f"{client.name} may not ask about the limit {asked.limit!r}.")
            limits, rule = _limits(ruleset, asked.limit)
            if any(limit.ban is not None for limit in limits) and _is_spared(asked.identity):
                limits = [limit.without_bans() for limit in limits]
            self._counts.append(len(limits))
            planned += [
                PlannedCharge(Charge(limit, subject, asked.cost), asked.limit, rule, identity=identity)
                for limit in limits
            ]
        self._check_slots([charge.charge.limit for charge in planned])
        self._held = [charge.charge for charge in planned if charge.charge.limit.holds] if self._slot else []
        options: Any = {"slot": self._slot}
        if self._asked.operation in ("reserve", "acquire"):
            options["max_wait_us"] = round(self._asked.timeout * SECOND)
        operation: Any = _CALLS.get(self._asked.operation, "hit")
        try:
            call = build_call([charge.charge for charge in planned], operation, ruleset=ruleset, **options)
            call.keys()
        except LimitError as error:
            raise ProblemError(422, f"{error}.") from None
        return Plan(call, planned)

    async def leave(self) -> None:
        """Nobody hears the answer: give back the slot that was asked for, if it was taken."""
        if self._held:
            await to_the_end(arun(releasing(self._held, self._slot)))

    def _check_slots(self, limits: Sequence[Limit]) -> None:
        held = [limit.name for limit in limits if limit.holds]
        if held and self._takes and not self._slot:
            raise ProblemError(422, f"The limit {held[0]!r} has slots: take one with slot, give it back with release.")
        if self._slot and not held:
            raise ProblemError(422, "None of these limits has slots.")

    def finish(self, outcome: Outcome) -> Sequence[Wait]:
        """Nothing."""
        return ()

    def answer(self, outcome: Outcome) -> dict[str, Any]:
        """What came of it, for the service."""
        decision, states = outcome.decision, iter(outcome.decision.limits)
        takes = self._takes and decision.allowed
        counts = self._counts or [0] * len(self._charges)
        decisions = [
            _decision(charge, [next(states) for _ in range(count)], charge.cost if takes else 0, decision)
            for (charge, _subject, _identity), count in zip(self._charges, counts, strict=True)
        ]
        answer: dict[str, Any] = {"allowed": decision.allowed, "decisions": decisions}
        if self._slot and decision.allowed:
            answer["slot"] = write_slot(self._slot)
        return answer


def _decision(asked: AskedCharge, states: list[LimitState], granted: int, whole: Decision) -> dict[str, Any]:
    own_states = Decision(not any(state.refuses for state in states), tuple(states))
    return {
        "limit": asked.limit,
        "allowed": own_states.allowed,
        "granted": granted,
        "remaining": own_states.remaining,
        "retry_after": own_states.retry_after,
        "reset_after": own_states.reset_after,
        "wait": max((state.wait for state in states), default=0.0),
        "source": whole.source,
    }


def _limits(ruleset: Ruleset, name: str) -> tuple[Sequence[Limit], Rule | None]:
    """The limits of a name: of the rule, or of the `RateLimiter` in the code that is imported here."""
    rule = ruleset.by_name.get(name)
    if rule is not None:
        template = rule.template
        if template is None or rule.mode == "off":
            return (), rule
        if all(isinstance(rate, Rate) for rate in template.rates):
            return template.limits(name), rule
        raise ProblemError(422, f"The rates of the rule {name!r} are functions of a request.")
    found = [site.limits for site in known_call_sites.of(name) if site.kind == LIMITER]
    if not found:
        raise ProblemError(422, f"There is no limit {name!r}.")
    return found[0], None


def _is_spared(identity: Identity) -> bool:
    """Whether somebody is named by an address that is never banned."""
    if not isinstance(identity, tuple):
        return False
    if len(identity) == 2 and identity[0] == "ip":
        address = parse_address(str(identity[1]))
        return address is not None and is_spared(address)
    return any(map(_is_spared, identity))


def _note(client: str) -> None:
    """Write down, beside the requests, that a token was used."""
    now = time.monotonic()
    if now - _noted.get(client, -NOTE_SECONDS) >= NOTE_SECONDS and not noting.is_busy:
        if len(_noted) >= MOST_NOTED:
            _noted.clear()
        _noted[client] = now
        noting.give(partial(_write_use, client))


def _write_use(client: str) -> None:
    using = primary()
    try:
        with suppress(DatabaseError):  # It is written down the next time.
            RateLimitClient.note_use(using, client)
    finally:
        connections[using].close()  # It is this thread's.
