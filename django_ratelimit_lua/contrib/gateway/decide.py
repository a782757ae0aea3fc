"""`decide`: for services that request decisions themselves.

A service names limits and the identities to count. Its token belongs to a client, which may use
some limits. Clients are published with the rules, so a revoked token is refused from the first call
by the newer rules on: the database is never read, and a revoked token is invalid at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from ...conf import conf
from ...engine.decide import Outcome, releasing
from ...engine.run import arun
from ...engine.waiting import ahold
from ...publishing.publish import DatabaseErrand, primary
from ...rules.exempt import ratelimit_exempt
from ...rules.provider import current
from .answer import Answer
from .clients import clients_of
from .decide_planner import Caller, DecidePlanner, unauthorised
from .decide_request import MAX_BYTES, DecideRequest, read_decide_request
from .described_request import Meta
from .models import RateLimitClient, token_digest
from .problems import ProblemError

NOTE_SECONDS = 60
"""How often it is written down, by each process, that a token was used."""
Gone = Callable[[], Awaitable[Any]]
_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store"}
_noted: dict[str, float] = {}
MAX_NOTED = 10_000
noting = DatabaseErrand()


@ratelimit_exempt
@login_not_required
@csrf_exempt
async def decide(request: HttpRequest) -> HttpResponse:
    """`answer_decide` for Django, which cancels a view whose client has disconnected."""
    try:
        body = request.read(
            MAX_BYTES + 1
        )  # Not `request.body`: what is sent in chunks may have any size.
    except UnreadablePostError:
        body = b""  # The client has gone.
    answer = await answer_decide(str(request.method), request.META, body)
    return answer.response()


async def answer_decide(method: str, meta: Meta, body: bytes, gone: Gone | None = None) -> Answer:
    """The decisions that a service asks for, as JSON, or a problem document.

    `meta`: the `META` of its request; `gone`: waits until the client is.
    """
    try:
        if method != "POST":
            raise ProblemError(405, "Ask by POST.", Allow="POST")
        scheme, _, token = str(meta.get("HTTP_AUTHORIZATION", "")).partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise unauthorised()
        caller = Caller(token_digest(token.strip()), meta)
        # A client without rights learns nothing about the body. The decision checks again that it
        # has them.
        ruleset = current()
        if ruleset is None or caller.client not in clients_of(ruleset):
            await DecidePlanner(caller, DecideRequest("peek", ())).decided()
        asked = read_decide_request(body)
        if asked.operation == "release":
            answer = await _released(caller, asked)
        elif asked.together:
            answer = await _together(caller, asked, gone)
        else:
            answer = await _apart(caller, asked, gone)
        _note(caller.client)
    except ProblemError as error:
        return error.answer
    return Answer(200, _HEADERS, json.dumps(answer).encode())


async def _together(caller: Caller, asked: DecideRequest, gone: Gone | None) -> dict[str, Any]:
    planner = DecidePlanner(caller, asked)
    outcome = await planner.decided()
    if asked.operation == "acquire" and outcome.decision and outcome.decision.wait > 0:
        await _turn(outcome, gone)
    return planner.answer(outcome)


async def _apart(caller: Caller, asked: DecideRequest, gone: Gone | None) -> dict[str, Any]:
    """Each charge for itself.

    But what may not be asked at all is found out before any of them is made.
    """
    alone = [asked._replace(charges=(charge,)) for charge in asked.charges]
    for each in alone:
        await DecidePlanner(caller, each).check()
    answers = await asyncio.gather(*[_together(caller, each, gone) for each in alone])
    decisions = [
        {**decision, "slot": each["slot"]} if "slot" in each else decision
        for each in answers
        for decision in each["decisions"]
    ]
    return {"allowed": all(each["allowed"] for each in answers), "decisions": decisions}


async def _turn(outcome: Outcome, gone: Gone | None) -> None:
    """Wait for the turn. A client that disconnects gives it back."""
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


async def _released(caller: Caller, asked: DecideRequest) -> dict[str, Any]:
    outcome = await DecidePlanner(caller, asked).decided()  # Only those of limits that it may use.
    charges = [planned.charge for planned in outcome.planned if planned.charge.limit.holds]
    if not charges and conf.ENABLE:
        raise ProblemError(422, "None of these limits has slots.")
    await arun(releasing(charges, asked.slot))
    return {"allowed": True, "decisions": []}


def _note(client: str) -> None:
    """Record the use of a token, in the background."""
    now = time.monotonic()
    if now - _noted.get(client, -NOTE_SECONDS) >= NOTE_SECONDS and not noting.is_busy:
        if len(_noted) >= MAX_NOTED:
            _noted.clear()
        _noted[client] = now
        noting.give(partial(_write_use, client))


def _write_use(client: str) -> None:
    with suppress(DatabaseError):  # It is written down the next time.
        RateLimitClient.note_use(primary(), client)
