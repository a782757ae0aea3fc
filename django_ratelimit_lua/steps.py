"""How the limits of a call site become one call.

The steps of a decision are written once, as a generator that yields whatever has to be waited for; a synchronous and an
asynchronous driver wait for it, each in its own way.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from asgiref.sync import async_to_sync
from django.http import HttpRequest

from .callsite import Site
from .check import acheck, aforget, check, describe, forget
from .conf import conf
from .identity import digest
from .identity.keys import user_missing
from .limits.call import Call, Charge, Operation
from .limits.decision import Decision
from .limits.rate import Rate


class WantsUser:
    """A step that asks for the request's user."""


@dataclass(frozen=True, slots=True)
class WantsMembership:
    """A step that asks whether a user is in the Django group of that name."""

    user: Any
    group: str


@dataclass(frozen=True, slots=True)
class Forget:
    """A step that deletes what the limits of a call have counted."""

    call: Call


WANTS_USER = WantsUser()
Steps = Generator[Any, Any, Decision]


def steps(
    request: HttpRequest,
    sites: Sequence[Site],
    group: str,
    operation: Operation = "hit",
    unsettled: list[tuple[Site, Charge]] | None = None,
) -> Steps:
    """Decide all sites that apply to a request in one call.

    Yields an awaitable, or `WANTS_USER`, or a `WantsMembership`, or the `Call`; is sent what came of it; returns the
    decision. A name that was already counted for this request is not counted again. The charges of the call, in the
    order of the decision's limits, are left in `unsettled`.
    """
    if not conf.ENABLE:
        return Decision(True)
    charges: list[Charge] = []
    taken: set[tuple[bytes, bytes]] = set()
    names: list[str] = []
    advisory = len({site.block for site in sites}) > 1
    for site in sites:
        if not site.applies_to(request):
            continue
        name = site.group or group
        if site.group is not None and site.group in counted(request):
            continue
        if site.audience != "everyone":
            user = yield WANTS_USER
            if site.audience.startswith("group:"):
                belongs = user.is_authenticated and (yield WantsMembership(user, site.audience.removeprefix("group:")))
            else:
                belongs = {
                    "anonymous": not user.is_authenticated,
                    "authenticated": user.is_authenticated,
                    "staff": user.is_authenticated and user.is_staff,
                }[site.audience]
            if not belongs:
                continue
        rates = []
        for rate in site.rates:
            if callable(rate):
                rate = rate(name, request)
                if inspect.isawaitable(rate):
                    rate = yield rate
                rate = None if rate is None else Rate.parse(rate)
            if rate is not None:
                rates.append(rate)
        if not rates:
            continue
        cost = site.cost
        if callable(cost):
            cost = cost(name, request)
            if inspect.isawaitable(cost):
                cost = yield cost
        user = (yield WANTS_USER) if site.key.needs_user else None
        identity = site.key.read(name, request, user)
        if inspect.isawaitable(identity):
            identity = yield identity
        who = digest(identity)
        for rate in rates:
            limit = site.limit(name, rate)
            ordinal = 1
            while (who, limit.key_part) in taken:
                ordinal += 1
                limit = site.limit(name, rate, ordinal)
            taken.add((who, limit.key_part))
            if advisory and not site.block:
                limit = limit.advising()
            charges.append(Charge(limit, who, cost))
            if unsettled is not None:
                unsettled.append((site, charges[-1]))
        if site.rule:
            names.append(name)
    decision: Decision = yield describe(charges, operation)
    counted(request).update(names)
    return decision


def counted(request: HttpRequest) -> set[str]:
    """The names of the rules that were counted for a request."""
    names: set[str] = vars(request).setdefault("_ratelimit_counted", set())
    return names


def run(steps: Steps, request: HttpRequest) -> Decision:
    """Drive the steps of a decision, blocking where they have to be waited for."""
    value: Any = None
    while True:
        try:
            step = steps.send(value)
        except StopIteration as finished:
            return cast(Decision, finished.value)
        if isinstance(step, Call):
            value = check(step)
        elif isinstance(step, WantsUser):
            value = getattr(request, "user", None)
            if value is None:
                raise user_missing()
        elif isinstance(step, Forget):
            forget(step.call)
        elif isinstance(step, WantsMembership):
            value = step.user.groups.filter(name=step.group).exists()
        else:
            value = async_to_sync(_awaited)(step)


async def arun(steps: Steps, request: HttpRequest) -> Decision:
    """Drive the steps of a decision in a coroutine."""
    value: Any = None
    while True:
        try:
            step = steps.send(value)
        except StopIteration as finished:
            return cast(Decision, finished.value)
        if isinstance(step, Call):
            value = await acheck(step)
        elif isinstance(step, WantsUser):
            if not hasattr(request, "auser"):
                raise user_missing()
            value = await request.auser()
        elif isinstance(step, Forget):
            await aforget(step.call)
        elif isinstance(step, WantsMembership):
            value = await step.user.groups.filter(name=step.group).aexists()
        else:
            value = await step


async def _awaited(step: Any) -> Any:
    return await step
