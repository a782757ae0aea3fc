"""The limits of a client under one name, if only the digest of its identity is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
from ..rules.overrides import DIGEST, USER, SubjectRef, client_identity, is_field
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..web.overrides import override_kinds
from ..web.plan import Party, Planner
from .explain import Explanation, explained_limits
from .reference import known_limits


@dataclass(frozen=True, slots=True)
class ExplainedIdentity:
    """The limits of one client.

    - `name`: the name of a rule, a call site or a `RateLimiter`;
    - `digest`: the digest of the identity that it counts;
    - `found`: its limits and the overrides about this identity. Overrides about a network, and
      tiers, cannot be found by a digest;
    - `offences`: the latest requests that counted towards a ban, the earliest first.
    """

    name: str
    digest: str
    found: Explanation
    offences: tuple[Offence, ...] = ()


def explain_identity(name: str, digest: str) -> ExplainedIdentity:
    """Return the limits of the client with this digest under that name. Counts nothing."""
    planner = _IdentityPlanner(name, digest.encode())
    outcome = decide(planner)
    found = Explanation(outcome.decision, explained_limits(planner, outcome))
    return ExplainedIdentity(name, digest, found, _offences(planner.charges, outcome))


def _limits_of(name: str) -> list[tuple[Limit, Rule | None]]:
    """Return the limits that count under a name: those of its rule or, without one, the code."""
    limits: dict[bytes, tuple[Limit, Rule | None]] = {}
    for each in known_limits():  # Rules come first. A tier counts in the same place.
        is_off = each.rule is not None and each.rule.mode == "off"
        if each.place == name and each.limit is not None and not is_off:
            limits.setdefault(each.limit.key_part, (each.limit, each.rule))
    found = list(limits.values())
    return [(limit, rule) for limit, rule in found if rule is not None] or found


def _offences(charges: Sequence[PlannedCharge], outcome: Outcome) -> tuple[Offence, ...]:
    """Return the evidence for each limit that bans its clients; empty if Redis is unavailable."""
    bans = {state.name: state.ban or Ban() for state in outcome.decision.limits}
    keys = []
    for charge, *_others in charges:
        if charge.limit.ban is not None and not charge.limit.ban_key:
            key = build_call([charge], "peek").ban_keys()[0]
            keys.append((key, bans.get(charge.limit.name, Ban())))
    with suppress(StoreError):
        return tuple(sorted({offence for offences in evidence_of(keys) for offence in offences}))
    return ()


class _IdentityPlanner(Planner):
    """Plans a peek at the limits of one identity."""

    def __init__(self, name: str, digest: bytes) -> None:
        super().__init__("peek")
        self._digest = digest
        self.charges = [
            PlannedCharge(Charge(limit, digest), name, rule) for limit, rule in _limits_of(name)
        ]
        # A RateLimiter uses no overrides.
        self._has_overrides = not any(site.kind == LIMITER for site in known_call_sites.of(name))

    def gather(self, ruleset: Ruleset) -> Sequence[Wait]:
        subjects = []
        if self._has_overrides:
            client = client_identity(self._digest.decode())
            for kind in override_kinds(ruleset, self.charges, False):
                if kind == USER or is_field(kind):
                    subjects.append(SubjectRef(kind, self._digest))
                elif kind == DIGEST:
                    for secret in ruleset.secrets(DIGEST):
                        subjects.append(SubjectRef(DIGEST, digest_of(client, secret)))
        self.ruleset = ruleset
        self.parties = [Party(self.charges, subjects, False)]
        return ()
