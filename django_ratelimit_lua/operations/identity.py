"""What one client meets under one name, if only the digest of its identity is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.decide import Outcome, PlannedCharge, build_call, decide
from ..engine.evidence import Offence, evidence_of
from ..engine.run import Wait
from ..exceptions import StoreError
from ..identity import digest as digest_of
from ..limits.ban import Ban
from ..limits.call import Charge
from ..limits.limit import Limit
from ..rules.callsite import LIMITER, known_call_sites
from ..rules.overrides import DIGEST, USER, SubjectRef, client_identity, is_field, override_cache
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..web.overrides import override_kinds
from ..web.plan import Party, Planner
from .explain import Explanation, explained_limit
from .reference import known_limits


@dataclass(frozen=True, slots=True)
class ExplainedIdentity:
    """What one client meets.

    - `name`: of a rule, a call site or a `RateLimiter`; `digest`: of the identity that it counts;
    - `found`: its limits and the overrides about this identity. An override about a network and a
      tier are not found by a digest;
    - `offences`: the last requests that counted towards a ban, the earliest first.
    """

    name: str
    digest: str
    found: Explanation
    offences: tuple[Offence, ...] = ()


def explain_identity(name: str, digest: str) -> ExplainedIdentity:
    """The limits of the client with this digest under that name. Counts nothing."""
    planner = _IdentityPlanner(name, digest.encode(), _limits_of(name))
    outcome = decide(planner)
    overrides = override_cache.get_many(
        [ref for party in planner.parties for ref in party.subjects]
    )
    states = {
        (decided.charge.digest, decided.charge.limit.key_part): decided.state
        for decided in outcome.charges
    }
    met = tuple(
        explained_limit(planned, planner.ruleset, overrides, states)
        for planned in planner.charges
        if planner.ruleset is not None
    )
    found = Explanation(outcome.decision, met, None, None)
    return ExplainedIdentity(name, digest, found, _offences(planner.charges, outcome))


def _limits_of(name: str) -> list[tuple[Limit, Rule | None]]:
    """The limits that count under a name: those of the rule, if it has any, or else those of the
    code.
    """
    known = [one for one in known_limits() if one.place == name and one.limit is not None]
    in_rules = [one for one in known if one.rule is not None and one.rule.mode != "off"]
    limits: dict[bytes, tuple[Limit, Rule | None]] = {}
    for one in in_rules or [one for one in known if one.rule is None]:
        assert one.limit is not None
        limits.setdefault(
            one.limit.key_part, (one.limit, one.rule)
        )  # A tier counts in the same place.
    return list(limits.values())


def _offences(charges: Sequence[PlannedCharge], outcome: Outcome) -> tuple[Offence, ...]:
    """The evidence for each limit that bans its clients; none if Redis is unavailable."""
    bans = {state.name: state.ban for state in outcome.decision.limits if state.ban is not None}
    banning = [
        each.charge
        for each in charges
        if each.charge.limit.ban is not None and not each.charge.limit.ban_key
    ]
    keys = [
        (build_call([charge], "peek").ban_keys()[0], bans.get(charge.limit.name, Ban()))
        for charge in banning
    ]
    try:
        found = evidence_of(keys) if keys else []
    except StoreError:
        return ()
    return tuple(sorted({offence for offences in found for offence in offences}))


class _IdentityPlanner(Planner):
    """Plans a peek at limits for one identity."""

    def __init__(
        self, name: str, digest: bytes, limits: Sequence[tuple[Limit, Rule | None]]
    ) -> None:
        super().__init__("peek")
        self._digest = digest
        self.charges = [PlannedCharge(Charge(limit, digest), name, rule) for limit, rule in limits]
        # A RateLimiter uses no overrides.
        self._has_overrides = not any(site.kind == LIMITER for site in known_call_sites.of(name))

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        kinds = override_kinds(ruleset, self.charges, False) if self._has_overrides else ()
        subjects = [
            SubjectRef(kind, self._digest) for kind in kinds if kind == USER or is_field(kind)
        ]
        if DIGEST in kinds:
            identity = client_identity(self._digest.decode())
            subjects += [
                SubjectRef(DIGEST, digest_of(identity, secret))
                for secret in ruleset.secrets(DIGEST)
            ]
        self.ruleset = ruleset
        self.parties = [Party(self.charges, subjects, False)]
        return ()
