"""Every decision is counted once, whatever called and decided it."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from django.utils.decorators import method_decorator
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_ratelimit_lua import Decision, Limit, Ratelimited, RateLimiter, ratelimit
from django_ratelimit_lua.contrib.statistics import recorder as recording
from django_ratelimit_lua.contrib.statistics.reading import (
    Span,
    count_dropped,
    read_histogram,
    read_names,
    read_totals,
)
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.contrib.statistics.writing import WRITE
from django_ratelimit_lua.engine import DecidedCharge
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.identity.request_state import RequestState
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.store import get_store
from django_ratelimit_lua.throttling import AnonRateThrottle
from example_project import sample
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import visits
from tests.contrib.statistics.counts import last, series, top, total
from tests.support.redis_server import CLOSED, caches, url
from tests.urls import ok

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site


def day() -> Span:
    return last(86_400, 3600)


def counts(name: str) -> dict[str, int]:
    return dict(total(name, day()).counts)


class Report(APIView):
    """A view of Django REST framework with a throttle and a decorator of ours."""

    class Throttle(AnonRateThrottle):
        """A throttle that allows every request."""

        rate = "1000/h"
        scope = "stats.throttle"

    throttle_classes = (Throttle,)
    authentication_classes = ()

    @method_decorator(ratelimit(group="stats.method", key="ip", rate="3/h"))
    def get(self, request: Any) -> Response:
        return Response()


def test_a_request_counts_once_for_the_site_however_many_limits_it_has() -> None:
    """The limits decide separately, and each is counted under its own name."""
    for name, mode in (("first", "enforce"), ("second", "enforce"), ("rehearsal", "shadow")):
        RateLimitRule.objects.create(name=name, path="/report", key="ip", rate="1000/h", mode=mode)
    RateLimitOverride.objects.create(network="203.0.113.66", effect="block")
    site = RateLimitMiddleware(Report.as_view())

    def visit(address: str) -> int:
        return site(APIRequestFactory().get("/report", REMOTE_ADDR=address)).status_code

    assert Counter(visit("203.0.113.1") for _ in range(10)) == {200: 3, 429: 7}
    assert Counter(visit("203.0.113.66") for _ in range(4)) == {429: 4}
    assert counts("first") == counts("second") == {"a": 10, "b": 4}
    assert counts("rehearsal") == {"h": 10, "b": 4}
    assert counts("stats.throttle") == {"a": 10}
    assert counts("stats.method") == {"a": 3, "r": 7}
    assert counts("") == {"a": 3, "r": 7, "b": 4}
    assert sum(point.counts["r"] for point in series("", last(3600, 60))) == 7
    RateLimiter("stats.beside", "5/h").hit("ada")
    assert counts("") == {"a": 4, "r": 7, "b": 4}


@pytest.mark.parametrize(
    ("results", "expected"),
    [("ar", "r"), ("ra", "r"), ("hr", "r"), ("ha", "a"), ("as", "a"), ("sh", "h"), ("hs", "s")],
)
def test_a_request_with_several_flushes_counts_once(results: str, expected: str) -> None:
    """It counts when its views have returned, as refused if any decision refused it."""
    request = RequestState(running=[()])
    for result in results:
        limit = Limit(result, "5/m", mode="enforce" if result in "ar" else "shadow")
        allowed = result in "ah"
        state = LimitState(result, allowed, 5, 1, 0, 0.0, 0.0, 0.0, limit.mode, 60.0)
        charge = DecidedCharge(Charge(limit, b"x" * 32), result, state=state)
        recorder.add([charge], Decision(not state.refuses, (state,)), 0.001, (), request)
        recorder.flush()
    assert counts("") == {}
    request.running.clear()
    recorder.flush()
    assert counts("") == {expected: 1}


def test_the_top_clients_by_units_and_by_refusals_are_listed(settings: Any) -> None:
    """Identities are masked, unless the settings show them in full or not at all."""
    view = ratelimit(group="stats.who", key=("ip", "get:name"), rate="2/h")(ok)

    def ask(name: str, times: int, address: str) -> None:
        for _ in range(times):
            view(APIRequestFactory().get("/", {"name": name}, REMOTE_ADDR=address))

    ask("alice", 9, "203.0.113.7")
    ask("bob", 3, "2001:db8:1:2::3")
    refused = top("stats.who")
    assert [(one.times, one.error) for one in refused] == [(7, 0), (1, 0)]
    name = "stats.who"
    assert refused[0].name == [("ip", "203.0.113.0/24"), ("get:name", "al…")]
    assert refused[1].name == [("ip", "2001:db8:1::/56"), ("get:name", "bo…")]
    assert [one.times for one in top(name, "used")] == [2, 2]
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"
    ask("carol", 12, "203.0.113.8")
    assert top(name)[0].name == [("ip", "203.0.113.8"), ("get:name", "carol")]
    settings.RATELIMIT_SHOW_IDENTITIES = "off"
    ask("dave", 20, "203.0.113.9")
    assert top(name)[0].name == []


def test_every_kind_of_result_is_counted() -> None:
    """They are those of rules, shadow mode, exemptions, and blocks with and without a rule."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    RateLimitRule.objects.create(name="quiet", path="/ok", key="ip", rate="1/h", mode="shadow")
    assert visits(3, "203.0.113.1") == [200, 200, 429]
    assert counts("site") == {"a": 2, "r": 1}
    assert counts("quiet") == {"h": 1, "s": 2}
    RateLimitOverride.objects.create(network="203.0.113.2", effect="exempt")
    RateLimitOverride.objects.create(network="203.0.113.3", effect="block")
    assert visits(2, "203.0.113.2") == [200, 200]
    assert visits(2, "203.0.113.3") == [429, 429]
    assert counts("site") == {"a": 2, "r": 1, "x": 2, "b": 2}
    assert counts("") == {"a": 2, "r": 1, "x": 2, "b": 2}
    RateLimitRule.objects.all().delete()
    assert visits(1, "203.0.113.3") == [429]
    assert counts("block") == {"b": 1}


def test_decisions_of_a_policy_are_counted_separately(settings: Any) -> None:
    """The policies "open", "closed" and "local" have separate results."""
    names = ("open", "closed", "local")
    limiters = {name: RateLimiter(f"stats.{name}", "2/h", on_store_error=name) for name in names}
    settings.CACHES = caches(CLOSED)
    decided = {name: [each.hit("ada").allowed for _ in range(3)] for name, each in limiters.items()}
    assert decided == {"open": [True] * 3, "closed": [False] * 3, "local": [True, True, False]}
    with pytest.raises(StoreError):
        recorder.flush()
    settings.CACHES = caches(url())
    assert counts("stats.open") == counts("stats.closed") == {"e": 3}
    assert counts("stats.local") == {"a": 2, "r": 1}
    assert total("stats.local", day()).sources == {"fallback": 3}
    assert count_dropped() == 0


def test_a_batch_without_a_reply_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is sent again with the same number. Later counts form a batch of their own."""
    limiter, store = RateLimiter("stats.once", "100/h"), get_store(background=True)
    limiter.hit("ada")
    run = store.run

    def lost(program: Any, *arguments: Any) -> Any:
        answer = run(program, *arguments)
        if program is WRITE:
            raise StoreError("the answer is lost")
        return answer

    monkeypatch.setattr(store, "run", lost)
    for _ in range(3):
        with pytest.raises(StoreError):
            recorder.flush()
    limiter.hit("ada")
    with pytest.raises(StoreError):
        recorder.flush()
    monkeypatch.undo()
    assert counts("stats.once") == counts("") == {"a": 2}
    assert read_totals()["stats.once"]["a"] == 2


def test_the_demo_starts_with_a_day_of_statistics() -> None:
    """It also has two weeks by the hour."""
    now = time.time()
    sample.fill(now)
    site = total("", day()).counts
    assert site.total() > 10_000
    assert 0.01 < site["r"] / site.total() < 0.5
    hours = series("everything", last(86_400, 3600, now))
    assert all(point.counts for point in hours[:-1])  # The last may have begun just now.
    weeks = last(14 * 86_400, 86_400, now)
    assert all(point.counts["a"] > 1000 for point in series("everything", weeks)[1:-1])
    of = {name: total(name, day()).counts for name in read_names()}
    assert of.keys() == {place.name for place in (*sample.PLACES, sample.SCANNERS)}
    assert of["exports of a day"]["s"] > 0
    # Each request of a visitor meets the rule for everything, and counts once for the site.
    assert site.total() == (of["everything"] + of["webhooks"]).total()
    assert of["exports of a day"].total() == of["example_project.views.export"].total()
    assert [one.name for one in top("scanners")] == [[("ip", "203.0.113.0/24")]] * 3
    refused = [sum(counts["r"] for counts in of.values()), sum(one.times for one in top(""))]
    assert refused == [site["r"]] * 2


def test_clients_beyond_the_bound_are_listed_by_the_next_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the next write, clients beyond the bound are counted without their names."""
    monkeypatch.setattr(recording, "MAX_CLIENTS", 5)
    limiter = RateLimiter("stats.crowd", "1/h")
    for _ in range(2):
        with recorder._flushing:  # As if it took long to write.
            for number in range(20):
                limiter.hit(f"who-{number}")
        recorder.flush()
        with recorder._flushing:
            for _ in range(8):
                limiter.hit("attacker")
        recorder.flush()
    assert [one.times for one in top("stats.crowd")][:1] == [15]
    assert counts("stats.crowd") == {"a": 21, "r": 35}


def test_a_rule_with_several_rates_counts_a_request_once() -> None:
    """It counts once whichever rate refuses or is nearly used up, in any order of the rates."""
    for number, rates in enumerate((["10/m", "5/h"], ["5/h", "10/m"])):
        name = f"stats.several-{number}"
        limiter = RateLimiter(name, rates)
        for _ in range(7):
            limiter.hit("ada")
        of = total(name, day())
        assert of.counts == {"a": 5, "r": 2}
        assert (read_totals()[name]["u"], read_totals()[name]["n"]) == (5, 2)
        assert [(one.times, one.error) for one in top(name)] == [(2, 0)]


def test_long_identities_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is written, only the displayed form of an identity is kept."""
    RateLimiter("stats.long", "5/h").hit("x" * 1_000_000)
    with recorder._flushing:
        recorder._count_queue()
        (person,) = recorder._tables.clients.values()
    assert person._identity is None
    assert top("stats.long", "used")[0].name == [("", "xx…")]


def test_counts_older_than_two_days_are_read_by_the_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """A span may start at any minute."""
    limiter, now = RateLimiter("stats.ago", "2/h"), time.time()
    monkeypatch.setattr(recording.time, "time", lambda: now - 10 * 86_400)
    for _ in range(3):
        limiter.hit("ada")
    recorder.flush()
    monkeypatch.undo()
    at = int(now) - 10 * 86_400
    for start in (at - at % 86_400, at - at % 3600 - 1800):
        span = Span(start, start + 86_400, 3600)
        assert sum(sum(point.counts.values()) for point in series("stats.ago", span)) == 3
        assert sum(read_histogram("stats.ago", span).values()) == 3


def test_bans_are_counted_as_a_separate_result() -> None:
    """Refusals by a limit and by its ban are counted separately. Both are refusals."""
    limiter = RateLimiter("login", "2/h", ban_after=3, ban_for="10m")
    for _ in range(12):
        limiter.hit("ada")
    assert counts("login") == {"a": 2, "r": 3, "g": 7}


def test_a_call_that_waits_is_counted_once() -> None:
    """The call tries several times, but counts as one refusal."""
    limiter = RateLimiter("exports", "1", algorithm="concurrency")
    with limiter.slot("ada"), pytest.raises(Ratelimited), limiter.slot("ada", timeout=0.5):
        pass
    assert counts("exports")["r"] == 1


def test_a_limit_on_all_callers_lists_no_clients_in_the_statistics() -> None:
    """Requests are counted, but no client is listed as a top client."""
    limiter = RateLimiter("counted together", "2/h")
    for _ in range(3):
        limiter.hit()
    limiter.hit("ada")
    assert sum(counts("counted together").values()) == 4
    assert [row.times for row in top("counted together", "used")] == [1]
    assert top("counted together") == []


def test_refusals_are_counted_by_the_mode_of_the_rule() -> None:
    """Refusals count as those of shadow mode until the rule is enforced."""
    rule = RateLimitRule.objects.create(name="mail", rate="1/h", mode="shadow")
    mail = RateLimiter("mail", "100/h")
    assert [mail.hit("ada").allowed for _ in range(3)] == [True] * 3
    assert counts("mail") == {"h": 1, "s": 2}
    rule.mode = "enforce"
    rule.save()
    assert not mail.hit("ada")
    assert counts("mail") == {"h": 1, "s": 2, "r": 1}
