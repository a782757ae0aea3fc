"""What call sites and rules want counted for a request.

Written as generators that yield whatever has to be waited for; `web.drivers` waits for it, blocking or not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError

from ..exceptions import Ratelimited
from ..identity import digest
from ..identity.keys import user_missing
from ..identity.wrapped import kept_on
from ..limits.call import Charge, whole_cost
from ..limits.limit import Limit
from ..limits.rate import Rate
from ..rules.problems import problems
from ..rules.rule import Rule
from ..rules.template import LimitTemplate
from ..stats.refusals import FAILED, refusal_counter


@dataclass(frozen=True, slots=True)
class PlannedCharge:
    """What a rule wants counted (a call site's has no name; None: a throttle's own), under which name, and for whom the
    answer is."""

    charge: Charge
    name: str
    rule: Rule | None = None
    owner: object = None

    @property
    def rule_name(self) -> str | None:
        """The rule's name; None where the code says it all."""
        return self.rule.name or None if self.rule is not None else None


class WantsUser:
    """A step that asks for the request's user; None where no middleware sets one."""


@dataclass(frozen=True, slots=True)
class WantsGroups:
    """A step that asks for the names of the Django groups a user is in."""

    user: Any


class WantsSession:
    """A step that asks for the request's session to be loaded."""


WANTS_USER = WantsUser()
WANTS_SESSION = WantsSession()


Taken = set[tuple[bytes, bytes]]
OnError = Callable[[str, Exception], None]


def plan_charges(
    request: HttpRequest,
    rules: Sequence[Rule],
    group: str,
    taken: Taken | None = None,
    on_error: OnError | None = None,
) -> Generator[Any, Any, list[PlannedCharge]]:
    """What rules want counted for a request, those of call sites among them.

    A rule that cannot be applied to this request is left out, loudly: the call sites whose place it takes stand again.
    What is wrong with a call site raises, as its developer has to know. `taken`: the counters that others of the same
    call have; `on_error`: hears of both kinds of failure instead, and nothing is raised.
    """
    wanted: list[PlannedCharge] = []
    taken = set() if taken is None else taken
    mixed = len({rule.block for rule in rules}) > 1
    waiting = list(reversed(rules))
    while waiting:
        rule = waiting.pop()
        name = rule.name_at(group)
        try:
            wanted += yield from _wanted_by_one(request, rule, name, mixed, taken)
        except REFUSED:
            raise
        except Exception as error:
            if on_error is not None:
                on_error(name, error)
            elif rule.name:
                _left_out(name, error)
            else:
                raise
            waiting += reversed(rule.replaces)
    return wanted


REFUSED = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError, Ratelimited)
"""What Django makes an answer of: the request is refused, and no rule is to blame."""


def _left_out(name: str, error: Exception) -> None:
    problems.failed(name, error)
    refusal_counter.add(name, FAILED)


def _wanted_by_one(
    request: HttpRequest, rule: Rule, name: str, mixed: bool, taken: Taken
) -> Generator[Any, Any, list[PlannedCharge]]:
    template = rule.template
    if template is None or not rule.matches_method(request) or name in counted(request):
        return []
    if not (yield from _is_about(rule, request)):
        return []
    numbers = yield from _tier(template, request)
    rates = [rate for rate in (yield from _rates(numbers, name, request)) if rate is not None]
    if not rates:
        return []
    cost = 1 if template.cost is None else template.cost
    if callable(cost):
        cost = whole_cost((yield from called(cost, name, request)), f"{name}: cost is")
    key = template.key
    assert key is not None  # Only call sites apply a rule without one, and put theirs in.
    user = (yield from _user()) if key.needs_user else None
    if key.needs_session:
        yield WANTS_SESSION
    who = digest((yield from called(key.read, name, request, user)))
    wanted: list[PlannedCharge] = []
    for rate in rates:
        charge = Charge(_limit(numbers, name, rate, who, taken), who, cost)
        if mixed and not rule.block:
            charge = replace(charge, limit=charge.limit.advising())
        wanted.append(PlannedCharge(charge, name, rule))
    return wanted


def _user() -> Generator[Any, Any, Any]:
    """The request's user. Raises `ImproperlyConfigured` where no middleware sets one."""
    user = yield WANTS_USER
    if user is None:
        raise user_missing()
    return user


def called(function: Callable[..., Any], *arguments: Any) -> Generator[Any, Any, Any]:
    """Call a function of the user's, and have it waited for if it is a coroutine's."""
    value = function(*arguments)
    if inspect.isawaitable(value):
        value = yield value
    return value


def _rates(template: LimitTemplate, group: str, request: HttpRequest) -> Generator[Any, Any, list[Rate | None]]:
    rates: list[Rate | None] = []
    for rate in template.rates:
        if callable(rate):
            rate = yield from called(rate, group, request)
            rate = None if rate is None else Rate.parse(rate)
        rates.append(rate)
    return rates


def _is_about(rule: Rule, request: HttpRequest) -> Generator[Any, Any, bool]:
    """Whether the request's user is of the rule's audience."""
    if "everyone" in rule.audience:
        return True
    user = yield from _user()
    if not user.is_authenticated:
        return "anonymous" in rule.audience
    if "authenticated" in rule.audience or ("staff" in rule.audience and user.is_staff):
        return True
    wanted = {one.removeprefix("group:") for one in rule.audience if one.startswith("group:")}
    return bool(wanted) and not wanted.isdisjoint((yield WantsGroups(user)))


def _tier(template: LimitTemplate, request: HttpRequest) -> Generator[Any, Any, LimitTemplate]:
    """The numbers for the user's most favourable tier, or the template's own."""
    if template.tiers:
        user = yield from _user()
        if user.is_authenticated:
            groups = yield WantsGroups(user)
            return next((tier for name, tier in template.tiers if name in groups), template)
    return template


def _limit(template: LimitTemplate, name: str, rate: Rate, who: bytes, taken: Taken) -> Limit:
    """The template's limit for a rate, under a name that no other of this call has for the same identity."""
    ordinal = 1
    limit = template.limit(name, rate)
    while (who, limit.key_part) in taken:
        ordinal += 1
        limit = template.limit(name, rate, ordinal)
    taken.add((who, limit.key_part))
    return limit


def counted(request: HttpRequest) -> set[str]:
    """The names of the rules that were counted for a request."""
    names: set[str] = kept_on(request).setdefault("_ratelimit_counted", set())
    return names
