"""The charges of a call: gathered from a request, or from identities and limits, then planned.

Gathering may wait: for the user, the user's groups and the session, and for rates, costs and keys
that are functions. Planning never waits.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from ..conf import conf
from ..conf.values import PRIVATE
from ..engine import DecidedCharge
from ..engine.decide import build_call
from ..engine.local import local_counts
from ..engine.run import Wait, Waiting, calling, waiting_for
from ..identity import Identity, digest
from ..identity.address import Address, client_address
from ..identity.keys import Key, registered_keys, user_missing_error
from ..identity.names import supplied_identity
from ..identity.request_state import RequestState, request_state, waiting_time
from ..identity.session import aload_session, drop_impossible_key
from ..limits.call import MAX_COST, MAX_HOLD_US, Call, Charge, Operation, whole_cost
from ..limits.decision import Decision
from ..limits.rate import Rate
from ..process.forks import chance
from ..rules.overrides import USER, Override
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..rules.status import problems
from ..rules.template import LimitTemplate
from ..signals import limit_exceeded
from .overrides import (
    NOTHING,
    REFUSED,
    RequestSubjects,
    apply_overrides,
    find_overrides,
    override_fields,
)

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

T = TypeVar("T")
RETRY_TIMES = (3.0, 9.0)
"""After how many times the option `waited` a refused client may try again: spread, so that clients
do not return together.
"""
Choose = Callable[[Ruleset], "Sequence[Place] | None"]
OnError = Callable[[str, Exception], None]


class Place:
    """A place with rules, including those of call sites, and its charges.

    - `rules`: the rules;
    - `group`: the name of counts without a rule;
    - `charges`: the charges that do not depend on rules;
    - `owner`: the decorator, middleware or throttle that receives the decision.
    """

    __slots__ = ("_is_mixed", "_taken", "charges", "group", "owner", "waiting")

    def __init__(
        self,
        rules: Sequence[Rule],
        group: str = "",
        charges: Sequence[DecidedCharge] = (),
        owner: object = None,
    ) -> None:
        self.waiting = list(reversed(rules))
        self.group = group
        self.charges = list(charges)
        self.owner = owner
        self._is_mixed = len(rules) > 1 and len({rule.block for rule in rules}) > 1
        self._taken: set[tuple[bytes, bytes]] = set()

    def add(
        self,
        rule: Rule,
        name: str,
        numbers: LimitTemplate,
        rates: Sequence[Rate],
        cost: int,
        identity: Identity,
    ) -> None:
        """Add all charges of a rule, or none if one of them raises.

        `numbers` is the template of a tier, or the rule's own.
        """
        subject = digest(identity)
        if numbers.key is None or numbers.key.functions:
            identity = supplied_identity(identity)
        charges: list[DecidedCharge] = []
        taken = self._taken.copy()
        for rate in rates:
            ordinal = 0
            while True:
                ordinal += 1  # Each has a name of its own here.
                limit = numbers.limit(name, rate, ordinal)
                keys = {(subject, limit.key_part)}
                if limit.ban is not None:
                    keys.add((subject, limit.ban.key_part))
                if keys.isdisjoint(taken):
                    break
            taken |= keys
            if identity is None:
                limit = limit.without_bans()
            if self._is_mixed and not rule.block:
                limit = limit.advising()
            charge = Charge(limit, subject, cost)
            charges.append(DecidedCharge(charge, name, rule, self.owner, identity))
        self._taken = taken
        self.charges += charges


class Party(NamedTuple):
    """The charges of one client, and its overrides, in force or not.

    - `has_blocks`: whether a block for all rules refuses the client even if nothing is charged;
    - `owner`: the decorator, middleware or throttle that receives the decision in that case.
    """

    charges: Sequence[DecidedCharge]
    overrides: Sequence[Override]
    has_blocks: bool
    owner: object = None


class Planner:
    """Plans one decision: the base class of all planners.

    A subclass adds a request, or identities and limits. Its `gather` sets `gathered`, the charges
    by the rules in force. If overrides may apply to them, it also sets `parties`, which contain
    them.

    - `options`: those of `build_call`; `adds_up`: whether the costs of two charges to one counter
      are added up; `ignores_blocks`: whether overrides that block are ignored;
    - `counted`: the names of the rules that were counted for the request, each with its call site;
    - `call_site`: what is compared with these. A call site counts each time that it is called.

    The other members are those of `engine.decide.Planner`.
    """

    units = 0
    state: RequestState | None = None
    counted: dict[str, object] | None = None
    call_site: object = None
    request: HttpRequest | None = None
    ruleset: Ruleset | None = None
    adds_up = False
    ignores_blocks = False
    charges: Sequence[DecidedCharge] = ()
    exempt: Sequence[DecidedCharge] = ()

    def __init__(self, operation: Operation = "hit", **options: Any) -> None:
        self.operation: Operation = operation
        self.is_hit = operation == "hit"
        self.options = options
        self.gathered: Sequence[DecidedCharge] = ()
        self.parties: Sequence[Party] = ()

    def gather(self, ruleset: Ruleset) -> Iterable[Call | Wait]:
        """Find the charges under these rules, and store them for `plan`.

        Yields the waits that this needs. May raise the exceptions of users' functions.
        """
        raise NotImplementedError

    def take(self, parties: Sequence[Party]) -> None:
        """Store the parties, and all of their charges."""
        self.parties = parties
        self.gathered = [planned for party in parties for planned in party.charges]

    def plan(self, ruleset: Ruleset) -> Call:
        """Set the charges, by the gathered charges and overrides.

        Return the call that decides them.
        """
        charges = self.gathered
        exempt: list[DecidedCharge] = []
        has_overrides = False
        if self.parties:
            charges = []
            for party in self.parties:
                remaining, exempted = apply_overrides(
                    party.charges, party.overrides, party.has_blocks, party.owner
                )
                has_overrides = has_overrides or bool(party.overrides)
                charges += remaining
                exempt += exempted
            # What was taken before a block can be given back.
            if self.operation == "refund" or self.ignores_blocks:
                charges = [replace(planned, blocked_by=b"") for planned in charges]
        if self.adds_up:
            charges = one_of_each(charges, adds_up=True)
        counted: list[Charge] = []
        operation = self.operation
        for planned in charges:
            if not planned.blocked_by:
                counted.append(planned.charge)
            elif planned.state.enforced and operation == "hit":
                operation = "peek"
        self.charges = charges
        self.exempt = exempt
        return build_call(
            counted, operation, ruleset=ruleset, has_overrides=has_overrides, **self.options
        )

    def request_of(self, decided: DecidedCharge) -> HttpRequest | None:
        """Return the request of a charge. Without one, `limit_exceeded` is not sent."""
        return self.request

    def finish(self, decision: Decision) -> Sequence[Wait]:
        """Record which rules were counted, and send `limit_exceeded` for refusals."""
        waits: list[Wait] = []
        if not self.is_hit:
            return waits
        for decided in self.charges:
            state = decided.state
            rule_name = getattr(decided.rule, "name", "")
            # A call site of that name keeps its own limit beside a rule with `waited`.
            is_recorded = rule_name and not getattr(decided.rule, "waited", 0.0)
            if is_recorded and self.counted is not None:
                self.counted[rule_name] = self.call_site
            if state.allowed or decision.source == "fallback" or not limit_exceeded.receivers:
                continue
            request = self.request_of(decided)
            if request is None or decided.charge.limit is NOTHING:
                continue
            arguments = {
                "limit": state.name,
                "rule": rule_name or None,
                "identity": decided.charge.digest.decode(),
                "mode": state.mode,
                "decision": decision,
                "request": request,
            }
            send = partial(limit_exceeded.send_robust, Decision, **arguments)
            waits.append(Wait(send, partial(limit_exceeded.asend_robust, Decision, **arguments)))
        return waits


class RequestPlanner(Planner):
    """Plans the charges of a request.

    - `choose`: the call sites of one place, named `group`, which rules may extend; or a function
      that returns the places by the rules in force (None: the request is exempt);
    - `now`: microseconds since 1970, for a caller with its own clock;
    - `has_blocks`: whether a blocked client is refused even if nothing is charged;
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
        has_blocks: bool = False,
        on_error: OnError | None = None,
        call_site: object = None,
        once: bool = False,
    ) -> None:
        # Not by super(): every decorated request comes through here.
        self.operation: Operation = operation
        self.is_hit = operation == "hit"
        self.options = {"now": now, "longest_hold_us": MAX_HOLD_US}
        self.gathered: Sequence[DecidedCharge] = ()
        self.parties: Sequence[Party] = ()
        self.request: HttpRequest = request
        self._choose = choose
        self._group = group
        self._has_blocks = has_blocks
        self._on_error = on_error
        self._gathered_rules: Sequence[Rule] | None = None
        self.state: RequestState = request_state(request)
        self.counted: dict[str, object] = self.state.counted
        self.call_site = call_site
        self._once = once
        if conf.REQUEST_START is not None:
            waiting_time(request)  # For statistics, also if no rule needs it.

    def gather(self, ruleset: Ruleset) -> Waiting[None]:
        if conf.EXEMPT is not None and (yield from self._is_exempt(conf.EXEMPT)):
            self.gathered = self.parties = ()
            return
        self.ruleset = ruleset
        is_gathered = False
        places: Sequence[Place] | None
        if callable(self._choose):
            places = self._choose(ruleset)
        else:
            rules = self._choose
            for call_site in self._choose:
                if (call_site.group or self._group) in ruleset.site_names:
                    rules = ruleset.for_call_sites(self._choose, self._group, self.request)
                    break
            places = (Place(rules, self._group),)
            # By newer rules, too, the call sites may stand as they are: then so does what was
            # gathered of them.
            is_gathered = rules is self._gathered_rules
            self._gathered_rules = None
            if rules is self._choose:
                self._gathered_rules = rules
        if not is_gathered:
            charges: list[DecidedCharge] = []
            for place in places or ():
                while place.waiting:
                    rule = place.waiting.pop()
                    try:
                        yield from self._add(rule, place)
                    except Exception as error:
                        self._fail(rule, place, error)
                charges += place.charges
            for planned in charges:
                if planned.charge.limit.ban is not None:
                    if is_never_banned(self.request):
                        charges = [_without_ban(planned) for planned in charges]
                    break
            if len(charges) > 1:
                charges = self.distinct(charges)
            if self.is_hit and self.state.held:
                charges = self._without_held(charges)
            if self._once and self.state.running:
                # A view and its base class may have the same limit.
                running = {
                    _limit_key(decided)
                    for each in self.state.running
                    for decided in each
                    # A limit that refuses has counted nothing, and an inner decorator may have to
                    # refuse.
                    if decided.state.allowed
                }
                charges = [planned for planned in charges if _limit_key(planned) not in running]
            self.gathered = charges
            if self.state.waited is not None:
                self.gathered = self._decide_busy(charges)
        self.parties = ()  # Older rules may have had overrides.
        if ruleset.overrides.fields:
            yield from self._find_overrides(ruleset, self._has_blocks and places is not None)

    def _is_exempt(self, is_exempt: Callable[[HttpRequest], object]) -> Waiting[bool]:
        """Return whether `RATELIMIT_EXEMPT` exempts the request; not if the function raises."""
        call = partial(is_exempt, self.request)
        try:
            return bool((yield Wait(call, lambda: sync_to_async(call)())))
        except Exception as error:
            problems.record_failure("RATELIMIT_EXEMPT", error)
            return False

    def _decide_busy(self, charges: list[DecidedCharge]) -> Sequence[DecidedCharge]:
        """Decide charges of rules with `waited` that this process can decide alone.

        These are limits of 0, and those in shadow mode, which count in this process only. Return
        the charges, or only the one that refuses.
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

    def _add(self, rule: Rule, place: Place) -> Waiting[None]:
        request = self.request
        name = rule.name or rule.group or place.group
        numbers = rule.template
        if rule.methods is not None and not rule.matches_method(request):
            return
        if numbers is None or (name in self.counted and self._is_done(name)):
            return
        key = numbers.key
        cost = numbers.cost
        assert key is not None  # Only call sites apply a rule without one, and put theirs in.
        if numbers.tiers or "everyone" not in rule.audience:
            numbers = yield from self._numbers_for(rule, numbers)
            if numbers is None:
                return
        rates: list[Rate] = []
        for rate in numbers.rates:
            value: Any = rate
            if callable(rate):
                value = yield from calling(rate, name, request)
            if value is not None and not isinstance(value, Rate):
                value = Rate.parse(value)
            if value is not None:
                rates.append(value)
        if not rates:
            return
        if callable(cost):
            cost = whole_cost((yield from calling(cost, name, request)), f"{name}: cost is")
        if cost is None:
            cost = 1
        # Most keys wait for nothing.
        if key.needs_user or key.needs_session or key.blocks or key.functions:
            identity = yield from self._read(key, name)
        else:
            identity = key.read(name, request, None)
        place.add(rule, name, numbers, rates, cost, identity)

    def _is_done(self, name: str) -> bool:
        """Return whether a rule that was counted for the request is left out here."""
        if self.call_site is None:
            return True
        return self.is_hit and self.counted[name] != self.call_site

    def _read(self, key: Key, name: str) -> Waiting[Any]:
        user = None
        if key.needs_user:
            user = yield from self._user()
        else:
            drop_impossible_key(self.request)
        if key.needs_session:
            yield Wait(_nothing, partial(aload_session, self.request))
        identity: Any
        if key.blocks:
            read = partial(key.read, name, self.request, user)
            identity = yield Wait(read, sync_to_async(read))
        else:
            identity = key.read(name, self.request, user)
        if type(identity) is not tuple and inspect.isawaitable(
            identity
        ):  # Only a function returns it.
            identity = yield waiting_for(identity)
        return identity

    def _user(self) -> Waiting[User | AnonymousUser]:
        """Return the request's user. Raises `ImproperlyConfigured` if no middleware sets one."""
        drop_impossible_key(self.request)
        user: User | AnonymousUser | None = yield Wait(
            partial(getattr, self.request, "user", None), partial(_auser, self.request)
        )
        if user is None:
            raise user_missing_error()
        return user

    def _numbers_for(self, rule: Rule, numbers: LimitTemplate) -> Waiting[LimitTemplate | None]:
        """Return the numbers of the most favourable tier, or the rule's own.

        None if the user is not in the rule's audience.
        """
        names: frozenset[str] = frozenset()
        if numbers.has_group_tiers or "everyone" not in rule.audience:
            user = yield from self._user()
            is_about = _is_about(rule, user)
            needs_groups = numbers.has_group_tiers
            if not is_about:
                needs_groups = _names_groups(rule)
            # The database is asked only if the user's groups matter.
            if user.is_authenticated and needs_groups:
                names = yield from self._group_names(user)
            if not is_about and not any(f"group:{name}" in rule.audience for name in names):
                return None
        for key in numbers.tier_keys:
            identity = yield from self._read(key, rule.name)
            if identity[-1] is not None:
                names |= {f"{key.name}:{identity[-1]}"}
        return next((tier for name, tier in numbers.tiers if name in names), numbers)

    def _group_names(self, user: User | AnonymousUser) -> Waiting[frozenset[str]]:
        if self.state.groups[0] is not user:
            found: Collection[str] = ()
            if hasattr(user, "groups"):
                groups = user.groups.values_list("name", flat=True)
                found = yield Wait(partial(tuple, groups), partial(_alist, groups))
            self.state.groups = (user, frozenset(found))
        return self.state.groups[1]

    def _fail(self, rule: Rule, place: Place, error: Exception) -> None:
        """Leave out a rule that cannot be applied to this request, and log it.

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
        place.waiting += reversed(rule.replaces)

    def _find_overrides(self, ruleset: Ruleset, has_blocks: bool) -> Waiting[None]:
        fields = override_fields(ruleset.overrides, self.gathered, has_blocks)
        if not fields:
            return
        user: Callable[[], User | AnonymousUser | None] = _nothing
        if USER in fields and hasattr(self.request, "user"):
            user = yield from _attempted(self._user())
        site_keys = {}
        for name in registered_keys().keys() & fields:
            site_keys[name] = yield from _attempted(self._read(registered_keys()[name], ""))
        who = RequestSubjects(self.request, user, site_keys)
        overrides = find_overrides(who, ruleset.overrides, fields, self.gathered)
        if overrides:
            self.parties = [Party(self.gathered, overrides, has_blocks)]

    def distinct(self, charges: Sequence[DecidedCharge]) -> list[DecidedCharge]:
        """Return the charges in a form that one call accepts: each counter once."""
        return one_of_each(charges)

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
    return is_spared(address)


def is_spared(address: Address) -> bool:
    """Return whether an address is in a network that is never banned."""
    return any(
        address.version == network.version and address in network for network in conf.NEVER_BAN
    )


def _is_about(rule: Rule, user: User | AnonymousUser) -> bool:
    """Return whether a user is in a rule's audience, without regard to the user's groups."""
    if "everyone" in rule.audience:
        return True
    if not user.is_authenticated:
        return "anonymous" in rule.audience
    return "authenticated" in rule.audience or ("staff" in rule.audience and user.is_staff)


def _names_groups(rule: Rule) -> bool:
    return any(audience.startswith("group:") for audience in rule.audience)


async def _auser(request: HttpRequest) -> object:
    if not hasattr(request, "auser"):
        return None
    return await request.auser()


def _attempted(waiting: Waiting[T]) -> Waiting[Callable[[], T]]:
    """Return a function that returns the result, or raises the error."""
    try:
        result = yield from waiting
    except Exception as error:
        return partial(_raise, error)
    return lambda: result


def _raise(error: Exception) -> NoReturn:
    raise error


async def _alist(names: AsyncIterable[str]) -> list[str]:
    return [name async for name in names]


def _nothing() -> None:
    """Do nothing: without an event loop, a session is loaded when it is read."""


def one_of_each(charges: Sequence[DecidedCharge], *, adds_up: bool = False) -> list[DecidedCharge]:
    """Return the charges without duplicate counters.

    Two throttles of one scope are distinguished by their rates. With `adds_up`, charges of the same
    limit are added up.
    """
    by_counter: dict[tuple[bytes, bytes], DecidedCharge] = {}
    names: set[tuple[bytes, str]] = set()
    for planned in charges:
        charge = planned.charge
        limit = charge.limit
        number = 1
        other = by_counter.get((charge.digest, limit.key_part))
        while other is not None or (charge.digest, limit.name) in names:
            if other is not None and adds_up and other.charge.limit == limit:
                planned = replace(planned, owner=(*other.owner, *planned.owner))  # type: ignore[misc]
                charge = charge._replace(cost=min(charge.cost + other.charge.cost, MAX_COST))
                break
            limit = charge.limit.renamed(
                f"{charge.limit.name}:{charge.limit.rate}" + f"*{number}" * (number > 1)
            )
            number += 1
            other = by_counter.get((charge.digest, limit.key_part))
        if charge.limit is not limit or other is not None:
            planned = replace(planned, charge=charge._replace(limit=limit))
        by_counter[charge.digest, limit.key_part] = planned
        if not limit.variant:
            names.add((charge.digest, limit.name))
    return list(by_counter.values())
