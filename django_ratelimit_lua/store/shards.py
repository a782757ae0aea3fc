"""A call whose keys live in several slots of a cluster: asked slot by slot, most likely denier first, and given back
where a later one refuses.

Each slot decides its part atomically; between slots this holds: nothing is ever admitted that one limit refuses. What
was taken in the slots before the one that refused counts for others for the time between these calls, so that somebody
may be refused who would not have been on a single server; never the other way round. If the process dies in between,
those units stay counted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..exceptions import StoreError
from ..limits.call import Call, Charge
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..process.bounded_map import BoundedMap

REFUSES = Limit("never", "0/s", algorithm="fixed_window")
"""Beside it a hit is refused: the others only look, and count what they count of refused hits. It has no state."""
MOST = 10_000
Ask = Callable[[Call], Generator[Any, Any, Decision]]


class Room:
    """How much of each limit was left when it was last asked, as a part of it; the latest are remembered."""

    def __init__(self) -> None:
        self._left: BoundedMap[tuple[bytes, bytes], float] = BoundedMap(MOST)

    def note(self, call: Call, decision: Decision) -> None:
        """Remember what a decision says."""
        for charge, state in zip(call.charges, decision.limits, strict=True):
            left = state.remaining / max(state.limit, 1) if state.allowed else -1.0
            self._left.put((charge.digest, charge.limit.key_part), left)

    def least(self, charges: Sequence[Charge]) -> tuple[float, int]:
        """The least that is left of one of these; then the smallest limit. The less, the likelier a refusal."""
        left = [self._left.get((charge.digest, charge.limit.key_part)) for charge in charges]
        return min(1.0 if one is None else one for one in left), min(charge.limit.rate.limit for charge in charges)


@dataclass(frozen=True, slots=True)
class Part:
    """The charges of a call that one slot decides, and their places in the call."""

    call: Call
    places: tuple[int, ...]


def parts_of(call: Call, slot_of: Callable[[bytes], int], room: Room) -> list[Part]:
    """A call's parts, most likely denier first."""
    by_slot: dict[int, list[int]] = {}
    for place, charge in enumerate(call.charges):
        by_slot.setdefault(slot_of(charge.digest), []).append(place)
    parts = [
        Part(replace(call, charges=[call.charges[place] for place in places]), tuple(places))
        for places in by_slot.values()
    ]
    return sorted(parts, key=lambda part: room.least(part.call.charges))


def in_turn(call: Call, parts: Sequence[Part], ask: Ask) -> Generator[Any, Any, Decision]:
    """Decide the parts of a call one after the other, all or nothing. Raises what `ask` raises."""
    states: dict[int, LimitState] = {}
    taken: list[tuple[Part, Decision]] = []
    decisions: list[Decision] = []
    refused = False
    for part in parts:
        asked = part.call
        if call.operation == "hit" and refused:
            if call.partial:
                asked = _at_most(asked, 1)  # What a refused partial hit counts.
            asked = replace(asked, charges=[*asked.charges, Charge(REFUSES, asked.charges[0].digest)], partial=False)
        elif call.operation == "hit" and call.partial and taken:
            asked = _at_most(asked, taken[-1][1].granted)
        try:
            decision = yield from ask(asked)
        except StoreError:
            yield from _give_back(taken, 0, states, ask)
            raise
        decisions.append(decision)
        states.update(zip(part.places, decision.limits, strict=False))
        if call.operation == "hit" and decision.allowed:
            taken.append((Part(asked, part.places), decision))
        refused = refused or not decision.allowed
    granted = 0 if refused else (min if call.partial else max)(decision.granted for decision in decisions)
    if refused or call.partial:
        yield from _give_back(taken, granted, states, ask)
    return Decision(
        not refused,
        tuple(states[place] for place in range(len(call.charges))),
        granted,
        max(decision.wait for decision in decisions),
        moment=decisions[0].moment,
        moments={
            charge.digest: decision.moment + round(decision.wait * 1_000_000)
            for part, decision in zip(parts, decisions, strict=True)
            for charge in part.call.charges
        },
    )


def _at_most(call: Call, cost: int) -> Call:
    return replace(call, charges=[replace(charge, cost=min(charge.cost, cost)) for charge in call.charges])


def _give_back(
    taken: Sequence[tuple[Part, Decision]], keep: int, states: dict[int, LimitState], ask: Ask
) -> Generator[Any, Any, None]:
    """Give back what was taken, but for so many units of each limit; where that cannot be done, it stays counted."""
    for part, decision in taken:
        call = part.call
        back: dict[int, list[tuple[int, LimitState, Charge]]] = {}
        for place, charge, state in zip(part.places, call.charges, decision.limits, strict=True):
            took = decision.granted if call.partial else charge.cost
            kept = keep
            if charge.limit.count_denied and not keep:  # Refused hits count: so does this one.
                kept = 1 if call.partial else took
            cost = took - kept
            if state.allowed and cost > 0:
                moment = state.counted_at or decision.counted_at(charge.digest)
                back.setdefault(moment, []).append((place, state, replace(charge, cost=cost)))
        for moment, those in back.items():
            charges = [charge for _, _, charge in those]
            refund = replace(call, operation="refund", partial=False, hit_at=moment, charges=charges)
            with suppress(StoreError):
                given = yield from ask(refund)
                for (place, state, _), now in zip(those, given.limits, strict=True):
                    # What is kept of it still counts since then.
                    states[place] = replace(now, counted_at=state.counted_at if keep else 0)
