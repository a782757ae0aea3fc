"""The limits of a request: every rule and limit, its state at the moment, and overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from ..conf import conf
from ..conf.callables import name_of
from ..engine.decide import PlannedCharge, answered, build_call, decide, forgetting, now_us
from ..engine.run import run
from ..exceptions import StoreError
from ..extension import Finding, extensions
from ..identity.keys import EXACT, read_fields, registered_keys
from ..identity.request_state import request_state
from ..identity.routes import resolved
from ..limits.call import Charge
from ..limits.decision import Decision, LimitState
from ..models import RateLimitChange, RateLimitOverride, RateLimitRevision
from ..models.audit import current_actor
from ..publishing.publish import primary
from ..rules.describe import rate_words, reading
from ..rules.exempt import is_exempt
from ..rules.overrides import KnownOverrides, Override, override_cache
from ..rules.provider import reload
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..rules.stacks import BEFORE_METHODS, OnView, Stack, is_behind_login, on_view
from ..web.overrides import NOTHING, REFUSED
from ..web.plan import Place, RequestPlanner
from .request_builder import SENT_KINDS

MIDDLEWARE = "django_ratelimit_lua.middleware.RateLimitMiddleware"


@dataclass(frozen=True, slots=True)
class ExplainedLimit:
    """A limit that applies to a request.

    - `name`, `reading`: its name, and its sentence; `source`: where it is written; `rule`: None if
      it is in the code; `key`: its key; empty: a throttle decides that; `charge`: its charge;
    - `state`: None: exempt; `override`: the override that replaces it; `is_skipped`: the override's
      numbers do not fit this limit, so the limit applies;
    - `planned`: the charge as it was planned;
    - `refuses`: it refuses the request; `is_advice`: it only informs the view, which may refuse;
      `counted_as`: the name of its statistics, which several rates share.
    """

    name: str
    reading: str
    source: str
    rule: Rule | None
    key: str
    charge: Charge
    state: LimitState | None
    override: RateLimitOverride | None
    is_skipped: bool
    is_advice: bool = False
    counted_as: str = ""
    planned: PlannedCharge | None = None

    @property
    def refuses(self) -> bool:
        """Whether the request is refused by it."""
        return (
            self.state is not None
            and not self.state.allowed
            and self.state.enforced
            and not self.is_advice
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """All limits of a request.

    - `exempt`: the rule, or "the view", that exempts it from rules; `block`: the override that
      blocks it without any rule; `problems`: the rules and call sites that cannot be applied to
      such a request, and why;
    - `findings`: the effects of annexes at its view, outermost first;
    - `notes`: further code that may refuse it, and is not examined; `missing`: the fields that its
      limits count by and it does not have, as keys; `other_methods`: the methods with more limits
      at this view;
    - `unknown`: limited functions of which it is unknown whether the view calls them.
    """

    decision: Decision
    met: tuple[ExplainedLimit, ...]
    exempt: str | None
    block: RateLimitOverride | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    other_methods: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def stopped_by(self) -> Finding | None:
        """What does not let a request through that no limit refuses; None: nothing."""
        stopping = (finding for finding in self.findings if finding.passes is False)
        return next(stopping, None) if self.decision.allowed else None


def explain(request: HttpRequest) -> Explanation:
    """The limits of a request in the middleware, at each `@ratelimit` of its view, at the view's
    throttles, and the effects of annexes: each decides by itself.

    Counts nothing, and uses the rules as they are published now.
    """
    if conf.ENABLE:
        reload()
    state = request_state(request)
    counted, user = state.counted, getattr(request, "user", None)
    state.counted = set()
    try:
        return _explained(request)
    finally:
        state.counted = counted
        if user is not None:
            request.user = user


def _explained(request: HttpRequest) -> Explanation:
    looking = _Looking(request)
    looking.at_rules()
    match = resolved(request)
    if match is None:
        looking.notes[_("No URL pattern matches this path.")] = None
        return looking.explanation((), ())
    here = on_view(match.func, request.method or "")
    # Throttles come in between, and determine the user.
    looking.at_stacks(
        match.func, [stack for stack in here.stacks if stack.method in BEFORE_METHODS]
    )
    looking.at_throttles(here, match)
    looking.at_stacks(
        match.func, [stack for stack in here.stacks if stack.method not in BEFORE_METHODS]
    )
    looking.at_marks(here, match)
    for name in here.unknown:
        text = _("Unknown: whether the view calls %(name)s, and meets the limits in it.")
        looking.notes[text % {"name": name}] = None
    return looking.explanation(
        _other_methods(match.func, request.method or ""), tuple(here.unknown)
    )


class _Looking:
    """One request on its way, and what it has met until now."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.decision = Decision(True)
        self.block: Override | None = None
        self.limits: list[ExplainedLimit] = []
        self.exempt: list[str] = []
        self.problems: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self.findings: list[Finding] = []
        self._rules: dict[str, Rule] = {}
        self._keys: dict[str, None] = {}

    def explanation(self, other_methods: tuple[str, ...], unknown: tuple[str, ...]) -> Explanation:
        return Explanation(
            self.decision,
            tuple(self.limits),
            self.exempt[0] if self.exempt else None,
            _row(self.block),
            tuple(self.problems.values()),
            tuple(self.notes),
            tuple(self._missing()),
            other_methods,
            tuple(self.findings),
            unknown,
        )

    def at_rules(self) -> None:
        is_applied = _is_applied()

        def choose(ruleset: Ruleset) -> list[Place] | None:
            matching = ruleset.matching(self.request)
            self.exempt[:] = ["the view"] if is_exempt(self.request) else []
            self.exempt += [rule.name for rule in matching if rule.template is None]
            if not is_applied:
                self.exempt.clear()
                if matching:
                    self.notes[
                        _("No middleware applies rules: RateLimitMiddleware is not in MIDDLEWARE.")
                    ] = None
                return []
            return None if self.exempt else [self._place(matching, "")]

        on_error = self._on_error
        self._decide(
            RequestPlanner(
                self.request, choose, operation="peek", has_blocks=is_applied, on_error=on_error
            )
        )

    def at_stacks(self, view: Any, stacks: Sequence[Stack]) -> None:
        for stack in stacks:
            if is_behind_login(view, stack) and not _is_logged_in(self.request):
                text = _(
                    "Not looked at: limits that only logged-in users meet. Enter a user to see "
                    "them."
                )
                self.notes[text] = None
            else:
                self._at_stack(stack)

    def _at_stack(self, stack: Stack) -> None:
        def choose(ruleset: Ruleset) -> list[Place]:
            return [
                self._place(
                    ruleset.for_call_sites(stack.rules, stack.group, self.request), stack.group
                )
            ]

        planner = RequestPlanner(self.request, choose, stack.group, "peek", on_error=self._on_error)
        self._decide(planner, is_advice=not stack.blocks)

    def at_throttles(self, here: OnView, match: Any) -> None:
        """The decisions of the throttles of a DRF view."""
        if not here.has_throttles:
            return
        try:
            view = _view(here.class_view, match, self.request)
            throttles = view.get_throttles()
        except Exception as error:
            self._on_error(_("throttles of the view"), error)
            return
        ours = [
            throttle for throttle in throttles if getattr(throttle, "is_decided_together", False)
        ]
        for throttle in throttles:
            name = name_of(type(throttle))
            if throttle in ours:
                reads = type(throttle).get_cache_key
                if not reads.__module__.startswith(f"{__package__.partition('.')[0]}."):
                    self._not_looked_at(name_of(reads), _("key"), throttle.name)
            elif hasattr(throttle, "is_decided_together"):
                text = _("Not looked at: %(name)s, a throttle with an allow_request of its own.")
                self.notes[text % {"name": name}] = None
            else:
                self.notes[
                    _("Not looked at: %(name)s, a throttle that counts elsewhere.") % {"name": name}
                ] = None
        if ours:
            self._decide(ours[0].planner(ours, view.request, view, "peek", self._on_error))

    def at_marks(self, here: OnView, match: Any) -> None:
        """What annexes do at the view."""
        if not conf.ENABLE:
            return
        met = []
        for mark in here.marks:
            if is_behind_login(match.func, mark) and not _is_logged_in(self.request):
                text = _(
                    "Not looked at: decorators that only logged-in users meet. Enter a user to "
                    "see them."
                )
                self.notes[text] = None
            else:
                met.append(mark)
        has_handler = here.has_throttles or _is_applied()
        for extension in extensions:
            marks = [mark for mark in met if mark.annex == extension.name]
            if marks:
                self.findings += extension.inspect(marks, has_handler)

    def _place(self, rules: Sequence[Rule], group: str) -> Place:
        for rule in rules:
            self._rules[rule.name_at(group)] = rule
            self._note_functions(rule, rule.name_at(group))
        return Place(rules, group)

    def _note_functions(self, rule: Rule, name: str) -> None:
        template = rule.template
        if template is None:
            return
        for function in template.key.functions if template.key is not None else ():
            self._not_looked_at(function, _("key"), name)
        for part, values in ((_("rate"), template.rates), (_("cost"), (template.cost,))):
            for value in values:
                if callable(value):
                    self._not_looked_at(name_of(value), part, name)

    def _not_looked_at(self, function: str, part: str, limit: str) -> None:
        text = _(
            "Not looked at: all that %(function)s goes by (%(part)s of %(limit)s). It is a "
            "function, and a real "
            "request may give it more than is entered here."
        )
        self.notes[text % {"function": function, "part": part, "limit": limit}] = None

    def _on_error(self, name: str, error: Exception) -> None:
        self.problems[name] = f"{name}: {type(error).__name__}: {error}"
        if name in self._rules:  # A value that is entered is not read.
            self._note_keys(self._rules[name])

    def _note_keys(self, rule: Rule) -> None:
        self._keys |= dict.fromkeys(name for key in rule.keys for name in key.name.split("+"))

    def _decide(self, planner: RequestPlanner, *, is_advice: bool = False) -> None:
        """One decision; what it meets is added."""
        try:
            outcome = decide(planner)
        except (
            REFUSED
        ) as error:  # Django makes an answer of it, if a function of the project raises it.
            self._on_error(_("refused by the site"), error)
            return
        decision = outcome.decision
        if planner.ruleset is None:
            return  # Rate limiting is switched off.
        is_blocked = any(planned.charge.limit is NOTHING for planned in outcome.planned)
        overrides = override_cache.get_many(
            [ref for party in planner.parties for ref in party.subjects]
        )
        if is_blocked and self.block is None:
            self.block = overrides.strongest_for(None, now_us())
        states = {_counter(decided.planned): decided.state for decided in outcome.charges}
        counted = request_state(self.request).counted
        for planned in planner.charges:
            self.limits.append(
                explained_limit(planned, planner.ruleset, overrides, states, is_advice)
            )
            if planned.rule is not None:
                counted.add(planned.rule.name)  # A later decision does not count it again.
                self._note_keys(planned.rule)
        is_away = "fallback" in (self.decision.source, decision.source)
        if self.decision.allowed and decision.limits and (decision.allowed or not is_advice):
            self.decision = decision
        if is_away:
            self.decision = self.decision._replace(source="fallback")

    def _missing(self) -> list[str]:
        """The fields that limits count by, and this request does not have."""
        missing = []
        for field in dict.fromkeys(part.removeprefix(EXACT) for part in self._keys):
            if field == "session":
                field = f"cookie:{settings.SESSION_COOKIE_NAME}"
            is_registered = field in registered_keys()
            if not is_registered and field.partition(":")[0] not in SENT_KINDS:
                continue
            try:
                is_missing = not read_fields(field, self.request)
            except REFUSED:
                continue
            except (
                Exception
            ):  # The function needs more than a description has, such as what a middleware sets.
                is_missing = is_registered
            if is_missing:
                missing.append(field)
        return missing


def _is_applied() -> bool:
    """Whether a middleware applies rules: ours, or one that is made of it."""
    for path in settings.MIDDLEWARE:
        made_of = getattr(import_string(path), "__mro__", ())
        if any(name_of(cls) == MIDDLEWARE for cls in made_of):
            return True
    return False


def _other_methods(view: Any, method: str) -> tuple[str, ...]:
    """The methods that meet limits at a view which a request of this method does not meet."""
    here = _rules_for(view, method)
    return tuple(
        other
        for other in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if _rules_for(view, other) - here
    )


def _rules_for(view: Any, method: str) -> set[int]:
    """The call sites that count requests of a method, compared as objects."""
    rules = [rule for stack in on_view(view, method).stacks for rule in stack.rules]
    return {id(rule) for rule in rules if rule.methods is None or method in rule.methods}


def _view(function: Any, match: Any, request: HttpRequest) -> Any:
    """The view of Django REST framework that answers a request, as far as throttles ask it.

    Its `request` is DRF's.
    """
    view = function.cls(**getattr(function, "initkwargs", {}))
    actions = dict(getattr(function, "actions", None) or {})
    if "get" in actions:
        actions.setdefault("head", actions["get"])
    view.action_map = actions
    for method, action in actions.items():
        setattr(view, method, getattr(view, action))
    view.args, view.kwargs, view.headers = match.args, match.kwargs, {}
    view.request = view.initialize_request(request, *match.args, **match.kwargs)
    if _is_logged_in(request):
        view.request.user = request.user  # As described; otherwise the user of its headers.
    elif view.request.user is not None:
        request.user = view.request.user
    return view


def _is_logged_in(request: HttpRequest) -> bool:
    return getattr(getattr(request, "user", None), "is_authenticated", False)


def _counter(planned: PlannedCharge) -> tuple[bytes, bytes]:
    return planned.charge.digest, planned.charge.limit.key_part


def explained_limit(
    planned: PlannedCharge,
    ruleset: Ruleset,
    overrides: KnownOverrides,
    states: Mapping[Any, LimitState],
    is_advice: bool = False,
) -> ExplainedLimit:
    """A planned charge, and its result: `states` by counter, without one for an exempt charge."""
    rule = ruleset.by_name.get(planned.name)
    override = overrides.strongest_for(rule.pk if rule is not None else None, now_us())
    limit, key = planned.charge.limit, planned.rule.key if planned.rule is not None else None
    if planned.owner is not None and planned.rule is None:
        words = {"rate": rate_words(str(limit.rate)), "name": type(planned.owner).__name__}
        says = _("%(rate)s, by the throttle %(name)s") % words
    else:
        code = {
            "rate": str(limit.rate),
            "key": key.name.split("+") if key is not None else "",
            "group": planned.name,
        }
        says = reading((rule.given if rule is not None else None) or code)
    is_skipped = (
        override is not None and override.rate is not None and override.limit(limit) is limit
    )
    return ExplainedLimit(
        limit.name,
        says,
        rule.source if rule is not None else "code",
        rule,
        "" if key is None else key.name,
        planned.charge,
        None
        if override is not None and override.effect == "exempt"
        else states.get(_counter(planned)),
        _row(override),
        is_skipped,
        is_advice,
        planned.name,
        planned,
    )


def _row(override: Override | None) -> RateLimitOverride | None:
    return None if override is None else RateLimitOverride.objects.filter(pk=override.pk).first()


def reset(explanation: Explanation, names: set[str] | None = None) -> list[str]:
    """Reset the counters that this request would hit, under these limits (None: all).

    The user in `acting` is recorded.

    Returns the names of those that had counted something. Raises `StoreError`.
    """
    charges = [limit.charge for limit in explanation.met if names is None or limit.name in names]
    if not charges:
        return []
    # Also where an override exempts: its end brings back what was counted before.
    counted = run(answered(build_call(charges, "peek")))
    if counted.source == "fallback":
        raise StoreError(_("Redis is unavailable"))
    run(forgetting(build_call(charges, "peek"), strict=True))
    done = [state.name for state in counted.limits if state.used or state.reset_after]
    if done:
        RateLimitChange.objects.create(
            revision=RateLimitRevision.read(primary()).revision,
            by=current_actor(),
            kind=RateLimitChange.Kind.IDENTITY,
            action=RateLimitChange.Action.ENDED,
            name=", ".join(done)[:300],
            after={"digests": sorted({charge.digest.decode() for charge in charges})},
        )
    return done
