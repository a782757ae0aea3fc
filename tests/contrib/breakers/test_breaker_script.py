"""The script of a breaker compared with its model, whatever processes report and Redis loses."""

from __future__ import annotations

import secrets

import pytest
import redis
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua.contrib.breakers.shared_state import PROGRAM, Thresholds
from tests.contrib.breakers.breaker_model import BreakerModel, Reply, Report
from tests.examples import examples
from tests.support.redis_server import url

SECOND = 1_000_000
BEGIN = 1_700_000_000 * SECOND
PROCESSES = 3


class Script:
    """The script, at moments that the test chooses, on a key of its own."""

    def __init__(self, server: redis.Redis) -> None:
        self.key = f"breaker:{{{secrets.token_hex(8)}}}"
        self.server = server

    def call(self, now: int, by: Thresholds, report: Report) -> Reply:
        known, lost = report.known.version, report.restores
        result = (report.calls, report.failures, report.result, report.allowed_by)
        arguments = [now, known, lost, *result, int(report.asks), *by]
        arguments += [f"{self.key}:changes", "changed"]
        state, version, wait, is_probe, is_changed = self.server.eval(
            PROGRAM.source, 1, self.key, *arguments
        )
        return Reply(state.decode(), version, wait, is_probe == 1, is_changed == 1)


@pytest.fixture
def script(direct: redis.Redis) -> Script:
    return Script(direct)


BY = st.builds(
    Thresholds,
    width_us=st.sampled_from([SECOND // 10, SECOND, 3 * SECOND]),
    minimum=st.integers(1, 12),
    ratio_ppm=st.sampled_from([0, 1, 333_333, 500_000, 1_000_000]),
    open_us=st.sampled_from([SECOND // 10, 3 * SECOND, 10 * SECOND]),
    probes=st.integers(1, 4),
)
RESTORES = st.sampled_from(["open", "half-open"])
PAUSES = st.sampled_from([0, 1, 40_000, SECOND - 1, SECOND, 3 * SECOND, 11 * SECOND, 100 * SECOND])
PROCESS = st.integers(0, PROCESSES - 1)
COUNTS = st.integers(0, 8).flatmap(lambda calls: st.tuples(st.just(calls), st.integers(0, calls)))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("report"), PROCESS, COUNTS),
        st.tuples(st.just("fail in a row"), PROCESS, st.none()),
        st.tuples(st.just("ask"), PROCESS, st.none()),
        st.tuples(st.just("end"), PROCESS, st.tuples(st.integers(0, 5), st.booleans())),
        st.tuples(st.just("wait"), PROCESS, PAUSES),
        st.tuples(st.just("wait until it changes"), PROCESS, st.none()),
        st.tuples(st.just("lose all data"), PROCESS, st.none()),
        st.tuples(st.just("set the clock back"), PROCESS, PAUSES),
        st.tuples(st.just("restart"), PROCESS, st.none()),
    ),
    min_size=20,
    max_size=60,
)


@hypothesis_settings(max_examples=examples(1000))
@given(options=st.lists(BY, min_size=PROCESSES, max_size=PROCESSES), steps=STEPS, lost=RESTORES)
def test_the_script_and_the_model_agree(options: list[Thresholds], steps: list, lost: str) -> None:
    """All replies are equal, to the microsecond, whatever processes report and Redis loses."""
    with redis.Redis.from_url(url()) as server:
        script = Script(server)
        model = BreakerModel()
        now = BEGIN
        known = [Reply()] * PROCESSES
        probes: list[int] = []
        for what, process, detail in steps:
            is_closed = known[process].state == "closed"
            report = Report(known[process], "closed" if is_closed else lost)
            if what == "wait":
                now += detail
            elif what == "set the clock back":
                now -= detail
            elif what == "wait until it changes":
                now += known[process].wait
            elif what == "lose all data":
                server.delete(script.key)
                model = BreakerModel()
            elif what == "restart":
                known[process] = Reply()
            elif what == "report":
                report = report._replace(calls=detail[0], failures=detail[1])
            elif what == "fail in a row":
                report = report._replace(result="failed", allowed_by=known[process].version)
            elif what == "ask":
                report = report._replace(asks=True)
            elif what == "end" and probes:
                place, succeeds = detail
                allowed_by = probes.pop(place % len(probes))
                result = "ok" if succeeds else "failed"
                report = report._replace(result=result, allowed_by=allowed_by)
            reply = model.call(now, options[process], report)
            assert script.call(now, options[process], report) == reply
            known[process] = reply
            if reply.is_probe:
                probes.append(reply.version)


@hypothesis_settings(max_examples=examples(150))
@given(
    by=BY,
    steps=st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "ask", "ok", "failed", "lose all data"]), PROCESS, PAUSES
        ),
        max_size=40,
    ),
)
def test_an_open_breaker_grants_few_probes_in_any_interval(by: Thresholds, steps: list) -> None:
    """At most `probes` calls pass in any interval of `open_for`, however often data are lost."""
    with redis.Redis.from_url(url()) as server:
        script = Script(server)
        opened = script.call(BEGIN, by, Report(result="failed", allowed_by=0))
        known = [opened] * PROCESSES
        received = [BEGIN] * PROCESSES
        granted: list[int] = []
        probes: list[int] = []
        now = BEGIN
        for what, process, pause in steps:
            now += pause
            if what == "lose all data":
                for each in range(PROCESSES):
                    if now - received[each] > by.open_us:
                        restores = restored(now - received[each], by)
                        known[each] = script.call(now, by, Report(known[each], restores))
                        received[each] = now
                server.delete(script.key)
                continue
            restores = restored(now - received[process], by)
            report = Report(known[process], restores, asks=what == "ask")
            if what in ("ok", "failed"):
                if not probes:
                    continue
                report = report._replace(result=what, allowed_by=probes.pop(0))
            reply = script.call(now, by, report)
            if reply.state == "closed":
                return
            known[process] = reply
            received[process] = now
            if reply.is_probe:
                granted.append(now)
                probes.append(reply.version)
                assert sum(moment > now - by.open_us for moment in granted) <= by.probes


def restored(age: int, by: Thresholds) -> str:
    """Return the state that a process restores, by the age of its news."""
    return "half-open" if age > 2 * by.open_us else "open"


def opened(script: Script, by: Thresholds) -> Reply:
    reply = script.call(BEGIN, by, Report(result="failed", allowed_by=0))
    assert (reply.state, reply.wait) == ("open", by.open_us)
    return reply


BY_DEFAULT = Thresholds(3 * SECOND, 20, 500_000, 10 * SECOND, 3)


def test_a_half_open_breaker_does_not_stick(script: Script) -> None:
    """Probes that do not end lose their places after `open_for`. Late successes count."""
    known = opened(script, BY_DEFAULT)
    now = BEGIN
    for _ in range(3):
        now += 10 * SECOND
        replies = [script.call(now, BY_DEFAULT, Report(known, asks=True)) for _ in range(5)]
        assert [reply.is_probe for reply in replies] == [True] * 3 + [False] * 2
        known = replies[-1]
        assert (known.state, known.version, known.wait) == ("half-open", 2, 10 * SECOND)
    for _ in range(3):
        known = script.call(now, BY_DEFAULT, Report(known, result="ok", allowed_by=2))
    assert known.state == "closed"


@pytest.mark.parametrize("succeeded", [0, 1, 2])
def test_a_deployment_that_lowers_probes_does_not_stick(script: Script, succeeded: int) -> None:
    """All probes of the old processes began, and some have succeeded."""
    new = BY_DEFAULT._replace(probes=1)
    known = opened(script, BY_DEFAULT)
    now = BEGIN + 10 * SECOND
    for _ in range(3):
        known = script.call(now, BY_DEFAULT, Report(known, asks=True))
    for _ in range(succeeded):
        known = script.call(now, BY_DEFAULT, Report(known, result="ok", allowed_by=2))
    assert known.state == "half-open"
    now += 10 * SECOND
    known = script.call(now, new, Report(known, asks=True))
    assert known.is_probe
    known = script.call(now, new, Report(known, result="ok", allowed_by=2))
    assert known.state == "closed"


@pytest.mark.parametrize("years", [-1, 1])
def test_a_clock_that_is_set_wrong_prolongs_no_pause(script: Script, years: int) -> None:
    """An open breaker grants a probe `open_for` after the step, at the latest."""
    known = opened(script, BY_DEFAULT)
    now = BEGIN + years * 365 * 86_400 * SECOND
    known = script.call(now, BY_DEFAULT, Report(known))
    assert known.wait == (10 * SECOND if years < 0 else 0)
    assert script.call(now + known.wait, BY_DEFAULT, Report(known, asks=True)).is_probe


def test_an_unused_key_expires(script: Script) -> None:
    """A day after the last report, the key is deleted."""
    opened(script, BY_DEFAULT)
    assert 0 < script.server.ttl(script.key) - 86_400 <= 60
