"""The plan of one decision: charges, and the overrides of the clients that they are about.

Planning never waits. What it needs was gathered before, which may wait: see `request_plan` for
requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from django.http import HttpRequest

from ..engine import DecidedCharge
from ..engine.decide import build_call
from ..engine.run import Wait
from ..identity import Identity, digest
from ..identity.names import supplied_identity
from ..identity.request_state import RequestState
from ..limits.call import Call, Charge, Operation
from ..limits.decision import Decision
from ..limits.limit import Limit
from ..limits.rate import Rate
from ..rules.overrides import Override
from ..rules.rule import Rule
from ..rules.ruleset import Ruleset
from ..rules.template import LimitTemplate
from ..signals import limit_exceeded
from .overrides import NOTHING, apply_overrides


class Place:
    """A place with rules, including those of call sites, and its charges.

    - `rules`: the rules, `pending_rules` has those not charged yet, the first at its end;
    - `group`: the name of counts without a rule;
    - `charges`: the charges that do not depend on rules;
    - `owner`: the decorator, middleware or throttle that receives the decision.
    """

    __slots__ = ("_has_mixed_effects", "_taken", "charges", "group", "owner", "pending_rules")

    def __init__(
        self,
        rules: Sequence[Rule],
        group: str = "",
        charges: Sequence[DecidedCharge] = (),
        owner: object = None,
    ) -> None:
        self.pending_rules = list(reversed(rules))
        self.group = group
        self.charges = list(charges)
        self.owner = owner
        self._has_mixed_effects = len(rules) > 1 and len({rule.block for rule in rules}) > 1
        self._taken: set[tuple[bytes, bytes]] = set()

    def restore_rules(self, rules: Sequence[Rule]) -> None:
        """Add rules that apply again, because the rule that replaced them fails."""
        self.pending_rules += reversed(rules)

    def add_charges(
        self,
        rule: Rule,
        name: str,
        template: LimitTemplate,
        rates: Sequence[Rate],
        cost: int,
        identity: Identity,
    ) -> None:
        """Add all charges of a rule, or none if one of them raises.

        The `template` is that of a tier, or the rule's own. Each limit gets the first name with
        counters that no other charge of this place has.
        """
        subject = digest(identity)
        if template.key is None or template.key.functions:
            identity = supplied_identity(identity)
        charges: list[DecidedCharge] = []
        taken = self._taken.copy()
        for rate in rates:
            for ordinal in count(1):
                limit = template.limit(name, rate, ordinal)
                counters = {(subject, limit.key_part)}
                if limit.ban is not None:
                    counters.add((subject, limit.ban.key_part))
                if counters.isdisjoint(taken):
                    break
            taken |= counters
            if identity is None:
                limit = limit.without_bans()
            if self._has_mixed_effects and not rule.block:
                limit = limit.advising()
            charge = Charge(limit, subject, cost)
            charges.append(DecidedCharge(charge, name, rule, self.owner, identity))
        self._taken = taken
        self.charges += charges


class Party(NamedTuple):
    """The charges of one client, and its overrides, in force or not.

    - `blocks_uncharged`: whether a block for all rules refuses the client even if nothing is
      charged;
    - `owner`: the decorator, middleware or throttle that receives the decision in that case.
    """

    charges: Sequence[DecidedCharge]
    overrides: Sequence[Override]
    blocks_uncharged: bool
    owner: object = None


class Planner:
    """Plans one decision: the base class of all planners.

    A subclass adds a request, or identities and limits. Its `gather` sets `gathered`, the charges
    by the rules in force. If overrides may apply to them, it also sets `parties`, which contain
    them.

    - `options`: those of `build_call`; `ignores_blocks`: whether overrides that block are ignored;
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

    def set_parties(self, parties: Sequence[Party]) -> None:
        """Store the parties, and all of their charges as gathered."""
        self.parties = parties
        self.gathered = [planned for party in parties for planned in party.charges]

    def plan(self, ruleset: Ruleset) -> Call:
        """Set the charges, by the gathered charges and overrides.

        Return the call that decides them.
        """
        charges = self.gathered
        has_overrides = False
        self.exempt = ()
        if self.parties:
            charges = self._apply_overrides_of_parties()
            has_overrides = any(party.overrides for party in self.parties)
        charges = self.merge_charges(charges)
        counted: list[Charge] = []
        operation = self.operation
        for planned in charges:
            if not planned.blocked_by:
                counted.append(planned.charge)
            elif planned.state.enforced and operation == "hit":
                operation = "peek"
        self.charges = charges
        return build_call(
            counted, operation, ruleset=ruleset, has_overrides=has_overrides, **self.options
        )

    def merge_charges(self, charges: Sequence[DecidedCharge]) -> Sequence[DecidedCharge]:
        """Return the charges, of which a subclass merges those to one counter."""
        return charges

    def _apply_overrides_of_parties(self) -> Sequence[DecidedCharge]:
        """Return the charges of the parties that no override exempts, and set the exempt ones."""
        charges: list[DecidedCharge] = []
        exempt: list[DecidedCharge] = []
        for party in self.parties:
            applied = apply_overrides(
                party.charges, party.overrides, party.blocks_uncharged, party.owner
            )
            charges += applied.charges
            exempt += applied.exempt
        self.exempt = exempt
        # Units that were taken before a block can be given back, so Redis gets these charges.
        if self.operation == "refund" or self.ignores_blocks:
            return [replace(planned, blocked_by=b"") for planned in charges]
        return charges

    def request_of(self, decided: DecidedCharge) -> HttpRequest | None:
        """Return the request of a charge. Without one, `limit_exceeded` is not sent."""
        return self.request

    def finish(self, decision: Decision) -> Sequence[Wait]:
        """Record which rules were counted, and return the sending of `limit_exceeded`."""
        if not self.is_hit:
            return ()
        waits: list[Wait] = []
        for decided in self.charges:
            rule_name = getattr(decided.rule, "name", "")
            # A call site of that name keeps its own limit in addition to a rule with `waited`.
            is_recorded = rule_name and not getattr(decided.rule, "waited", 0.0)
            if is_recorded and self.counted is not None:
                self.counted[rule_name] = self.call_site
            is_refused = not decided.state.allowed and decision.source != "fallback"
            if not is_refused or not limit_exceeded.receivers:
                continue
            request = self.request_of(decided)
            if request is not None and decided.charge.limit is not NOTHING:
                waits.append(_sending(decided, rule_name, decision, request))
        return waits


def _sending(
    decided: DecidedCharge, rule_name: str, decision: Decision, request: HttpRequest
) -> Wait:
    """Return the sending of `limit_exceeded` for a refusal."""
    arguments = {
        "limit": decided.state.name,
        "rule": rule_name or None,
        "identity": decided.charge.digest.decode(),
        "mode": decided.state.mode,
        "decision": decision,
        "request": request,
    }
    send = partial(limit_exceeded.send_robust, Decision, **arguments)
    return Wait(send, partial(limit_exceeded.asend_robust, Decision, **arguments))


def merge_counters(charges: Sequence[DecidedCharge]) -> list[DecidedCharge]:
    """Return the charges in a form that one call accepts: each counter once.

    Limits of the same name are renamed by their rates, such as two throttles of one scope.
    """
    by_counter: dict[tuple[bytes, bytes], DecidedCharge] = {}
    names: set[tuple[bytes, str]] = set()
    for planned in charges:
        subject = planned.charge.digest
        limit = planned.charge.limit
        number = 0
        while (subject, limit.key_part) in by_counter or (subject, limit.name) in names:
            number += 1
            limit = _rename_by_rate(planned.charge.limit, number)
        if number:
            planned = replace(planned, charge=planned.charge._replace(limit=limit))
        by_counter[subject, limit.key_part] = planned
        if not limit.variant:
            names.add((subject, limit.name))
    return list(by_counter.values())


def _rename_by_rate(limit: Limit, number: int) -> Limit:
    """Return a limit with its rate in its name, and a number if it is greater than 1."""
    suffix = f"*{number}" if number > 1 else ""
    return limit.renamed(f"{limit.name}:{limit.rate}{suffix}")
