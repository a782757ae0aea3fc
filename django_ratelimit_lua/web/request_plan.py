"""The plan of a request: its charges are gathered by the rules, the user and the session.

Gathering may wait: for the user, the user's groups and the session, and for rates, costs and keys
that are functions.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from ..conf import conf
from ..conf.values import PRIVATE
from ..engine import DecidedCharge
from ..engine.decide import build_call
from ..engine.local import local_counts
from ..engine.run import Wait, Waiting, calling, waiting_for
from ..identity.address import client_address
from ..identity.keys import Key, registered_keys, user_missing_error
from ..identity.request_state import RequestState, request_state, waiting_time
from ..identity.session import aload_session, drop_impossible_key
from ..limits.call import MAX_HOLD_US, Operation, whole_cost
from ..limits.rate import Rate
from ..process.forks import chance
from ..rules.overrides import USER
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..rules.status import problems
from ..rules.template import LimitTemplate, RateFunction
from .overrides import REFUSED, RequestSubjects, find_overrides, override_fields
from .plan import Party, Place, Planner, merge_counters

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

logger = logging.getLogger("django_ratelimit_lua")
T = TypeVar("T")
RETRY_TIMES = (3.0, 9.0)
"""After how many times the option `waited` a refused client may try again: spread, so that clients
do not return together.
"""
Choose = Callable[[Ruleset], "Sequence[Place] | None"]
OnError = Callable[[str, Exception], None]


class RequestPlanner(Planner):
    """Plans the charges of a request.

    - `choose`: the call sites of one place, named `group`, which rules may extend; or a function
      that returns the places by the rules in force (None: the request is exempt);
    - `now`: microseconds since 1970, for a caller with its own clock;
    - `blocks_uncharged`: whether a blocked client is refused even if nothing is charged;
    - `on_error`: receives the names of rules that cannot be applied, which are otherwise raised;
    - `call_site`: see `Planner`. A rule that was counted anywhere else is not counted again;
    - `once`: whether a limit that is `running` is not counted again. The caller adds the charges to
      `RequestState.running` until the view that they guard has ended.
    """

    def __init__(
        self,
        request: HttpRequest,
        choose: Sequence[Rule] | Choose,
        group: str = "",
        operation: Operation = "hit",
        *,
        now: int | None = None,
        blocks_uncharged: bool = False,
        on_error: OnError | None = None,
        call_site: object = None,
        once: bool = False,
    ) -> None:
        # Without super(), which costs time in every request.
        self.operation: Operation = operation
        self.is_hit = operation == "hit"
        self.options = {"now": now, "longest_hold_us": MAX_HOLD_US}
        self.gathered: Sequence[DecidedCharge] = ()
        self.parties: Sequence[Party] = ()
        self.request: HttpRequest = request
        self._choose = choose
        self._group = group
        self._blocks_uncharged = blocks_uncharged
        self._on_error = on_error
        self._unchanged_places: Sequence[Place] | None = None
        self._gathered_places: Sequence[Place] | None = None
        self.state: RequestState = request_state(request)
        self.counted: dict[str, object] = self.state.counted
        self.call_site = call_site
        self._once = once
        if conf.REQUEST_START is not None:
            waiting_time(request)  # For statistics, also if no rule needs it.

    def gather(self, ruleset: Ruleset) -> Waiting[None]:
        """Gather the charges by these rules, and the overrides that may apply to them.

        A rule that raises is left out. Call sites that no rule changes have the same place, with
        the same charges, as in an earlier ruleset.
        """
        if conf.EXEMPT is not None and (yield from self._is_exempt(conf.EXEMPT)):
            self.gathered = self.parties = ()
            return
        self.ruleset = ruleset
        self.parties = ()  # Those of an earlier ruleset.
        places: Sequence[Place] | None
        if callable(self._choose):
            places = self._choose(ruleset)
        elif {site.group or self._group for site in self._choose} & ruleset.site_names:
            rules = ruleset.for_call_sites(self._choose, self._group, self.request)
            places = (Place(rules, self._group),)
            self._unchanged_places = None
        else:
            if self._unchanged_places is None:
                self._unchanged_places = (Place(self._choose, self._group),)
            places = self._unchanged_places
        if places is None or places is not self._gathered_places:
            charges: list[DecidedCharge] = []
            for place in places or ():
                while place.pending_rules:
                    rule = place.pending_rules.pop()
                    try:
                        yield from self._add_rule(rule, place)
                    except Exception as error:
                        self._handle_error(rule, place, error)
                charges += place.charges
            self.gathered = self._select_charges(charges)
            self._gathered_places = places
        if ruleset.overrides.fields:
            yield from self._find_overrides(ruleset, self._blocks_uncharged and places is not None)

    def _is_exempt(self, is_exempt: Callable[[HttpRequest], object]) -> Waiting[bool]:
        """Return whether `RATELIMIT_EXEMPT` exempts the request.

        If the function raises, it does not, and the error is shown to operators.
        """
        call = partial(is_exempt, self.request)
        try:
            return bool((yield Wait(call, lambda: sync_to_async(call)())))
        except Exception as error:
            problems.record_failure("RATELIMIT_EXEMPT", error)
            return False

    def _add_rule(self, rule: Rule, place: Place) -> Waiting[None]:
        """Add the charges of a rule to its place, if it applies to the request."""
        request = self.request
        name = rule.name or rule.group or place.group
        template = rule.template
        if rule.methods is not None and not rule.matches_method(request):
            return
        if template is None or (name in self.counted and self._was_counted_elsewhere(name)):
            return
        key = template.key
        given_cost = template.cost
        assert key is not None  # A rule without a key gets the key of its call site.
        if template.tiers or "everyone" not in rule.audience:
            template = yield from self._choose_tier(rule, template)
            if template is None:
                return
        rates: list[Rate] = []
        for given_rate in template.rates:
            if callable(given_rate):
                rate = yield from self._call_rate(given_rate, name)
            else:
                rate = given_rate
            if rate is not None:
                rates.append(rate)
        if not rates:
            return
        cost = 1
        if callable(given_cost):
            cost = whole_cost((yield from calling(given_cost, name, request)), f"{name}: cost is")
        elif given_cost is not None:
            cost = given_cost
        # Most keys wait for nothing.
        if key.needs_user or key.needs_session or key.blocks or key.functions:
            identity = yield from self._read_key(key, name)
        else:
            identity = key.read(name, request, None)
        place.add_charges(rule, name, template, rates, cost, identity)

    def _call_rate(self, function: RateFunction, name: str) -> Waiting[Rate | None]:
        """Return the rate that a function returns; None for no limit."""
        rate = yield from calling(function, name, self.request)
        if rate is None or isinstance(rate, Rate):
            return rate
        return Rate.parse(rate)

    def _was_counted_elsewhere(self, name: str) -> bool:
        """Return whether a rule that was counted for the request is not counted again here."""
        if self.call_site is None:
            return True
        return self.is_hit and self.counted[name] != self.call_site

    def _handle_error(self, rule: Rule, place: Place, error: Exception) -> None:
        """Log a rule that cannot be applied to this request. It is left out.

        The call sites that it replaces apply again. An error of a call site is raised, because its
        developer has to see it.
        """
        name = rule.name_at(place.group)
        if isinstance(error, REFUSED):
            raise error
        if self._on_error is not None:
            self._on_error(name, error)
        elif rule.name:
            problems.record_failure(name, error)
        else:
            raise error
        place.restore_rules(rule.replaces)

    def _read_key(self, key: Key, name: str) -> Waiting[Any]:
        """Return the identity of the request by a key."""
        user = None
        if key.needs_user:
            user = yield from self._load_user()
        else:
            drop_impossible_key(self.request)
        if key.needs_session:
            # Without an event loop, the session is loaded when the key reads it.
            yield Wait(_do_nothing, partial(aload_session, self.request))
        identity: Any
        if key.blocks:
            read = partial(key.read, name, self.request, user)
            identity = yield Wait(read, sync_to_async(read))
        else:
            identity = key.read(name, self.request, user)
        if key.functions and inspect.isawaitable(identity):
            identity = yield waiting_for(identity)
        if identity is None and key.functions:
            logger.debug(
                "Key %s returned None for %s, so the request is counted with those of all clients",
                key.name,
                name,
            )
        return identity

    def _load_user(self) -> Waiting[User | AnonymousUser]:
        """Return the request's user. Raises `ImproperlyConfigured` if no middleware sets one."""
        drop_impossible_key(self.request)
        user: User | AnonymousUser | None = yield Wait(
            partial(getattr, self.request, "user", None), partial(_aget_user, self.request)
        )
        if user is None:
            raise user_missing_error()
        return user

    def _choose_tier(self, rule: Rule, template: LimitTemplate) -> Waiting[LimitTemplate | None]:
        """Return the template of the first tier that the client is in, or the rule's own.

        None if the user is not in the rule's audience.
        """
        names: frozenset[str] = frozenset()
        if template.has_group_tiers or "everyone" not in rule.audience:
            user = yield from self._load_user()
            is_in_audience = _is_in_audience(rule, user)
            needs_groups = template.has_group_tiers
            if not is_in_audience:
                needs_groups = any(name.startswith("group:") for name in rule.audience)
            # The database is queried only if the user's groups matter.
            if user.is_authenticated and needs_groups:
                names = yield from self._load_group_names(user)
            if not is_in_audience and not any(f"group:{name}" in rule.audience for name in names):
                return None
        for key in template.tier_keys:
            identity = yield from self._read_key(key, rule.name)
            if identity[-1] is not None:
                names |= {f"{key.name}:{identity[-1]}"}
        return next((tier for name, tier in template.tiers if name in names), template)

    def _load_group_names(self, user: User | AnonymousUser) -> Waiting[frozenset[str]]:
        """Return the names of a user's groups, which are loaded once for each request."""
        if self.state.groups[0] is not user:
            names: Collection[str] = ()
            if hasattr(user, "groups"):
                query = user.groups.values_list("name", flat=True)
                names = yield Wait(partial(tuple, query), partial(_alist, query))
            self.state.groups = (user, frozenset(names))
        return self.state.groups[1]

    def _select_charges(self, charges: list[DecidedCharge]) -> Sequence[DecidedCharge]:
        """Return the charges that this decision makes, in a form that one call accepts."""
        banning = [planned for planned in charges if planned.charge.limit.ban is not None]
        if banning and is_never_banned(self.request):
            charges = [_without_ban(planned) for planned in charges]
        if len(charges) > 1:
            charges = merge_counters(charges)
        if self.is_hit and self.state.held:
            charges = self._without_held(charges)
        if self._once and self.state.running:
            charges = self._without_running(charges)
        if self.state.waited is not None:
            return self._decide_busy(charges)
        return charges

    def _without_held(self, charges: Sequence[DecidedCharge]) -> list[DecidedCharge]:
        """Return the charges without the slots that the request holds already.

        A request that is decided several times still holds one slot.
        """
        counters = {counter for held in self.state.held for counter in held.counters}
        return [
            planned
            for planned in charges
            if not planned.charge.limit.holds
            or (planned.charge.digest, planned.charge.limit.key_part) not in counters
        ]

    def _without_running(self, charges: Sequence[DecidedCharge]) -> list[DecidedCharge]:
        """Return the charges without the limits that an outer decorator has counted.

        A view and its base class may have the same limit. A limit that refuses has counted nothing,
        and an inner decorator may have to refuse.
        """
        running = {
            _limit_key(decided)
            for decided_charges in self.state.running
            for decided in decided_charges
            if decided.state.allowed
        }
        return [planned for planned in charges if _limit_key(planned) not in running]

    def _decide_busy(self, charges: list[DecidedCharge]) -> Sequence[DecidedCharge]:
        """Decide charges of rules with `waited` that this process can decide alone.

        These are limits of 0, and those in shadow mode, which count in this process only. The
        seconds after which to try again are added to `RequestState.busy`. Return the charges, or
        only the one that refuses.
        """
        for planned in charges:
            if planned.rule is None or not planned.rule.waited:
                continue
            self.options = {**self.options, "is_repeatable": False}
            limit = planned.charge.limit
            seconds = planned.rule.waited * chance.uniform(*RETRY_TIMES)
            self.state.busy[limit.name] = seconds
            if limit.rate.limit and limit.mode != "shadow":
                continue
            [state] = local_counts.decide(build_call([planned.charge], self.operation)).limits
            planned.state = state if state.allowed else state._replace(retry_after=seconds)
            planned.blocked_by = planned.charge.digest
            if state.refuses:
                return [planned]
        return charges

    def _find_overrides(self, ruleset: Ruleset, blocks_uncharged: bool) -> Waiting[None]:
        """Find the overrides of the client, and set the party if there are any."""
        fields = override_fields(ruleset.overrides, self.gathered, blocks_uncharged)
        if not fields:
            return
        user: Callable[[], User | AnonymousUser | None] = _do_nothing
        if USER in fields and hasattr(self.request, "user"):
            user = yield from _capture_result(self._load_user())
        site_keys = {}
        for name in registered_keys().keys() & fields:
            site_keys[name] = yield from _capture_result(
                self._read_key(registered_keys()[name], "")
            )
        subjects = RequestSubjects(self.request, user, site_keys)
        overrides = find_overrides(subjects, ruleset.overrides, fields, self.gathered)
        if overrides:
            self.parties = [Party(self.gathered, overrides, blocks_uncharged)]


def _limit_key(planned: DecidedCharge) -> tuple[object, ...]:
    """Return what two charges of one limit have in common: the counter, cost and outcomes."""
    charge = planned.charge
    rule = planned.rule
    outcomes: tuple[object, ...] = ()
    if rule is not None:
        outcomes = (rule.count_if, rule.reset_if, rule.cost_after)
    return (charge.digest, charge.limit.key_part, charge.cost, outcomes)


def _without_ban(planned: DecidedCharge) -> DecidedCharge:
    charge = planned.charge
    return replace(planned, charge=charge._replace(limit=charge.limit.without_bans()))


def is_never_banned(request: HttpRequest) -> bool:
    """Return whether a request comes from a network that is never banned.

    If the address is unknown, the result is True only if the setting has its default and the
    project has no proxy setting. All requests may then come from a proxy of the site.
    """
    networks = conf.NEVER_BAN
    if not networks:
        return False
    address = client_address(request).address
    if address is None:
        return networks is PRIVATE
    return any(address in network for network in networks)


def _is_in_audience(rule: Rule, user: User | AnonymousUser) -> bool:
    """Return whether a user is in a rule's audience, without regard to the user's groups."""
    if "everyone" in rule.audience:
        return True
    if not user.is_authenticated:
        return "anonymous" in rule.audience
    return "authenticated" in rule.audience or ("staff" in rule.audience and user.is_staff)


async def _aget_user(request: HttpRequest) -> object:
    if not hasattr(request, "auser"):
        return None
    return await request.auser()


def _capture_result(waiting: Waiting[T]) -> Waiting[Callable[[], T]]:
    """Return a function that returns the result, or raises the error."""
    try:
        result = yield from waiting
    except Exception as error:
        return partial(_raise_error, error)
    return lambda: result


def _raise_error(error: Exception) -> NoReturn:
    raise error


async def _alist(names: AsyncIterable[str]) -> list[str]:
    return [name async for name in names]


def _do_nothing() -> None:
    """Stand for a wait that is needed in an event loop only, and for a user that is not needed."""
