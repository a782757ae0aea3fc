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
from ..identity.names import Name, shown
from ..identity.request_state import request_state
from ..identity.routes import resolved
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
from ..web.plan import Place, Planner, RequestPlanner
from ..web.usage import is_logged_in, prepared_view
from .history import history_names, record_change

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

    - `exempt`: the rule, or "the view", that exempts it from rules;
    - `block`: the override that blocks it without any rule;
    - `notes`: the rules and other code that are not decided here, and why.
    """

    decision: Decision
    met: list[ExplainedLimit] = field(default_factory=list)
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
    state.counted = {}
    explainer = _Explainer(request)
    try:
        explainer.run()
    finally:
        state.counted = counted
    return explainer.found


class _Explainer:
    """Follows one request through the site, and collects its limits."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.found = Explanation(Decision(True))

    def run(self) -> None:
        self._explain_rules()
        match = resolved(self.request)
        if match is None:
            self._note(_("No URL pattern matches this path."))
        else:
            self._explain_view(match)

    def _explain_rules(self) -> None:
        is_applied = _is_applied()
        planner = RequestPlanner(
            self.request,
            self._applied if is_applied else self._ignored,
            operation="peek",
            has_blocks=is_applied,
            on_error=self._on_error,
        )
        self._decide(planner)

    def _applied(self, ruleset: Ruleset) -> list[Place] | None:
        matching = ruleset.matching(self.request)
        exempting = [rule.name for rule in matching if rule.template is None]
        if is_exempt(self.request):
            exempting.insert(0, "the view")
        self.found.exempt = next(iter(exempting), None)
        return None if exempting else [Place(matching)]

    def _ignored(self, ruleset: Ruleset) -> list[Place]:
        if ruleset.matching(self.request):
            self._note(_("No middleware applies rules: RateLimitMiddleware is not in MIDDLEWARE."))
        return []

    def _explain_view(self, match: ResolverMatch) -> None:
        view = match.func
        method = self.request.method or ""
        here = inspect_view(view, method)
        self._explain_stacks(here, view, is_before=True)
        if here.has_throttles:  # They come in between, and determine the user.
            self._explain_throttles(here, match)
        self._explain_stacks(here, view, is_before=False)
        for name in here.unknown:
            text = _("Unknown: whether the view calls %(name)s, which has limits.")
            self._note(text % {"name": name})

    def _explain_stacks(self, here: ViewLimits, view: object, *, is_before: bool) -> None:
        for stack in here.stacks:
            if (stack.method in BEFORE_METHODS) is is_before and self._is_reached(view, stack):
                planner = RequestPlanner(
                    self.request, stack.rules, stack.group, "peek", on_error=self._on_error
                )
                self._decide(planner, is_advice=not stack.blocks)

    def _is_reached(self, view: object, placed: Stack) -> bool:
        if not is_behind_login(view, placed) or is_logged_in(self.request):
            return True
        self._note(_("Not checked: limits for logged-in users. Enter a user to see them."))
        return False

    def _explain_throttles(self, here: ViewLimits, match: ResolverMatch) -> None:
        try:
            view = prepared_view(here.class_view, match, self.request)
            throttles = view.get_throttles()
        except Exception as error:
            self._on_error(_("throttles of the view"), error)
            return
        ours = []
        for throttle in throttles:
            if not getattr(throttle, "is_decided_together", False):
                text = _("Not checked: %(name)s, a throttle that decides by itself.")
                self._note(text % {"name": dotted_name(type(throttle))})
                continue
            ours.append(throttle)
        if ours:
            self._decide(ours[0].planner(ours, view.request, view, "peek", self._on_error))

    def _note(self, text: str) -> None:
        if text not in self.found.notes:  # By newer rules it is planned once more.
            self.found.notes.append(text)

    def _on_error(self, name: str, error: Exception) -> None:
        self._note(f"{name}: {type(error).__name__}: {error}")

    def _decide(self, planner: Planner, *, is_advice: bool = False) -> None:
        """Decide without counting, and add the limits."""
        try:
            decision = decide(planner)
        except REFUSED as error:  # A function of the project raised it; Django answers it.
            self._on_error(_("refused by the site"), error)
            return
        found = self.found
        if found.block is None and any(each.charge.limit is NOTHING for each in planner.charges):
            found.block = override_row(
                find_strongest(_found_overrides(planner), EVERY_RULE, now_us())
            )
        found.met += explained_limits(planner, _reading, is_advice=is_advice)
        counted = request_state(self.request).counted
        for planned in planner.gathered:
            if planned.rule is not None:
                counted[planned.rule.name] = None  # A later decision does not count it again.
        if found.decision.allowed and decision.limits and (decision.allowed or not is_advice):
            found.decision = decision


def _is_applied() -> bool:
    """Return whether a middleware applies rules: this package's, or a subclass of it."""
    return any(
        dotted_name(cls) == MIDDLEWARE
        for path in settings.MIDDLEWARE
        for cls in getattr(import_string(path), "__mro__", ())
    )


def explained_limits(
    planner: Planner, reading_of: Callable[[DecidedCharge], str], *, is_advice: bool = False
) -> list[ExplainedLimit]:
    """Return the gathered charges of a planner with the results of its decision.

    `reading_of` returns the sentence that describes the limit of a charge.
    """
    ruleset = planner.ruleset
    if ruleset is None:  # Rate limiting is switched off.
        return []
    known = _found_overrides(planner)
    states = {counter_of(decided.charge): decided.state for decided in planner.charges}
    names = {planned.charge.limit.name for planned in planner.gathered}
    explained = []
    for planned in planner.gathered:
        limit = planned.charge.limit
        rule = ruleset.by_name.get(planned.name)
        override = find_strongest(known, planned.name, now_us())
        is_skipped = False
        if override is not None and override.rate is not None:
            charge = planned.charge._replace(limit=override.limit(limit))
            is_skipped = charge.limit is limit
            planned = replace(planned, charge=charge)
        rates = [each for each in known if each.rate is not None and each.rule == planned.name]
        explained.append(
            ExplainedLimit(
                limit.name,
                with_tier(reading_of(planned), limit),
                "code" if rule is None else rule.source,
                planned,
                _counts(limit, planned.rule, rates, names),
                states.get(counter_of(planned.charge)),
                override_row(override),
                is_skipped,
                is_advice,
            )
        )
    return explained


def _counts(
    limit: Limit, rule: Rule | None, overrides: Sequence[Override], names: Collection[str]
) -> list[Limit]:
    """Return the limits under which a client of this limit may have a count.

    They include those of other tiers that are not among the `names` of the request's limits.
    """
    limits = [limit]
    if rule is not None and rule.template is not None:
        templates = [rule.template, *dict(rule.template.tiers).values()]
        limits += [each for template in templates for each in template.limits(rule.name)]
    limits = [each for each in limits if each.name == limit.name or each.name not in names]
    limits += [override.limit(each) for each in limits for override in overrides]
    return [*{each.key_part: each for each in reversed(limits)}.values()]


def with_tier(reading: str, limit: Limit) -> str:
    """Return the sentence that describes a limit, with the name of its tier, if it is of one."""
    if not limit.tier:
        return reading
    return _("%(limit)s (tier %(tier)s)") % {"limit": reading, "tier": limit.tier}


def _found_overrides(planner: Planner) -> list[Override]:
    return [override for party in planner.parties for override in party.overrides]


def counter_of(charge: Charge) -> tuple[bytes, bytes]:
    """Return the digest and the part of the key that identify a count."""
    return charge.digest, charge.limit.key_part


def _reading(planned: DecidedCharge) -> str:
    """Return the sentence of a limit: that of its rule, or one made of its rate."""
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


def override_row(override: Override | None) -> RateLimitOverride | None:
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
    # Also if an override or a tier applies: its end brings back what was counted before.
    limits = [limit for limit in explanation.met if names is None or limit.name in names]
    charges = without_shared_bans(
        [limit.charge._replace(limit=count) for limit in limits for count in limit.counts]
    )
    if not charges:
        return []
    counted = run(deciding_call(build_call(charges, "peek")))
    if counted.source == "fallback":
        raise StoreError(_("Redis is unavailable"))
    run(forgetting(build_call(charges, "peek"), strict=True))
    states = [state.name for state in counted.limits if state.used or state.reset_after]
    done = [*dict.fromkeys(states)]
    if done:
        identities = {limit.charge.digest.decode(): limit.planned.identity for limit in limits}
        clients = {
            digest: who.get(digest, ()) if identity is None else shown(identity)
            for digest, identity in identities.items()
        }
        record_change(RateLimitChange.Action.ENDED, done, history_names(clients))
    return done


def without_shared_bans(charges: Sequence[Charge]) -> list[Charge]:
    """Return the charges in a form that one call accepts: each count and each ban once."""
    counts = {counter_of(charge): charge for charge in charges}
    bans: set[tuple[bytes, bytes]] = set()
    found = []
    for charge in counts.values():
        limit = charge.limit
        if limit.ban is not None:
            ban = (charge.digest, limit.ban.key_part)
            if ban in bans:
                charge = charge._replace(limit=limit.without_bans())
            bans.add(ban)
        found.append(charge)
    return found
