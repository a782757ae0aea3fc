"""The Lua of concurrency limits against a model in Python, side by side, on a real server."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_ratelimit_lua.engine.slots import _PROGRAM, _UNITS
from django_ratelimit_lua.limits.algorithms.concurrency import ID_SIZE, new_slot
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.store import Deadline, get_store
from tests.examples import examples

pytestmark = pytest.mark.engine

START = 1_750_000_000_000_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
serial = itertools.count()
performed: Counter[str] = Counter()


def lasts_us(slot: bytes) -> int:
    """Return the lifetime of a slot without renewal, in microseconds."""
    return int.from_bytes(slot[ID_SIZE:], "big") * 1000


@dataclass
class Model:
    """A concurrency limit: the end and the units of each slot."""

    limit: int
    held: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    now: int = START

    def look(self, now: int) -> None:
        """Set the time. Slots that end more than a minute too late are dropped, the last first."""
        self.now = now
        while self.live:
            # Of the members that end at the same moment, the last one in the order of their bytes.
            ends, _, slot = max(
                (ends, slot + (_UNITS.pack(units) if units > 1 else b""), slot)
                for slot, (ends, units) in self.live.items()
            )
            if ends <= now + lasts_us(slot) + MINUTE:
                break
            del self.held[slot]

    @property
    def live(self) -> dict[bytes, tuple[int, int]]:
        return {slot: held for slot, held in self.held.items() if held[0] > self.now}

    @property
    def used(self) -> int:
        return sum(units for _, units in self.live.values())

    def fits(self, cost: int) -> bool:
        return self.used + cost <= self.limit

    def hit(self, slot: bytes, cost: int, now: int) -> bool:
        self.look(now)
        if not self.fits(cost):
            return False
        self.held = {**self.live, slot: (now + lasts_us(slot), cost)}
        return True

    def release(self, slot: bytes, now: int) -> None:
        self.look(now)
        self.held.pop(slot, None)

    def renew(self, slot: bytes, cost: int, now: int) -> int:
        self.now = now
        if slot not in self.live:
            return 0
        self.held[slot] = (now + lasts_us(slot), cost)
        return 1


steps = st.lists(
    st.tuples(
        st.sampled_from([*["hit"] * 4, *["renew"] * 3, "release", "peek"]),
        st.sampled_from(
            [0, 0, 0, 1, 999, 300_000, 1_100_000, 10_099_999, -1, -700_000, -3_600 * SECOND]
        ),
        st.sampled_from([1, 1, 1, 1, 2, 3]),
        st.integers(0, 100),
    ),
    min_size=40,
    max_size=40,
)


@settings(max_examples=examples(250), deadline=None, suppress_health_check=list(HealthCheck))
@given(limit=st.sampled_from([1, 2, 3, 1, 2, 0]), script=steps)
def test_slots_decide_like_their_reference_model(limit: int, script: Any) -> None:
    """Scripts have hits, releases, renewals, and a clock that is set back."""
    given_limit = Limit("slots", str(limit), algorithm="concurrency")
    model = Model(limit)
    who, now = f"{next(serial):032d}".encode(), START
    known: list[tuple[bytes, int]] = []
    for action, later, cost, which in script:
        now += later
        performed[action] += 1
        slot = new_slot([1.0, 10.0][which % 2])
        if known and action in ("release", "renew"):
            slot, cost = known[which % len(known)]
        call = Call([Charge(given_limit, who, cost)], "hit", b"s:", now, slot=slot)
        if action == "renew":
            record = slot + _UNITS.pack(cost)
            answer = get_store().run_each(
                _PROGRAM, (b"%d" % now,), [(call.keys()[0], record)], Deadline(5)
            )
            (renewed,) = answer.values()
            assert renewed == model.renew(slot, cost, now)
            performed["renewed"] += renewed
        elif action == "hit":
            decision = get_store().decide(call)
            if decision.allowed or which % 5 == 0:
                known.append((slot, cost))
            assert decision.allowed == model.hit(slot, cost, now)
            assert decision.limits[0].counted_at == (now if decision.allowed else 0)
            performed["refused"] += not decision.allowed
        elif action == "peek":
            model.look(now)
            decision = get_store().decide(call._replace(operation="peek", slot=b""))
            assert decision.allowed == model.fits(cost)
        else:
            model.release(slot, now)
            get_store().decide(call._replace(operation="refund"))
        model.look(now)
        decision = get_store().decide(call._replace(operation="peek", slot=b""))
        state = decision.limits[0]
        ends = sorted(ends for ends, units in model.live.values() for _ in range(units))
        assert (state.used, state.remaining) == (model.used, limit - model.used)
        assert round(state.reset_after * 1e6) == (ends[-1] - now if ends else 0)
        assert model.used <= limit
        if cost > limit:
            assert state.retry_after is None
        elif not state.allowed:
            # An estimate: the moment when enough slots have ended.
            assert round(state.retry_after * 1e6) == ends[model.used + cost - limit - 1] - now
            performed["estimates"] += 1


@pytest.mark.whole_file
def test_enough_slot_operations_were_compared() -> None:
    """Thousands of operations of every kind."""
    assert min(performed.values()) > examples(100), performed


@pytest.mark.parametrize("seconds", [1, 3600, 365 * 86400])
def test_a_clock_that_is_set_back_keeps_no_slot_longer_than_a_minute(seconds: int) -> None:
    """After a step of up to a minute, the slot is held until its moment."""
    limit = Limit("slots", "1", algorithm="concurrency")
    call = Call([Charge(limit, f"{next(serial):032d}".encode())], "hit", b"s:", START)
    assert get_store().decide(call._replace(slot=new_slot(10.0))).allowed
    moment = START - seconds * SECOND
    first = get_store().decide(call._replace(now=moment, slot=new_slot(10.0)))
    assert first.allowed is (seconds > 60)
    refused = get_store().decide(call._replace(now=moment, slot=new_slot(10.0)))
    retry_after = 11.1 if seconds == 1 else 10.1
    assert (refused.allowed, refused.limits[0].retry_after) == (False, retry_after)
    retry_at = moment + round(retry_after * SECOND)
    assert not get_store().decide(call._replace(now=retry_at - 1, slot=new_slot(10.0))).allowed
    assert get_store().decide(call._replace(now=retry_at, slot=new_slot(10.0))).allowed


def test_many_slots_are_taken_and_released_at_once(direct: redis.Redis) -> None:
    """A hit may cost thousands. They are renewed and released together."""
    limit = Limit("slots", "5000", algorithm="concurrency")
    who = f"{next(serial):032d}".encode()
    slot = new_slot(10.0)
    call = Call([Charge(limit, who, 4999)], "hit", b"s:", START, slot=slot)
    (key,) = call.keys()
    assert get_store().decide(call).limits[0].used == 4999
    assert get_store().decide(call._replace(slot=new_slot(10.0))).allowed is False
    record = (key, slot + _UNITS.pack(4999))
    moment = b"%d" % (START + SECOND)
    assert get_store().run_each(_PROGRAM, (moment,), [record], Deadline(5)) == {record: 1}
    assert direct.zcount(key, START + 11 * SECOND, "+inf") == 4999
    assert get_store().decide(call._replace(operation="refund")).limits[0].used == 0
    assert direct.exists(key) == 0


def test_a_hit_without_a_slot_id_takes_no_slot() -> None:
    """No caller could release it."""
    call = Call(
        [Charge(Limit("slots", "1", algorithm="concurrency"), f"{next(serial):032d}".encode())],
        prefix=b"s:",
    )
    for operation in ("hit", "charge", "refund"):
        assert get_store().decide(call._replace(operation=operation)).limits[0].used == 0
