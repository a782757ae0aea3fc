"""The script of a breaker compared with its exact models, and the simpler breaker of a process
without Redis.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from fractions import Fraction

import pytest
import redis
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua.contrib.breakers.circuit import (
    NO_OUTCOMES,
    Answer,
    LoneCircuit,
    Outcomes,
)
from django_ratelimit_lua.contrib.breakers.circuits import PROGRAM
from django_ratelimit_lua.contrib.breakers.rows import Thresholds
from tests.contrib.breakers.circuit_model import CircuitModel
from tests.examples import examples
from tests.server import url

SECOND = 1_000_000
BEGIN = 1_700_000_000 * SECOND


class Script:
    """The script, at moments that the test chooses, on separate keys."""

    def __init__(self, server: redis.Redis) -> None:
        key = f"circuits:{{{secrets.token_hex(8)}}}"
        self.keys, self._server = [key, f"{key}:probes"], server
        self.channel = f"{key}:changes"

    def call(
        self,
        now: int,
        by: Thresholds,
        operation: str = "tell",
        *,
        chance: int = 0,
        probe: str = "",
        result: str = "",
        era: int = -1,
        outcomes: Outcomes = NO_OUTCOMES,
    ) -> Answer:
        numbers = [
            by.window_us,
            by.width_us,
            by.open_us,
            by.open_max_us,
            by.probe_us,
            by.probes,
            by.minimum,
            by.failures or 0,
            by.failure_ppm or 0,
            (by.slow_us and by.slow_ppm) or 0,
            chance,
        ]
        reply = self._server.eval(
            PROGRAM.source,
            2,
            *self.keys,
            now,
            operation,
            *numbers,
            self.channel,
            "circuit x",
            probe,
            result,
            era,
            *outcomes,
        )
        return Answer.read(reply)


@pytest.fixture
def script(direct: redis.Redis) -> Script:
    return Script(direct)


BY = st.builds(
    Thresholds,
    failure_ppm=st.sampled_from([None, 1, 500_000, 333_333, 1_000_000]),
    failures=st.sampled_from([None, 1, 5]),
    slow_us=st.sampled_from([None, SECOND]),
    slow_ppm=st.sampled_from([None, 800_000]),
    minimum=st.integers(1, 12),
    window_us=st.sampled_from([SECOND, 10 * SECOND, 30 * SECOND]),
    open_us=st.sampled_from([SECOND // 10, 3 * SECOND, 10 * SECOND]),
    open_max_us=st.sampled_from([10 * SECOND, 25 * SECOND]),
    probes=st.integers(1, 4),
)
PAUSES = st.sampled_from([0, 1, 40_000, SECOND - 1, SECOND, 3 * SECOND, 11 * SECOND, 100 * SECOND])
COUNTS = st.integers(0, 8).flatmap(
    lambda calls: st.tuples(st.just(calls), st.integers(0, calls), st.integers(0, calls))
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tell"), PAUSES, COUNTS),
        st.tuples(st.just("ask"), PAUSES, st.none()),
        st.tuples(
            st.just("done"),
            PAUSES,
            st.tuples(st.integers(0, 5), st.sampled_from(["ok", "failed", "none"])),
        ),
        st.tuples(st.just("hung"), PAUSES, st.integers(0, 5)),
        st.tuples(st.just("until it changes"), st.just(0), st.none()),
        st.tuples(st.just("retune"), st.just(0), BY),
    ),
    max_size=25,
)


@hypothesis_settings(max_examples=examples(150))
@given(by=BY, steps=STEPS, chance=st.integers(0, 999))
def test_the_script_and_the_model_agree(by: Thresholds, steps: list, chance: int) -> None:
    """States, counts, slots of probes, ramps and pauses, to the microsecond, whatever is told,
    asked and retuned.
    """
    with redis.Redis.from_url(url()) as server:
        script, model, now = Script(server), CircuitModel(), BEGIN
        probes: list[tuple[str, int]] = []
        answer = model.call(now, by)
        assert script.call(now, by, era=0) == answer
        for what, pause, detail in steps:
            now += pause
            options: dict = {"era": answer.era}
            if what == "retune":
                by = detail
            elif what == "until it changes":
                now += answer.wait
            elif what == "tell":
                options["outcomes"] = Outcomes(*detail)
                options["probe"] = " ".join(probe for probe, _ in probes)
            elif what == "ask":
                options["probe"] = secrets.token_hex(4)
            elif what == "hung" and probes:
                options["probe"], options["era"] = probes[detail % len(probes)]
                options["result"] = "failed"
            elif what == "done" and probes:
                options["probe"], options["era"] = probes.pop(detail[0] % len(probes))
                options["result"] = detail[1]
            operation = what if what in ("ask", "done", "hung") and "probe" in options else "tell"
            answer = model.call(now, by, operation, chance=chance, **options)
            assert script.call(now, by, operation, chance=chance, **options) == answer
            if answer.granted:
                probes.append((options["probe"], answer.era))


@hypothesis_settings(max_examples=examples(100))
@given(
    by=BY.filter(lambda by: by.failure_ppm or by.failures),
    told=st.lists(st.tuples(st.integers(0, 4 * SECOND), COUNTS), min_size=1, max_size=30),
)
def test_a_breaker_opens_by_the_outcomes_of_the_window(
    by: Thresholds, told: list[tuple[int, tuple[int, int, int]]]
) -> None:
    """States, counts, slots of probes and pauses are equal to the microsecond, for any reports,
    requests and changes of thresholds.
    """
    with redis.Redis.from_url(url()) as server:
        script, now, all_of_them = Script(server), BEGIN, []
        for pause, counts in told:
            now += pause
            all_of_them.append((now, *counts))
            answer = script.call(now, by, era=0, outcomes=Outcomes(*counts))
            if answer.state == "open":
                (event,) = answer.events
                numbers = event.calls, event.failures, event.slow
            else:
                numbers = answer.calls, answer.failures, answer.slow
            least, most = (
                [
                    sum(one[field] for one in all_of_them if one[0] > now - span)
                    for field in (1, 2, 3)
                ]
                for span in (by.window_us, by.window_us + by.width_us)
            )
            assert all(
                low <= number <= high
                for low, number, high in zip(least, numbers, most, strict=True)
            )
            calls, failures, slow = numbers
            judged = [(failures, by.failure_ppm), (slow, by.slow_us and by.slow_ppm)]
            has_to_open = (by.failures is not None and failures >= by.failures) or any(
                calls >= by.minimum and bool(ppm) and number >= Fraction(ppm, 10**6) * calls
                for number, ppm in judged
            )
            assert (answer.state == "open") == has_to_open
            if has_to_open:
                return


def opened(script: Script, by: Thresholds, now: int = BEGIN) -> Answer:
    answer = script.call(
        now, by, era=script.call(now, by).era, outcomes=Outcomes(by.minimum, by.minimum)
    )
    assert answer.state == "open"
    return answer


def test_a_half_open_breaker_grants_its_probes_and_always_leaves_the_state(script: Script) -> None:
    """The configured number of probes gets a slot. The slot of a process that has ended expires,
    and another probe gets it.
    """
    by = Thresholds(probes=3, open_us=10 * SECOND)
    now = BEGIN + opened(script, by).wait
    assert not script.call(now - 1, by, "ask", probe="early").granted
    assert [script.call(now, by, "ask", probe=f"a{n}").granted for n in range(8)] == [True] * 3 + [
        False
    ] * 5
    waiting = script.call(now + 1, by, "ask", probe="b")
    assert (waiting.state, waiting.wait) == ("half-open", by.probe_us - 1)
    now += by.probe_us
    assert [script.call(now, by, "ask", probe=f"c{n}").granted for n in range(4)] == [True] * 3 + [
        False
    ]


def test_a_hanging_probe_keeps_its_slot(script: Script) -> None:
    """It counts as failed while it runs, and keeps its slot as long as its process reports it. A
    report after the end does not take the slot again.
    """
    by = Thresholds(probes=1, open_us=SECOND)
    now = BEGIN + opened(script, by).wait
    assert script.call(now, by, "ask", probe="a").granted
    answer = script.call(now, by, "hung", probe="a", result="failed", era=1)
    assert (answer.state, answer.era, answer.events[0].reason) == ("open", 2, "probe")
    again = script.call(now, by, "hung", probe="a", result="failed", era=1)
    assert (again.state, again.era, again.events) == ("open", 2, ())
    for _ in range(5):
        now += by.probe_us - 1
        script.call(now, by, "tell", probe="a")
        assert not script.call(now, by, "ask", probe="b").granted
    assert script.call(now, by, "done", probe="a", result="ok", era=1).state == "half-open"
    script.call(now, by, "tell", probe="a")
    assert script.call(now, by, "ask", probe="b").granted
    assert not script.call(now, by, "ask", probe="c").granted
    assert script.call(now + by.probe_us, by, "ask", probe="c").granted


def test_a_breaker_closes_when_all_probes_have_succeeded(script: Script) -> None:
    """Calls that were admitted before the breaker opened are not counted after it closed."""
    by = Thresholds(probes=2, minimum=20)
    now = BEGIN + opened(script, by).wait
    for name, state in (("a", "half-open"), ("b", "closed")):
        assert script.call(now, by, "ask", probe=name).granted
        answer = script.call(now, by, "done", probe=name, result="ok", era=1)
        assert answer.state == state
    assert [(event.name, event.calls) for event in answer.events] == [("closed", 2)]
    assert script.call(now, by, era=0, outcomes=Outcomes(20, 20)).state == "closed"
    assert script.call(now, by, era=1, outcomes=Outcomes(20, 20)).state == "open"


def test_pauses_grow_with_repeated_failures_up_to_a_maximum(script: Script) -> None:
    """A pause is twice as long as the one before, at most `open_max`. Closing resets it."""
    by, now, waits = Thresholds(probes=1, open_us=10 * SECOND, open_max_us=35 * SECOND), BEGIN, []
    answer = opened(script, by)
    for _ in range(4):
        waits.append(answer.wait // SECOND)
        now += answer.wait
        assert script.call(now, by, "ask", probe="a").granted
        answer = script.call(now, by, "done", probe="a", result="failed", era=answer.era)
    assert waits == [10, 20, 35, 35]
    now += answer.wait
    assert script.call(now, by, "ask", probe="a").granted
    answer = script.call(now, by, "done", probe="a", result="ok", era=answer.era)
    assert answer.state == "closed"
    assert opened(script, by, now).wait == 10 * SECOND


@pytest.mark.parametrize("step", [-3600, -1, 3600])
def test_a_clock_that_jumps_loses_no_counts_and_stops_no_breaker(script: Script, step: int) -> None:
    """After a jump backwards, time continues from the earlier value. After a jump forwards, older
    outcomes expire and an open breaker grants probes.
    """
    by = Thresholds(minimum=10)
    script.call(BEGIN, by, era=0, outcomes=Outcomes(9, 4))
    now = BEGIN + step * SECOND
    answer = script.call(now, by, era=0, outcomes=Outcomes(1, 1))
    assert (answer.state, answer.calls) == (("open", 0) if step < 0 else ("closed", 1))
    if step < 0:
        behind = (
            0 if step < -60 else -step
        )  # So little is the clock of another process: time stands still meanwhile.
        assert not script.call(now + (9 + behind) * SECOND, by, "ask", probe="a").granted
        assert script.call(now + (10 + behind) * SECOND, by, "ask", probe="a").granted


def test_differences_between_clocks_do_not_prolong_a_window(script: Script) -> None:
    """Two processes whose clocks differ by five seconds report a hundred calls each in turns. All
    calls are in the window.
    """
    by = Thresholds(minimum=1000)
    for turn in range(100):
        script.call(BEGIN + turn * SECOND // 100, by, era=0, outcomes=Outcomes(1))
        answer = script.call(
            BEGIN + 5 * SECOND + turn * SECOND // 100, by, era=0, outcomes=Outcomes(1)
        )
    assert answer.calls == 200


def test_changed_thresholds_keep_the_state_and_the_counts(script: Script) -> None:
    """Counts are kept under another window, bucket width or ratio. A pause is never longer than the
    new maximum.
    """
    by = Thresholds(minimum=100, window_us=30 * SECOND)
    script.call(BEGIN, by, era=0, outcomes=Outcomes(40, 30))
    longer = replace(by, window_us=120 * SECOND)
    assert script.call(BEGIN + 20 * SECOND, longer, era=0, outcomes=Outcomes(10, 5)).calls == 50
    answer = script.call(
        BEGIN + 20 * SECOND, replace(longer, minimum=50), era=0, outcomes=Outcomes(1, 1)
    )
    assert (answer.state, answer.events[0].calls) == ("open", 51)
    shorter = Thresholds(minimum=100, open_us=SECOND, open_max_us=SECOND)
    assert script.call(BEGIN + 20 * SECOND, shorter).wait == SECOND * 11 // 10


def test_pauses_have_random_lengths(script: Script) -> None:
    """A pause is up to a tenth longer than configured."""
    by = Thresholds()
    answer = script.call(BEGIN, by, era=0, outcomes=Outcomes(20, 20), chance=999)
    assert 10 * SECOND < answer.wait < 11 * SECOND


def test_the_key_of_an_unused_breaker_expires(script: Script, direct: redis.Redis) -> None:
    """The key of a closed breaker expires after a day, and that of an open breaker after a week."""
    script.call(BEGIN, Thresholds(), era=0, outcomes=Outcomes(1))
    assert 0 < direct.ttl(script.keys[0]) <= 86_400 + 60
    opened(script, Thresholds())
    assert 7 * 86_400 <= direct.ttl(script.keys[0]) <= 7 * 86_400 + 60


def test_without_redis_one_call_at_a_time_is_a_probe() -> None:
    """A probe is granted after `open_for`. A failure opens the breaker again, and a success closes
    it. A call that began before the breaker opened is not counted.
    """
    by, circuit, failed = (
        Thresholds(failures=2, window_us=10 * SECOND),
        LoneCircuit(),
        Outcomes(1, 1),
    )
    assert circuit.call(0, by, outcomes=failed).state == "closed"
    assert circuit.call(11 * SECOND, by, outcomes=failed).state == "closed"
    opened = circuit.call(12 * SECOND, by, outcomes=failed)
    assert (opened.state, opened.era, opened.wait, [event.name for event in opened.events]) == (
        "open",
        1,
        by.open_us,
        ["opened"],
    )
    assert not circuit.call(13 * SECOND, by, "ask", probe="early").granted
    now = 12 * SECOND + by.open_us
    asked = [circuit.call(now, by, "ask", probe=name) for name in ("first", "second")]
    assert [(answer.state, answer.granted) for answer in asked] == [
        ("half-open", True),
        ("half-open", False),
    ]
    assert circuit.call(now, by, "done", probe="first", result="failed", era=1).state == "open"
    now += by.open_us
    assert circuit.call(now, by, "ask", probe="third").granted
    assert circuit.call(now, by, "done", probe="first", result="ok", era=1).state == "half-open"
    closed = circuit.call(now, by, "done", probe="third", result="ok", era=2)
    assert (closed.state, closed.failures, [event.name for event in closed.events]) == (
        "closed",
        0,
        ["closed"],
    )
    assert circuit.call(now, by, outcomes=Outcomes(2, 2), era=1).state == "closed"
