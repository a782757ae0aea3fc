"""The Lua of concurrency limits against a model in Python, side by side, on a real server."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from struct import pack
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_ratelimit_lua.engine.slots import _PROGRAM, HeldSlot
from django_ratelimit_lua.limits.algorithms.concurrency import lasts_us, new_slot
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.store import Patience, get_store
from tests.examples import examples

pytestmark = pytest.mark.engine

START = 1_750_000_000_000_000
SECOND = 1_000_000
ALIVE = 2 * SECOND
"""For so long who waits is waited for."""
PAUSE = 100_000
serial = itertools.count()
performed: Counter[str] = Counter()


@dataclass
class Waiter:
    slot: bytes
    cost: int
    until: int


@dataclass
class Model:
    """What a concurrency limit promises, in as few words as there are."""

    limit: int
    queue: int
    held: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """By slot: when it ends, and how many units it has."""
    waiters: list[Waiter] = field(default_factory=list)
    now: int = START

    def look(self, now: int) -> None:
        """No clock that was set back makes anything last; who did not ask again does not wait any
        more.
        """
        self.now = now
        if self.live:
            # The last of the members, which is told by the bytes where several end at once.
            ends, last = max(
                (ends, slot + (pack(">I", units) if units > 1 else b""))
                for slot, (ends, units) in self.live.items()
            )
            if ends > now + lasts_us(last):
                self.held |= {
                    slot: (min(ends, now + lasts_us(slot)), units)
                    for slot, (ends, units) in self.live.items()
                }
        for waiter in self.waiters:
            waiter.until = min(waiter.until, now + ALIVE)
        self.waiters = [waiter for waiter in self.waiters if waiter.until > now]

    @property
    def live(self) -> dict[bytes, tuple[int, int]]:
        """What has not ended."""
        return {slot: held for slot, held in self.held.items() if held[0] > self.now}

    @property
    def used(self) -> int:
        return sum(units for _, units in self.live.values())

    def place(self, slot: bytes, cost: int) -> int | None:
        """How many wait before it does."""
        found = [
            place
            for place, waiter in enumerate(self.waiters)
            if (waiter.slot, waiter.cost) == (slot, cost)
        ]
        return found[0] if found else None

    def ahead(self, slot: bytes, cost: int) -> int:
        """Units that are waited for by those who came before."""
        place = self.place(slot, cost)
        return sum(waiter.cost for waiter in self.waiters[:place])

    def fits(self, slot: bytes, cost: int) -> bool:
        return cost <= self.limit and self.used + self.ahead(slot, cost) + cost <= self.limit

    def hit(self, slot: bytes, cost: int, now: int, waits: bool, lasts: int) -> tuple[bool, int]:
        """Whether it goes, and the number that tells what came of it."""
        self.look(now)
        if self.fits(slot, cost):
            self.waiters = [one for one in self.waiters if (one.slot, one.cost) != (slot, cost)]
            self.held = {**self.live, slot: (now + lasts, cost)}
            return True, now
        if not waits or cost > self.limit:
            return False, 0
        place = self.place(slot, cost)
        if place is None:
            if len(self.waiters) >= self.queue:
                return False, 0
            self.waiters.append(Waiter(slot, cost, 0))
            place = len(self.waiters) - 1
        self.waiters[place].until = now + ALIVE
        return False, -1 - place

    def release(self, slot: bytes, now: int) -> None:
        self.look(now)
        self.held.pop(slot, None)
        self.waiters = [one for one in self.waiters if one.slot != slot]

    def confirm(self, slot: bytes, cost: int, now: int) -> int:
        self.look(now)
        if slot not in self.live:
            return 0
        self.held[slot] = (now + lasts_us(slot), cost)
        return now

    def renew(self, slot: bytes, cost: int, now: int, again: bool) -> int:
        self.now = now
        is_held = slot in self.live
        if not is_held:
            if not again:
                return 0
            self.held = self.live
            if self.used + cost > self.limit:
                return 0
        self.held[slot] = (now + lasts_us(slot), cost)
        return 1 if is_held else 2


steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["hit", "wait"] * 4,
                *["unconfirmed", "confirm", "release"] * 2,
                "peek",
                "again",
                "foreign",
                "renew",
                "retake",
            ]
        ),
        st.sampled_from(
            [
                0,
                0,
                0,
                1,
                999,
                300_000,
                1_500_000,
                2_000_000,
                9_999_999,
                -1,
                -700_000,
                -3_600_000_000,
            ]
        ),
        st.sampled_from([1, 1, 1, 1, 2, 3]),
        st.integers(0, 100),
    ),
    min_size=40,
    max_size=40,
)


@settings(max_examples=examples(250), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    limit=st.sampled_from([1, 2, 3, 1, 2, 0]),
    queue=st.sampled_from([None, 3, 1, 0]),
    script=steps,
)
def test_slots_decide_like_their_reference_model(
    limit: int, queue: int | None, script: Any
) -> None:
    """Hits, also of slots to be confirmed, waiting, peeks, releases of one's own, of others' and of
    what is gone, renewals, confirmations, time that passes and a clock that is set back: every
    number is the model's.
    """
    given_limit = Limit("slots", str(limit), algorithm="concurrency", queue=queue)
    model = Model(limit, limit * 10 if queue is None else queue)
    who, now = f"{next(serial):032d}".encode(), START
    known: list[tuple[bytes, int]] = []
    for action, later, cost, which in script:
        now += later
        performed[action] += 1
        slot = new_slot([1.0, 10.0][which % 2])
        if known and (
            action in ("release", "again", "renew", "retake", "confirm")
            or (action == "wait" and which % 3)
        ):
            slot, cost = known[which % len(known)]
        call = Call([Charge(given_limit, who, cost)], "hit", b"s:", now, slot=slot)
        if action in ("renew", "retake"):
            if any(waiter.slot == slot for waiter in model.waiters):
                continue  # It is not held, and nobody renews it.
            held = HeldSlot(b"s:", call.charges[0], slot)
            answer = get_store().run_each(
                _PROGRAM,
                (b"%d" % now, action.encode()),
                [(held.redis_key, held.record())],
                Patience(5),
            )
            assert answer == [model.renew(slot, cost, now, action == "retake")]
        elif action == "confirm":
            if any(waiter.slot == slot for waiter in model.waiters):
                continue
            assert get_store().decide(call._replace(operation="charge")).limits[
                0
            ].counted_at == model.confirm(slot, cost, now)
        elif action in ("hit", "wait", "unconfirmed"):
            if slot in model.held:
                continue  # Each is asked for once, and by who waits until it is there.
            known.append((slot, cost))
            lasts = 700_000 if action == "unconfirmed" else lasts_us(slot)
            allowed, counted = model.hit(slot, cost, now, action == "wait", lasts)
            confirm_ms = 700 if action == "unconfirmed" else 0
            decision = get_store().decide(
                call._replace(waits=action == "wait", confirm_ms=confirm_ms)
            )
            assert (decision.allowed, decision.limits[0].counted_at) == (allowed, counted)
            performed["refused"] += not allowed
            performed["queued"] += counted < 0
        elif action == "peek":
            model.look(now)
            assert get_store().decide(
                call._replace(operation="peek", slot=b"")
            ).allowed == model.fits(b"", cost)
        else:
            model.release(slot, now)
            get_store().decide(call._replace(operation="refund"))
        model.look(now)
        decision = get_store().decide(call._replace(operation="peek", slot=b""))
        state = decision.limits[0]
        ends = sorted(ends for ends, units in model.live.values() for _ in range(units))
        room = limit - model.used - len(model.waiters)
        assert (state.used, state.remaining) == (model.used, max(0, room))
        assert round(state.reset_after * 1e6) == (ends[-1] - now if ends else 0)
        assert model.used <= limit
        if cost > limit:
            assert state.retry_after is None
        elif not state.allowed:
            # A guess: when so many of those end that end first; of what is only waited for, when
            # that is asked next.
            excess = model.used + model.ahead(b"", cost) + cost - limit
            expected = ends[min(excess, len(ends)) - 1] - now if ends else PAUSE
            assert excess >= model.used + len(model.waiters) + cost - limit > 0 or model.waiters
            if not model.waiters:
                assert round(state.retry_after * 1e6) == expected
                performed["guesses"] += 1


@pytest.mark.whole_file
def test_enough_slot_operations_were_compared() -> None:
    """Thousands of operations of every kind."""
    assert min(performed.values()) > examples(100), performed


def test_no_call_overtakes_a_waiting_one() -> None:
    """A slot that is free is for the first of those that wait; a second one for the next, whoever
    asks first.
    """
    limit = Limit("slots", "2", algorithm="concurrency")
    who = f"{next(serial):032d}".encode()
    slots = [new_slot(10.0) for _ in range(5)]

    def ask(number: int, operation: Any = "hit", waits: bool = True, at: int = 0) -> bool:
        call = Call(
            [Charge(limit, who)], operation, b"s:", START + at, slot=slots[number], waits=waits
        )
        return get_store().decide(call).allowed

    assert [ask(0), ask(1), ask(2), ask(3)] == [True, True, False, False]
    ask(0, "refund")
    assert [ask(4, waits=False), ask(3), ask(2)] == [False, False, True]
    ask(1, "refund")
    assert [ask(4, waits=False), ask(3)] == [False, True]
    ask(2, "refund")
    ask(4)
    ask(3, "refund")
    assert ask(4)


def test_many_slots_are_taken_and_released_at_once(direct: redis.Redis) -> None:
    """A hit may cost thousands; it is released as a whole, and half of it cannot be."""
    limit = Limit("slots", "5000", algorithm="concurrency")
    who = f"{next(serial):032d}".encode()
    slot = new_slot(10.0)
    call = Call([Charge(limit, who, 4999)], "hit", b"s:", slot=slot)
    assert get_store().decide(call).limits[0].used == 4999
    assert get_store().decide(call._replace(slot=new_slot(10.0))).allowed is False
    assert direct.zcard(call.keys()[0]) == 4999
    assert get_store().decide(call._replace(operation="refund")).limits[0].used == 0
    assert direct.exists(call.keys()[0]) == 0


@pytest.mark.parametrize("kind", ["string", "another set", "another list"])
def test_invalid_slot_data_is_deleted(kind: str, direct: redis.Redis) -> None:
    """A key of another type, or with what no program of ours writes: as if it was not there."""
    limit = Limit("slots", "1", algorithm="concurrency")
    call = Call([Charge(limit, f"{next(serial):032d}".encode())], "hit", b"s:", slot=new_slot(10.0))
    key = call.keys()[0]
    if kind == "string":
        direct.set(key, "x")
    elif kind == "another set":
        direct.zadd(key, {"x": 2e15})
    else:
        direct.rpush(key + b":q", "x")
    assert get_store().decide(call).allowed
    assert direct.zcard(key) == 1
    assert not get_store().decide(call._replace(slot=new_slot(10.0), waits=True)).allowed


def test_a_hit_without_a_slot_id_takes_no_slot() -> None:
    """Nobody could release it."""
    call = Call(
        [Charge(Limit("slots", "1", algorithm="concurrency"), f"{next(serial):032d}".encode())],
        prefix=b"s:",
    )
    for operation in ("hit", "charge", "refund"):
        assert get_store().decide(call._replace(operation=operation)).limits[0].used == 0
