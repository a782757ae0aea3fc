"""Hits in a straight line: every shape beside the general program, to the microsecond and to the byte of the states."""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any

import pytest
import redis

from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.algorithms.leaky_bucket import LeakyBucket
from django_ratelimit_lua.limits.call import Call, Charge, Revision, StaleRules, Subject
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.program import (
    ALGORITHMS,
    GENERAL,
    MOST_LIMITS,
    Program,
    _functions,
    _inlined,
    _without_comments,
    program_for,
    straight,
)
from django_ratelimit_lua.store import get_store
from tests.examples import examples

pytestmark = pytest.mark.engine

START = 1_750_000_000_000_000
TOKEN = b"\r\n\x00token"
STRAIGHT = [name for name in BY_RATE if name != "leaky_bucket"]
SHAPES = [shape for count in range(1, MOST_LIMITS + 1) for shape in itertools.product(STRAIGHT, repeat=count)]
LATER = [0, 0, 0, 1, 2, 7, 999_983, 1_000_000, 6_000_000, 59_999_999, 3_600_000_000, -1, -2_000_000, -61_000_000]
RATES: list[Any] = ["1/s", "3/s", "7/11s", "10/m", "13/m", "100/h", "300007/s", "1000003/d", (5, 0.00001), "0/s"]
PREFIXES = (b"straight:", b"general:")
serial = itertools.count()


class Both:
    """Asks a straight program and the general one the same, about states of their own, and holds them to each other."""

    def __init__(self, direct: redis.Redis) -> None:
        self.direct = direct
        self.who = b"%032d" % next(serial)
        self.again = 0

    def __call__(self, call: Call) -> bytes:
        program = program_for(call)
        mine, others = (call._replace(prefix=prefix) for prefix in PREFIXES)
        reply, expected = self._perform(mine, program), self._perform(others, GENERAL)
        if isinstance(reply, redis.ResponseError):
            assert str(reply) == f"AGAIN {TOKEN.hex()}"
            self.again += 1
            reply = self._perform(mine, GENERAL)
        assert reply == expected
        lives, states = self.states(mine)
        others_lives, others_states = self.states(others)
        assert states == others_states
        for life, other in zip(lives, others_lives, strict=True):
            assert (life < 0 and life == other) or abs(life - other) < 30_000  # Time goes on between the two.
        return expected

    def _perform(self, call: Call, program: Program) -> Any:
        keys = call.keys()
        for _ in range(2):
            try:
                return self.direct.execute_command("EVALSHA", program.sha, len(keys), *keys, *call.args(TOKEN))
            except redis.exceptions.NoScriptError:
                self.direct.script_load(program.source)
            except redis.ResponseError as error:
                return error
        raise AssertionError("loaded, and unknown")

    def states(self, call: Call) -> tuple[list[int], list[Any]]:
        """For how many milliseconds each key is kept, and what is."""
        with self.direct.pipeline(transaction=False) as pipeline:
            for charge, key in zip(call.charges, call.keys(), strict=False):
                pipeline.pttl(key)
                if charge.limit.algorithm == "sliding_log":
                    pipeline.zrange(key, 0, -1, withscores=True)
                else:
                    pipeline.get(key)
            found = pipeline.execute(raise_on_error=False)
        return found[::2], [repr(state) if isinstance(state, Exception) else state for state in found[1::2]]


def limits(chance: random.Random, shape: tuple[str, ...], *, plain: bool = False) -> list[Limit]:
    """Limits of that shape, with any options that leave it such."""
    made = []
    for number, algorithm in enumerate(shape):
        options: dict[str, Any] = {}
        takes = ALGORITHMS[algorithm].options
        if "burst" in takes and chance.random() < 0.5:
            options["burst"] = chance.randint(1, 12)
        if "segments" in takes and chance.random() < 0.5:
            options["segments"] = chance.randint(1, 3)
        if "align" in takes and chance.random() < 0.5:
            options["align"] = "clock"
        options["mode"] = "enforce" if plain else chance.choice(["enforce", "enforce", "shadow"])
        rates = [rate for rate in RATES if algorithm != "sliding_log" or rate not in ("300007/s", "1000003/d")]
        rates = [rate for rate in rates if not (algorithm == "sliding_window" and isinstance(rate, tuple))]
        limit = Limit(f"l{number}", chance.choice(rates), algorithm=algorithm, **options)
        made.append(limit.advising() if chance.random() < 0.1 else limit)
    return made


@pytest.mark.parametrize("shape", SHAPES, ids="-".join)
def test_every_shape_answers_as_the_general_program(shape: tuple[str, ...], direct: redis.Redis) -> None:
    """Hits among peeks, refunds, reservations, partial hits, edits and a clock that steps back: each reply and each
    state is the general program's."""
    chance = random.Random("-".join(shape))
    for _ in range(examples(12 if len(shape) == 1 else 3, at_least=1)):
        both, now, current = Both(direct), START + chance.randrange(10**7), limits(chance, shape)
        for _ in range(60):
            now += chance.choice(LATER)
            cost = chance.choice([0, 1, 1, 1, 1, 2, 3, 7, 1000])
            charges = [Charge(limit, both.who, chance.choice([cost, cost, 1])) for limit in current]
            action = chance.choice(["hit"] * 10 + ["peek", "refund", "charge", "wait", "partial", "edit"])
            if action == "edit":
                current = limits(chance, shape)
                continue
            options = {"wait": {"max_wait_us": -1}, "partial": {"partial": True}}.get(action, {})
            call = Call(charges, "hit" if options else action, now=now, **options)
            if action == "hit" and all(charge.cost for charge in charges):
                assert program_for(call) is straight(shape)
            both(call)


@pytest.mark.parametrize("shape", SHAPES, ids="-".join)
def test_usual_states_need_no_second_question(shape: tuple[str, ...], direct: redis.Redis) -> None:
    """However many hits come and are refused, and however densely, a straight program decides them by itself."""
    chance = random.Random("-".join(shape))
    both, now, current = Both(direct), START, limits(chance, shape, plain=True)
    steps = [1, 3, 40, 5_000, 1_000_000, 20_000_000]
    for number in range(150):
        now += steps[number // 25] + chance.randrange(3)
        both(Call([Charge(limit, both.who, chance.choice([1, 1, 1, 2])) for limit in current], now=now))
    assert both.again == 0


@pytest.mark.parametrize("algorithm", STRAIGHT)
def test_an_edit_needs_no_second_question(algorithm: str, direct: redis.Redis) -> None:
    """Also where all that comes after it is refused, and so writes nothing."""
    edits: list[tuple[str, dict[str, Any]]] = [(rate, {}) for rate in ("10/d", "5/d", "0/d", "7/12h", "100/h")]
    takes = ALGORITHMS[algorithm].options
    edits += [("5/d", options) for options in ({"burst": 3}, {"segments": 1}, {"segments": 7}) if takes >= set(options)]
    for edited, step in itertools.product(itertools.permutations(edits, 2), (1_000_003, 3_600_000_001)):
        both, now = Both(direct), START
        for rate, options in edited:
            limit = Limit("e", rate, algorithm=algorithm, **options)
            for _ in range(12):
                now += step
                both(Call([Charge(limit, both.who)], now=now))
        assert both.again == 0, edited


def garbage(chance: random.Random, state: bytes | None) -> bytes:
    """What is no state of ours, or nearly one."""
    numbers = [0.0, -1.0, 0.5, 1e300, -1e300, 2.0**53, float("nan"), float("inf"), START + 7e7]
    if not state or chance.random() < 0.2:
        return chance.randbytes(
            chance.choice([0, 1, 8, 16, 24, 32, 40, 46, 48, 57, 59, 64, 72, 81, 96, 120, 257, 268, 400])
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


@pytest.mark.parametrize("algorithm", STRAIGHT)
def test_foreign_states_are_left_to_the_general_program(algorithm: str, direct: redis.Redis) -> None:
    """Keys of another type, other bytes, other members: the reply, what is kept, and how many keys were cleared."""
    chance = random.Random(algorithm)
    for _ in range(300):
        shape = (algorithm, *chance.choices(STRAIGHT, k=chance.choice([0, 0, 1, 2])))
        both, now, current = Both(direct), START, limits(chance, shape)
        charges = [Charge(limit, both.who) for limit in current]
        for _ in range(chance.randrange(6)):
            both(Call(charges, now=now))
            now += chance.choice(LATER)
        keys = [Call(charges, prefix=prefix).keys()[0] for prefix in (b"straight:", b"general:")]
        kind = chance.choice(["bytes", "bytes", "bytes", "list", "other"])
        state = direct.get(keys[0]) if algorithm != "sliding_log" else None
        foreign = garbage(chance, state)
        gone = now - current[0].rate.period_us
        member, score = (
            chance.randbytes(chance.choice([1, 6, 12, 13])),
            chance.choice([0, -5, START, START + 0.5, gone + 0.5, START + 10**12, 2**60]),
        )
        for key in keys:
            if kind == "list":
                direct.delete(key)
                direct.rpush(key, "x")
            elif kind == "other" or algorithm == "sliding_log":
                if algorithm != "sliding_log":
                    direct.delete(key)
                elif kind == "other":
                    direct.set(key, "x")
                    continue
                direct.zadd(key, {member: score})
            else:
                direct.set(key, foreign)
        for _ in range(3):
            both(Call(charges, now=now))
            now += chance.choice(LATER)


def test_a_token_bucket_takes_any_number_of_units(direct: redis.Redis) -> None:
    """Also more at once than it keeps of one hit: both programs agree, and when all is given back, nothing is left."""
    chance, many = random.Random(5), [1, 1, 2**32 - 1, 2**32 - 1, 2**32, 5 * 10**9, 10**10]
    for rate in ("1000000000000/d", "700000000000/11h"):
        both, now, taken = Both(direct), START, []
        for _ in range(400):
            now += chance.choice([0, 1, 7, 1000, 10**8])
            limit = Limit("many", rate, algorithm="token_bucket")
            if taken and chance.random() < 0.3:
                moment, cost = taken.pop(chance.randrange(len(taken)))
                both(Call([Charge(limit, both.who, cost)], "refund", now=now, hit_at=moment))
                continue
            cost = chance.choice(many)
            reply = struct.unpack("<12d", both(Call([Charge(limit, both.who, cost)], now=now))[: -len(TOKEN)])
            if reply[11]:
                taken.append((int(reply[11]), cost))
        assert both.again == 0
        for moment, cost in taken:
            both(Call([Charge(limit, both.who, cost)], "refund", now=now, hit_at=moment))
        left = struct.unpack("<12d", both(Call([Charge(limit, both.who, 1)], "peek", now=now))[: -len(TOKEN)])
        assert left[6] == 0, "used"


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_a_bucket_that_was_kept_as_doubles_starts_afresh(algorithm: str, direct: redis.Redis) -> None:
    """As it was before the first release: six of them, and three or two for each run or hole."""
    limit = Limit("old", "5/h", algorithm=algorithm, **({"queue": 4} if algorithm == "leaky_bucket" else {}))
    header = struct.pack("<6d", START, START + 9 * 10**8, 0.0, 1.0, 720_000_000.0, 5.0)
    run = struct.pack("<3d", START - 1, START, 1.0)
    for state in [header + struct.pack("<2d", START, 1.0), *(header + run * count for count in range(17))]:
        call = Call([Charge(limit, b"%032d" % next(serial))], prefix=b"old:", now=START + 1, max_wait_us=0)
        direct.set(call.keys()[0], state)
        assert get_store().decide(call).limits[0].used == 1


def test_what_is_no_plain_hit_is_decided_by_the_general_program() -> None:
    """And so the shapes are few: servers keep each program for good."""
    plain = Limit("a", "5/m")
    charge = Charge(plain, b"w")
    assert program_for(Call([charge])) is straight((plain.algorithm,))
    assert program_for(Call([charge] * MOST_LIMITS)) is straight((plain.algorithm,) * MOST_LIMITS)
    assert program_for(Call([charge], max_wait_us=0)) is straight((plain.algorithm,))
    others = [
        Call([]),
        Call([charge] * (MOST_LIMITS + 1)),
        Call([charge], "peek"),
        Call([charge], "refund"),
        Call([charge], "charge"),
        Call([charge], partial=True),
        Call([charge], max_wait_us=-1),
        Call([charge], max_wait_us=5),
        Call([charge, Charge(plain, b"w", 0)]),
    ]
    options: list[dict[str, Any]] = [
        {"count_denied": True},
        {"max_wait": 1.0},
        {"algorithm": "leaky_bucket"},
        {"algorithm": "leaky_bucket", "max_wait": 0, "queue": 3},
    ]
    unusual = [Limit("b", "5/m", **given) for given in options]
    unusual.append(Limit("b", "5/d", algorithm="fixed_window", align="day"))
    others += [Call([charge, Charge(limit, b"w")]) for limit in unusual]
    assert {program_for(call) for call in others} == {GENERAL}
    assert len(SHAPES) == 84


def test_an_algorithm_needs_no_block_for_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes one that holds nobody, and leaves it out, has the general program."""
    monkeypatch.setattr(LeakyBucket, "waits_anyway", False)
    limit = Limit("a", "5/m", algorithm="leaky_bucket", queue=3)
    assert limit.hit_by == "leaky_bucket"
    assert program_for(Call([Charge(limit, b"w")])) is GENERAL
    assert program_for(Call([Charge(Limit("b", "5/m"), b"w"), Charge(limit, b"w")])) is GENERAL


WRITTEN_OUT = """\
local function floor(number)
  return number - number % 1
end

local function sum(first, second)
  return first + second
end

local function early(number)
  if number > 1 then return 1 end
  number = number + 1
  return number
end

local function nested(number)
  local function inner(other)
    if other then return other end
    return 1
  end
  number = floor(inner(number))
  return number
end
"""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("local a = early(2)", "early returns before its end"),
        ("early(2)", "early returns before its end"),
        ("local a = sum(1, 2)", "sum has several parameters"),
        ("local a = 1 + nested(2)", "called within a line"),
        ("if b then a = nested(2)\nend", "called within a line"),
        ("a, b = 1, nested(2)", "called within a line"),
    ],
)
def test_what_cannot_be_written_out_is_told(text: str, complaint: str) -> None:
    """And is not sent to a server to mean something else."""
    with pytest.raises(AssertionError, match=complaint):
        _inlined(text, _functions(WRITTEN_OUT))


def test_what_is_written_out() -> None:
    """Statements on lines of their own, expressions anywhere; what is only named alike stays."""
    functions = _functions(WRITTEN_OUT)
    text = r"a = floor(find(b, '\1')) + math.floor(c)"
    assert _inlined(text, functions) == r"a = ((find(b, '\1')) - (find(b, '\1')) % 1) + math.floor(c)"
    written = _inlined("  local a, b = nested(c)", functions)
    assert written.startswith("  local nested_1, nested_2\n  do\n    local number = c\n")
    assert "number = ((inner(number)) - (inner(number)) % 1)\n    nested_1, nested_2 = number\n" in written
    assert written.endswith("  end\n  local a, b = nested_1, nested_2")


def test_comments_are_not_read() -> None:
    """Neither calls in them, nor a `return`, nor the name of what would have to be asked for."""
    text = "--[[ state\n]]\na = 1 -- of the state\n  -- early(2) of the state\nb = 2\n--[==[\nx\n]==]\n"
    assert _without_comments(text) == "\na = 1\nb = 2\n"
    for shape in SHAPES:
        assert "--" not in straight(shape).source.decode().partition("local denied")[2]


def test_programs_in_a_straight_line_call_no_functions_of_their_own() -> None:
    """All are written out; what remains is defined and called within a branch that is rarely taken."""
    for shape in SHAPES:
        text = straight(shape).source.decode()
        rare = [line for line in text.splitlines() if "function" in line and not line.startswith("--")]
        assert all("local function fits(count)" in line or "AGAIN" in line for line in rare)


@pytest.mark.parametrize("algorithm", STRAIGHT)
def test_stale_rules_are_told_by_every_program(algorithm: str, direct: redis.Redis) -> None:
    """The fence is the same text: an old revision and unknown overrides decide nothing, the current ones do."""
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


@pytest.mark.parametrize("algorithm", STRAIGHT)
def test_a_hit_that_is_asked_again_counts_once(algorithm: str, direct: redis.Redis) -> None:
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
