"""What bans promise in words, checked from the outside; and real requests, with the reference
beside them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.ban import Ban
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit
from tests.support.limits import Asker

pytestmark = pytest.mark.engine

START = 1_750_000_000_000_000
SECOND, MINUTE = 1_000_000, 60_000_000


def ban_of(state: LimitState) -> Ban:
    assert state.ban is not None
    return state.ban


def banning(**options: Any) -> Limit:
    return Limit(
        "login", "2/h", **{"algorithm": "fixed_window", "ban_after": 3, "ban_for": "1m", **options}
    )


def refused(ask: Asker, now: int, times: int = 1) -> Decision:
    """The last of so many refusals, one microsecond after the other."""
    for number in range(times):
        decision = ask(now + number)
        assert not decision
    return decision


def test_refusals_trigger_bans_with_the_lengths_of_the_list() -> None:
    """Each ban is exactly as long as its entry."""
    ask, now = Asker(banning(ban_for="1m,4m,2m")), START
    assert ask(now)
    assert ask(now)
    for minutes in (1, 4, 2, 2):
        decision = refused(ask, now, 3)
        now += 2
        ban = ban_of(decision.limits[0])
        assert (ban.offences, ban.is_new) == (3, True)
        assert ban.until == now + minutes * MINUTE
        assert decision.banned_until == ban.ends_at
        for moment in (now + 1, now + 10 * SECOND, ban.until - 1):
            during = ask(moment)
            assert ban_of(during.limits[0]) == ban._replace(is_new=False)
            assert not during
        now = ban.until
        assert ban_of(ask(now, operation="peek").limits[0]) == Ban(times=ban.times)


def test_offences_count_until_the_end_of_their_window() -> None:
    """At the exact end of the window, its offences count no more, and a new window begins."""
    ask = Asker(banning(ban_window="10s"))
    ask(START)
    ask(START)
    refused(ask, START, 1)
    refused(ask, START + 5 * SECOND)
    assert ban_of(refused(ask, START + 10 * SECOND).limits[0]).offences == 1
    refused(ask, START + 15 * SECOND)
    now = START + 20 * SECOND - 1
    assert ban_of(refused(ask, now).limits[0]).until == now + MINUTE


def test_earlier_bans_are_forgotten_after_the_longest_ban_duration() -> None:
    """The duration begins at the end of the last ban, and is exact to the microsecond."""
    for later, minutes in ((-1, 10), (0, 1)):
        ask = Asker(Limit("login", "0/s", ban_after=1, ban_for="1m,10m"))
        refused(ask, START)
        now = START + 11 * MINUTE + later
        ban = ban_of(refused(ask, now).limits[0])
        assert ban.until == now + minutes * MINUTE
        assert ban.times == (1 if minutes == 1 else 2)


def test_allowed_hits_write_no_state_of_bans(direct: redis.Redis) -> None:
    """A peek writes none either. A refusal writes a state, which expires."""
    ask = Asker(banning())
    key = ask.keys()[1]
    for operation in ("hit", "peek", "hit", "peek", "charge", "refund"):
        ask(None, operation=operation)
        assert not direct.exists(key)
    ask(None, operation="charge")
    assert not ask(None)
    assert 0 < direct.pttl(key) <= 60_001
    ask(None)
    ask(None)
    assert 60_000 < direct.pttl(key) <= 120_001  # As long as the ban, and the last entry once more.


def test_during_a_ban_no_state_is_written(direct: redis.Redis) -> None:
    """Neither by the limit that bans nor by the other limits of the call."""
    other = Limit("other", "100/h", algorithm="fixed_window")
    counts = Limit("counts", "1/h", algorithm="sliding_log", count_denied=True)
    ask = Asker(banning(), counts, other)
    ask(START, 0, "ban")
    keys = ask.keys()
    before = [direct.dump(key) for key in keys]
    for operation in ("hit", "peek"):
        decision = ask(START + 1, operation=operation)
        assert (decision.allowed, decision.denied_by) == (False, ("login",))
    assert not ask(START + 1, cost=5, partial=True)
    assert [direct.dump(key) for key in keys] == before


def test_an_unban_ends_the_ban_at_once_and_may_forget_earlier_bans() -> None:
    """The number of bans is kept, unless it is to be forgotten."""
    for forgets in (0, 1):
        ask = Asker(Limit("login", "1/h", algorithm="fixed_window", ban_after=1, ban_for="2h,4h"))
        ask(START)
        refused(ask, START)
        assert ban_of(ask(START + 5, forgets, "unban").limits[0]) == Ban(times=1 - forgets)
        assert ask(START + 3600 * SECOND)
        ban = ban_of(refused(ask, START + 3600 * SECOND).limits[0])
        assert ban.until == START + (3 + (1 - forgets) * 2) * 3600 * SECOND


@pytest.mark.parametrize("seconds", [1, 3600, 365 * 86400])
def test_a_clock_that_is_set_back_prolongs_no_ban(seconds: int) -> None:
    """After a step of up to a minute, the ban ends as much earlier, and counts."""
    ask, now = Asker(Limit("login", "0/s", ban_after=2, ban_for="10m")), START - seconds * SECOND
    refused(ask, START)
    refused(ask, START)
    keeps = seconds == 1
    for _ in range(2):
        ban = ban_of(ask(now, operation="peek").limits[0])
        assert ban == (Ban(now + 10 * MINUTE, 2, 1) if keeps else Ban())
    now += 10 * MINUTE
    refused(ask, now)
    assert ban_of(refused(ask, now).limits[0]).times == (2 if keeps else 1)


@pytest.mark.parametrize("algorithm", BY_RATE)
def test_concurrent_refusals_trigger_exactly_one_ban(algorithm: str) -> None:
    """A hundred threads are refused at once."""
    options: dict[str, Any] = {"queue": 1, "max_wait": 0} if algorithm == "leaky_bucket" else {}
    limit = Limit("login", "2/h", algorithm=algorithm, ban_after=10, ban_for="1h", **options)
    ask = Asker(limit)
    with ThreadPoolExecutor(100) as pool:
        decisions = list(pool.map(lambda _: ask(None), range(400)))
    bans = [ban_of(decision.limits[0]) for decision in decisions]
    (earned,) = [ban for ban in bans if ban.is_new]
    assert (earned.offences, earned.times) == (10, 1)
    assert sum(decision.allowed for decision in decisions) == (
        2 if algorithm != "leaky_bucket" else 1
    )
    assert {ban.until for ban in bans} == {0, earned.until}
