"""The decision loop, without a server or a request."""

from __future__ import annotations

import pytest

from django_ratelimit_lua.engine import DecidedCharge
from django_ratelimit_lua.engine.decide import FENCED_ATTEMPTS, build_call, complete, deciding
from django_ratelimit_lua.engine.run import Wait
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Call, Charge, Revision, StaleRules
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.rules.ruleset import Ruleset
from django_ratelimit_lua.rules.snapshot import Snapshot
from django_ratelimit_lua.store import Deadline

CHARGE = Charge(Limit("x", "5/h"), digest("ada"))
ALLOWED = Decision(
    True, (LimitState("x", True, 5, 1, 4, 0.0, 3600.0, 0.0, counted_at=7),), 1, moment=7
)


class Planner:
    """A planner that charges one unit under any rules and records its calls."""

    units = 1
    is_hit = True
    state = request = None
    exempt = ()

    def __init__(self) -> None:
        self.gathered: list[int] = []
        self.plans = 0
        self.charges: list[DecidedCharge] = []
        self.finished: list[Decision] = []

    def gather(self, ruleset: Ruleset) -> tuple[()]:
        self.gathered.append(ruleset.revision.number)
        return ()

    def plan(self, ruleset: Ruleset) -> Call:
        self.plans += 1
        self.charges = [DecidedCharge(CHARGE, "x")]
        return build_call([CHARGE], ruleset=ruleset)

    def finish(self, decision: Decision) -> list[Wait]:
        self.finished.append(decision)
        return []


def revision(number: int) -> Revision:
    return Revision.of(number, "01234567", "89abcdef")


def rules(number: int) -> Ruleset:
    return Ruleset((), Snapshot(revision(number)), b"fence")


def stale(number: int) -> StaleRules:
    return StaleRules(revision(number))


class Loop:
    """The decision loop with rules from a list. It collects the calls that would be sent
    to Redis.
    """

    def __init__(self, planner: Planner, loaded: list[Ruleset]) -> None:
        self.calls: list[Call] = []
        self.loads = 0
        self.deadline = Deadline(1)
        self._waiting = deciding(planner, self.deadline)
        self._loaded = loaded
        self._step = next(self._waiting)

    def answer(self, reply: Decision | Exception) -> Decision | None:
        """Reply to the next call, and return the decision, or None if the loop continues."""
        try:
            while isinstance(self._step, Wait):
                if "load" in str(self._step.blocking):
                    self.loads += 1
                    self._step = self._waiting.send(self._loaded.pop(0))
                else:
                    self._step = self._waiting.send(self._step.blocking())
            self.calls.append(self._step)
            is_error = isinstance(reply, Exception)
            self._step = self._waiting.throw(reply) if is_error else self._waiting.send(reply)
        except StopIteration as finished:
            return finished.value
        return None


@pytest.fixture(autouse=True)
def no_rules_yet(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without loaded rules."""
    monkeypatch.setattr("django_ratelimit_lua.engine.decide.get_ruleset", lambda: None)


def test_stale_rules_are_loaded_and_the_call_is_planned_again() -> None:
    """The request is gathered again under the newer rules."""
    planner = Planner()
    loop = Loop(planner, [rules(number) for number in range(1, 9)])
    answers = [loop.answer(stale(number)) for number in range(2, 2 + FENCED_ATTEMPTS)]
    assert answers == [None] * FENCED_ATTEMPTS
    decision = loop.answer(ALLOWED)
    assert planner.gathered == [1, 2, 3, 4]
    assert [call.revision_number for call in loop.calls] == [1, 2, 3, 0]
    assert decision.revision == 4


def test_the_latest_known_rules_apply() -> None:
    """If loading returns the same rules again, the next call is sent without a revision."""
    loop = Loop(Planner(), [rules(1), rules(1)])
    assert loop.answer(stale(2)) is None
    assert loop.answer(ALLOWED).revision == 1
    assert [call.revision_number for call in loop.calls] == [1, 0]


@pytest.mark.parametrize(("is_answered", "left"), [(True, 0.02), (False, 0.0)])
def test_a_call_has_time_left_after_loading_the_rules(
    is_answered: bool, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Redis is not replying, it has no limits."""
    monkeypatch.setattr("django_ratelimit_lua.rules.provider.is_answered", is_answered)
    loop = Loop(Planner(), [rules(1)])
    loop.deadline.left = 0.0
    assert loop.answer(ALLOWED)
    assert loop.deadline.left == left


@pytest.mark.parametrize("counts_denied", [False, True])
def test_a_refused_call_has_no_units_to_refund(counts_denied: bool) -> None:
    """If another limit refuses, a limit takes no units, unless it counts denied requests."""
    refusing = Charge(Limit("full", "5/h"), digest("ada"))
    counted = Charge(
        Limit("x", "5/h", algorithm="fixed_window", count_denied=counts_denied), digest("ada")
    )
    charges = [DecidedCharge(counted, "x"), DecidedCharge(refusing, "full")]
    call = build_call([counted, refusing])
    states = (
        LimitState("x", True, 5, 1, 4, 0.0, 3600.0, 0.0, counted_at=7 if counts_denied else 0),
        LimitState("full", False, 5, 5, 0, 60.0, 60.0, 0.0),
    )
    complete(charges, call, Decision(False, states, moment=7))
    assert [decided.token for decided in charges] == [7 if counts_denied else None, None]
