"""Calls that are decided as they are: no rules, no request."""

from __future__ import annotations

from django_ratelimit_lua.engine.decide import deciding_call
from django_ratelimit_lua.engine.run import run
from django_ratelimit_lua.limits.call import Call
from django_ratelimit_lua.limits.decision import Decision


def decide(call: Call) -> Decision:
    """The decision of a call."""
    return run(deciding_call(call))
