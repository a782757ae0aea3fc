"""What a process has counted since the last flush."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...engine import DecidedCharge
from ...identity.names import Name, display_name, is_short
from ...rules.rule import Rule
from .results import ALLOWED

Kind = tuple[str, str, str, int, bool, bool]
"""What decisions have in common that are counted together: (name, result, source, time, is_near,
is_first).

- `name`: the rule or call site; `result`: see `results`; `source`: see `Decision`; `time`: the
  bucket of times that the decision took;
- `is_near`: it was allowed near the limit;
- `is_first`: the source and the time are also counted for the site, once for each decision.
"""


@dataclass(slots=True)
class Hits:
    """The number of decisions of one kind.

    - `units`: the units that they took, or requested if they were refused;
    - `seconds`: their total time.
    """

    number: int = 0
    units: int = 0
    seconds: float = 0.0


class Person:
    """The counts of one client under one limit between two flushes.

    - `allowed`, `refused`: its requests, including refusals in shadow mode;
    - `stopped`: the refusals that are also counted for the whole site;
    - `units`: the units that it took;
    - `is_client`: false for the count of a limiter without identities.
    """

    __slots__ = (
        "_identity",
        "_name",
        "allowed",
        "is_client",
        "refused",
        "rule",
        "stopped",
        "units",
    )

    def __init__(self, counted: DecidedCharge) -> None:
        identity = counted.identity
        self._identity = identity
        self._name: Name | None = None
        self.is_client = identity is not None
        # Only rules in shadow mode are counted by version.
        self.rule: Rule | None = counted.rule if counted.charge.limit.mode == "shadow" else None
        if not is_short(identity):  # It is kept for a second, and may be as long as a request.
            self._name = display_name(identity)
            self._identity = None
        self.allowed = self.refused = self.stopped = self.units = 0

    @property
    def name(self) -> Name:
        if self._name is None:
            return display_name(self._identity)
        return self._name


@dataclass(slots=True)
class Tables:
    """The counts since one moment.

    - `began`: the moment, in seconds since 1970 (0: no counts);
    - `people`: the clients, by name and digest;
    - `requests`: the requests of the whole site, by result;
    - `waits`: those whose waiting time is known, by the bucket of that; `waited`: its sum.
    """

    began: float = 0.0
    kinds: dict[Kind, Hits] = field(default_factory=dict)
    people: dict[tuple[str, bytes], Person] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    waits: Counter[int] = field(default_factory=Counter)
    waited: float = 0.0


class RequestCount:
    """How the site counts one request, which may have several decisions: once, at its end.

    - `running`: see `RequestState`. The request has ended when it is empty;
    - `result`: the result that one decision about all its limits would have had (empty: none yet);
    - `is_refused`: whether one of the decisions refused;
    - `waited`: see `RequestState`; None as soon as it is counted.
    """

    __slots__ = ("is_refused", "result", "running", "waited")

    def __init__(self, running: Sequence[object], waited: float | None = None) -> None:
        self.waited = waited
        self.running = running
        self.result = ""
        self.is_refused = False

    def add(self, result: str, *, is_refused: bool) -> None:
        """Add the result of one more decision."""
        if is_refused or not (self.is_refused or self.result == ALLOWED):
            self.result = result
            self.is_refused = is_refused
