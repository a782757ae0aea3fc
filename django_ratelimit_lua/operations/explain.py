"""What a request would meet: every rule and limit, its state at the moment, and what overrides say."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import unquote_to_bytes

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.test import RequestFactory

from ..conf import conf
from ..engine.decide import build_call, forget, now_us, rules
from ..identity.routes import resolved
from ..limits.call import Charge
from ..limits.decision import Decision, LimitState
from ..models import RateLimitOverride
from ..rules.callsite import LimitTemplate, group_of
from ..rules.describe import reading
from ..rules.exempt import is_exempt
from ..rules.overrides import KnownOverrides, override_cache
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..web.charges import PlannedCharge, Taken, plan_charges
from ..web.drivers import run
from ..web.overrides import subjects_of
from ..web.plan import decided


@dataclass(frozen=True, slots=True)
class ExplainedLimit:
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
    whatever rule there is; `problems`: the rules and call sites that cannot be applied to such a request, and why."""

    decision: Decision
    met: tuple[ExplainedLimit, ...]
    exempt: str | None
    block: RateLimitOverride | None
    problems: tuple[str, ...] = ()


def build_request(
    path: str = "/", method: str = "GET", address: str | None = None, user: Any = None,
    headers: Mapping[str, str] | None = None,
) -> HttpRequest:  # fmt: skip
    """A request like the one described, without a body. `address`: where it comes from; `user`: who is logged in. Its
    session is that of its cookie, if a session of that key may exist."""
    path, _mark, query = path.partition("?")
    meta: dict[str, Any] = {} if address is None else {"REMOTE_ADDR": address}
    if address is not None and isinstance(conf.IP_META_KEY, str):
        meta[conf.IP_META_KEY] = address
    # As a server hands it over: a path need not be one that a URL can be made of.
    meta["PATH_INFO"] = unquote_to_bytes(path.encode(errors="replace")).decode("latin-1")
    meta["QUERY_STRING"] = query.partition("#")[0].encode(errors="replace").decode("latin-1")
    request: HttpRequest = RequestFactory(headers=headers).generic(method, "/", **meta)
    request.user = AnonymousUser() if user is None else user
    engine = import_module(settings.SESSION_ENGINE)
    request.session = engine.SessionStore(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
    return request


def find_user(named: str) -> Any:
    """The user of that name or primary key; None if there is none."""
    model = get_user_model()
    for field in (model.USERNAME_FIELD, "pk"):
        # Not every text can be a primary key, or asked of every database.
        with suppress(ValueError, OverflowError, TypeError, ValidationError):
            found = model._default_manager.filter(**{field: named}).first()
            if found is not None:
                return found
    return None


def explain(request: HttpRequest) -> Explanation:
    """What a request meets in the middleware and at its view's `@ratelimit`. Counts nothing."""
    wanted: list[PlannedCharge] = []
    exempt: list[str] = []
    problems: dict[str, str] = {}

    def on_error(site: LimitTemplate, name: str, error: Exception) -> None:
        problems[name] = f"{name}: {type(error).__name__}: {error}"

    def build(ruleset: Ruleset) -> Generator[Any, Any, list[PlannedCharge] | None]:
        wanted.clear()
        exempt.clear()
        problems.clear()
        taken: Taken = set()
        match = resolved(request)
        view = match.func if match is not None else None
        found = ruleset.matching(request)
        if is_exempt(request):
            exempt.append("the view")
        exempt.extend(rule.name for rule in found if rule.site is None)
        sites = [] if exempt else [rule.site for rule in found if rule.site is not None]
        names = {site.group for site in sites}
        wanted.extend((yield from plan_charges(request, sites, "", taken, on_error)))
        stack: tuple[LimitTemplate, ...] = getattr(getattr(view, "_ratelimits", None), "sites", ())
        if stack:
            group = group_of(getattr(view, "_ratelimits").view)  # noqa: B009 - it is there
            own = [site for site in ruleset.for_sites(stack, group, request) if (site.group or group) not in names]
            wanted.extend((yield from plan_charges(request, own, group, taken, on_error)))
        return None if exempt and not wanted else list(wanted)

    kept: list[PlannedCharge] = []
    decision = run(decided(request, build, "peek", kept=kept, everywhere=True), request)
    ruleset = rules()
    asked: Any = run(subjects_of(request, ruleset, wanted, not exempt), request)  # type: ignore[arg-type]
    known = override_cache.get_many(asked)
    states = {one.charge.limit.key_part: state for one, state in zip(kept, decision.limits, strict=False)}
    met = tuple(_met(one, ruleset, known, states) for one in wanted)
    # Not by the name of the limit: a rule may have any name.
    block = known.strongest_for(None, now_us()) if decision.limits and not kept else None
    return Explanation(decision, met, exempt[0] if exempt else None, _row(block), tuple(problems.values()))


def _met(
    one: PlannedCharge, ruleset: Ruleset, known: KnownOverrides, states: Mapping[bytes, LimitState]
) -> ExplainedLimit:
    rule = ruleset.by_name.get(one.name)
    override = known.strongest_for(rule.pk if rule is not None else None, now_us())
    limit = one.charge.limit
    site = one.site
    given = rule.given if rule is not None else None
    code = {"rate": str(limit.rate), "key": site.key.name.split("+") if site is not None else "", "group": one.name}
    state = None if override is not None and override.effect == "exempt" else states.get(limit.key_part)
    source = rule.source if rule is not None else "code"
    return ExplainedLimit(limit.name, reading(given or code), source, rule, one.charge, state, _row(override))


def _row(override: Any) -> RateLimitOverride | None:
    return None if override is None else RateLimitOverride.objects.filter(pk=override.pk).first()


def reset(explanation: Explanation, names: set[str] | None = None) -> list[str]:
    """Forget what is counted for whom a request would be counted as, under these limits (None: all).

    Returns their names. Raises `StoreError`.
    """
    charges = [met.charge for met in explanation.met if names is None or met.name in names]
    if charges:
        forget(build_call(charges, "refund"), strict=True)
    return [charge.limit.name for charge in charges]
