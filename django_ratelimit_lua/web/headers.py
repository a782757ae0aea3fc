"""Rate-limit headers, the same for the decorator, the middleware and throttles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from django.http import HttpResponseBase

from ..conf import conf
from ..limits.decision import Decision, LimitState

QUOTA, WINDOW, UNIT = "q", "w", "qu"
"""Parameters of `RateLimit-Policy`. Only this module writes them."""
REMAINING, RESET = "r", "t"
"""Parameters of `RateLimit`."""
_MAX_INTEGER = 10**15 - 1
"""The largest integer of a structured field."""


def add_headers(response: HttpResponseBase, decision: Decision, style: str | None = None) -> None:
    """Add `limit_headers` to a response. Adding those of a later decision replaces them."""
    for name, value in limit_headers(decision, style).items():
        response.headers[name] = value


def limit_headers(decision: Decision, style: str | None = None) -> dict[str, str]:
    """Return the headers in the format of `style`, or of `RATELIMIT_HEADERS`.

    - "ietf": `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11, one
      item for each limit, as structured fields (RFC 9651);
    - "x": `X-RateLimit-Limit`, `-Remaining` and `-Reset` (seconds) of the limit with the least
      remaining.

    Limits in shadow mode are left out, because they do not affect the client. There are no headers
    if a block forbids the request, because its end is not disclosed.
    """
    chosen_style = style or conf.HEADERS
    states = [state for state in decision.limits if state.mode != "shadow"]
    if chosen_style is None or not states or decision.source == "fallback":
        return {}
    has_forbidding_block = any(state.block is not None and state.block.forbids for state in states)
    if has_forbidding_block and not decision.allowed:
        return {}
    if chosen_style == "x":
        return _x_headers(states)
    return _ietf_headers(states)


def _x_headers(states: Sequence[LimitState]) -> dict[str, str]:
    """Return the headers of the limit with the least remaining."""
    nearest = min(states, key=lambda state: (state.remaining, -state.reset_after))
    return {
        "X-RateLimit-Limit": str(nearest.limit),
        "X-RateLimit-Remaining": str(nearest.remaining),
        "X-RateLimit-Reset": str(math.ceil(nearest.reset_after)),
    }


def _ietf_headers(states: Sequence[LimitState]) -> dict[str, str]:
    """Return the headers with one item for each limit."""
    policies = [_Policy(state.name, state.limit, state.period, state.is_block) for state in states]
    written = _write_policies(tuple(policies))
    items = [
        f"{name};{REMAINING}={min(state.remaining, _MAX_INTEGER)}"
        f";{RESET}={min(math.ceil(state.reset_after), _MAX_INTEGER)}"
        for name, state in zip(written.names, states, strict=True)
    ]
    return {"RateLimit-Policy": written.header, "RateLimit": ", ".join(items)}


def violated_policies(decision: Decision) -> list[str]:
    """Return the names that `RateLimit-Policy` gives to the limits that refused.

    A block is not a policy.
    """
    states = [state for state in decision.limits if state.mode != "shadow"]
    named = zip(policy_names([state.name for state in states]), states, strict=True)
    return [name for name, state in named if state.refuses and not state.is_block]


class _Policy(NamedTuple):
    """What `RateLimit-Policy` contains about a limit.

    - `limit`: the number of units;
    - `period`: its period in seconds; 0.0 for slots;
    - `is_block`: whether a block is in force instead of the limit.
    """

    name: str
    limit: int
    period: float
    is_block: bool


class _WrittenPolicies(NamedTuple):
    """The value of `RateLimit-Policy`, and the name of each policy as it is written there."""

    header: str
    names: Sequence[str]


@lru_cache(maxsize=1024)
def _write_policies(policies: Sequence[_Policy]) -> _WrittenPolicies:
    """Return the header about these limits, see `_WrittenPolicies`.

    It is cached, because it is the same in every response and expensive to write.
    """
    names = policy_names([policy.name for policy in policies])
    items: list[Any] = []
    for name, policy in zip(names, policies, strict=True):
        if policy.is_block:
            quota: dict[str, int | str] = {QUOTA: 0}
        elif policy.period == 0.0:
            quota = {QUOTA: policy.limit, UNIT: "concurrent-requests"}
        else:
            window = max(1, math.ceil(policy.period))
            quota = {QUOTA: min(policy.limit, _MAX_INTEGER), WINDOW: window}
        items.append((name, quota))
    import http_sf  # Takes longer to import than most of the package.

    return _WrittenPolicies(http_sf.ser(items), [http_sf.ser([name]) for name in names])


def policy_names(limits: Iterable[str]) -> list[str]:
    """Return a unique name for each limit: the last part of its name, in printable ASCII."""
    names: list[str] = []
    for limit in limits:
        # A limit of a call site is named group:methods:key:rate. The module of the group is not
        # disclosed.
        group, _colon, _rest = limit.partition(":")
        _module, _dot, last_part = group.rpartition(".")
        base = "".join(letter if " " <= letter <= "~" else "_" for letter in last_part) or "limit"
        name = base
        number = 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names
