"""How the limits of a call site become one call.

The steps of a decision are written once, as a generator that yields whatever has to be waited for; a synchronous and an
asynchronous driver wait for it, each in its own way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
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
from .limits.limit import Limit
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
    mixed = len({site.block for site in sites}) > 1
    for site in sites:
        name = site.group or group
        if not site.applies_to(request) or site.group in counted(request):
            continue
        if not (yield from _is_about(site, request)):
            continue
        rates = [rate for rate in (yield from _rates(site, name, request)) if rate is not None]
        if not rates:
            continue
        cost = (yield from called(site.cost, name, request)) if callable(site.cost) else site.cost
        user = (yield WANTS_USER) if site.key.needs_user else None
        who = digest((yield from called(site.key.read, name, request, user)))
        for rate in rates:
            charge = Charge(_limit(site, name, rate, who, taken), who, cost)
            if mixed and not site.block:
                charge = replace(charge, limit=charge.limit.advising())
            charges.append(charge)
            if unsettled is not None:
                unsettled.append((site, charge))
        if site.rule:
            names.append(name)
    decision: Decision = yield describe(charges, operation)
    counted(request).update(names)
    return decision


def called(function: Callable[..., Any], *arguments: Any) -> Generator[Any, Any, Any]:
    """Call a function of the user's, and have it waited for if it is a coroutine's."""
    value = function(*arguments)
    if inspect.isawaitable(value):
        value = yield value
    return value


def _rates(site: Site, group: str, request: HttpRequest) -> Generator[Any, Any, list[Rate | None]]:
    rates: list[Rate | None] = []
    for rate in site.rates:
        if callable(rate):
            rate = yield from called(rate, group, request)
            rate = None if rate is None else Rate.parse(rate)
        rates.append(rate)
    return rates


def _is_about(site: Site, request: HttpRequest) -> Generator[Any, Any, bool]:
    """Whether the request's user is of the site's audience."""
    if site.audience == "everyone":
        return True
    user = yield WANTS_USER
    if site.audience.startswith("group:"):
        return user.is_authenticated and bool((yield WantsMembership(user, site.audience.removeprefix("group:"))))
    return bool(
        {
            "anonymous": not user.is_authenticated,
            "authenticated": user.is_authenticated,
            "staff": user.is_authenticated and user.is_staff,
        }[site.audience]
    )


def _limit(site: Site, group: str, rate: Rate, who: bytes, taken: set[tuple[bytes, bytes]]) -> Limit:
    """The site's limit for a rate, under a name that no other of this call has for the same identity."""
    ordinal = 1
    limit = site.limit(group, rate)
    while (who, limit.key_part) in taken:
        ordinal += 1
        limit = site.limit(group, rate, ordinal)
    taken.add((who, limit.key_part))
    return limit


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
