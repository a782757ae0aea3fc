"""The counts of a replay for each rule, line by line, in memory that grows with identities and
never with lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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


class Offender(NamedTuple):
    """Whom a rule refused, how often, and by which user agents: the first, each with a count."""

    client: str
    refused: int
    agents: dict[str, int]


@dataclass(slots=True)
class Busiest:
    """The minute of the clock with the most lines, in microseconds since 1970.

    Lines come in their order.
    """

    minute: int = -1
    lines: int = 0
    _current: int = -1
    _count: int = 0

    def add(self, moment: int) -> None:
        minute = moment - moment % MINUTE
        if minute != self._current:
            self._current, self._count = minute, 0
        self._count += 1
        if self._count > self.lines:
            self.minute, self.lines = minute, self._count


@dataclass(slots=True)
class Tally:
    """The results of the lines that a rule matched.

    - `refused`, `held`: by its own verdict; `refused_then`: lines whose status was 429, and
      `refused_both`: of the refused;
    - `identities`: their digests; `key_parts`: those of its limits; `banned`, `ban_parts`: the same
      of bans.
    """

    rule: Rule
    lines: int = 0
    refused: int = 0
    held: int = 0
    refused_then: int = 0
    refused_both: int = 0
    identities: set[bytes] = field(default_factory=set)
    key_parts: set[bytes] = field(default_factory=set)
    banned: set[bytes] = field(default_factory=set)
    ban_parts: set[bytes] = field(default_factory=set)
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
        if was_refused:
            self.refused_then += 1
        refused = False
        for state in states:
            if not state.allowed:
                refused = True
            elif state.wait:
                self.held += 1
        if refused:
            self.refused += 1
            self.refused_both += was_refused
            self._refuse(digest, charged.client, line.agent)
        if self._counter is not None and not self._counter.add(digest, moment):
            self._counter = None
            self.why_no_curve = _(
                "too many requests count at once, and a curve of them would take too much memory"
            )

    def _refuse(self, digest: bytes, client: str, agent: str | None) -> None:
        known = self._offenders.get(digest)
        agents = {} if known is None else known.agents
        agent = None if agent is None else excerpt(agent, MAX_KEPT_LENGTH)
        if agent is not None and (agent in agents or len(agents) < MAX_AGENTS):
            agents[agent] = agents.get(agent, 0) + 1
        self._offenders[digest] = Offender(
            excerpt(client, MAX_KEPT_LENGTH), 1 if known is None else known.refused + 1, agents
        )

    def expect(self, charged: LineCharge, *, draws: bool) -> None:
        """Note which limits the rule has, with the first line that meets it.

        `draws`: count its refusal curve, too.
        """
        limits = [charge.limit for charge in charged.charges]
        self.key_parts = {limit.key_part for limit in limits}
        self.ban_parts = {limit.ban.key_part for limit in limits if limit.ban is not None}
        self.cost = charged.charges[0].cost
        if draws:
            self.why_no_curve = why_no_curve(limits, self.cost)
            self._counter = None if self.why_no_curve else RefusalCounter(limits[0])

    @property
    def refused_identities(self) -> int:
        """How many were refused at least once."""
        return len(self._offenders)

    def most_refused(self, most: int) -> list[Offender]:
        """The identities with most refusals, in alphabetical order for ties."""
        return sorted(self._offenders.values(), key=lambda one: (-one.refused, one.client))[:most]

    def curve(self) -> Curve | None:
        """The refusal curve, if one was counted."""
        return None if self._counter is None else self._counter.curve(self.cost)

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """All keys that may be there."""
        for digests, key_parts in (
            (self.identities, self.key_parts),
            (self.banned, self.ban_parts),
        ):
            for digest in digests:
                for key_part in key_parts:
                    yield b"%b{%b}:%b" % (prefix, digest, key_part)
