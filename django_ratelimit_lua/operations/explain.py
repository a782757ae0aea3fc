"""The limits of a request: every rule and limit with its current state, and overrides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from django.conf import settings
from django.http import HttpRequest
from django.urls import ResolverMatch
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from ..conf import conf
from ..conf.values import dotted_name
from ..engine import DecidedCharge
from ..engine.decide import build_call, decide, deciding_call, forgetting, now_us
from ..engine.run import run
from ..exceptions import StoreError
from ..identity.names import Name, Part, display_name
from ..identity.request_state import request_state, resolve_route
from ..limits.call import Charge
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..models import RateLimitChange, RateLimitOverride
from ..rules.describe import describe_spec, rate_words
from ..rules.overrides import EVERY_RULE, Override, find_strongest
from ..rules.provider import reload_ruleset
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..views.exempt import is_exempt
from ..views.inspection import BEFORE_METHODS, Stack, ViewLimits, inspect_view, is_behind_login
from ..web.overrides import NOTHING, REFUSED
from ..web.plan import Place, Planner
from ..web.request_plan import RequestPlanner
from ..web.usage import is_logged_in, prepare_view
from .history import record_action

MIDDLEWARE = "django_ratelimit_lua.middleware.RateLimitMiddleware"


class ExplainedLimit(NamedTuple):
    """A limit that applies to a request.

    - `name`: its name;
    - `reading`: the sentence that describes it;
    - `source`: where it is defined;
    - `planned`: its planned charge;
    - `counts`: all limits under which the client may have a count here: also those of other tiers,
      and of overrides with a rate;
    - `state`: its state; None if the client is exempt;
    - `override`: the override that replaces it;
    - `is_skipped`: whether the override's numbers do not fit this limit, so that the limit applies;
    - `is_advice`: whether it only informs the view, which may refuse.
    """

    name: str
    reading: str
    source: str
    planned: DecidedCharge
    counts: Sequence[Limit]
    state: LimitState | None
    override: RateLimitOverride | None
    is_skipped: bool
    is_advice: bool = False

    @property
    def charge(self) -> Charge:
        return self.planned.charge

    @property
    def counted_as(self) -> str:
        """Return the name under which statistics count the limit. Several rates may share it."""
        return self.planned.name

    @property
    def available(self) -> int:
        """Return the units that the client can use at most: the burst of a token bucket."""
        assert self.state is not None
        return self.charge.limit.burst or self.state.limit

    @property
    def refuses(self) -> bool:
        """Return whether the limit refuses the request."""
        state = self.state
        return bool(state and not state.allowed and state.enforced and not self.is_advice)


@dataclass(slots=True)
class Explanation:
    """All limits of a request.

    - `decision`: the first refusal, or the last decision;
    - `limits`: the limits that apply, in the order in which they are decided;
    - `exempt`: the rule, or "the view", that exempts it from rules;
    - `block`: the override that blocks it without any rule;
    - `notes`: the rules and other code that are not decided here, and why.
    """

    decision: Decision
    limits: list[ExplainedLimit] = field(default_factory=list)
    exempt: str | None = None
    block: RateLimitOverride | None = None
    notes: list[str] = field(default_factory=list)


def explain(request: HttpRequest) -> Explanation:
    """Explain the limits of a request, each decision separately.

    These are the limits of the middleware, of each `@ratelimit` of its view and of the view's
    throttles, and the effects of optional apps. Nothing is counted. The currently published rules
    are used.
    """
    if conf.ENABLE:
        reload_ruleset()
    state = request_state(request)
    counted = state.counted
    state.counted = {}  # Otherwise a rule that has counted the request would be left out.
    explainer = _Explainer(request)
    try:
        explainer.explain_site()
    finally:
        state.counted = counted
    return explainer.explanation


class _Explainer:
    """Follows one request through the site, and collects its limits."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.explanation = Explanation(Decision(True))

    def explain_site(self) -> None:
        """Explain the rules of the middleware, then the limits of the view."""
        self._explain_rules()
        match = resolve_route(self.request)
        if match is None:
            self._add_note(_("No URL pattern matches this path."))
        else:
            self._explain_view(match)

    def _explain_rules(self) -> None:
        """Explain the rules, or note that no middleware applies them."""
        has_middleware = _has_middleware()
        planner = RequestPlanner(
            self.request,
            self._find_places if has_middleware else self._skip_rules,
            operation="peek",
            blocks_uncharged=has_middleware,
            on_error=self._add_error,
        )
        self._decide(planner)

    def _find_places(self, ruleset: Ruleset) -> list[Place] | None:
        """Return the rules that the middleware applies; None if the request is exempt.

        The explanation gets the name of what exempts it.
        """
        matching = ruleset.matching(self.request)
        exempting = [rule.name for rule in matching if rule.template is None]
        if is_exempt(self.request):
            exempting.insert(0, "the view")
        self.explanation.exempt = next(iter(exempting), None)
        return None if exempting else [Place(matching)]

    def _skip_rules(self, ruleset: Ruleset) -> list[Place]:
        """Return no rules, as there is no middleware, and note that if one would apply."""
        if ruleset.matching(self.request):
            text = _("No middleware applies rules: RateLimitMiddleware is not in MIDDLEWARE.")
            self._add_note(text)
        return []

    def _explain_view(self, match: ResolverMatch) -> None:
        """Explain the decorators and throttles of a view, in the order of their decisions."""
        view = match.func
        limits = inspect_view(view, self.request.method or "")
        for stack in limits.stacks:
            if stack.method in BEFORE_METHODS:
                self._explain_stack(stack, view)
        if limits.has_throttles:  # They come in between, and determine the user.
            self._explain_throttles(limits, match)
        for stack in limits.stacks:
            if stack.method not in BEFORE_METHODS:
                self._explain_stack(stack, view)
        for name in limits.unknown:
            text = _("Unknown: whether the view calls %(name)s, which has limits.")
            self._add_note(text % {"name": name})

    def _explain_stack(self, stack: Stack, view: object) -> None:
        """Explain the decorators of a function, unless a login check would stop the request."""
        if is_behind_login(view, stack) and not is_logged_in(self.request):
            text = _("Not checked: limits for logged-in users. Enter a user to see them.")
            self._add_note(text)
            return
        planner = RequestPlanner(
            self.request, stack.rules, stack.group, "peek", on_error=self._add_error
        )
        self._decide(planner, is_advice=not stack.blocks)

    def _explain_throttles(self, limits: ViewLimits, match: ResolverMatch) -> None:
        """Explain this package's throttles of a view, and note those of others."""
        try:
            view = prepare_view(limits.class_view, match, self.request)
            throttles = view.get_throttles()
        except Exception as error:  # The project's code may raise anything.
            self._add_error(_("throttles of the view"), error)
            return
        ours = []
        for throttle in throttles:
            if getattr(throttle, "is_decided_together", False):
                ours.append(throttle)
            else:
                text = _("Not checked: %(name)s, a throttle that decides by itself.")
                self._add_note(text % {"name": dotted_name(type(throttle))})
        if ours:
            self._decide(ours[0].planner(ours, view.request, view, "peek", self._add_error))

    def _add_note(self, text: str) -> None:
        if text not in self.explanation.notes:  # By newer rules it is planned once more.
            self.explanation.notes.append(text)

    def _add_error(self, name: str, error: Exception) -> None:
        self._add_note(f"{name}: {type(error).__name__}: {error}")

    def _decide(self, planner: Planner, *, is_advice: bool = False) -> None:
        """Decide without counting, and add the limits.

        Args:
            planner: Plans the decision.
            is_advice: Whether the view reads the decision, and may ignore it.
        """
        try:
            decision = decide(planner)
        except REFUSED as error:  # A function of the project raised it; Django answers it.
            self._add_error(_("refused by the site"), error)
            return
        explanation = self.explanation
        if explanation.block is None:
            explanation.block = _blocking_row(planner)
        explanation.limits += explained_limits(planner, _describe_charge, is_advice=is_advice)
        counted = request_state(self.request).counted
        for planned in planner.gathered:
            if planned.rule is not None:
                counted[planned.rule.name] = None  # A later decision does not count it again.
        is_refused = not explanation.decision.allowed
        is_ignored = is_advice and not decision.allowed
        if decision.limits and not is_refused and not is_ignored:
            explanation.decision = decision


def _has_middleware() -> bool:
    """Return whether a middleware applies rules: this package's, or a subclass of it."""
    return any(
        dotted_name(cls) == MIDDLEWARE
        for path in settings.MIDDLEWARE
        for cls in getattr(import_string(path), "__mro__", ())
    )


def explained_limits(
    planner: Planner, describe: Callable[[DecidedCharge], str], *, is_advice: bool = False
) -> list[ExplainedLimit]:
    """Return the gathered charges of a planner with the results of its decision.

    `describe` returns the sentence that describes the limit of a charge.
    """
    ruleset = planner.ruleset
    if ruleset is None:  # Rate limiting is switched off.
        return []
    overrides = _overrides_of(planner)
    states = {counter_of(decided.charge): decided.state for decided in planner.charges}
    names = {planned.charge.limit.name for planned in planner.gathered}
    explained = []
    for planned in planner.gathered:
        limit = planned.charge.limit
        rule = ruleset.by_name.get(planned.name)
        override = find_strongest(overrides, planned.name, now_us())
        is_skipped = False
        if override is not None and override.rate is not None:
            charge = planned.charge._replace(limit=override.apply_to(limit))
            is_skipped = charge.limit is limit
            planned = replace(planned, charge=charge)
        rates = [row for row in overrides if row.rate is not None and row.rule == planned.name]
        explained.append(
            ExplainedLimit(
                name=limit.name,
                reading=add_tier(describe(planned), limit),
                source="code" if rule is None else rule.source,
                planned=planned,
                counts=_counting_limits(limit, planned.rule, rates, names),
                state=states.get(counter_of(planned.charge)),
                override=find_row(override),
                is_skipped=is_skipped,
                is_advice=is_advice,
            )
        )
    return explained


def _counting_limits(
    limit: Limit, rule: Rule | None, overrides: Sequence[Override], names: Collection[str]
) -> list[Limit]:
    """Return the limits under which a client of this limit may have a count.

    They include those of other tiers that are not among the `names` of the request's limits.
    """
    limits = [limit]
    if rule is not None and rule.template is not None:
        templates = [rule.template, *dict(rule.template.tiers).values()]
        limits += [tier for template in templates for tier in template.limits(rule.name)]
    limits = [tier for tier in limits if tier.name == limit.name or tier.name not in names]
    limits += [override.apply_to(tier) for tier in limits for override in overrides]
    # Of limits with one count, the first stays.
    return list({tier.key_part: tier for tier in reversed(limits)}.values())


def add_tier(reading: str, limit: Limit) -> str:
    """Return the sentence that describes a limit, with the name of its tier, if it is of one."""
    if not limit.tier:
        return reading
    return _("%(limit)s (tier %(tier)s)") % {"limit": reading, "tier": limit.tier}


def _overrides_of(planner: Planner) -> list[Override]:
    return [override for party in planner.parties for override in party.overrides]


def _blocking_row(planner: Planner) -> RateLimitOverride | None:
    """Return the override that blocks the request without any rule; None if none does."""
    if all(decided.charge.limit is not NOTHING for decided in planner.charges):
        return None
    return find_row(find_strongest(_overrides_of(planner), EVERY_RULE, now_us()))


def counter_of(charge: Charge) -> tuple[bytes, bytes]:
    """Return the digest and the part of the key that identify a count."""
    return charge.digest, charge.limit.key_part


def _describe_charge(planned: DecidedCharge) -> str:
    """Return the sentence of a charge's limit: that of its rule, or one made of its rate."""
    rate = str(planned.charge.limit.rate)
    rule = planned.rule
    if rule is None:
        words = {"rate": rate_words(rate), "name": type(planned.owner).__name__}
        return _("%(rate)s, by the throttle %(name)s") % words
    if rule.spec:
        return describe_spec(rule.spec)
    key = rule.key
    assert key is not None
    return describe_spec({"rate": rate, "key": key.name.split("+"), "group": planned.name})


def find_row(override: Override | None) -> RateLimitOverride | None:
    """Return the stored row of an override; None if it was deleted."""
    if override is None:
        return None
    return RateLimitOverride.objects.filter(pk=override.pk).first()


def reset_counts(
    explanation: Explanation,
    names: set[str] | None = None,
    who: Mapping[str, Name] = MappingProxyType({}),
) -> list[str]:
    """Reset the counters that this request would hit, under these limits (None: all).

    The history names the user in `acting` and the clients.

    Args:
        explanation: The limits, with the client of each.
        names: The names of the limits.
        who: The recorded names of clients whose identity is not known, by their digests.

    Returns:
        The names of the limits that had counted anything.

    Raises:
        StoreError: Redis is unavailable.
    """
    limits = [limit for limit in explanation.limits if names is None or limit.name in names]
    # With the counts of other tiers and overrides, which continue when the present one ends.
    charges = unique_charges(
        [limit.charge._replace(limit=count) for limit in limits for count in limit.counts]
    )
    if not charges:
        return []
    counted = run(deciding_call(build_call(charges, "peek")))
    if counted.source == "fallback":
        raise StoreError(_("Redis is unavailable"))
    run(forgetting(build_call(charges, "peek"), strict=True))
    used = [state.name for state in counted.limits if state.used or state.reset_after]
    if used:
        record_action(RateLimitChange.Action.ENDED, used, _name_clients(limits, who))
    return list(dict.fromkeys(used))


def _name_clients(
    limits: Sequence[ExplainedLimit], recorded: Mapping[str, Name]
) -> dict[str, Sequence[Part]]:
    """Return the names of the clients of limits: of their identities, or the recorded ones."""
    names: dict[str, Sequence[Part]] = {}
    for limit in limits:
        digest = limit.charge.digest.decode()
        identity = limit.planned.identity
        if identity is None:
            names[digest] = recorded.get(digest, ())
        else:
            names[digest] = display_name(identity)
    return names


def unique_charges(charges: Sequence[Charge]) -> list[Charge]:
    """Return the charges in a form that one call accepts: each count and each ban once."""
    counts = {counter_of(charge): charge for charge in charges}
    bans: set[tuple[bytes, bytes]] = set()
    unique = []
    for charge in counts.values():
        limit = charge.limit
        if limit.ban is not None:
            ban = (charge.digest, limit.ban.key_part)
            if ban in bans:
                limit = limit.without_bans()
            bans.add(ban)
        unique.append(charge._replace(limit=limit))
    return unique
