"""What a request would meet: every rule and limit, its state at the moment, and what overrides say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import unquote_to_bytes

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.test import RequestFactory
from django.utils.translation import gettext as _

from ..conf import conf
from ..engine.decide import PlannedCharge, build_call, decide, forgetting, now_us
from ..engine.run import run
from ..identity.routes import resolved
from ..limits.call import Charge
from ..limits.decision import Decision, LimitState
from ..models import RateLimitOverride
from ..rules.callsite import group_of, stacks_on
from ..rules.describe import reading
from ..rules.exempt import is_exempt
from ..rules.overrides import KnownOverrides, Override, override_cache
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..web.plan import Place, RequestPlanner


@dataclass(frozen=True, slots=True)
class ExplainedLimit:
    """A limit that a request meets: its rule (None: written in code), its state (None: exempt), and the override that
    stands for it. `is_skipped`: the override's numbers do not fit this limit, so the limit stands as it is."""

    name: str
    reading: str
    source: str
    rule: Rule | None
    charge: Charge
    state: LimitState | None
    override: RateLimitOverride | None
    is_skipped: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a request meets. `exempt`: the rule, or "the view", that exempts it from rules; `block`: the override that
    blocks it without any rule; `problems`: the rules and call sites that cannot be applied to such a request, and
    why; `notes`: what else may refuse it, and is not looked at."""

    decision: Decision
    met: tuple[ExplainedLimit, ...]
    exempt: str | None
    block: RateLimitOverride | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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


def find_user(name: str) -> Any:
    """The user of that name or primary key; None if there is none."""
    model = get_user_model()
    for field in (model.USERNAME_FIELD, "pk"):
        # Not every text can be a primary key, or asked of every database.
        with suppress(ValueError, OverflowError, TypeError, ValidationError):
            user = model._default_manager.filter(**{field: name}).first()
            if user is not None:
                return user
    return None


def explain(request: HttpRequest) -> Explanation:
    """What a request meets in the middleware, and then at each `@ratelimit` of its view: each decides by itself. Counts
    nothing."""
    match = resolved(request)
    exempt: list[str] = []
    problems: dict[str, str] = {}

    def of_rules(ruleset: Ruleset) -> list[Rule] | None:
        matching = ruleset.matching(request)
        exempt[:] = ["the view"] if is_exempt(request) else []
        exempt.extend(rule.name for rule in matching if rule.template is None)
        return None if exempt else matching

    def of_stack(stack: Any, group: str, ruleset: Ruleset) -> list[Rule]:
        counted = {name for limit, name in limits if limit.rule is not None}
        rules = ruleset.for_call_sites(stack.rules, group, request)
        return [rule for rule in rules if rule.name_at(group) not in counted]

    limits: list[tuple[ExplainedLimit, str]] = []
    decision, block = _decide(request, of_rules, "", limits, problems, has_blocks=True)
    for stack in stacks_on(match.func, request.method or "") if match is not None else ():
        group = group_of(stack.view)
        of_view, _block = _decide(request, partial(of_stack, stack, group), group, limits, problems)
        if decision.allowed and of_view.limits:
            decision = of_view
    return Explanation(
        decision,
        tuple(limit for limit, _name in limits),
        exempt[0] if exempt else None,
        _row(block),
        tuple(problems.values()),
        _notes(match),
    )


def _notes(match: Any) -> tuple[str, ...]:
    if match is None:
        return (_("No URL pattern matches this path."),)
    # A view of Django REST framework, by what it has: that need not be installed.
    given = getattr(match.func, "initkwargs", None) or {}
    view = getattr(match.func, "cls", None)
    throttles = given.get("throttle_classes") or getattr(view, "throttle_classes", None) or ()
    names = ", ".join(getattr(throttle, "__name__", str(throttle)) for throttle in throttles)
    return (_("The throttles of the view are not shown: %(names)s.") % {"names": names},) if names else ()


def _decide(
    request: HttpRequest,
    choose: Callable[[Ruleset], Sequence[Rule] | None],
    group: str,
    limits: list[tuple[ExplainedLimit, str]],
    problems: dict[str, str],
    has_blocks: bool = False,
) -> tuple[Decision, Override | None]:
    """One decision, and the override that blocks without any rule; what it meets is added to `limits`, each with the
    name that it is counted under."""

    def places(ruleset: Ruleset) -> list[Place] | None:
        rules = choose(ruleset)
        return None if rules is None else [Place(rules, group)]

    def on_error(name: str, error: Exception) -> None:
        problems[name] = f"{name}: {type(error).__name__}: {error}"

    planner = RequestPlanner(request, places, operation="peek", has_blocks=has_blocks, on_error=on_error)
    outcome = decide(planner)
    if planner.ruleset is None:
        return outcome.decision, None  # Rate limiting is switched off.
    overrides = override_cache.get_many(planner.subjects)
    states = {_counter(decided.planned): decided.state for decided in outcome.charges}
    limits += [(_explained(planned, planner.ruleset, overrides, states), planned.name) for planned in planner.charges]
    # Not by the name of the limit: a rule may have any name.
    is_blocked = bool(outcome.decision.limits) and not outcome.planned
    return outcome.decision, overrides.strongest_for(None, now_us()) if is_blocked else None


def _counter(planned: PlannedCharge) -> tuple[bytes, bytes]:
    return planned.charge.digest, planned.charge.limit.key_part


def _explained(
    planned: PlannedCharge, ruleset: Ruleset, overrides: KnownOverrides, states: Mapping[Any, LimitState]
) -> ExplainedLimit:
    rule = ruleset.by_name.get(planned.name)
    override = overrides.strongest_for(rule.pk if rule is not None else None, now_us())
    limit, key = planned.charge.limit, planned.rule.key if planned.rule is not None else None
    code = {"rate": str(limit.rate), "key": key.name.split("+") if key is not None else "", "group": planned.name}
    is_skipped = override is not None and override.rate is not None and override.limit(limit) is limit
    return ExplainedLimit(
        limit.name,
        reading((rule.given if rule is not None else None) or code),
        rule.source if rule is not None else "code",
        rule,
        planned.charge,
        None if override is not None and override.effect == "exempt" else states.get(_counter(planned)),
        _row(override),
        is_skipped,
    )


def _row(override: Override | None) -> RateLimitOverride | None:
    return None if override is None else RateLimitOverride.objects.filter(pk=override.pk).first()


def reset(explanation: Explanation, names: set[str] | None = None) -> list[str]:
    """Forget what is counted for whom a request would be counted as, under these limits (None: all).

    Returns their names. Raises `StoreError`.
    """
    charges = [limit.charge for limit in explanation.met if names is None or limit.name in names]
    if charges:
        run(forgetting(build_call(charges, "refund"), strict=True))
    return [charge.limit.name for charge in charges]
