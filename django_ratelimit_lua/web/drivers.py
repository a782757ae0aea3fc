"""The two drivers of the steps of a decision: one blocks where it has to wait, the other does not."""

from __future__ import annotations

from typing import Any, cast

from asgiref.sync import async_to_sync
from django.http import HttpRequest

from ..conf import conf
from ..engine.decide import adecide, aforget, arules, decide, forget, rules
from ..identity.session import aload
from ..limits.call import Call
from ..limits.decision import Decision
from ..signals import limit_exceeded
from ..store import Patience
from .charges import WantsGroups, WantsSession, WantsUser
from .plan import Exceeded, Forget, Steps, WantsRules


def _has_groups(user: Any) -> bool:
    return hasattr(user, "groups")


def run(steps: Steps, request: HttpRequest) -> Decision:
    """Drive the steps of a decision, blocking where they have to be waited for.

    What a step raises is raised where it is asked for, so that a rule that fails can be left out.
    """
    value: Any = None
    error: Exception | None = None
    patience = Patience(conf.TIMEOUT)
    while True:
        try:
            step = steps.send(value) if error is None else steps.throw(error)
        except StopIteration as finished:
            return cast(Decision, finished.value)
        value = error = None
        try:
            if isinstance(step, Call):
                value = decide(step, patience)
            elif isinstance(step, WantsRules):
                value = rules(step.stale, patience)
            elif isinstance(step, WantsUser):
                value = getattr(request, "user", None)
            elif isinstance(step, WantsSession):
                pass  # It is loaded when it is read.
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
        except Exception as raised:
            error = raised


async def arun(steps: Steps, request: HttpRequest) -> Decision:
    """`run`, in a coroutine."""
    value: Any = None
    error: Exception | None = None
    patience = Patience(conf.TIMEOUT)
    while True:
        try:
            step = steps.send(value) if error is None else steps.throw(error)
        except StopIteration as finished:
            return cast(Decision, finished.value)
        value = error = None
        try:
            if isinstance(step, Call):
                value = await adecide(step, patience)
            elif isinstance(step, WantsRules):
                value = await arules(step.stale, patience)
            elif isinstance(step, WantsUser):
                value = await request.auser() if hasattr(request, "auser") else None
            elif isinstance(step, WantsSession):
                await aload(request)
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
        except Exception as raised:
            error = raised


async def _awaited(step: Any) -> Any:
    return await step
