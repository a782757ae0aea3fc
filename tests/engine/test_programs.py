"""What the program makes of states that are not its own, of huge numbers, of stale rules, and where
it is unknown.
"""

from __future__ import annotations

import itertools
import logging
import random
import struct

import pytest
import redis

from django_ratelimit_lua.limits.algorithms import ALGORITHMS, BY_RATE
from django_ratelimit_lua.limits.call import Call, Charge, Revision, StaleRules, Subject
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.store import get_store
from tests.examples import examples

pytestmark = pytest.mark.engine

START = 1_750_000_000_000_000
serial = itertools.count()


def garbage(chance: random.Random, state: bytes | None) -> bytes:
    """What is no state of ours, or nearly one."""
    numbers = [0.0, -1.0, 0.5, 1e300, -1e300, 2.0**53, float("nan"), float("inf"), START + 7e7]
    if not state or chance.random() < 0.2:
        return chance.randbytes(
            chance.choice(
                [0, 1, 8, 16, 24, 32, 40, 46, 48, 57, 59, 64, 72, 81, 96, 120, 257, 268, 400]
            )
        )
    how = chance.randrange(4)
    if how == 0:
        return state[: chance.randrange(len(state) + 1)]
    if how == 1:
        return state + chance.randbytes(chance.choice([1, 8, 11, 16, 24, 35]))
    place = chance.randrange(0, len(state) - 7, chance.choice([7, 8])) if len(state) >= 8 else 0
    if how == 2:
        return state[:place] + struct.pack("<d", chance.choice(numbers)) + state[place + 8 :]
    return state[:place] + chance.randbytes(8) + state[place + 8 :]


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_invalid_states_are_cleared(
    algorithm: str, direct: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys of another type, other bytes, other members: where they are no state of ours, the answer
    is as if they were not there, they are reported, and from then on the limit counts. Whatever
    they are, no answer is an error.
    """
    chance, limit, cleared = random.Random(algorithm), Limit("f", "5/h", algorithm=algorithm), 0
    for _ in range(examples(400)):
        call, now = Call([Charge(limit, b"%032d" % next(serial))], prefix=b"f:", now=START), START
        (key,) = call.keys()
        for _ in range(chance.randrange(6)):
            get_store().decide(call)
        kind = chance.choice(["bytes", "bytes", "list", "members"])
        state = direct.get(key) if direct.type(key) == b"string" else None
        direct.delete(key)
        if kind == "list":
            direct.rpush(key, "x")
        elif kind == "members":
            member = chance.randbytes(chance.choice([1, 6, 12, 13]))
            score = chance.choice([0, -5, START, START + 0.5, START + 10**12, 2**60])
            direct.zadd(key, {member: score})
        else:
            direct.set(key, garbage(chance, state))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            used = [
                get_store().decide(call._replace(now=now + later)).limits[0].used
                for later in range(2)
            ]
        is_foreign = any("Deleted 1 key" in message for message in caplog.messages)
        cleared += is_foreign
        assert is_foreign or kind != "list"
        if is_foreign:
            assert used == [1, 2]
    assert cleared > examples(100)


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_only_an_invalid_state_is_cleared(algorithm: str, direct: redis.Redis) -> None:
    """The others are charged once."""
    limits = [
        Limit(f"l{number}", "5/h", algorithm=name)
        for number, name in enumerate(ALGORITHMS)
        if name in BY_RATE
    ]
    limits.append(Limit("foreign", "5/h", algorithm=algorithm))
    call = Call([Charge(limit, b"%032d" % next(serial)) for limit in limits], prefix=b"b:")
    direct.rpush(call.keys()[-1], "x")
    assert [state.used for state in get_store().decide(call).limits] == [1] * len(limits)
    assert direct.type(call.keys()[-1]) != b"list"


@pytest.mark.parametrize("operation", ["hit", "peek", "refund", "partial"])
def test_an_invalid_state_among_others_changes_no_result(
    operation: str, direct: redis.Redis
) -> None:
    """The others are answered and kept as if the key had not been there."""
    limits = [Limit(name, "5/h", algorithm=name) for name in BY_RATE]
    limits.append(Limit("foreign", "5/h"))
    answers = []
    for is_foreign in (False, True):
        charges = [Charge(limit, b"%032d" % next(serial)) for limit in limits]
        is_partial = operation == "partial"
        call = Call(
            charges, "hit" if is_partial else operation, b"n:", now=START, partial=is_partial
        )  # type: ignore[arg-type]
        if is_foreign:
            direct.rpush(call.keys()[-1], "x")
        states = [get_store().decide(one).limits for one in (call, call._replace(operation="peek"))]
        keys = [key for key in call.state_keys() if direct.type(key) == b"string"]
        answers.append((states, direct.mget(keys)))
    assert answers[0] == answers[1]


def test_a_token_bucket_refunds_any_number_of_units(direct: redis.Redis) -> None:
    """Also more at once than it keeps of one hit: when all is given back, nothing is left."""
    chance, many = random.Random(5), [1, 1, 2**32 - 1, 2**32 - 1, 2**32, 5 * 10**9, 10**10]
    for rate in ("1000000000000/d", "700000000000/11h"):
        who, now, taken = b"%032d" % next(serial), START, []
        for _ in range(400):
            now += chance.choice([0, 1, 7, 1000, 10**8])
            limit = Limit("many", rate, algorithm="token_bucket")
            if taken and chance.random() < 0.3:
                moment, cost = taken.pop(chance.randrange(len(taken)))
                get_store().decide(
                    Call([Charge(limit, who, cost)], "refund", now=now, hit_at=moment)
                )
                continue
            cost = chance.choice(many)
            counted_at = (
                get_store().decide(Call([Charge(limit, who, cost)], now=now)).limits[0].counted_at
            )
            if counted_at:
                taken.append((counted_at, cost))
        for moment, cost in taken:
            get_store().decide(Call([Charge(limit, who, cost)], "refund", now=now, hit_at=moment))
        assert (
            get_store().decide(Call([Charge(limit, who, 1)], "peek", now=now)).limits[0].used == 0
        )


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_a_bucket_in_the_format_of_doubles_starts_afresh(
    algorithm: str, direct: redis.Redis
) -> None:
    """Before the first release, the state of a bucket consisted of doubles. It is cleared."""
    limit = Limit(
        "old", "5/h", algorithm=algorithm, **({"queue": 4} if algorithm == "leaky_bucket" else {})
    )
    header = struct.pack("<6d", START, START + 9 * 10**8, 0.0, 1.0, 720_000_000.0, 5.0)
    run = struct.pack("<3d", START - 1, START, 1.0)
    for state in [
        header + struct.pack("<2d", START, 1.0),
        *(header + run * count for count in range(17)),
    ]:
        call = Call(
            [Charge(limit, b"%032d" % next(serial))], prefix=b"old:", now=START + 1, max_wait_us=0
        )
        direct.set(call.keys()[0], state)
        assert get_store().decide(call).limits[0].used == 1


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_every_script_reports_stale_rules(algorithm: str, direct: redis.Redis) -> None:
    """The fence is the same text: an old revision and unknown overrides decide nothing, the current
    ones do.
    """
    who, current = b"%032d" % next(serial), Revision.of(9, "0123456789abcdef")
    key = b"fence:" + who
    direct.hset(key, mapping={"revision": current.text, "blocked": b"t" * 16 + b"[]"})
    call = Call([Charge(Limit("f", "5/m", algorithm=algorithm), who)], prefix=b"f:", fence=key)
    with pytest.raises(StaleRules) as stale:
        get_store().decide(call._replace(revision=Revision.of(8, "0123456789abcdef")))
    assert stale.value.current == current
    known = call._replace(revision=current)
    with pytest.raises(StaleRules) as unknown:
        get_store().decide(known._replace(subjects=[Subject(b"free"), Subject(b"blocked")]))
    assert unknown.value.records == (None, b"t" * 16 + b"[]")
    subjects = [Subject(b"free"), Subject(b"blocked", b"t" * 16)]
    assert get_store().decide(known._replace(subjects=subjects)).limits[0].used == 1
    assert get_store().decide(known).limits[0].used == 2


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_a_hit_that_is_repeated_counts_once(algorithm: str, direct: redis.Redis) -> None:
    """Also where no program is known to the server any more, neither the first nor the second."""
    who = b"%032d" % next(serial)
    call = Call([Charge(Limit("again", "5/m", algorithm=algorithm), who)], prefix=b"a:")
    for flush in (False, True, True):
        direct.delete(call.keys()[0])
        direct.rpush(call.keys()[0], "x")
        if flush:
            direct.script_flush()
        assert get_store().decide(call).limits[0].used == 1
        assert get_store().decide(call).limits[0].used == 2
