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
from ..rules.callsite import LimitTemplate
from ..rules.problems import problems
from ..stats.refusals import FAILED, refusal_counter


@dataclass(frozen=True, slots=True)
class PlannedCharge:
    """What a call site or a rule wants counted: under which name, for which site, by which rule if any, and for whom
    the answer is."""

    charge: Charge
    name: str
    site: LimitTemplate | None = None
    rule: str | None = None
    owner: object = None


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
OnError = Callable[[LimitTemplate, str, Exception], None]


def plan_charges(
    request: HttpRequest,
    sites: Sequence[LimitTemplate],
    group: str,
    taken: Taken | None = None,
    on_error: OnError | None = None,
) -> Generator[Any, Any, list[PlannedCharge]]:
    """What sites want counted for a request.

    A rule that cannot be applied to this request is left out, loudly: the call sites whose place it takes stand again.
    What is wrong with a call site raises, as its developer has to know. `taken`: the counters that others of the same
    call have; `on_error`: hears of both kinds of failure instead, and nothing is raised.
    """
    wanted: list[PlannedCharge] = []
    taken = set() if taken is None else taken
    mixed = len({site.block for site in sites}) > 1
    waiting = list(reversed(sites))
    while waiting:
        site = waiting.pop()
        name = site.group or group
        try:
            wanted += yield from _wanted_by_one(request, site, name, mixed, taken)
        except REFUSED:
            raise
        except Exception as error:
            if on_error is not None:
                on_error(site, name, error)
            elif site.rule:
                _left_out(name, error)
            else:
                raise
            waiting += reversed(site.instead_of)
    return wanted


REFUSED = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError, Ratelimited)
"""What Django makes an answer of: the request is refused, and no rule is to blame."""


def _left_out(name: str, error: Exception) -> None:
    problems.failed(name, error)
    refusal_counter.add(name, FAILED)


def _wanted_by_one(
    request: HttpRequest, site: LimitTemplate, name: str, mixed: bool, taken: Taken
) -> Generator[Any, Any, list[PlannedCharge]]:
    if not site.applies_to(request) or name in counted(request):
        return []
    if not (yield from _is_about(site, request)):
        return []
    numbers = yield from _tier(site, request)
    rates = [rate for rate in (yield from _rates(numbers, name, request)) if rate is not None]
    if not rates:
        return []
    cost = (yield from called(site.cost, name, request)) if callable(site.cost) else site.cost
    cost = whole_cost(cost, f"{name}: cost is")
    user = (yield from _user()) if site.key.needs_user else None
    if site.key.needs_session:
        yield WANTS_SESSION
    who = digest((yield from called(site.key.read, name, request, user)))
    wanted: list[PlannedCharge] = []
    for rate in rates:
        charge = Charge(_limit(numbers, name, rate, who, taken), who, cost)
        if mixed and not site.block:
            charge = replace(charge, limit=charge.limit.advising())
        wanted.append(PlannedCharge(charge, name, site, name if site.rule else None))
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


def _rates(site: LimitTemplate, group: str, request: HttpRequest) -> Generator[Any, Any, list[Rate | None]]:
    rates: list[Rate | None] = []
    for rate in site.rates:
        if callable(rate):
            rate = yield from called(rate, group, request)
            rate = None if rate is None else Rate.parse(rate)
        rates.append(rate)
    return rates


def _is_about(site: LimitTemplate, request: HttpRequest) -> Generator[Any, Any, bool]:
    """Whether the request's user is of the site's audience."""
    if "everyone" in site.audience:
        return True
    user = yield from _user()
    if not user.is_authenticated:
        return "anonymous" in site.audience
    if "authenticated" in site.audience or ("staff" in site.audience and user.is_staff):
        return True
    wanted = {one.removeprefix("group:") for one in site.audience if one.startswith("group:")}
    return bool(wanted) and not wanted.isdisjoint((yield WantsGroups(user)))


def _tier(site: LimitTemplate, request: HttpRequest) -> Generator[Any, Any, LimitTemplate]:
    """The numbers for the user's most favourable tier, or the site's own."""
    if site.tiers:
        user = yield from _user()
        if user.is_authenticated:
            groups = yield WantsGroups(user)
            return next((tier for name, tier in site.tiers if name in groups), site)
    return site


def _limit(site: LimitTemplate, group: str, rate: Rate, who: bytes, taken: Taken) -> Limit:
    """The site's limit for a rate, under a name that no other of this call has for the same identity."""
    ordinal = 1
    limit = site.limit(group, rate)
    while (who, limit.key_part) in taken:
        ordinal += 1
        limit = site.limit(group, rate, ordinal)
    taken.add((who, limit.key_part))
    return limit


def counted(request: HttpRequest) -> set[str]:
    """The names of the rules that were counted for a request."""
    names: set[str] = kept_on(request).setdefault("_ratelimit_counted", set())
    return names
