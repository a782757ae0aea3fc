"""The counts of a replay for each rule, in memory that does not grow with the lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from django.utils.translation import gettext as _

from ...limits.decision import LimitState
from ...limits.rate import SECOND
from ...operations.curve import Curve
from ...rules.rule import Rule
from .formats import LogLine, excerpt
from .planning import LineCharge
from .refusal_counter import RefusalCounter, why_no_curve

TOO_MANY = 429
MINUTE = 60 * SECOND
MAX_AGENTS = 3
"""User agents that are kept of one identity: the first ones, each with how often it was refused."""
MAX_KEPT_LENGTH = 512
"""Characters that are kept of a user agent, and of a refused identity."""


@dataclass(slots=True)
class Offender:
    """A refused client, its number of refusals, and the number by user agent.

    Only the first user agents are counted.
    """

    client: str
    refused: int = 0
    agents: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Busiest:
    """The minute with the most lines, in microseconds since 1970.

    Lines arrive in the order of their times.
    """

    minute: int = -1
    lines: int = 0
    _current: int = -1
    _count: int = 0

    def add(self, moment: int) -> None:
        minute = moment - moment % MINUTE
        if minute != self._current:
            self._current = minute
            self._count = 0
        self._count += 1
        if self._count > self.lines:
            self.minute = minute
            self.lines = self._count


@dataclass(slots=True)
class Tally:
    """The results of the lines that matched a rule.

    Attributes:
        refused: Lines that the rule refused.
        held: Lines that it delayed.
        refused_then: Lines with the status 429.
        refused_both: Lines with the status 429 that it refused.
        identities: The digests of identities.
        key_parts: The ends of the keys of its limits and bans.
    """

    rule: Rule
    lines: int = 0
    refused: int = 0
    held: int = 0
    refused_then: int = 0
    refused_both: int = 0
    identities: set[bytes] = field(default_factory=set)
    key_parts: set[bytes] = field(default_factory=set)
    busiest: Busiest = field(default_factory=Busiest)
    cost: int = 1
    why_no_curve: str = ""
    _offenders: dict[bytes, Offender] = field(default_factory=dict)
    _counter: RefusalCounter | None = None

    def add(
        self, charged: LineCharge, line: LogLine, moment: int, states: Sequence[LimitState]
    ) -> None:
        """Count a line, by the states of the rule's limits."""
        digest = charged.charges[0].digest
        self.lines += 1
        self.busiest.add(moment)
        was_refused = line.status == TOO_MANY
        self.refused_then += was_refused
        self.held += sum(state.allowed and bool(state.wait) for state in states)
        if not all(state.allowed for state in states):
            self.refused += 1
            self.refused_both += was_refused
            self._refuse(digest, charged.client, line.agent)
        if self._counter is not None and not self._counter.add(digest, moment):
            self._counter = None
            self.why_no_curve = _(
                "too many requests are in the window: their curve would take too much memory"
            )

    def _refuse(self, digest: bytes, client: str, agent: str | None) -> None:
        if digest not in self._offenders:
            self._offenders[digest] = Offender(excerpt(client, MAX_KEPT_LENGTH))
        offender = self._offenders[digest]
        offender.refused += 1
        if agent is not None:
            agent = excerpt(agent, MAX_KEPT_LENGTH)
            if agent in offender.agents or len(offender.agents) < MAX_AGENTS:
                offender.agents[agent] = offender.agents.get(agent, 0) + 1

    def expect(self, charged: LineCharge, *, draws: bool) -> None:
        """Record the keys that a line may write and, with the first line, the rule's limits.

        Args:
            charged: The charges.
            draws: Whether to count the refusal curve.
        """
        first = charged.charges[0]
        if not self.key_parts:
            limits = [charge.limit for charge in charged.charges]
            self.key_parts = {limit.key_part for limit in limits}
            self.key_parts |= {limit.ban.key_part for limit in limits if limit.ban is not None}
            self.cost = first.cost
            if draws:
                self.why_no_curve = why_no_curve(limits, self.cost)
                if not self.why_no_curve:
                    self._counter = RefusalCounter(limits[0])
        self.identities.add(first.digest)

    @property
    def refused_identities(self) -> int:
        """Return the number of identities that were refused at least once."""
        return len(self._offenders)

    def most_refused(self, most: int) -> list[Offender]:
        """Return the identities with most refusals, in alphabetical order for ties."""
        return sorted(self._offenders.values(), key=lambda one: (-one.refused, one.client))[:most]

    def curve(self) -> Curve | None:
        """Return the refusal curve, if one was counted."""
        if self._counter is None:
            return None
        return self._counter.curve(self.cost)

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """Return all keys that lines may have written."""
        for digest, key_part in product(self.identities, self.key_parts):
            yield b"%b{%b}:%b" % (prefix, digest, key_part)
