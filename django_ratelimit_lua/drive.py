"""The two drivers of the steps of a decision: one blocks where it has to wait, the other does not."""

from __future__ import annotations

import time
from typing import Any, cast

from asgiref.sync import async_to_sync
from django.http import HttpRequest

from .check import acheck, aforget, arules, check, forget, rules
from .conf import conf
from .identity.keys import user_missing
from .limits.call import Call, StaleRules
from .limits.decision import Decision
from .signals import limit_exceeded
from .steps import Exceeded, Forget, Steps, WantsRules
from .wanted import WantsGroups, WantsUser


def _has_groups(user: Any) -> bool:
    return hasattr(user, "groups")


def run(steps: Steps, request: HttpRequest) -> Decision:
    """Drive the steps of a decision, blocking where they have to be waited for."""
    value: Any = None
    began, until = time.monotonic(), None
    while True:
        try:
            step = steps.send(value)
            while isinstance(step, Call):
                try:
                    value = check(step, until)
                except StaleRules as stale:
                    until = began + conf.TIMEOUT
                    step = steps.throw(stale)
                else:
                    step = steps.send(value)
        except StopIteration as finished:
            return cast(Decision, finished.value)
        if isinstance(step, WantsRules):
            value = rules(step.stale, until)
        elif isinstance(step, WantsUser):
            value = getattr(request, "user", None)
            if value is None:
                raise user_missing()
        elif isinstance(step, Forget):
            forget(step.call)
        elif isinstance(step, WantsGroups):
            kept = vars(step.user)
            if "_ratelimit_groups" not in kept:
                names = step.user.groups.values_list("name", flat=True) if _has_groups(step.user) else ()
                kept["_ratelimit_groups"] = frozenset(names)
            value = kept["_ratelimit_groups"]
        elif isinstance(step, Exceeded):
            limit_exceeded.send_robust(Decision, **step.arguments)
        else:
            value = async_to_sync(_awaited)(step)


async def arun(steps: Steps, request: HttpRequest) -> Decision:
    """Drive the steps of a decision in a coroutine."""
    value: Any = None
    began, until = time.monotonic(), None
    while True:
        try:
            step = steps.send(value)
            while isinstance(step, Call):
                try:
                    value = await acheck(step, until)
                except StaleRules as stale:
                    until = began + conf.TIMEOUT
                    step = steps.throw(stale)
                else:
                    step = steps.send(value)
        except StopIteration as finished:
            return cast(Decision, finished.value)
        if isinstance(step, WantsRules):
            value = await arules(step.stale, until)
        elif isinstance(step, WantsUser):
            if not hasattr(request, "auser"):
                raise user_missing()
            value = await request.auser()
        elif isinstance(step, Forget):
            await aforget(step.call)
        elif isinstance(step, WantsGroups):
            kept = vars(step.user)
            if "_ratelimit_groups" not in kept:
                names = step.user.groups.values_list("name", flat=True) if _has_groups(step.user) else None
                kept["_ratelimit_groups"] = frozenset([name async for name in names] if names is not None else ())
            value = kept["_ratelimit_groups"]
        elif isinstance(step, Exceeded):
            await limit_exceeded.asend_robust(Decision, **step.arguments)
        else:
            value = await step


async def _awaited(step: Any) -> Any:
    return await step
