"""The store of a cluster: all limits of one identity are in one hash slot, and its node decides
them.

A call whose keys are in several hash slots is decided slot by slot, in its own order. Each slot
decides its part atomically. Nothing is admitted that one limit refuses. After a refusal the
remaining slots are only read, because the numbers of every limit are part of the answer. Units that
were taken before the refusal are given back. Until then they count for others, so a client may be
refused that a single server would have admitted, never the other way round. If the process dies in
between, those units stay counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from ..exceptions import StoreError
from ..limits.ban import Ban
from ..limits.call import REGISTER, Call, Charge, Operation, StaleRules
from ..limits.decision import Decision, LimitState
from ..limits.limit import Limit
from ..limits.rate import SECOND
from .blocking import Link
from .cluster import Ask, Cluster, Steps, slot_of
from .commands import Address, Question, to_decide, to_delete, to_execute, to_tell_reset
from .connection_params import ConnectionParams
from .patience import Patience
from .server import MAX_KEYS, Node, Store

REFUSES = Limit("never", "0/s", algorithm="fixed_window")
"""With this limit a hit is refused, so that the other limits only count what they count of refused
hits. It has no state.
"""

Deciding = Generator[Any, Any, Decision]


@dataclass(frozen=True, slots=True)
class Part:
    """The charges of a call that one hash slot decides, and their places in the call."""

    call: Call
    places: Sequence[int]


class ShardedStore(Store):
    """Performs calls on a cluster, each within `timeout` seconds, however many nodes that takes."""

    compares_rules = False

    def __init__(self, params: ConnectionParams, timeout: float, *, background: bool) -> None:
        super().__init__(params, timeout, background=background)
        self._cluster = Cluster(params.nodes)

    def decide(self, call: Call, patience: Patience | None = None) -> Decision:
        decision: Decision = self._drive(self._decide(call, self._patience(patience)))
        return decision

    async def adecide(self, call: Call, patience: Patience | None = None) -> Decision:
        decision: Decision = await self._adrive(self._decide(call, self._patience(patience)))
        return decision

    def delete(self, call: Call) -> int:
        moment: int = self._drive(self._delete(call, self._patience()))
        return moment

    async def adelete(self, call: Call) -> int:
        moment: int = await self._adrive(self._delete(call, self._patience()))
        return moment

    def tell_reset(self, call: Call) -> None:
        self._drive(self._tell_reset(call, self._patience()))

    async def atell_reset(self, call: Call) -> None:
        await self._adrive(self._tell_reset(call, self._patience()))

    def _masters(self) -> list[Node]:
        self.execute(b"EXISTS", b"0")  # The masters are known after any command.
        return [self._node_at(address) for address in self._cluster.masters]

    def decide_many(self, calls: Sequence[Call]) -> list[Decision]:
        return [self.decide(call) for call in calls]  # Each may belong to another node.

    def delete_keys(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.execute(b"DEL", key)

    def _exchange(self, question: Question, patience: Patience | None = None) -> Any:
        return self._drive(self._ask(slot_of(question.key), question, self._patience(patience)))

    async def _aexchange(self, question: Question, patience: Patience | None = None) -> Any:
        return await self._adrive(
            self._ask(slot_of(question.key), question, self._patience(patience))
        )

    def _exchange_all(
        self, questions: Iterable[Question], patience: Patience | None = None
    ) -> list[Any]:
        return [self._exchange(question, patience) for question in questions]

    def _portions(self, keys: Sequence[bytes]) -> Iterator[Sequence[int]]:
        places: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(slot_of(key), []).append(place)
        for those in places.values():
            for first in range(0, len(those), MAX_KEYS):
                yield those[first : first + MAX_KEYS]

    def _server_of(self, key: bytes) -> Address | None:
        return self._cluster.master(slot_of(key))

    def _decide(self, call: Call, patience: Patience) -> Deciding:
        if not call.charges:
            return (yield from self._decide_at(slot_of(call.fence), call, patience))
        # The rules are in another hash slot. `_replace` takes four times as long.
        revision = call.revision_number
        call = Call(
            call.charges,
            call.operation,
            call.prefix,
            call.now,
            call.max_wait_us,
            call.partial,
            hit_at=call.hit_at,
            longest_hold_us=call.longest_hold_us,
            slack_us=call.slack_us,
            slot=call.slot,
            waits=call.waits,
            registers=False,
            why=call.why,
            confirm_ms=call.confirm_ms,
            debt=call.debt,
        )
        elsewhere = [place for place, charge in call.banning if _bans_elsewhere(charge)]
        if elsewhere:
            decision = yield from self._decide_with_bans(call, elsewhere, patience)
        else:
            decision = yield from self._decide_limits(call, patience)
        return decision._replace(revision=revision)

    def _decide_limits(self, call: Call, patience: Patience) -> Deciding:
        parts = _parts_of(call)
        if len(parts) == 1:
            decision = yield from self._decide_at(_slot_of(call.charges[0]), call, patience)
        else:
            decision = yield from self._decide_in_turn(call, parts, patience)
        return decision

    def _decide_with_bans(
        self, call: Call, elsewhere: Sequence[int], patience: Patience
    ) -> Deciding:
        """Decide a call with bans of other identities in other hash slots: read these first, then
        decide the limits, which only read if a ban refuses, and then record offences.
        """
        is_hit, bans = call.operation == "hit", {}
        for place in elsewhere:
            units = 0 if is_hit else call.charges[place].cost
            bans[place] = yield from self._of_ban(call, place, units, patience)
        enforced = [place for place in elsewhere if call.charges[place].limit.mode == "enforce"]
        held = {place for place, ban in bans.items() if ban.until}
        is_banned = not held.isdisjoint(enforced)
        charges = list(call.charges)
        for place in elsewhere:
            # A limit in shadow mode admits a banned client and does not count it.
            cost = 0 if is_hit and place in held else charges[place].cost
            charges[place] = charges[place]._replace(
                limit=charges[place].limit.without_bans(), cost=cost
            )
        operation: Operation = "peek" if is_hit and is_banned else call.operation
        decision = yield from self._decide_limits(
            call._replace(charges=charges, operation=operation), patience
        )
        states = list(decision.limits)
        for place in elsewhere:
            charge, state = call.charges[place], states[place]
            if (
                is_hit
                and charge.cost
                and not is_banned
                and place not in held
                and _is_offence(charge, state)
            ):
                bans[place] = yield from self._of_ban(call, place, 1, patience)
            states[place] = _with_ban(state, bans[place], decision.moment, is_held=place in held)
        if is_hit and is_banned:
            decision = decision._replace(allowed=False, granted=0)
        elif is_hit and decision.allowed and not call.partial:
            decision = decision._replace(granted=call.units)
        return decision._replace(limits=tuple(states), allowed=decision.allowed and not is_banned)

    def _of_ban(
        self, call: Call, place: int, units: int, patience: Patience
    ) -> Generator[Any, Any, Ban]:
        """The ban in its own hash slot, after the offences and the operation of a call are recorded
        there.
        """
        charge = call.charges[place]
        operation: Operation = call.operation if call.operation in ("ban", "unban") else "offend"
        charge = Charge(charge.limit, charge.ban_digest, 0 if call.operation == "peek" else units)
        alone = Call(
            [charge],
            operation,
            call.prefix,
            call.now,
            slack_us=call.slack_us,
            registers=False,
            why=call.why,
        )
        decision = yield from self._decide_at(_slot_of(charge), alone, patience)
        return decision.limits[0].ban or Ban()

    def _decide_at(self, slot: int, call: Call, patience: Patience) -> Deciding:
        decision: Decision = yield from self._ask(slot, to_decide(call), patience)
        return decision

    def _decide_in_turn(self, call: Call, parts: Sequence[Part], patience: Patience) -> Deciding:
        """Decide the parts of a call in turn, all or nothing."""
        states: dict[int, LimitState] = {}
        taken: list[tuple[Part, Decision]] = []
        decisions: list[Decision] = []
        refused = False
        for part in parts:
            part_call, slot = part.call, _slot_of(part.call.charges[0])
            if call.operation == "hit" and refused:
                if call.partial:
                    part_call = _at_most(part_call, 1)  # A refused partial hit counts one unit.
                part_call = part_call._replace(
                    charges=[*part_call.charges, Charge(REFUSES, part_call.charges[0].digest)],
                    partial=False,
                )
            elif call.operation == "hit" and call.partial and taken:
                part_call = _at_most(part_call, taken[-1][1].granted)
            try:
                decision = yield from self._decide_at(slot, part_call, patience)
            except StoreError:
                yield from self._give_back(taken, 0, states, patience)
                raise
            decisions.append(decision)
            states.update(zip(part.places, decision.limits, strict=False))
            if call.operation == "hit" and decision.allowed:
                taken.append((Part(part_call, part.places), decision))
            refused = refused or not decision.allowed
        granted = (
            0
            if refused
            else (min if call.partial else max)(decision.granted for decision in decisions)
        )
        if refused or call.partial:
            yield from self._give_back(taken, granted, states, patience)
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

    def _give_back(
        self,
        taken: Sequence[tuple[Part, Decision]],
        keep: int,
        states: dict[int, LimitState],
        patience: Patience,
    ) -> Steps:
        """Give back the units that were taken, except `keep` units of each limit.

        Units that cannot be given back stay counted.
        """
        for part, decision in taken:
            call = part.call
            back: dict[int, list[tuple[int, LimitState, Charge]]] = {}
            for place, charge, state in zip(
                part.places, call.charges, decision.limits, strict=True
            ):
                took = decision.granted if call.partial else charge.cost
                kept_units = keep
                if (
                    charge.limit.count_denied and not keep
                ):  # Refused hits count, and so does this one.
                    kept_units = 1 if call.partial else took
                cost = took - kept_units
                if state.allowed and cost > 0:
                    moment = state.counted_at or decision.counted_at(charge.digest)
                    back.setdefault(moment, []).append((place, state, charge._replace(cost=cost)))
            for moment, those in back.items():
                charges = [charge for _, _, charge in those]
                refund = call._replace(
                    operation="refund", partial=False, hit_at=moment, charges=charges
                )
                with suppress(StoreError):
                    given = yield from self._decide_at(_slot_of(charges[0]), refund, patience)
                    for (place, state, _), now in zip(those, given.limits, strict=True):
                        # Units that are kept still count since then.
                        states[place] = now._replace(counted_at=state.counted_at if keep else 0)

    def _delete(self, call: Call, patience: Patience) -> Steps:
        bans, register = call.ban_keys(), call.prefix + REGISTER
        charges = [charge._replace(banned=b"") for charge in call.charges]
        wide = [charge for _, charge in call.banning if charge.ban_digest != charge.digest]
        charges += [Charge(charge.limit, charge.banned) for charge in wide]
        latest = 0
        for part in _parts_of(call._replace(charges=charges, registers=False)):
            question = to_delete(part.call, self.channel(call.prefix))
            moment = yield from self._ask(_slot_of(part.call.charges[0]), question, patience)
            latest = max(latest, moment)
        if bans:
            yield from self._ask(slot_of(register), to_execute(b"ZREM", register, *bans), patience)
        return latest

    def _tell_reset(self, call: Call, patience: Patience) -> Steps:
        question = to_tell_reset(call, self.channel(call.prefix))
        yield from self._ask(_slot_of(call.charges[0]), question, patience)
        register = call.prefix + REGISTER  # It is in another hash slot than the bans.
        yield from self._ask(
            slot_of(register), to_execute(b"ZREM", register, *call.state_keys()), patience
        )

    def _ask(self, slot: int, question: Question, patience: Patience) -> Steps:
        try:
            answer = yield from self._cluster.exchange(slot, question, patience)
        except (RedisError, OSError) as error:
            raise self._failed(error, self._cluster.master(slot)) from error
        if self._is_down:
            self._answered(self._cluster.master(slot))
        return answer

    def _answered(self, node: Address | None = None) -> None:
        for address in list(self._nodes.keys() - self._cluster.nodes):
            gone = self._nodes.pop(address, None)
            if gone is not None:
                gone.close()
        with self._lock:  # A node that is not a master any more need not answer.
            self._failing &= self._cluster.masters
        super()._answered(node)

    def _drive(self, steps: Steps) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    answer = None
                    if isinstance(step, Ask):
                        answer = self._node_at(step.address).use(
                            Link.ask, step.question, step.patience
                        )
                    else:
                        time.sleep(step)
                except (RedisError, OSError, StaleRules) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as finished:
            return finished.value

    async def _adrive(self, steps: Steps) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    answer = None
                    if isinstance(step, Ask):
                        answer = await self._node_at(step.address).aexchange(
                            step.question, step.patience
                        )
                    else:
                        await asyncio.sleep(step)
                except (RedisError, OSError, StaleRules) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as finished:
            return finished.value


def _bans_elsewhere(charge: Charge) -> bool:
    return bool(charge.banned) and slot_of(b"{%b}" % charge.banned) != _slot_of(charge)


def _is_offence(charge: Charge, state: LimitState) -> bool:
    """Whether a decided hit is an offence."""
    terms = charge.limit.ban
    if terms is None or charge.reports:
        return False
    return (
        not state.allowed
        if terms.on == "refused"
        else terms.on == "counted" and state.counted_at > 0
    )


def _with_ban(state: LimitState, ban: Ban, moment: int, *, is_held: bool) -> LimitState:
    """The state of a limit with a ban from another hash slot."""
    if not ban.until:
        return state._replace(ban=ban)
    seconds, is_allowed = max(0, ban.until - moment) / SECOND, state.allowed and not is_held
    retry = (
        0.0
        if is_allowed
        else None
        if state.retry_after is None
        else max(state.retry_after, seconds)
    )
    return state._replace(
        allowed=is_allowed,
        remaining=0,
        retry_after=retry,
        reset_after=max(state.reset_after, seconds),
        ban=ban,
    )


def _slot_of(charge: Charge) -> int:
    return slot_of(b"{%b}" % charge.digest)


def _parts_of(call: Call) -> list[Part]:
    """A call's parts, one for each hash slot."""
    first = call.charges[0].digest
    if all(
        charge.digest == first for charge in call.charges
    ):  # Nearly always. Computing a hash slot takes time.
        return [Part(call, range(len(call.charges)))]
    places: dict[int, list[int]] = {}
    for place, charge in enumerate(call.charges):
        places.setdefault(_slot_of(charge), []).append(place)
    return [
        Part(call._replace(charges=[call.charges[place] for place in those]), those)
        for those in places.values()
    ]


def _at_most(call: Call, cost: int) -> Call:
    return call._replace(
        charges=[charge._replace(cost=min(charge.cost, cost)) for charge in call.charges]
    )
