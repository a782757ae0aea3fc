"""One rule: a limit, and when it applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.http import HttpRequest

from ..identity.keys import Key
from ..identity.request_state import resolve_route, waiting_time
from ..limits.limit import Limit
from .conditions import Condition, path_pattern
from .template import LimitTemplate

EVERYONE = "everyone"

Spec = Mapping[str, Any]
"""A rule as it is written: values by name, see `options.field_names`."""
Outcome = Callable[[HttpRequest, Any], object]
"""Called with the request and its response, or the exception that was raised instead of one; may be
`async`.
"""


def is_storable(text: str) -> bool:
    """Return whether every database can store a text: it has neither a NUL nor a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    """When a limit applies, and its effect. A call site is a rule without a name.

    - `template`: the rates, the options and the key (None: matching requests are exempt);
    - `paths`: prefixes or globs (empty: every path);
    - `route`: the name of a URL pattern, with its namespaces;
    - `group`: the rule applies only at call sites of that name;
    - `methods`, `audience`: the HTTP methods (None: all) and the clients that it applies to;
    - `extra`: the compiled values of the options that are not options of a limit;
    - `conditions`: those of the user agent and the network, which a request has to meet as well;
    - `waited`: the seconds of the option of that name; 0.0: it applies however busy the site is;
    - `is_elsewhere`: whether only an optional app, such as the gateway, applies it. The middleware
      and call sites never do;
    - `block`, `count_if`, `reset_if`, `cost_after`: the arguments of a call site, see `ratelimit`;
    - `replaces`: the call sites that it replaces;
    - `spec`: its spec; empty for a call site.
    """

    name: str = ""
    template: LimitTemplate | None
    paths: tuple[str, ...] = ()
    route: str | None = None
    group: str | None = None
    methods: frozenset[str] | None = None
    audience: tuple[str, ...] = (EVERYONE,)
    extra: Mapping[str, Any] = field(default_factory=dict)
    conditions: Sequence[Condition] = ()
    waited: float = 0.0
    is_elsewhere: bool = False
    mode: str = "enforce"
    order: int = 0
    message: str = ""
    pk: int | None = None
    block: bool = True
    count_if: Outcome | None = None
    reset_if: Outcome | None = None
    cost_after: Outcome | None = None
    replaces: tuple[Rule, ...] = ()
    spec: Spec = field(default_factory=dict)

    @property
    def source(self) -> str:
        if self.pk is None:
            return "settings"
        return "admin"

    @property
    def settles(self) -> bool:
        """Return whether the rule changes the count after the view has returned."""
        return self.count_if is not None or self.reset_if is not None or self.cost_after is not None

    @property
    def key(self) -> Key | None:
        """Return the key that the rule counts by.

        None if a call site decides, or if nothing is counted.
        """
        return getattr(self.template, "key", None)

    @property
    def is_for_requests(self) -> bool:
        """Return whether the middleware applies the rule, not only a call site or optional app."""
        return self.group is None and not self.is_elsewhere

    @property
    def keys(self) -> list[Key]:
        """Return the keys that the rule and its tiers count by."""
        if self.template is None:
            return []
        keys = (self.template.key, *self.template.tier_keys)
        return [key for key in keys if key is not None]

    @property
    def needs_user(self) -> bool:
        """Return whether the rule can only be decided when the user is known."""
        if self.template is None:
            return False
        of_key = any(key.needs_user for key in self.keys)
        return of_key or self.template.has_group_tiers or EVERYONE not in self.audience

    @property
    def needs_session(self) -> bool:
        """Return whether the rule can only be decided when the session is known."""
        return any(key.needs_session for key in self.keys)

    @property
    def needs_route(self) -> bool:
        """Return whether the rule's key depends on the route."""
        return any(key.needs_route for key in self.keys)

    @property
    def lumps_strangers(self) -> bool:
        """Return whether the rule counts all requests without a signed-in user as one client.

        That is so if its key uses only the user.
        """
        if self.key is None or {EVERYONE, "anonymous"}.isdisjoint(self.audience):
            return False
        return self.key.needs_user and self.key.lumps_strangers

    @property
    def counts_missing_bodies(self) -> bool:
        """Return whether the key has a field of the body, and requests without a body count.

        A rule without a path or route only replaces a call site, and counts its methods.
        """
        if self.key is None or not self.key.needs_body:
            return False
        is_for_get = self.methods is None or "GET" in self.methods
        return is_for_get and (not self.name or self.is_for_requests)

    def matches_path(self, path: str) -> bool:
        """Return whether the rule applies to a path."""
        if not self.paths:
            return True
        # A path that is too long for a glob is limited. An exemption does not apply to it.
        undecided = self.template is not None
        return any(path_pattern(text).matches(path, undecided=undecided) for text in self.paths)

    def matches_route(self, request: HttpRequest) -> bool:
        """Return whether the rule applies to the route of a request."""
        if self.route is None:
            if self.needs_route:
                resolve_route(request)  # Its key reads the result.
            return True
        match = resolve_route(request)
        return match is not None and match.view_name == self.route

    def meets_conditions(self, request: HttpRequest) -> bool:
        """Return whether a request has waited long enough, and meets the conditions."""
        if self.waited and (waiting_time(request) or 0.0) <= self.waited:
            return False
        for condition in self.conditions:  # noqa: SIM110 - `all` takes twice the time.
            if not condition(request):
                return False
        return True

    def matches(self, request: HttpRequest) -> bool:
        """Return whether the rule applies to a request, whatever its method and its user."""
        return (
            self.matches_path(request.path_info)
            and self.matches_route(request)
            and self.meets_conditions(request)
        )

    def matches_method(self, request: HttpRequest) -> bool:
        """Return whether the rule applies to the HTTP method of a request."""
        return self.methods is None or request.method in self.methods

    def name_at(self, group: str) -> str:
        """Return the name of the rule or call site, from which the names of its limits are derived.

        A call site is named by its group. `group` is used for a site without a group.
        """
        return self.name or self.group or group

    def replacing(self, call_sites: Sequence[Rule]) -> Rule:
        """Return this rule with the values that only call sites have, in place of these call sites.

        It continues their counts if it has the same key. If there are several call sites, the key,
        the options and the outcomes are those of the first. Options of the first that has the
        rule's key take precedence.
        """
        first = call_sites[0]
        return replace(
            self,
            template=self._template_replacing(call_sites),
            methods=self._methods_replacing(call_sites),
            block=first.block,
            count_if=first.count_if,
            reset_if=first.reset_if,
            cost_after=first.cost_after,
            replaces=tuple(call_sites),
        )

    def _methods_replacing(self, call_sites: Sequence[Rule]) -> frozenset[str] | None:
        """Return its methods or, if it has none, those of the call sites (None: all methods)."""
        of_sites = [site.methods for site in call_sites]
        if self.methods is not None or None in of_sites:
            return self.methods
        return frozenset[str]().union(*filter(None, of_sites))

    def _template_replacing(self, call_sites: Sequence[Rule]) -> LimitTemplate | None:
        """Return its template with the key, the cost and the counts of the call sites.

        None: the rule is an exemption. The key and cost of its own take precedence.
        """
        own = self.template
        first = call_sites[0].template
        if own is None or first is None:
            return own
        key = own.key or first.key
        cost = first.cost if own.cost is None else own.cost
        limits: list[Limit] = []
        for site in call_sites:
            template = site.template
            if template is not None and template.is_counted_by(key):
                limits += template.limits(self.name)
        of_other_keys = () if limits else first.limits_or_example(self.name)
        return replace(own.replacing(tuple(limits), of_other_keys), key=key, cost=cost)

    def limit_names(self) -> list[str]:
        """Return the names of the limits of its constant rates."""
        if self.template is None:
            return []
        templates = [self.template, *(template for _, template in self.template.tiers)]
        limits = [limit for template in templates for limit in template.limits(self.name)]
        return list(dict.fromkeys(limit.name for limit in limits))
