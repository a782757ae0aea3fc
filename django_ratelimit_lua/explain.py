"""What a request would meet: every rule and limit, its state at the moment, and what overrides say."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from django.test import RequestFactory

from .callsite import Site, group_of
from .check import describe, forget, now_us, rules
from .conf import conf
from .drive import run
from .exempt import is_exempt, resolved
from .limits.call import Charge
from .limits.decision import Decision, LimitState
from .models import RateLimitOverride
from .overridden import BLOCK, asked_of
from .rules.overrides import Known, memory
from .rules.rule import Rule
from .rules.ruleset import Ruleset
from .rules.words import reading
from .steps import decided
from .wanted import Wanted, wanted_by


@dataclass(frozen=True, slots=True)
class Met:
    """A limit that a request meets: its rule (None: written in code), its state (None: exempt), and the override that
    makes it so."""

    name: str
    reading: str
    source: str
    rule: Rule | None
    charge: Charge
    state: LimitState | None
    override: RateLimitOverride | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a request meets. `exempt`: the rule, or "the view", that exempts it; `block`: the override that blocks it
    whatever rule there is."""

    decision: Decision
    met: tuple[Met, ...]
    exempt: str | None
    block: RateLimitOverride | None


def imagine(
    path: str = "/", method: str = "GET", address: str | None = None, user: Any = None,
    headers: Mapping[str, str] | None = None,
) -> HttpRequest:  # fmt: skip
    """A request like the one described, without a body. `address`: where it comes from; `user`: who is logged in."""
    meta: dict[str, Any] = {} if address is None else {"REMOTE_ADDR": address}
    if address is not None and isinstance(conf.IP_META_KEY, str):
        meta[conf.IP_META_KEY] = address
    request: HttpRequest = RequestFactory(headers=headers).generic(method, path, **meta)
    request.user = AnonymousUser() if user is None else user
    return request


def explain(request: HttpRequest) -> Explanation:
    """What a request meets in the middleware and at its view's `@ratelimit`. Counts nothing.

    Raises `LimitError` and what callables raise that a call site names.
    """
    wanted: list[Wanted] = []
    exempt: list[str] = []

    def build(ruleset: Ruleset) -> Generator[Any, Any, list[Wanted] | None]:
        wanted.clear()
        exempt.clear()
        match = resolved(request)
        view = match.func if match is not None else None
        found = ruleset.matching(request)
        if is_exempt(request):
            exempt.append("the view")
        exempt.extend(rule.name for rule in found if rule.site is None)
        sites = [] if exempt else [rule.site for rule in found if rule.site is not None]
        names = {site.group for site in sites}
        wanted.extend((yield from wanted_by(request, sites, "")))
        stack: tuple[Site, ...] = getattr(getattr(view, "_ratelimits", None), "sites", ())
        if stack:
            group = group_of(getattr(view, "_ratelimits").view)  # noqa: B009 - it is there
            own = [site for site in ruleset.for_sites(stack, group, request) if (site.group or group) not in names]
            wanted.extend((yield from wanted_by(request, own, group)))
        return None if exempt and not wanted else list(wanted)

    kept: list[Wanted] = []
    decision = run(decided(request, build, "peek", kept=kept, everywhere=True), request)
    ruleset = rules()
    asked: Any = run(asked_of(request, ruleset, wanted, not exempt), request)  # type: ignore[arg-type]
    known = memory.look(asked)
    states = {one.charge.limit.key_part: state for one, state in zip(kept, decision.limits, strict=False)}
    met = tuple(_met(one, ruleset, known, states) for one in wanted)
    block = known.about(None, now_us()) if [state.name for state in decision.limits] == [BLOCK] else None
    return Explanation(decision, met, exempt[0] if exempt else None, _row(block))


def _met(one: Wanted, ruleset: Ruleset, known: Known, states: Mapping[bytes, LimitState]) -> Met:
    rule = ruleset.by_name.get(one.name)
    override = known.about(rule.pk if rule is not None else None, now_us())
    limit = one.charge.limit
    site = one.site
    given = rule.given if rule is not None else None
    code = {"rate": str(limit.rate), "key": site.key.name.split("+") if site is not None else "", "group": one.name}
    state = None if override is not None and override.effect == "exempt" else states.get(limit.key_part)
    source = rule.source if rule is not None else "code"
    return Met(limit.name, reading(given or code), source, rule, one.charge, state, _row(override))


def _row(override: Any) -> RateLimitOverride | None:
    return None if override is None else RateLimitOverride.objects.filter(pk=override.pk).first()


def reset(explanation: Explanation, names: set[str] | None = None) -> list[str]:
    """Forget what is counted for whom a request would be counted as, under these limits (None: all).

    Returns their names. Raises `StoreError`.
    """
    charges = [met.charge for met in explanation.met if names is None or met.name in names]
    if charges:
        forget(describe(charges, "refund"), strict=True)
    return [charge.limit.name for charge in charges]
