"""The bans in force: their list, `manage.py ratelimit bans`, and bans by rules of the admin."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from typing import Any

import pytest
import redis
import yaml
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils import timezone

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.admin.history import changed_words
from django_ratelimit_lua.admin.inspector import _reason
from django_ratelimit_lua.engine.bans import bans_active
from django_ratelimit_lua.engine.decide import banning, build_call
from django_ratelimit_lua.engine.run import run
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
from django_ratelimit_lua.models.audit import acting
from django_ratelimit_lua.operations.bans import ActiveBan, active_bans, lift_bans
from django_ratelimit_lua.operations.explain import explain
from django_ratelimit_lua.operations.request_builder import build_request
from django_ratelimit_lua.operations.rules_yaml import export, plan
from django_ratelimit_lua.testing.server import Server
from tests.clusters import until
from tests.faults import LIBFAKETIME, alias, stepped

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "203.0.113.9"


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
    """The list has the limit, the masked identity, the start, the end, the reason and the length of
    the next ban. Bans that end first come first.
    """
    assert said("list") == "No bans.\n"
    visit(times=4)
    limiter = RateLimiter("mail", "1/h", ban_after=1, ban_for="1m,2m")
    limiter.ban("ada@example.org", why="spam")
    first, second = active_bans()
    assert (first.limit, first.who, first.why, first.ban.by_hand) == (
        "mail",
        [("", "ad…")],
        "spam",
        True,
    )
    assert first.next_us == 2 * 60 * 10**6
    assert second.limit.startswith("login:")
    assert (second.rule, second.who, second.ban.offences, second.ban.times) == (
        "",
        [("ip", ADDRESS)],
        2,
        1,
    )
    assert second.ban.until - second.ban.since == 600 * 10**6
    assert second.next_us == 600 * 10**6
    lines = said("list").splitlines()
    until = f"{timezone.localtime(first.ban.ends_at):%Y-%m-%d %H:%M:%S %Z}"
    assert lines[0].startswith(f"{first.identity[:12]} mail until {until}")
    assert lines[0].endswith(" (ad…): by an operator: spam, ban number 1, the next for 2 min 0 s")
    assert lines[1].endswith(" (ip=203.0.113.9): 2 offences, ban number 1, the next for 10 min 0 s")
    objects = [json.loads(line) for line in said("list", "--json", "--limit", "mail").splitlines()]
    assert [one["identity"] for one in objects] == [first.identity]
    assert objects[0]["why"] == "spam"
    assert len(said("list", "--max", "1").splitlines()) == 1
    assert said("list", "--max", "1", "--limit", "mail").startswith(first.identity[:12])
    for none in ("0", "-1"):
        with pytest.raises(CommandError, match="must be at least 1"):
            said("list", f"--max={none}")


@pytest.mark.parametrize(("shows", "who"), [("plain", [("ip", ADDRESS)]), ("off", [])])
def test_banned_identities_are_shown_as_the_setting_allows(
    shows: str, who: Any, settings: Any
) -> None:
    """Identities are shown in full or not at all. The digest is always shown."""
    settings.RATELIMIT_SHOW_IDENTITIES = shows
    visit(times=4)
    (ban,) = active_bans()
    assert ban.who == who
    lift_bans([ban])
    (words,) = changed_words(RateLimitChange.objects.get(), may_see_who=True)
    assert (ADDRESS in words, ban.identity[:12] in words) == (bool(who), True)
    assert ADDRESS not in changed_words(RateLimitChange.objects.get())[0]


@pytest.mark.parametrize(("shows", "who"), [("plain", ADDRESS), ("masked", "203.0.113.0/24")])
def test_the_history_names_a_banned_client_as_the_setting_allows(
    shows: str, who: str, settings: Any
) -> None:
    """The full address is stored while the ban lasts, and longer only if the setting shows
    identities in full.
    """
    settings.RATELIMIT_SHOW_IDENTITIES = shows
    visit(times=4)
    (active,) = active_bans()
    assert active.who == [("ip", ADDRESS)]
    lift_bans([active])
    assert RateLimitChange.objects.get().after["who"] == {active.identity: [["ip", who]]}


def test_the_history_lists_only_the_first_of_many_banned_clients() -> None:
    """If many bans are lifted together, the history names the first ten and counts the others."""
    limiter = RateLimiter("many", "1/h", ban_after=1, ban_for="10m")
    for number in range(13):
        limiter.ban(f"{number}-somebody")
    lift_bans(active_bans())
    (words,) = changed_words(RateLimitChange.objects.get(), may_see_who=True)
    assert words.count("…") == 10
    assert words.endswith(", 3 more are lifted.")


def test_a_listed_ban_is_lifted_by_its_identity() -> None:
    """The command takes a part of the listed digest. The next request is allowed, and the history
    names the command.
    """
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
    assert changed_words(change) == [f"The ban of {digest} is lifted."]
    assert changed_words(change, may_see_who=True) == [
        f"The ban of address 203.0.113.0/24 ({digest}) is lifted."
    ]
    visit(times=3)
    assert [ban.ban.times for ban in active_bans()] == [1, 2]
    both = sorted(ban.identity[:12] for ban in active_bans())
    said("lift", "--all", "--forget")
    change = RateLimitChange.objects.latest("pk")
    assert changed_words(change) == [
        f"The bans of {both[0]}, {both[1]} are lifted.",
        "Earlier bans are forgotten.",
    ]
    visit(times=3)
    assert [ban.ban.times for ban in active_bans()] == [1]


def test_a_reset_ends_only_the_bans_of_that_identity() -> None:
    """Bans of other identities stay in force and on the list."""
    limiter = RateLimiter("resets", "1/h", ban_after=1, ban_for="10m", ban_on="reported")
    for name in ("ada", "bob"):
        limiter.offend(name)
    assert len(active_bans()) == 2
    limiter.reset("ada")
    assert limiter.hit("ada")
    assert not limiter.hit("bob")
    (left,) = active_bans()
    charges = [Charge(limit, digest("bob")) for limit in limiter.limits]
    assert left.key in build_call(charges, "peek").ban_keys()


def test_a_shadow_ban_is_reported_as_shadow() -> None:
    """The ban of a limit in shadow mode is listed as such. It refuses requests when the rule is
    enforced.
    """
    rule = RateLimitRule.objects.create(
        name="login", rate="1/h", key="ip", mode="shadow", ban_after=1, ban_for="10m", group="login"
    )
    assert visit(times=4) == 200
    (active,) = active_bans()
    assert (active.is_shadow, active.rule, active.who) == (
        True,
        "login",
        [("ip", ADDRESS)],
    )
    assert "in shadow mode, which refuses no request" in said("list")
    assert json.loads(said("list", "--json"))["shadow"] is True
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
        assert len(active_bans()) == bans_active()["mail"] == 2
        until(lambda: bool(limiter.hit("ben")), "a ban ends")
        (active,) = active_bans()
        assert bans_active()["mail"] == 1
        lift_bans([active])
        assert limiter.hit("ada")


def test_bans_lifted_before_redis_failed_are_in_the_history(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis fails after some of several bans were lifted."""
    with Server() as server:
        settings.CACHES = alias(server.url)
        limiter = RateLimiter("halfway", "1/h", ban_after=1, ban_for="10m")
        for name in ("ada", "bob", "eva"):
            limiter.ban(name)
        bans = active_bans()

        class Dying(list[ActiveBan]):
            def __getitem__(self, part: Any) -> Any:
                if part.start:
                    os.kill(server.pid, signal.SIGKILL)
                return super().__getitem__(part)

        monkeypatch.setattr("django_ratelimit_lua.operations.bans.AT_ONCE", 1)
        with pytest.raises(StoreError), acting("grace"):
            lift_bans(Dying(bans))
    change = RateLimitChange.objects.get(action=RateLimitChange.Action.UNBANNED)
    assert change.after == {"digests": [bans[0].identity], "who": {bans[0].identity: [["", "ad…"]]}}


def test_a_ban_of_a_removed_limit_can_be_lifted(direct: redis.Redis) -> None:
    """The ban is lifted by its key, and its earlier bans are remembered."""
    limit = RateLimiter("gone", "1/h", ban_after=1, ban_for="1m,30d")
    limit.ban("ada")
    from django_ratelimit_lua.rules.callsite import known_call_sites

    known_call_sites._by_name.pop("gone")
    (ban,) = active_bans()
    assert (ban.limit, ban.next_us) == ("gone", None)
    with acting("somebody"):
        lift_bans([ban])
    assert active_bans() == []
    state = limit.peek("ada").limits[0].ban
    assert state is not None
    assert (state.until, state.times) == (0, 1)


def test_the_list_uses_the_current_limits() -> None:
    """If a rule is edited, the list shows the shorter ban or no ban."""
    rule = RateLimitRule.objects.create(
        name="api", path="/", key="ip", rate="1/h", ban_after=1, ban_for="1h"
    )
    visit("/ok", times=2)
    (ban,) = active_bans()
    assert (ban.limit, ban.rule) == ("api", "api")
    rule.ban_for = "1s"
    rule.save()
    assert ban.ban.until - ban.ban.since == 3600 * 10**6
    shortened = active_bans()
    assert [one.ban.until - one.ban.since for one in shortened] in ([10**6], [])


@pytest.mark.parametrize("damage", [b"", b"x" * 44, None])
def test_invalid_entries_in_the_ban_register_are_skipped(
    damage: bytes | None, direct: redis.Redis
) -> None:
    """The other bans are listed."""
    visit(times=4)
    RateLimiter("mail", "1/h", ban_after=1, ban_for="1m").ban("ada")
    mail, ban = active_bans()
    if damage is None:
        direct.delete(ban.key)
    else:
        direct.set(ban.key, damage)
    assert active_bans() == [mail]
    direct.set(mail.key + b":told", b"[1]")
    assert active_bans()[0].who == []


def test_the_inspector_names_the_operator_who_made_a_ban() -> None:
    """The sentence has the end of the ban and the offences, or states that an operator made the
    ban.
    """
    visit(times=4)
    (met,) = explain(build_request("/login", "GET", ADDRESS, None)).met
    assert re.fullmatch(
        r"Banned by login until .*\d\d:\d\d; 2 offences since .*\d\d:\d\d\.", _reason(met)
    )
    run(banning([met.planned], None, ""))
    (met,) = explain(build_request("/login", "GET", ADDRESS, None)).met
    assert _reason(met).startswith("Banned by login by hand, since ")


def test_rules_of_the_admin_can_ban() -> None:
    """The rule has the same options as in YAML, and the plan of an import shows their changes."""
    rule = RateLimitRule(
        name="api",
        path="/",
        key="ip",
        rate="2/h",
        ban_after=2,
        ban_for="10m,30m,1d",
        ban_window="1h",
        ban_on="counted",
    )
    rule.full_clean()
    rule.save()
    assert rule.reading() == "2 per hour per address, banned for 10m,30m,1d after 2 offences, on /"
    assert [visit("/ok") for _ in range(3)] == [200, 200, 429]
    (ban,) = active_bans()
    assert (ban.rule, ban.next_us) == ("api", 1800 * 10**6)
    text = export()
    assert {
        word: said for word, said in yaml.safe_load(text)[0].items() if word.startswith("ban_")
    } == {
        "ban_after": 2,
        "ban_for": "10m,30m,1d",
        "ban_window": "1h",
        "ban_on": "counted",
    }
    assert plan(text) == []
    assert (
        plan(text.replace("ban_for: 10m,", "ban_for: 20m,"))[0].words()[1].strip()
        == "ban_for: 10m,30m,1d → 20m,30m,1d"
    )


def test_resetting_one_client_keeps_the_other_bans_registered() -> None:
    """The bans of other clients stay registered."""
    limiter = RateLimiter("mail", "0/s", ban_after=1, ban_for="1m")
    limiter.hit("ada")
    limiter.hit("bob")
    limiter.reset("ada")
    assert len(active_bans()) == 1


def test_a_form_names_the_invalid_duration_of_a_ban() -> None:
    """The error names valid durations, and the maximum number of eight."""
    rule = RateLimitRule(
        name="api", path="/", key="ip", rate="2/h", ban_after=2, ban_for="10m,soon, 1d,0s"
    )
    with pytest.raises(ValidationError) as error:
        rule.full_clean()
    assert error.value.message_dict == {
        "ban_for": [
            "'soon': write a number and a unit without a space, such as 10m, 1h or 7d, from 1s to "
            "ten years."
        ]
    }
    rule.ban_for = ",".join(["1h"] * 9)
    with pytest.raises(ValidationError) as error:
        rule.full_clean()
    assert "write 1 to 8 durations" in error.value.message_dict["ban_for"][0]
