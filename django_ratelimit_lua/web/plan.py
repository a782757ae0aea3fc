"""What a request is charged: gathered from the request, then planned.

Gathering is the only part of a decision that is written twice, blocking and not: it asks for the user, the user's
groups and the session, and calls the functions that rates, costs and keys may be. Planning asks nobody.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.http import HttpRequest

from ..conf import PRIVATE, conf
from ..engine.decide import Outcome, Plan, PlannedCharge, build_call
from ..engine.run import Wait
from ..identity import Identity, digest
from ..identity.address import client_address
from ..identity.forwarded import Address
from ..identity.keys import Key, user_missing
from ..identity.request_state import request_state
from ..identity.session import aload
from ..limits.call import Charge, Operation, Subject, whole_cost
from ..limits.decision import Decision
from ..limits.rate import SECOND, Rate
from ..rules.overrides import USER, SubjectRef, override_cache
from ..rules.problems import problems
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..rules.template import LimitTemplate
from ..signals import limit_exceeded
from ..stats.names import own
from ..stats.recorder import recorder
from .overrides import REFUSED, Applied, Sender, apply_overrides, override_kinds, override_subjects

Choose = Callable[[Ruleset], "Sequence[Place] | None"]
OnError = Callable[[str, Exception], None]


class Place:
    """A place where rules stand, those of call sites among them, and what is charged there.

    - `rules`: these; `group`: the name of those that have none;
    - `charges`: what is charged there whatever the rules say; `owner`: whom the answer is for.
    """

    __slots__ = ("_is_mixed", "_taken", "charges", "group", "owner", "waiting")

    def __init__(
        self,
        rules: Sequence[Rule],
        group: str = "",
        charges: Sequence[PlannedCharge] = (),
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
        identity: Any,
        banned: Identity = None,
    ) -> None:
        """Charge what a rule says, by the numbers of a tier or its own: all of it, or nothing where any of it is wrong,
        which is raised."""
        subject = digest(identity)
        ban_subject = b"" if banned is None else digest(banned)
        if numbers.key is None or numbers.key.functions:
            identity = own(identity)
        charges: list[PlannedCharge] = []
        taken = self._taken.copy()
        for rate in rates:
            limit, ordinal = numbers.limit(name, rate), 1
            while (subject, limit.key_part) in taken:  # Each has a name of its own here.
                ordinal += 1
                limit = numbers.limit(name, rate, ordinal)
            taken.add((subject, limit.key_part))
            if identity is None:
                limit = limit.without_bans()
            if self._is_mixed and not rule.block:
                limit = limit.advising()
            charge = Charge(limit, subject, cost, ban_subject)
            charges.append(PlannedCharge(charge, name, rule, self.owner, identity=identity, banned=banned))
        self._taken = taken
        self.charges += charges


class RequestPlanner:
    """Plans what a request is charged.

    - `choose`: the call sites in one place, of the name `group`, to which rules may have more to say; or what says
      which places there are by the rules in force (None: the request is exempt);
    - `now`: microseconds since 1970, for a clock of the caller's own;
    - `has_blocks`: who is blocked whatever rule there is, is refused even where nothing is charged;
    - `on_error`: hears of the names of rules that cannot be applied, and nothing is raised.

    After `gather`: `ruleset`: the rules it went by; `charges`: before overrides; `subjects`: whom these may be about.
    """

    units = 0
    gathers = True

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
    ) -> None:
        self.request = request
        self.charges: list[PlannedCharge] = []
        self.subjects: Sequence[SubjectRef] = ()
        self.ruleset: Ruleset | None = None
        self._is_exempt = False
        self._gathered: Sequence[Rule] | None = None
        self._choose = choose
        self._group = group
        self._operation: Operation = operation
        self.is_hit = operation == "hit"
        self._now = now
        self._has_blocks = has_blocks
        self._on_error = on_error
        self._state = request_state(request)
        self.count = self._state.count

    @property
    def has_blocks(self) -> bool:
        """Whether a block that is for all rules refuses the request where nothing is charged."""
        return self._has_blocks and not self._is_exempt

    def gather(self, ruleset: Ruleset) -> None:
        """See `Planner`."""
        for place in self._places(ruleset):
            while place.waiting:
                rule = place.waiting.pop()
                try:
                    self._gather(rule, place)
                except Exception as error:
                    self._fail(rule, place, error)
            self.charges += place.charges
        if ruleset.kinds:
            self._find_subjects(ruleset, partial(getattr, self.request, "user", None))

    async def agather(self, ruleset: Ruleset) -> None:
        """See `Planner`."""
        for place in self._places(ruleset):
            while place.waiting:
                rule = place.waiting.pop()
                try:
                    await self._agather(rule, place)
                except Exception as error:
                    self._fail(rule, place, error)
            self.charges += place.charges
        if ruleset.kinds:
            needs_user = USER in self._kinds(ruleset) and hasattr(self.request, "user")
            self._find_subjects(ruleset, await _auser_or_error(self.request) if needs_user else _nobody)

    def _gather(self, rule: Rule, place: Place) -> None:
        request, name, numbers = self.request, rule.name or rule.group or place.group, rule.template
        if rule.methods is not None and not rule.matches_method(request):
            return
        if numbers is None or name in self._state.counted:
            return
        key, cost = numbers.key, numbers.cost
        assert key is not None  # Only call sites apply a rule without one, and put theirs in.
        if numbers.tiers or "everyone" not in rule.audience:
            user = _user(request)
            groups = self._groups(user) if _needs_groups(rule, user) else ()
            numbers = _numbers_for(rule, user, groups)
            if numbers is None:
                return
        rates: list[Rate] = []
        for rate in numbers.rates:
            value = _now(rate(name, request)) if callable(rate) else rate
            if value is not None:
                rates.append(value if isinstance(value, Rate) else Rate.parse(value))
        if rates:
            if callable(cost):
                cost = whole_cost(_now(cost(name, request)), f"{name}: cost is")
            user = _user(request) if key.needs_user else None
            identity = key.read(name, request, user)
            if type(identity) is not tuple:  # As those are that are not a function's.
                identity = _now(identity)
            banned = None if numbers.ban_key is None else _identity_of(request, numbers.ban_key, name)
            place.add(rule, name, numbers, rates, 1 if cost is None else cost, identity, banned)

    async def _agather(self, rule: Rule, place: Place) -> None:
        request, name, numbers = self.request, rule.name or rule.group or place.group, rule.template
        if rule.methods is not None and not rule.matches_method(request):
            return
        if numbers is None or name in self._state.counted:
            return
        key, cost = numbers.key, numbers.cost
        assert key is not None  # Only call sites apply a rule without one, and put theirs in.
        if numbers.tiers or "everyone" not in rule.audience:
            user = await _auser(request)
            groups = await self._agroups(user) if _needs_groups(rule, user) else ()
            numbers = _numbers_for(rule, user, groups)
            if numbers is None:
                return
        rates: list[Rate] = []
        for rate in numbers.rates:
            value = await _later(rate(name, request)) if callable(rate) else rate
            if value is not None:
                rates.append(value if isinstance(value, Rate) else Rate.parse(value))
        if rates:
            if callable(cost):
                cost = whole_cost(await _later(cost(name, request)), f"{name}: cost is")
            user = await _auser(request) if key.needs_user else None
            if key.needs_session:
                await aload(request)
            identity = key.read(name, request, user)
            if type(identity) is not tuple:  # As those are that are not a function's.
                identity = await _later(identity)
            banned = None if numbers.ban_key is None else await _aidentity_of(request, numbers.ban_key, name)
            place.add(rule, name, numbers, rates, 1 if cost is None else cost, identity, banned)

    def _groups(self, user: Any) -> Collection[str]:
        if self._state.groups[0] is not user:
            names = user.groups.values_list("name", flat=True) if hasattr(user, "groups") else ()
            self._state.groups = (user, frozenset(names))
        return self._state.groups[1]

    async def _agroups(self, user: Any) -> Collection[str]:
        if self._state.groups[0] is not user:
            names = user.groups.values_list("name", flat=True) if hasattr(user, "groups") else None
            self._state.groups = (user, frozenset([name async for name in names] if names is not None else ()))
        return self._state.groups[1]

    def _places(self, ruleset: Ruleset) -> Sequence[Place]:
        self.ruleset, self.subjects = ruleset, ()
        if not callable(self._choose):
            rules = ruleset.for_call_sites(self._choose, self._group, self.request)
            if rules is self._gathered:
                return ()  # By newer rules, too, the call sites stand as they are: so does what was gathered of them.
            self.charges, self._gathered = [], rules if rules is self._choose else None
            return (Place(rules, self._group),)
        self.charges = []
        places = self._choose(ruleset)
        self._is_exempt = places is None
        return places or ()

    def _fail(self, rule: Rule, place: Place, error: Exception) -> None:
        """A rule that cannot be applied to this request is left out, loudly: the call sites whose place it takes stand
        again. What is wrong with a call site raises, as its developer has to know."""
        name = rule.name_at(place.group)
        if isinstance(error, REFUSED):
            raise error
        if self._on_error is not None:
            self._on_error(name, error)
        elif rule.name:
            problems.failed(name, error)
            recorder.add_failed(name)
        else:
            raise error
        place.waiting += reversed(rule.replaces)

    def _kinds(self, ruleset: Ruleset) -> Collection[str]:
        return override_kinds(ruleset, self.charges, self.has_blocks)

    def _find_subjects(self, ruleset: Ruleset, user: Callable[[], Any]) -> None:
        self.subjects = override_subjects(Sender(self.request, user), ruleset, self._kinds(ruleset), self.charges)

    def plan(self, ruleset: Ruleset) -> Plan:
        """See `Planner`."""
        for planned in self.charges:
            if planned.charge.limit.ban is not None:
                self._plan_bans()
                break
        if len(self.charges) > 1:
            self.charges = _tell_apart(self.charges)
        if self.is_hit and self._state.held:
            self.charges = self._without_held()
        applied = Applied(self.charges)
        subjects: Sequence[Subject] = ()
        if self.subjects:
            overrides = override_cache.get_many(self.subjects)
            subjects = overrides.call_subjects()
            if overrides:
                applied = apply_overrides(self.charges, overrides, ruleset, self.has_blocks)
        is_refused = applied.block is not None
        counted: list[Charge] = []
        for planned in applied.charges:
            if planned.blocked is None:
                counted.append(planned.charge)
            elif planned.blocked.enforced:
                is_refused = True
        call = build_call(
            counted, "peek" if is_refused and self._operation == "hit" else self._operation,
            longest_hold_us=round(conf.MAX_WAIT * SECOND), now=self._now, ruleset=ruleset, subjects=subjects,
        )  # fmt: skip
        return Plan(call, applied.charges, applied.block, applied.subject, applied.exempt)

    def _plan_bans(self) -> None:
        """What the charges say of bans: who is never banned, and what is an offence only when the view has answered."""
        is_free = is_never_banned(self.request)
        for place, planned in enumerate(self.charges):
            charge, rule, ban = planned.charge, planned.rule, planned.charge.limit.ban
            if ban is None:
                continue
            if is_free:
                charge = charge._replace(limit=charge.limit.without_bans())
            elif rule is not None and rule.count_if is not None and ban.on == "counted":
                charge = charge._replace(reports=True)
            self.charges[place] = planned._replace(charge=charge)

    def _without_held(self) -> list[PlannedCharge]:
        """The same, without the slots that the request holds already: it is one request, however often it is asked
        about."""
        counters = {counter for held in self._state.held for counter in held.counters}
        return [
            planned for planned in self.charges
            if not planned.charge.limit.holds or (planned.charge.digest, planned.charge.limit.key_part) not in counters
        ]  # fmt: skip

    def finish(self, outcome: Outcome) -> Sequence[Wait]:
        """Note which rules were counted; tell the receivers of `limit_exceeded` who was refused."""
        waits: list[Wait] = []
        if not self.is_hit:
            return waits
        for planned, state in zip(outcome.planned, outcome.decision.limits, strict=False):
            rule_name = planned.rule.name if planned.rule is not None else ""
            if rule_name:
                self._state.counted.add(rule_name)
            if state.allowed or outcome.decision.source == "fallback" or not limit_exceeded.receivers:
                continue
            arguments = {
                "limit": state.name,
                "rule": rule_name or None,
                "identity": planned.charge.digest.decode(),
                "mode": state.mode,
                "decision": outcome.decision,
                "request": self.request,
            }
            waits.append(
                Wait(
                    partial(limit_exceeded.send_robust, Decision, **arguments),
                    partial(limit_exceeded.asend_robust, Decision, **arguments),
                )
            )
        return waits


def is_never_banned(request: HttpRequest) -> bool:
    """Whether a request comes from a network that is never banned. Who has no address is in none, but where nothing
    says where addresses come from."""
    networks = conf.NEVER_BAN
    if not networks:
        return False
    address = client_address(request).address
    return networks is PRIVATE if address is None else is_spared(address)


def is_spared(address: Address) -> bool:
    """Whether an address is of a network that is never banned."""
    return any(address.version == network.version and address in network for network in conf.NEVER_BAN)


def _needs_groups(rule: Rule, user: Any) -> bool:
    """Whether the user's groups say if a rule is about the user, or by which numbers."""
    if not user.is_authenticated:
        return False
    if _is_about(rule, user):
        return rule.template is not None and bool(rule.template.tiers)
    return any(audience.startswith("group:") for audience in rule.audience)


def _numbers_for(rule: Rule, user: Any, groups: Collection[str]) -> LimitTemplate | None:
    """The numbers for a user: of the most favourable tier, or the rule's own; None if it is not about the user."""
    if rule.template is None:
        return None
    if not _is_about(rule, user) and not any(f"group:{name}" in rule.audience for name in groups):
        return None
    return next((tier for name, tier in rule.template.tiers if name in groups), rule.template)


def _is_about(rule: Rule, user: Any) -> bool:
    """Whether a user is of a rule's audience, whatever the user's groups are."""
    if "everyone" in rule.audience:
        return True
    if not user.is_authenticated:
        return "anonymous" in rule.audience
    return "authenticated" in rule.audience or ("staff" in rule.audience and user.is_staff)


def _user(request: HttpRequest) -> Any:
    """The request's user. Raises `ImproperlyConfigured` where no middleware sets one."""
    user = getattr(request, "user", None)
    if user is None:
        raise user_missing()
    return user


async def _auser(request: HttpRequest) -> Any:
    user = await request.auser() if hasattr(request, "auser") else None
    if user is None:
        raise user_missing()
    return user


async def _auser_or_error(request: HttpRequest) -> Callable[[], Any]:
    """What returns the request's user, or raises why it is not known."""
    try:
        user = await request.auser() if hasattr(request, "auser") else None
    except Exception as error:
        reason = error

        def fail() -> Any:
            raise reason

        return fail
    return lambda: user


def _nobody() -> None:
    return None


def _identity_of(request: HttpRequest, key: Key, group: str) -> Identity:
    identity: Identity = _now(key.read(group, request, _user(request) if key.needs_user else None))
    return identity


async def _aidentity_of(request: HttpRequest, key: Key, group: str) -> Identity:
    user = await _auser(request) if key.needs_user else None
    if key.needs_session:
        await aload(request)
    identity: Identity = await _later(key.read(group, request, user))
    return identity


def awaited(value: Any) -> Wait:
    """What a function of the user's returned that has to be awaited."""
    return Wait(partial(_now, value), lambda: value)


def _now(value: Any) -> Any:
    """What a function of the user's returned, or what it comes to if that is a coroutine."""
    return async_to_sync(_later)(value) if inspect.isawaitable(value) else value


async def _later(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _tell_apart(charges: Sequence[PlannedCharge]) -> list[PlannedCharge]:
    """The same, with no counter twice: two throttles of one scope are told apart by their rates."""
    seen: set[tuple[bytes, bytes]] = set()
    apart = []
    for planned in charges:
        charge = planned.charge
        limit, number = charge.limit, 1
        while (charge.digest, limit.key_part) in seen:
            limit = charge.limit.renamed(f"{charge.limit.name}:{charge.limit.rate}" + f"*{number}" * (number > 1))
            number += 1
        seen.add((charge.digest, limit.key_part))
        apart.append(planned if limit is charge.limit else planned._replace(charge=charge._replace(limit=limit)))
    return apart
