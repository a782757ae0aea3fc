"""The bans in force: their list, `manage.py ratelimit bans`, and bans by rules of the admin."""

from __future__ import annotations

import io
import os
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils import timezone

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.admin.history import describe_change
from django_ratelimit_lua.engine.bans import ban_list, count_active_bans
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
from django_ratelimit_lua.operations.bans import active_bans, lift_bans
from django_ratelimit_lua.store import Deadline
from django_ratelimit_lua.testing.server import Server
from django_ratelimit_lua.views.call_sites import known_call_sites
from tests.support.clusters import until
from tests.tools.faults import LIBFAKETIME, alias, stepped

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS, NETWORK = "203.0.113.9", "203.0.113.0/24"


@ratelimit(group="login", key="ip", rate="2/h", ban_after=2, ban_for="10m")
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("in")


urlpatterns = [path("login", login), path("ok", lambda request: HttpResponse("ok"))]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]


def said(*arguments: str) -> str:
    output = io.StringIO()
    call_command("ratelimit", "bans", *arguments, stdout=output, stderr=output)
    return output.getvalue()


def visit(url: str = "/login", address: str = ADDRESS, times: int = 1) -> int:
    return int([Client(REMOTE_ADDR=address).get(url) for _ in range(times)][-1].status_code)


def test_active_bans_are_listed() -> None:
    """The list has the limit, the masked identity, the start, the end, the reason and the number of
    the ban. Bans that end first come first.
    """
    assert said("list") == "No bans.\n"
    visit(times=4)
    limiter = RateLimiter("mail", "1/h", ban_after=1, ban_for="1m,2m")
    limiter.ban("ada@example.org", why="spam")
    first, second = active_bans()
    assert (first.limit, first.who, first.why, first.offences) == ("mail", [("", "ad…")], "spam", 0)
    assert second.limit.startswith("login:")
    assert (second.rule, second.who) == ("", [("ip", NETWORK)])
    assert (second.offences, second.times) == (2, 1)
    assert second.until - second.since == timedelta(minutes=10)
    lines = said("list").splitlines()
    until = f"{timezone.localtime(first.until):%Y-%m-%d %H:%M:%S %Z}"
    assert lines[0].startswith(f"{first.identity[:12]} mail until {until}")
    assert lines[0].endswith(" (ad…): by an operator: spam, ban number 1")
    assert lines[1].endswith(f" (ip={NETWORK}): 2 refusals, ban number 1")
    assert said("list", "--limit", "mail").splitlines() == lines[:1]


@pytest.mark.parametrize(("shows", "who"), [("plain", ADDRESS), ("masked", NETWORK)])
def test_the_history_names_a_banned_client_as_the_setting_allows(
    shows: str, who: str, settings: Any
) -> None:
    """The full address is stored only if the setting shows identities in full."""
    settings.RATELIMIT_SHOW_IDENTITIES = shows
    visit(times=4)
    (active,) = active_bans()
    assert active.who == [("ip", who)]
    lift_bans([active])
    assert RateLimitChange.objects.get().after["who"] == {active.identity: [["ip", who]]}


def test_the_history_lists_only_the_first_of_many_banned_clients() -> None:
    """If many bans are lifted together, the history names the first ten and counts the others."""
    limiter = RateLimiter("many", "1/h", ban_after=1, ban_for="10m")
    for number in range(13):
        limiter.ban(f"{number}-somebody")
    lift_bans(active_bans())
    (words,) = describe_change(RateLimitChange.objects.get(), may_see_who=True)
    assert words.count("…") == 10
    assert words.endswith(", 3 more are lifted.")


def test_a_listed_ban_is_lifted_by_its_identity() -> None:
    """The command takes a part of the listed digest."""
    visit(times=4)
    visit(address="203.0.113.10", times=4)
    ban, _other = active_bans()
    with pytest.raises(CommandError, match="name the identity"):
        said("lift", ban.identity[:5])
    for wrong in ((), (ban.identity, "--all")):
        with pytest.raises(CommandError, match="name the identity"):
            said("lift", *wrong)
    assert said("lift", "0" * 32) == "Nothing was lifted: no such ban.\n"
    assert said("lift", ban.identity, "--limit", "another") == "Nothing was lifted: no such ban.\n"
    assert said("lift", ban.identity[:12]).startswith(f"lifted: {ban.identity[:12]} login:")
    assert len(active_bans()) == 1
    change = RateLimitChange.objects.get()
    assert (change.by, change.action, change.name) == ("ratelimit bans lift", "unbanned", ban.limit)
    digest = ban.identity[:12]
    assert describe_change(change) == [f"The ban of {digest} is lifted."]
    assert describe_change(change, may_see_who=True) == [
        f"The ban of address 203.0.113.0/24 ({digest}) is lifted."
    ]
    visit(times=3)
    assert [ban.times for ban in active_bans()] == [1, 2]
    both = sorted(ban.identity[:12] for ban in active_bans())
    said("lift", "--all", "--forget")
    change = RateLimitChange.objects.latest("pk")
    found = describe_change(change)
    assert found == [f"The bans of {both[0]}, {both[1]} are lifted.", "Earlier bans are forgotten."]
    visit(times=3)
    assert [ban.times for ban in active_bans()] == [1]


def test_a_reset_ends_only_the_bans_of_that_identity() -> None:
    """Bans of other identities stay in force and on the list."""
    limiter = RateLimiter("resets", "1/h", ban_after=1, ban_for="10m")
    for name in ("ada", "bob"):
        limiter.ban(name)
    assert len(active_bans()) == 2
    limiter.reset("ada")
    assert limiter.hit("ada")
    assert not limiter.hit("bob")
    (left,) = active_bans()
    charges = [Charge(limit, digest("bob")) for limit in limiter.limits]
    assert left.key in build_call(charges, "peek").ban_keys()


def test_a_shadow_ban_is_reported_as_shadow() -> None:
    """The ban of a limit in shadow mode is listed as such."""
    rule = RateLimitRule.objects.create(
        name="login",
        rate="1/h",
        key="ip",
        mode="shadow",
        group="login",
        options={"ban_after": 1, "ban_for": "10m"},
    )
    assert visit(times=4) == 200
    (active,) = active_bans()
    assert (active.is_shadow, active.rule, active.who) == (True, "login", [("ip", NETWORK)])
    assert "in shadow mode, which refuses no request" in said("list")
    rule.mode = "enforce"
    rule.save()
    assert visit() == 429
    assert [active.is_shadow for active in active_bans()] == [False]
    assert "shadow" not in said("list")


@pytest.mark.skipif(not LIBFAKETIME, reason="libfaketime (Debian: faketime) is not installed")
@pytest.mark.parametrize("hours", [1, -1])
def test_bans_are_listed_by_the_clock_of_redis(hours: int, settings: Any) -> None:
    """A wrong clock of the host does not change the end of a ban."""
    with stepped(hours) as hurt:
        settings.CACHES = hurt.caches
        hurt.inject()
        limiter = RateLimiter("mail", "1/h", ban_after=1, ban_for="10m")
        limiter.ban("ada")
        limiter.ban("ben", "1s")
        assert len(active_bans()) == count_active_bans()["mail"] == 2
        until(lambda: bool(limiter.hit("ben")), "a ban ends")
        (active,) = active_bans()
        assert count_active_bans()["mail"] == 1
        lift_bans([active])
        assert limiter.hit("ada")


def listed(direct: redis.Redis, prefix: str) -> dict[bytes, float]:
    """Return the list in Redis, without a process that writes to it: keys and ends."""
    return dict(direct.zrange(f"{prefix}{{bans}}", 0, -1, withscores=True))


def test_the_process_that_triggers_a_ban_lists_it(direct: redis.Redis, prefix: str) -> None:
    """Only a new ban is written, with its end and a description that expires with it."""
    visit(times=3)
    assert not ban_list.flush()
    assert not direct.exists(f"{prefix}{{bans}}")
    visit()
    until(lambda: bool(listed(direct, prefix)), "the ban is listed")
    ((key, end),) = listed(direct, prefix).items()
    assert 595 < end / 10**6 - time.time() <= 600
    assert 595_000 < direct.pttl(key + b":about") <= 601_000
    direct.delete(f"{prefix}{{bans}}")
    visit(times=3)
    assert active_bans() == []


def test_ended_bans_leave_the_list(direct: redis.Redis, prefix: str) -> None:
    """They are removed when the list is read, and when a process adds a ban."""
    limiter = RateLimiter("mail", "1/h", ban_after=1, ban_for="10m")
    for reads in (True, False):
        limiter.ban("ada", "1s")
        ban_list.flush()
        until(lambda: limiter.peek("ada").banned_until is None, "the ban ends")
        assert len(listed(direct, prefix)) == 1
        if reads:
            assert active_bans() == []
            assert listed(direct, prefix) == {}
    limiter.ban("bob")
    ban_list.flush()
    assert len(listed(direct, prefix)) == 1


def test_the_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bans that end last stay on the list."""
    monkeypatch.setattr("django_ratelimit_lua.engine.bans.MAX_LISTED", 3)
    limiter = RateLimiter("mail", "1/h", ban_after=1, ban_for="10m")
    for number in range(5):
        limiter.ban(f"{number}", f"{number + 1}h")
        ban_list.flush()
    found = [round((ban.until - ban.since).total_seconds() / 3600) for ban in active_bans()]
    assert found == [3, 4, 5]
    for number in range(5, 10):  # Before a flush, the first new ones are kept.
        limiter.ban(f"{number}", f"{number + 1}h")
    limiter.ban("7", "9h")  # One that is kept can change.
    found = [round((ban.until - ban.since).total_seconds() / 3600) for ban in active_bans()]
    assert found == [6, 7, 9]


def test_a_scan_repairs_the_list(direct: redis.Redis, prefix: str) -> None:
    """Missing bans are added, also those of unknown limits, and lifted ones are removed."""
    visit(times=4)
    limiter = RateLimiter("mail", "1/h", ban_after=1, ban_for="1m")
    for name in ("ada", "bob"):
        limiter.ban(name, "2h", why="spam")
    RateLimiter("count", "1/h", ban_after=9, ban_for="1m").hit("ada", 2)
    before = active_bans()
    direct.delete(f"{prefix}{{bans}}", before[0].key + b":about")
    direct.zadd(f"{prefix}{{bans}}", {f"{prefix}{{{'0' * 32}}}:lost:ban": 2.0**52})
    known_call_sites._by_name.pop("mail")
    lines = said("list", "--scan").splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(": 2 refusals, ban number 1")
    assert "(" not in lines[0]
    found = [line.endswith(" (ad…): by an operator: spam, ban number 0") for line in lines]
    assert found == [False, True, False]
    assert [(ban.key, ban.until) for ban in active_bans()] == [
        (ban.key, ban.until) for ban in before
    ]
    assert listed(direct, prefix).keys() == {ban.key for ban in before}


def test_a_ban_is_listed_when_redis_is_available_again(settings: Any) -> None:
    """A failed flush keeps the bans that it could not write."""
    settings.RATELIMIT_TIMEOUT = 1
    with Server() as server:
        settings.CACHES = alias(server.url)
        limiter = RateLimiter("mail", "1/h", ban_after=1, ban_for="10m")
        limiter.ban("ada")
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(StoreError):
            ban_list.flush(Deadline(0.1))
        os.kill(server.pid, signal.SIGCONT)
        until(lambda: len(active_bans()) == 1, "the ban is listed")
