"""The throttle classes of Django REST framework, with the same names.

To migrate, change the import line. DRF calls the throttles of a view one by one. Those of this
package are decided in one call, all or nothing: a request that one of them refuses takes no units
of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from ..conf import conf
from ..engine import DecidedCharge
from ..engine.decide import decide
from ..engine.holding import Held, wait_turn
from ..identity import Identity, digest
from ..identity.address import client_address, parse_client_address
from ..identity.keys import Key
from ..identity.names import supplied_identity
from ..identity.request_state import RequestState, request_state, unwrap_request
from ..limits import algorithms
from ..limits.algorithms.sliding_log import MAX_LOG_LENGTH
from ..limits.call import Charge, Operation, whole_cost
from ..limits.decision import LimitState
from ..limits.limit import Limit, wrong_rate
from ..limits.options import Options, refuse_unknown
from ..limits.rate import SECOND, LimitError, Rate
from ..rules.conditions import method_name
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..rules.template import LimitTemplate
from ..views.call_sites import THROTTLE, CallSite, known_call_sites
from ..web.plan import Place
from ..web.refusal import Refusal, refusal_of
from ..web.request_plan import OnError, RequestPlanner
from ..web.responses import attach_decision
from ..web.settlement import hold_slots, watch_method
from .handler import last_refusal, throttled

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.views import APIView


States = tuple[LimitState, ...]


@lru_cache(maxsize=4096)
def _build_limit(
    name: str, rate: Rate, algorithm: str, options: tuple[tuple[str, Any], ...]
) -> Limit:
    """Return a limit of a throttle. Classes of one scope with other rates do not share a count."""
    counted_as = f"{name}:{rate}"
    return Limit(name, rate, counted_as=counted_as, **{**dict(options), "algorithm": algorithm})


def _build_call_site(scope: str, place: str, rate: Any, algorithm: str | None = None) -> CallSite:
    """Return the call site of a throttle, with the valid rates of its declaration.

    The throttle itself reports the invalid ones.
    """
    declared = [rate]
    if isinstance(rate, Mapping):
        declared = list(rate.values())
    limits: list[Limit] = []
    for each in filter(None, declared):
        with suppress(LimitError):
            parsed = Rate.parse(each)
            limits.append(_build_limit(scope, parsed, _choose_algorithm(parsed, algorithm), ()))
    rates = tuple(limit.rate for limit in limits)
    return CallSite(THROTTLE, place, rates, limits=tuple(limits))


def _choose_algorithm(rate: Rate, named: str | None) -> str:
    """Return the algorithm of a throttle: the `named` one, or the default for its rate.

    The default is a sliding log, or a sliding window for a large limit.
    """
    if named:
        return named
    if rate.limit > MAX_LOG_LENGTH:
        return "sliding_window"
    return "sliding_log"


class SimpleRateThrottle(BaseThrottle):  # type: ignore[misc] # DRF is not typed.
    """DRF's `SimpleRateThrottle`.

    Override `get_cache_key`, which returns the identity to count, or None.

    A rule with the name of the scope replaces the rate, and the options that the rule has. A rule
    with the scope as its `group` is added.

    Attributes:
        rate: A value that `Rate.parse` accepts, None for no limit, or a dict of these by HTTP
            method. In a dict, "*" is for all other methods, and GET includes HEAD.
        scope: As in DRF. So are `THROTTLE_RATES`, `timer` and `cache_format`.
        algorithm: The default is a sliding log, which decides as DRF documents (a sliding window
            for limits above 100,000). With "concurrency", a rate is a plain number: the maximum of
            concurrent requests.
        options: Other options of `Limit`.

    A view's `throttle_cost` is the cost of its requests: a number, or a dict of numbers by action.

    Raises:
        ImproperlyConfigured: The scope has no rate, or the rate is invalid.
    """

    timer: Callable[[], float] = time.time
    cache_format = "throttle_%(scope)s_%(ident)s"
    scope: str | None = None
    THROTTLE_RATES: Mapping[str, object] = api_settings.DEFAULT_THROTTLE_RATES
    algorithm: str | None = None
    options: ClassVar[Options] = {}
    rate: Any = None
    key: str | None = None
    state: LimitState | None = None
    everywhere = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        refuse_unknown(cls.options, where=f"Throttle {cls.__name__}: ")
        if isinstance(cls.scope, str):
            known_call_sites.add_name(cls.scope)
            if cls.rate:  # Otherwise it may be in the settings.
                place = f"{cls.__module__}.{cls.__qualname__}"
                site = _build_call_site(cls.scope, place, cls.rate, cls.algorithm)
                known_call_sites.add(cls.scope, site)

    def __init__(self) -> None:
        if not self.rate:
            self.rate = self.get_rate()
        self._parse_rate_for(None)

    def _parse_rate_for(self, method: str | None) -> None:
        """Set the number of requests and the period for a method; None: without a dict of rates."""
        rate = self.rate
        if isinstance(rate, Mapping):
            rate = self._rates_by_method().get(self._rate_key(method))
        self.num_requests, self.duration = self.parse_rate(rate)

    def _rates_by_method(self) -> Mapping[str, object]:
        """Return the rates of a dict by the name of the method in capitals."""
        try:
            return {
                name if name == "*" else method_name(name): rate for name, rate in self.rate.items()
            }
        except LimitError as error:
            raise self._configuration_error(error) from None

    def _configuration_error(self, error: LimitError) -> ImproperlyConfigured:
        return ImproperlyConfigured(
            f"Throttle {type(self).__name__}, scope {self.scope!r}: {error}"
        )

    def _rate_key(self, method: str | None) -> str:
        """Return the key in a dict of rates for a request: its method, or "*".

        For HEAD it may be GET, which runs the same view.
        """
        rates = self._rates_by_method()
        if method is not None and method in rates:
            return method
        if method == "HEAD" and "GET" in rates:
            return "GET"
        return "*"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        """Return the identity to count, or None if the request is not limited."""
        raise NotImplementedError(f"{type(self).__name__}.get_cache_key() must be overridden")

    def get_rate(self) -> Any:
        """Return the rate of the scope."""
        if not self.scope:
            raise ImproperlyConfigured(
                f"Set either `scope` or `rate` for the throttle {type(self).__name__}"
            )
        try:
            return self.THROTTLE_RATES[self.scope]
        except KeyError:
            scopes = ", ".join(sorted(self.THROTTLE_RATES)) or "none"
            raise ImproperlyConfigured(
                f"No default throttle rate set for '{self.scope}' scope; DEFAULT_THROTTLE_RATES "
                f"has: {scopes}"
            ) from None

    def parse_rate(self, rate: Any) -> tuple[int | None, float | None]:
        """Return the number of requests and the period in seconds.

        The period is 0 for slots. Both are None for no limit.
        """
        if rate is None:
            return None, None
        try:
            parsed = Rate.parse(rate)
            if parsed.is_slots != algorithms.find(_choose_algorithm(parsed, self.algorithm)).holds:
                raise wrong_rate(parsed)
        except LimitError as error:
            raise self._configuration_error(error) from None
        seconds, rest = divmod(parsed.period_us, SECOND)
        if rest:
            return parsed.limit, parsed.period
        return parsed.limit, seconds  # An integer, as DRF has it.

    def get_ident(self, request: Request) -> str:
        """Return the masked address of the client.

        It depends on DRF's NUM_PROXIES if set, otherwise on `RATELIMIT_TRUSTED_PROXIES`.
        """
        if api_settings.NUM_PROXIES is not None:
            return str(
                parse_client_address(super().get_ident(request), "NUM_PROXIES selects it").network
            )
        return str(client_address(unwrap_request(request)).network)

    def get_cost(self, request: Request, view: APIView) -> int:
        """Return the cost of a request: the view's `throttle_cost`, by action if it is a dict.

        Default: 1.
        """
        cost = getattr(view, "throttle_cost", 1)
        if isinstance(cost, Mapping):
            cost = cost.get(getattr(view, "action", None), 1)
        return whole_cost(cost, f"throttle_cost of {type(view).__name__} is")

    def prepare(self, request: Request, view: APIView) -> Charge | None:
        """Return the charge of this throttle for a request; None if the request is not limited.

        `key` becomes the identity that it counts.
        """
        if isinstance(self.rate, Mapping):
            self._parse_rate_for(request.method)
        if self.num_requests is None or self.duration is None:
            return None
        self.key = self.get_cache_key(request, view)
        if self.key is None:
            return None
        cost = whole_cost(self.get_cost(request, view), f"{self.name}: cost is")
        return Charge(self._limit_for(request.method), digest(str(self.key)), cost)

    @property
    def name(self) -> str:
        """Return the name of the throttle's counts."""
        return self.scope or f"{type(self).__module__}.{type(self).__qualname__}"

    @property
    def is_decided_together(self) -> bool:
        """Return whether the throttle is decided together with others.

        That is not so if the project overrides `allow_request`.
        """
        return type(self).allow_request is SimpleRateThrottle.allow_request

    @staticmethod
    def planner(
        throttles: Sequence[SimpleRateThrottle],
        request: Request,
        view: APIView,
        operation: Operation = "hit",
        on_error: OnError | None = None,
    ) -> RequestPlanner:
        """Return the planner of the charges of these throttles.

        `on_error`: see `RequestPlanner`.
        """

        def find_places(ruleset: Ruleset) -> list[Place]:
            places = []
            for throttle in throttles:
                try:
                    places.append(throttle.place(request, view, ruleset))
                except Exception as error:
                    if on_error is None:
                        raise
                    on_error(throttle.name, error)
            return places

        now = None
        timers = [throttle.timer for throttle in throttles if throttle.timer is not time.time]
        if timers:
            now = round(timers[0]() * SECOND)
        blocks_uncharged = any(throttle.everywhere for throttle in throttles)
        return RequestPlanner(
            unwrap_request(request),
            find_places,
            operation=operation,
            now=now,
            on_error=on_error,
            blocks_uncharged=blocks_uncharged,
        )

    def place(self, request: Request, view: APIView, ruleset: Ruleset) -> Place:
        """Return the place of this throttle: its charge, and the rules of its name.

        Rules that replace its rate are in the place instead of the charge.
        """
        charge = self.prepare(request, view)
        has_rules = self.name in ruleset.site_names
        if charge is None and has_rules and self.num_requests is None:
            self.key = self.get_cache_key(request, view)  # It has no rate, but a rule may have one.
        charges = []
        if charge is not None:
            identity = self._identity(request)
            charges.append(DecidedCharge(charge, self.name, owner=self, identity=identity))
        if self.key is None or not has_rules:
            return Place((), self.name, charges, self)
        call_site = Rule(template=self._build_template(request, view, charge))
        django_request = unwrap_request(request)
        replacement = ruleset.replacement_for(self.name, [call_site], django_request)
        rules = list(ruleset.additional_for(self.name, django_request))
        if replacement is not None:
            charges = []
            rules = [*replacement, *rules]
        return Place(rules, self.name, charges, self)

    def _build_template(
        self, request: Request, view: APIView, charge: Charge | None
    ) -> LimitTemplate:
        """Return the template that rules of its name replace or extend. It has the present key."""
        identity = str(self.key)
        key = Key(self.name, lambda group, request, user: identity)
        if charge is None:
            return LimitTemplate(key, (), lambda *_: self.get_cost(request, view))
        limit = charge.limit
        counted = (((limit.rate.period_us, limit.algorithm), limit.counted_as),)
        options: Options = {**self.options, "algorithm": limit.algorithm}
        return LimitTemplate(key, (limit.rate,), charge.cost, options, counted=counted)

    def _identity(self, request: Request) -> Identity:
        """Return the identity of the key. Operators see the user or address in DRF's format."""
        idents = [("ip", self.get_ident(request))]
        user = getattr(request, "user", None)
        if user is not None and user.is_authenticated:
            idents.insert(0, ("user", str(user.pk)))
        with suppress(KeyError, TypeError, ValueError):  # The project has its own format.
            for kind, ident in idents:
                if self.key == self.cache_format % {"scope": self.scope, "ident": ident}:
                    return supplied_identity(self.key, (kind, ident))
        return supplied_identity(self.key)

    def limits_on(self, view: APIView) -> list[Limit]:
        """Return its limits for requests to a view, of all methods."""
        if not self.rate:
            return []
        methods: Iterable[str | None] = (None,)
        if isinstance(self.rate, Mapping):
            methods = self._rates_by_method()
        limits = []
        for method in methods:
            self._parse_rate_for(method)
            if self.num_requests is not None and self.duration is not None:
                limits.append(self._limit_for(method))
        return limits

    def _limit_for(self, method: str | None) -> Limit:
        """Return the limit for a request with this method, by the rate that was parsed."""
        name = self.name
        if isinstance(self.rate, Mapping):
            name = f"{name}:{self._rate_key(method)}"
        requests = self.num_requests or 0
        rate = Rate(requests, 0)
        if self.duration:
            rate = Rate.parse((requests, self.duration))
        return _build_limit(
            name, rate, _choose_algorithm(rate, self.algorithm), tuple(self.options.items())
        )

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Return whether the request is allowed, by one decision for all throttles of the view.

        `state` becomes the state that `wait` reports. Raises DRF's `Throttled` with the status 503
        if the server is busy.
        """
        if not conf.ENABLE:
            return True
        states = take_states(request, view, self)
        if not states:
            return True
        refused = [state for state in states if state.refuses]
        self.state = states[0]
        if not refused:
            return self.throttle_success()
        self.state = _find_latest(refused)
        refusal = last_refusal(request)
        _add_view_headers(view, refusal)
        if refusal is not None and refusal.reason == "busy":
            raise throttled(refusal.retry_after, None, refusal)
        return self.throttle_failure()

    def throttle_success(self) -> bool:
        """Return True. Called if this throttle admits a request."""
        return True

    def throttle_failure(self) -> bool:
        """Return False. Called if this throttle refuses a request."""
        return False

    def wait(self) -> float | None:
        """Return the seconds until the same request would be allowed; None if never, or unknown."""
        if self.state is None or self.state.allowed:
            return None
        return self.state.retry_after


def _add_view_headers(view: APIView, refusal: Refusal | None) -> None:
    """Add headers of a refusal to the view: DRF copies them to the response of any handler."""
    headers = getattr(view, "headers", None)
    if isinstance(headers, dict):
        headers |= {"Cache-Control": "no-store"} if refusal is None else refusal.headers()


def _find_latest(refused: Sequence[LimitState]) -> LimitState:
    """Return the state with the longest `retry_after`."""
    return max(refused, key=lambda state: (state.retry_after is None, state.retry_after))


class AnonRateThrottle(SimpleRateThrottle):
    """Limits clients without a signed-in user, by address. Scope: anon."""

    scope = "anon"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        """Return the address, or None if a user is signed in."""
        if request.user and request.user.is_authenticated:
            return None
        return self.cache_format % {"scope": self.scope, "ident": self.get_ident(request)}


class UserRateThrottle(SimpleRateThrottle):
    """Limits users by primary key, and clients without a signed-in user by address. Scope: user."""

    scope: str | None = "user"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        """Return the user, or the address."""
        if request.user and request.user.is_authenticated:
            ident = request.user.pk
        else:
            ident = self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": ident}


class ScopedRateThrottle(UserRateThrottle):
    """Limits each view with a `throttle_scope` by the rate of that scope, by user or address."""

    scope = None
    scope_attr = "throttle_scope"

    def __init__(self) -> None:
        # `prepare` reads the scope from the view.
        self.num_requests = self.duration = None
        self.rate = ()

    def _set_scope(self, view: APIView) -> bool:
        """Set the scope and the rate of a view. Return whether it has a scope."""
        self.scope = getattr(view, self.scope_attr, None)
        if self.scope:
            self.rate = self.get_rate()
        return bool(self.scope)

    def prepare(self, request: Request, view: APIView) -> Charge | None:
        """Return the charge by the view's scope; None if the view has no scope, or no limit."""
        if not self._set_scope(view):
            return None
        self._parse_rate_for(request.method)
        return super().prepare(request, view)

    def limits_on(self, view: APIView) -> list[Limit]:
        """Return the limits of the view's scope; none for a view without one."""
        if not self._set_scope(view):
            return []
        return super().limits_on(view)


class RuleThrottle(SimpleRateThrottle):
    """Applies the rules of the settings and of the admin to a view.

    The user is the one that DRF has authenticated. The throttle does for single views what
    `RateLimitMiddleware` does for all requests. Rules that the middleware has counted for a request
    are not counted again.
    """

    rate = ()
    name = "rules"
    everywhere = True

    def __init__(self) -> None:
        self.num_requests = self.duration = None

    def place(self, request: Request, view: APIView, ruleset: Ruleset) -> Place:
        """Return the charges of the rules that apply to the request."""
        rules = ruleset.matching(unwrap_request(request))
        if any(rule.template is None for rule in rules):  # An exemption.
            rules = []
        return Place(rules, owner=self)


class ViewDecision:
    """One decision for all throttles of a view, although DRF calls them one by one.

    It keeps the states until each throttle takes its own.

    - `refusal`: the content of the refusal, if there is one.
    """

    refusal: Refusal | None = None

    def __init__(self, request: Request, view: APIView, caller: SimpleRateThrottle) -> None:
        """Decide all throttles, hold the granted slots, and wait for the turn of the request."""
        throttles = _decided_together(view, caller)
        planner = caller.planner(throttles, request, view)
        decision = decide(planner)
        held = hold_slots(request, planner.state, decision, planner.charges)
        if held is not None:
            _release_after_view(request, planner.state, view, held)
        if decision.limits:
            attach_decision(unwrap_request(request), decision)
        if not decision:
            self.refusal = refusal_of(unwrap_request(request), decision)
        # With another clock, the wait is not in real seconds.
        elif decision.wait > 0 and planner.options["now"] is None:
            wait_turn(decision.wait, planner.charges)
        self._states = [
            (type(throttle), _states_of(throttle, planner.charges)) for throttle in throttles
        ]

    def take(self, caller: SimpleRateThrottle) -> States | None:
        """Remove and return the states of a throttle of this class; None if none are left."""
        for index, (cls, states) in enumerate(self._states):
            if cls is type(caller):
                del self._states[index]
                return states
        return None


def _states_of(throttle: SimpleRateThrottle, charges: Sequence[DecidedCharge]) -> States:
    """Return the states of the charges that a throttle reports."""
    owners: list[object] = [throttle]
    # A block without a rule has no owner. A throttle that applies all rules reports it.
    if throttle.everywhere:
        owners.append(None)
    return tuple(decided.state for decided in charges if decided.owner in owners)


def _decided_together(view: APIView, caller: SimpleRateThrottle) -> list[SimpleRateThrottle]:
    """Return the throttles of the view that are decided together, including the caller."""
    if not caller.is_decided_together or not hasattr(view, "get_throttles"):
        return [caller]
    throttles = [
        throttle
        for throttle in view.get_throttles()
        if getattr(throttle, "is_decided_together", False)
    ]
    # DRF has made other objects of the same classes.
    for index, throttle in enumerate(throttles):
        if type(throttle) is type(caller):
            throttles[index] = caller
            return throttles
    return [caller]


def _release_after_view(request: Request, state: RequestState, view: APIView, held: Held) -> None:
    """Release the slots if the view is interrupted: DRF converts only exceptions."""
    name = request.method.lower()
    if hasattr(view, name):  # DRF calls this method next.
        setattr(view, name, watch_method(state, held, getattr(view, name)))


def take_states(request: Request, view: APIView, caller: SimpleRateThrottle) -> States:
    """Take the states of a throttle from the decision for its view, which is made if necessary.

    They are empty if the throttle counts nothing.
    """
    state = request_state(request)
    decision: ViewDecision | None = state.throttles
    states = None if decision is None else decision.take(caller)
    if states is None:
        decision = ViewDecision(request, view, caller)
        state.throttles = decision
        states = decision.take(caller)
    return states or ()


for _scope, _rate in api_settings.DEFAULT_THROTTLE_RATES.items():
    known_call_sites.add(
        _scope, _build_call_site(_scope, "REST_FRAMEWORK, DEFAULT_THROTTLE_RATES", _rate)
    )
