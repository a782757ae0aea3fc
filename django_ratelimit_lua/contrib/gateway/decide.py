"""`decide`: for services that request decisions themselves.

A service names limits and the identities to count. Its token belongs to a client, which may use
some limits. Clients are published with the rules, so the database is never read, and a revoked
token is refused from the first call with the newer rules on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import DatabaseError

from ...engine.decide import releasing
from ...engine.decided_charge import DecidedCharge
from ...engine.run import arun
from ...engine.waiting import ahold
from ...process.clock import Clock
from ...publishing.publish import DatabaseErrand, primary
from .answer import Answer, ProblemError
from .decide_planner import Caller, DecidePlanner, unauthorised
from .decide_request import DecideRequest, read_decide_request
from .described_request import Meta
from .models import RateLimitClient, token_digest

NOTE_SECONDS = 60
"""How often each process records that a token was used."""
Gone = Callable[[], Awaitable[object]]
_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store"}
_noted: dict[str, float] = {}
"""When the use of a valid token was recorded, by its digest."""
noting = DatabaseErrand()


async def answer_decide(method: str, meta: Meta, body: bytes, gone: Gone | None = None) -> Answer:
    """Decide the request of a service.

    Args:
        method: The HTTP method of the request.
        meta: The `META` of the request.
        body: The body, of which at most `MAX_BYTES` are used.
        gone: Waits until the client has disconnected.

    Returns:
        The decisions as JSON, or a problem document.
    """
    try:
        if method != "POST":
            raise ProblemError(405, "Use POST.", Allow="POST")
        scheme, _, token = str(meta.get("HTTP_AUTHORIZATION", "")).partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise unauthorised()
        caller = Caller(token_digest(token.strip()), meta)
        # A client without rights learns nothing about the body. The decision checks again that it
        # has them.
        await DecidePlanner(caller, DecideRequest("peek", ())).check()
        request = read_decide_request(body)
        if request.together:
            answer = await _decide_together(caller, request, gone)
        else:
            answer = await _decide_each(caller, request, gone)
        _note_use(caller.client)
    except ProblemError as error:
        return error.answer
    return Answer(200, _HEADERS, json.dumps(answer).encode())


async def _decide_together(
    caller: Caller, request: DecideRequest, gone: Gone | None
) -> dict[str, Any]:
    planner = DecidePlanner(caller, request)
    decision = await planner.decide()
    if request.operation == "release":
        charges = [decided.charge for decided in planner.charges if decided.charge.limit.holds]
        await arun(releasing(charges, request.slot))
        return {"allowed": True, "decisions": []}
    if request.operation == "acquire" and decision and decision.wait > 0:
        await _wait_for_turn(decision.wait, planner.charges, gone)
    return planner.answer(decision)


async def _decide_each(caller: Caller, request: DecideRequest, gone: Gone | None) -> dict[str, Any]:
    """Decide each charge separately, but none if the client may not use one of the limits."""
    requests = [request._replace(charges=(charge,)) for charge in request.charges]
    for each in requests:
        await DecidePlanner(caller, each).check()
    answers = await asyncio.gather(*[_decide_together(caller, each, gone) for each in requests])
    decisions = []
    for answer in answers:
        for decision in answer["decisions"]:
            if "slot" in answer:
                decision["slot"] = answer["slot"]
            decisions.append(decision)
    return {"allowed": all(answer["allowed"] for answer in answers), "decisions": decisions}


async def _wait_for_turn(
    seconds: float, charges: Sequence[DecidedCharge], gone: Gone | None
) -> None:
    """Wait for a reserved turn. If the client disconnects, give the turn back."""
    if gone is None:
        await ahold(seconds, charges)
        return
    turn = asyncio.ensure_future(ahold(seconds, charges))
    disconnect = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({turn, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnect.cancel()
        turn.cancel()
        with suppress(asyncio.CancelledError):
            await turn


def _note_use(client: str) -> None:
    """Record the use of a token, in a background task."""
    now = Clock.monotonic()
    if now - _noted.get(client, -NOTE_SECONDS) >= NOTE_SECONDS and not noting.is_busy:
        _noted[client] = now
        noting.give(partial(_write_use, client))


def _write_use(client: str) -> None:
    with suppress(DatabaseError):  # It is recorded the next time.
        RateLimitClient.note_use(primary(), client)
