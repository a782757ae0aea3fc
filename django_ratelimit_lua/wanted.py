"""What call sites and rules want counted for a request.

Written as generators that yield whatever has to be waited for; `drive` waits for it, blocking or not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest

from .callsite import Site
from .identity import digest
from .limits.call import Charge
from .limits.limit import Limit
from .limits.rate import Rate


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a call site or a rule wants counted: under which name, for which site, by which rule if any, and for whom
    the answer is."""

    charge: Charge
    name: str
    site: Site | None = None
    rule: str | None = None
    owner: object = None


class WantsUser:
    """A step that asks for the request's user."""


@dataclass(frozen=True, slots=True)
class WantsGroups:
    """A step that asks for the names of the Django groups a user is in."""

    user: Any


WANTS_USER = WantsUser()


def wanted_by(request: HttpRequest, sites: Sequence[Site], group: str) -> Generator[Any, Any, list[Wanted]]:
    """What sites want counted for a request."""
    wanted: list[Wanted] = []
    taken: set[tuple[bytes, bytes]] = set()
    mixed = len({site.block for site in sites}) > 1
    for site in sites:
        name = site.group or group
        if not site.applies_to(request) or name in counted(request):
            continue
        if not (yield from _is_about(site, request)):
            continue
        numbers = yield from _tier(site, request)
        rates = [rate for rate in (yield from _rates(numbers, name, request)) if rate is not None]
        if not rates:
            continue
        cost = (yield from called(site.cost, name, request)) if callable(site.cost) else site.cost
        user = (yield WANTS_USER) if site.key.needs_user else None
        who = digest((yield from called(site.key.read, name, request, user)))
        for rate in rates:
            charge = Charge(_limit(numbers, name, rate, who, taken), who, cost)
            if mixed and not site.block:
                charge = replace(charge, limit=charge.limit.advising())
            wanted.append(Wanted(charge, name, site, name if site.rule else None))
    return wanted


def called(function: Callable[..., Any], *arguments: Any) -> Generator[Any, Any, Any]:
    """Call a function of the user's, and have it waited for if it is a coroutine's."""
    value = function(*arguments)
    if inspect.isawaitable(value):
        value = yield value
    return value


def _rates(site: Site, group: str, request: HttpRequest) -> Generator[Any, Any, list[Rate | None]]:
    rates: list[Rate | None] = []
    for rate in site.rates:
        if callable(rate):
            rate = yield from called(rate, group, request)
            rate = None if rate is None else Rate.parse(rate)
        rates.append(rate)
    return rates


def _is_about(site: Site, request: HttpRequest) -> Generator[Any, Any, bool]:
    """Whether the request's user is of the site's audience."""
    if "everyone" in site.audience:
        return True
    user = yield WANTS_USER
    if not user.is_authenticated:
        return "anonymous" in site.audience
    if "authenticated" in site.audience or ("staff" in site.audience and user.is_staff):
        return True
    wanted = {one.removeprefix("group:") for one in site.audience if one.startswith("group:")}
    return bool(wanted) and not wanted.isdisjoint((yield WantsGroups(user)))


def _tier(site: Site, request: HttpRequest) -> Generator[Any, Any, Site]:
    """The numbers for the user's most favourable tier, or the site's own."""
    if site.tiers:
        user = yield WANTS_USER
        if user.is_authenticated:
            groups = yield WantsGroups(user)
            return next((tier for name, tier in site.tiers if name in groups), site)
    return site


def _limit(site: Site, group: str, rate: Rate, who: bytes, taken: set[tuple[bytes, bytes]]) -> Limit:
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
    names: set[str] = vars(request).setdefault("_ratelimit_counted", set())
    return names
