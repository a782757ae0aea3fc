"""Django REST framework's throttle classes, by its own names: changing the import line is the whole migration.

All throttles of a view that are ours are decided in one call, all or nothing, although DRF asks them one by one: a
request that one of them refuses costs the others nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar, cast

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from ..conf import conf
from ..engine.decide import PlannedCharge
from ..exceptions import Ratelimited
from ..identity import Identity, digest
from ..identity.address import address_as, client_address
from ..identity.keys import Key
from ..identity.names import own
from ..identity.request_state import plain, request_state
from ..limits.call import Charge, Operation, whole_cost
from ..limits.decision import LimitState
from ..limits.limit import Limit, other_rate
from ..limits.options import Options, refuse_unknown
from ..limits.rate import SECOND, LimitError, Rate
from ..rules.callsite import THROTTLE, CallSite, known_call_sites, throttle_algorithm
from ..rules.methods import method_name
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..rules.template import LimitTemplate
from ..web.headers import add_headers
from ..web.plan import OnError, Place, RequestPlanner
from ..web.refusal import ErrorDetails, Refusal, details_of, refusal_of
from .batch import decision_for


def _constant(rate: Any) -> tuple[Rate, ...]:
    """The rates in a throttle's declaration, if they can be parsed. Otherwise the throttle reports the error."""
    rates = []
    for each in rate.values() if isinstance(rate, Mapping) else (rate,):
        with suppress(LimitError):
            rates += [Rate.parse(each)] if each else []
    return tuple(rates)


class SimpleRateThrottle(BaseThrottle):  # type: ignore[misc] # DRF is not typed.
    """DRF's `SimpleRateThrottle`; override `get_cache_key`, which returns the identity to count, or None to skip.

    In addition to DRF's attributes (`rate`, `scope`, `THROTTLE_RATES`, `timer`, `cache_format`):

    - a rate is anything `Rate.parse` reads, or a dict of rates by HTTP method ("*": all others; GET: HEAD too, unless
      it has its own rate; None: no limit);
    - `algorithm` and `options`: those of `Limit`; with `algorithm = "concurrency"` a rate is a number alone, "5": that
      many at once, each until its response is closed. By default a sliding log, whose verdicts are those that DRF
      documents (a sliding window for limits above 100,000);
    - a view's `throttle_cost` is the cost of its requests, a number or a dict of numbers by action.

    A rule named like the scope replaces the rate and options. A rule whose `group` is the scope is added to them.
    Raises `ImproperlyConfigured`, with the name of the scope, for a scope without a rate, or an invalid rate.
    """

    timer: Any = time.time
    cache_format = "throttle_%(scope)s_%(ident)s"
    scope: str | None = None
    THROTTLE_RATES: Mapping[str, Any] = api_settings.DEFAULT_THROTTLE_RATES
    algorithm: str | None = None
    options: ClassVar[Options] = {}
    rate: Any = None
    key: str | None = None
    state: LimitState | None = None
    everywhere = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_unknown(cls.options, where=f"Throttle {cls.__name__}: ")
        if cls.options.get("ban_key"):
            raise LimitError(
                f"Throttle {cls.__name__}: ban_key is for rules and decorators; bans are of whom it counts"
            )
        if isinstance(cls.scope, str):
            # Without its own rate, the settings have it.
            place = f"{cls.__module__}.{cls.__qualname__}"
            site = CallSite(THROTTLE, place, _constant(cls.rate), algorithm=cls.algorithm or "")
            known_call_sites.add(cls.scope, site if cls.rate else None)

    def __init__(self) -> None:
        if not self.rate:
            self.rate = self.get_rate()
        self._parse(None)

    def _parse(self, method: str | None) -> None:
        rate = self.rate
        if isinstance(rate, Mapping):
            rate = self._by_method().get(self._counts_as(method))
        self.num_requests, self.duration = self.parse_rate(rate)

    def _by_method(self) -> Mapping[str, Any]:
        """The rates of a dict by method, each by its name in capitals."""
        try:
            return {name if name == "*" else method_name(name): rate for name, rate in self.rate.items()}
        except LimitError as error:
            raise ImproperlyConfigured(f"Throttle {type(self).__name__}, scope {self.scope!r}: {error}") from None

    def _counts_as(self, method: str | None) -> str:
        """The method whose rate applies to a request: GET for HEAD, because it runs the same view."""
        names = self._by_method()
        if method is not None and method in names:
            return method
        return "GET" if method == "HEAD" and "GET" in names else "*"

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """Whom to count, or None to let the request pass."""
        raise NotImplementedError(f"{type(self).__name__}.get_cache_key() must be overridden")

    def get_rate(self) -> Any:
        """The rate of the scope."""
        if not self.scope:
            raise ImproperlyConfigured(f"Set either `scope` or `rate` for the throttle {type(self).__name__}")
        try:
            return self.THROTTLE_RATES[self.scope]
        except KeyError:
            scopes = ", ".join(sorted(self.THROTTLE_RATES)) or "none"
            raise ImproperlyConfigured(
                f"No default throttle rate set for '{self.scope}' scope; DEFAULT_THROTTLE_RATES has: {scopes}"
            ) from None

    def parse_rate(self, rate: Any) -> tuple[int | None, float | None]:
        """Requests and seconds, of slots 0; (None, None) for no limit."""
        if rate is None:
            return None, None
        try:
            parsed = Rate.parse(rate)
            if parsed.is_slots != (throttle_algorithm(parsed, self.algorithm) == "concurrency"):
                raise other_rate(parsed)
        except LimitError as error:
            raise ImproperlyConfigured(f"Throttle {type(self).__name__}, scope {self.scope!r}: {error}") from None
        whole, rest = divmod(parsed.period_us, SECOND)
        return parsed.limit, parsed.period if rest else whole

    def get_ident(self, request: Any) -> str:
        """The client's address, masked as every address.

        It is chosen by DRF's NUM_PROXIES if that is set, otherwise by `RATELIMIT_TRUSTED_PROXIES`.
        """
        if api_settings.NUM_PROXIES is not None:
            return str(address_as(super().get_ident(request), "NUM_PROXIES says so").network)
        return str(client_address(plain(request)).network)

    def get_cost(self, request: Any, view: Any) -> int:
        """The cost of a request: the view's `throttle_cost`, by action if it is a dict. Default: 1."""
        cost = getattr(view, "throttle_cost", 1)
        if isinstance(cost, Mapping):
            cost = cost.get(getattr(view, "action", None), 1)
        return whole_cost(cost, f"throttle_cost of {type(view).__name__} is")

    def prepare(self, request: Any, view: Any) -> Charge | None:
        """What this throttle wants counted for a request, or None."""
        if isinstance(self.rate, Mapping):
            self._parse(request.method)
        if self.num_requests is None or self.duration is None:
            return None
        self.key = self.get_cache_key(request, view)
        if self.key is None:
            return None
        cost = whole_cost(self.get_cost(request, view), f"{self.name}: cost is")
        return Charge(self._limit(request.method), digest(str(self.key)), cost)

    @property
    def name(self) -> str:
        """What its counts are kept under."""
        return self.scope or f"{type(self).__module__}.{type(self).__qualname__}"

    @property
    def is_asked_together(self) -> bool:
        """Whether it is decided with its neighbours: not where its `allow_request` is one of the project's own, which
        decides itself whether to ask."""
        return type(self).allow_request is SimpleRateThrottle.allow_request

    @staticmethod
    def planner(
        throttles: Sequence[SimpleRateThrottle],
        request: Any,
        view: Any,
        operation: Operation = "hit",
        on_error: OnError | None = None,
    ) -> RequestPlanner:
        """Plans what these throttles of a view charge for a request of DRF's. `on_error`: see `RequestPlanner`."""

        def places(ruleset: Ruleset) -> list[Place]:
            found = []
            for throttle in throttles:
                try:
                    found.append(throttle.place(request, view, ruleset))
                except Exception as error:
                    if on_error is None:
                        raise
                    on_error(throttle.name, error)
            return found

        clocks = [throttle.timer for throttle in throttles if throttle.timer is not time.time]
        now = round(clocks[0]() * SECOND) if clocks else None
        has_blocks = any(throttle.everywhere for throttle in throttles)
        return RequestPlanner(
            plain(request), places, operation=operation, now=now, on_error=on_error, has_blocks=has_blocks
        )

    def place(self, request: Any, view: Any, ruleset: Ruleset) -> Place:
        """Its charges, by the rules in force."""
        charge = self.prepare(request, view)
        if charge is None and self.name in ruleset.site_names and self.num_requests is None:
            self.key = self.get_cache_key(request, view)  # No rate of its own; a rule may have one.
        charges = [] if charge is None else [PlannedCharge(charge, self.name, owner=self, identity=self._whom(request))]
        if self.key is None or self.name not in ruleset.site_names:
            return Place((), self.name, charges, self)
        identity = str(self.key)
        key = Key(self.name, lambda group, request, user: identity)
        cost = (lambda *_: self.get_cost(request, view)) if charge is None else charge.cost
        limit = None if charge is None else charge.limit
        template = LimitTemplate(key, (), cost)
        if limit is not None:
            counted = (((limit.rate.period_us, limit.algorithm), limit.counted_as),)
            template = LimitTemplate(key, (limit.rate,), cost, {"algorithm": limit.algorithm}, counted=counted)
        call_site = Rule(template=template)
        replacement = ruleset.replacement_for(self.name, [call_site], plain(request))
        rules = [*(replacement or ()), *ruleset.additional_for(self.name, plain(request))]
        return Place(rules, self.name, charges if replacement is None else (), self)

    def _whom(self, request: Any) -> Identity:
        """The identity of a key, if it is one of DRF's own."""
        user = getattr(request, "user", None)
        known = [("user", str(user.pk))] if user is not None and user.is_authenticated else []
        with suppress(KeyError, TypeError, ValueError):  # A format of the project's own.
            for kind, ident in (*known, ("ip", self.get_ident(request))):
                if self.key == self.cache_format % {"scope": self.scope, "ident": ident}:
                    return own(self.key, (kind, ident))
        return own(self.key)

    def limits_on(self, view: Any) -> list[Limit]:
        """Its own limits of requests to a view, of all methods."""
        if not self.rate:
            return []
        limits = []
        for method in self._by_method() if isinstance(self.rate, Mapping) else (None,):
            self._parse(method)
            if self.num_requests is not None and self.duration is not None:
                limits.append(self._limit(method))
        return limits

    def _limit(self, method: str | None) -> Limit:
        name = self.name
        if isinstance(self.rate, Mapping):
            name = f"{name}:{self._counts_as(method)}"
        requests = self.num_requests or 0
        rate = Rate.parse((requests, self.duration)) if self.duration else Rate(requests, 0)
        return _limit(name, rate, throttle_algorithm(rate, self.algorithm), tuple(self.options.items()))

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether the request may go, by one decision about all of the view's throttles that are ours."""
        if not conf.ENABLE:
            return True
        states = decision_for(request, view, self)
        if not states:
            return True
        refused = [state for state in states if state.refuses]
        self.state = _latest(refused) if refused else states[0]
        if not refused:
            return self.throttle_success()
        headers = getattr(view, "headers", None)
        if isinstance(headers, dict):  # What DRF adds to the view's answer, whatever handler makes it.
            refusal = _throttled(request)
            headers |= {"Cache-Control": "no-store"} if refusal is None else refusal.headers()
        return self.throttle_failure()

    def throttle_success(self) -> bool:
        """Called if this throttle admits a request."""
        return True

    def throttle_failure(self) -> bool:
        """Called if this throttle refuses a request."""
        return False

    def wait(self) -> float | None:
        """Seconds until the same request would be allowed; None: never, or not known."""
        return self.state.retry_after if self.state and not self.state.allowed else None


def _latest(refused: Sequence[LimitState]) -> LimitState:
    """The one that refuses longest."""
    return max(refused, key=lambda state: float("inf") if state.retry_after is None else state.retry_after)


class AnonRateThrottle(SimpleRateThrottle):
    """Limits clients without a signed-in user, by address. Scope: anon."""

    scope = "anon"

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """The address, or None if a user is signed in."""
        if request.user and request.user.is_authenticated:
            return None
        return self.cache_format % {"scope": self.scope, "ident": self.get_ident(request)}


class UserRateThrottle(SimpleRateThrottle):
    """Limits users by primary key, and clients without a signed-in user by address. Scope: user."""

    scope: str | None = "user"

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """The user, or the address."""
        is_user = request.user and request.user.is_authenticated
        ident = request.user.pk if is_user else self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": ident}


class ScopedRateThrottle(UserRateThrottle):
    """Limits each view that has a `throttle_scope` by the rate of that scope, by user or address."""

    scope = None
    scope_attr = "throttle_scope"

    def __init__(self) -> None:
        # The view knows the scope, and is not known yet.
        self.num_requests = self.duration = None
        self.rate = ()

    def _has_scope(self, view: Any) -> bool:
        self.scope = getattr(view, self.scope_attr, None)
        if self.scope:
            self.rate = self.get_rate()
        return bool(self.scope)

    def prepare(self, request: Any, view: Any) -> Charge | None:
        """By the view's scope. A view without one is not throttled."""
        if not self._has_scope(view):
            return None
        self._parse(request.method)
        return super().prepare(request, view)

    def limits_on(self, view: Any) -> list[Limit]:
        """Those of the view's scope; none for a view without one."""
        return super().limits_on(view) if self._has_scope(view) else []

    def place(self, request: Any, view: Any, ruleset: Ruleset) -> Place:
        """By the rules of the view's scope as well. A view without one is not throttled."""
        return super().place(request, view, ruleset) if self._has_scope(view) else Place(())


class RuleThrottle(SimpleRateThrottle):
    """Applies the rules of the settings and of the admin to a view, with the user that DRF has authenticated.

    For what `RateLimitMiddleware` does, on the views that have this throttle; rules that the middleware has counted for
    a request are not counted again.
    """

    rate = ()
    name = "rules"
    everywhere = True

    def __init__(self) -> None:
        self.num_requests = self.duration = None

    def place(self, request: Any, view: Any, ruleset: Ruleset) -> Place:
        """The charges of the rules that apply to the request."""
        rules = ruleset.matching(plain(request))
        is_exempt = any(rule.template is None for rule in rules)
        return Place(() if is_exempt else rules, owner=self)


def _throttled(request: Any) -> Refusal | None:
    """The content of the last refusal by the throttles of a view, if any."""
    batch = request_state(request).throttles
    return None if batch is None else cast("Refusal | None", batch.refusal)


def exception_handler(exc: Exception, context: Any) -> Any:
    """DRF's `EXCEPTION_HANDLER`, with which a `Ratelimited` becomes DRF's 429 instead of its 403.

    The body is DRF's own. Its `detail` begins with the message of the rule that refuses, and it has the members `type`,
    `violated-policies` and `reference`, as in a problem document.

    It replaces DRF's own if `django_ratelimit_lua` is in `INSTALLED_APPS` and the project sets no handler. A handler of
    the project calls it instead of `rest_framework.views.exception_handler`.
    """
    from rest_framework.exceptions import APIException, PermissionDenied, Throttled
    from rest_framework.views import exception_handler as of_drf

    request = plain(context.get("request"))
    error: Any = exc
    refusal: Refusal | None = None
    details: ErrorDetails | None = details_of(exc)
    if details is not None:
        error = APIException(details.detail())
        error.status_code = details.status
    elif isinstance(exc, Ratelimited):
        details = refusal = refusal_of(HttpRequest() if request is None else request, exc.decision)
        error = Throttled(exc.decision.retry_after, _detail(refusal))
    elif isinstance(exc, Throttled):
        details = refusal = _throttled(request)
        if refusal is not None and str(error.detail).startswith(str(Throttled.default_detail)):
            # Otherwise the view has its own message.
            error = Throttled(None if refusal.retry_after is None else error.wait, _detail(refusal))
    if refusal is not None and refusal.is_forbidden:
        error = PermissionDenied(refusal.detail())
    response = of_drf(error, context)
    if details is None:
        return response
    if isinstance(response.data, dict):
        response.data |= {name: value for name, value in details.members().items() if name != "title"}
    for name, value in details.headers().items():
        response.headers[name] = value
    if refusal is not None:
        add_headers(response, refusal.decision)
    return response


def _detail(refusal: Refusal) -> str | None:
    """The replacement for DRF's "Request was throttled."; DRF adds when to try again."""
    if refusal.retry_after is None:
        return refusal.detail() or None
    return refusal.message or (refusal.begin() if refusal.reason == "at once" else None)


for _scope, _rate in api_settings.DEFAULT_THROTTLE_RATES.items():
    known_call_sites.add(_scope, CallSite(THROTTLE, "REST_FRAMEWORK, DEFAULT_THROTTLE_RATES", _constant(_rate)))


@lru_cache(maxsize=4096)
def _limit(name: str, rate: Rate, algorithm: str, options: tuple[tuple[str, Any], ...]) -> Limit:
    return Limit(name, rate, **{**dict(options), "algorithm": algorithm})
