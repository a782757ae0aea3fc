"""What overrides make of the charges of a request, and of the decision about them."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest

from ..engine.decide import now_us
from ..identity import digest
from ..identity.address import client_address
from ..identity.keys import EXACT, read_fields
from ..identity.routes import resolved
from ..limits.decision import Decision, LimitState
from ..rules.overrides import USER, KnownOverrides, Override, SubjectRef, network_digest
from ..rules.ruleset import EVERY_RULE, Ruleset
from .charges import REFUSED, WANTS_USER, PlannedCharge

logger = logging.getLogger("django_ratelimit_lua")
BLOCK = "block"
"""The name under which a decision shows a block that no rule is needed for."""


@dataclass(frozen=True, slots=True)
class AppliedOverrides:
    """What is to be counted, and what is blocked; those who are exempt are in neither. `places` tells, for all of them
    in their order, the place in `counted` or the override that blocks."""

    all: Sequence[PlannedCharge]
    counted: Sequence[PlannedCharge]
    places: tuple[int | Override, ...]
    block: Override | None
    now: int

    @property
    def refused(self) -> bool:
        """Whether a block refuses the request, so that nothing is to be counted."""
        return self.block is not None or any(
            isinstance(place, Override) and one.charge.limit.mode == "enforce"
            for one, place in zip(self.all, self.places, strict=False)
        )


def subjects_of(
    request: HttpRequest, ruleset: Ruleset, wanted: Sequence[PlannedCharge], blocks: bool
) -> Generator[Any, Any, list[SubjectRef]]:
    """The subjects that a request is about, of the kinds that overrides of these rules are about."""
    kinds = dict.fromkeys(ruleset.blocks if blocks else ())
    if wanted:
        kinds |= dict.fromkeys(ruleset.kinds.get(EVERY_RULE, ()))
    for one in wanted:
        kinds |= dict.fromkeys(ruleset.kinds.get(one.name, ()))
    asked: list[SubjectRef] = []
    for kind in kinds:
        try:
            found = yield from _subjects(request, kind, ruleset.secrets(kind))
        except REFUSED:
            raise
        except Exception as error:
            # A database that is away, say: who it is cannot be known, and limits that do not need it go on.
            unknown.noted(kind, error)
            continue
        if found:
            unknown.found(kind)
        asked += [SubjectRef(kind, subject) for subject in dict.fromkeys(found)]
    return asked


def _subjects(request: HttpRequest, kind: str, secrets: Sequence[str | bytes]) -> Generator[Any, Any, list[bytes]]:
    """What a request is about, of one kind, by each secret that is known; empty where it is about none."""
    if kind == USER:
        user = (yield WANTS_USER) if hasattr(request, "user") else None
        if user is None or not user.is_authenticated:
            return []
        return [digest((USER, str(user.pk)), secret) for secret in secrets]
    if kind.startswith("ip"):
        address = client_address(request).address
        found = [] if address is None else [network_digest(address, kind, secret) for secret in secrets]
        return [one for one in found if one is not None]
    if kind.removeprefix(EXACT).startswith("kwarg:"):
        resolved(request)
    identities = read_fields(kind, request)
    return [digest(identity, secret) for identity in identities for secret in secrets]


class Unknown:
    """Kinds of subjects that could not be found out: said in the log once, until they are found out again."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def noted(self, kind: str, error: Exception) -> None:
        """Who a request is about could not be found out; it goes on without the overrides about them."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            text = "Overrides by %s are not applied, as it cannot be found out: %s: %s"
            logger.error(text, kind, type(error).__name__, error, exc_info=error)

    def found(self, kind: str) -> None:
        """It can be found out."""
        self._kinds.discard(kind)


unknown = Unknown()


def apply_overrides(
    wanted: Sequence[PlannedCharge], known: KnownOverrides, ruleset: Ruleset, blocks: bool
) -> AppliedOverrides:
    """Sort what is wanted by what overrides say of a request's subjects.

    With `blocks`, a block for all rules refuses the request also where no enforced rule applies. Where one does, its
    override is the one that counts for it: the block, or what goes before the block.
    """
    if not known:
        return AppliedOverrides(wanted, wanted, (), None, 0)
    now = now_us()
    kept: list[PlannedCharge] = []
    counted: list[PlannedCharge] = []
    places: list[int | Override] = []
    is_enforced = False
    for one in wanted:
        rule = ruleset.by_name.get(one.name)
        override = known.strongest_for(rule.pk if rule is not None else None, now)
        # Shadow rules refuse nobody, so what is said of one of them lifts no block either.
        is_enforced = is_enforced or one.charge.limit.mode == "enforce"
        if override is not None and override.effect == "exempt":
            continue
        if override is not None and override.effect == "block":
            places.append(override)
        else:
            if override is not None:
                one = replace(one, charge=replace(one.charge, limit=override.limit(one.charge.limit)))
            places.append(len(counted))
            counted.append(one)
        kept.append(one)
    found = AppliedOverrides(tuple(kept), tuple(counted), tuple(places), None, now)
    if blocks and not is_enforced:
        general = known.strongest_for(None, now)
        if general is not None and general.effect == "block":
            return AppliedOverrides((), (), (), general, now)
    return found


def restore_blocked(decision: Decision, found: AppliedOverrides) -> Decision:
    """The decision about what was counted, with what is blocked."""
    if found.block is not None:
        return replace(decision, allowed=False, limits=(_blocked(BLOCK, "enforce", 0.0, found.block, found.now),))
    if found.all is found.counted or len(found.counted) == len(found.all):
        return decision
    limits = []
    for one, place in zip(found.all, found.places, strict=True):
        if isinstance(place, Override):
            limit = one.charge.limit
            limits.append(_blocked(limit.name, limit.mode, limit.rate.period, place, found.now))
        else:
            limits.append(decision.limits[place])
    allowed = decision.allowed and not found.refused
    return replace(decision, allowed=allowed, limits=tuple(limits), granted=decision.granted if allowed else 0)


def _blocked(name: str, mode: Any, period: float, override: Override, now: int) -> LimitState:
    return LimitState.blocked(name, override.retry_after(now), mode, period)
