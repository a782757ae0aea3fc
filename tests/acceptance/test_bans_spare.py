"""Victims first: one attacker behind an office's address does not lock out the office."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import LimitError, RateLimiter, ratelimit
from django_ratelimit_lua.engine.evidence import evidence_notes
from django_ratelimit_lua.engine.neighbours import neighbours
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.operations import active_bans, lift_bans
from django_ratelimit_lua.operations.bans import evidence_of_bans
from django_ratelimit_lua.store import PATIENCE, Patience
from django_ratelimit_lua.web.plan import _sparing_others

pytestmark = pytest.mark.django_db(transaction=True)
OFFICE, ALONE = "198.51.100.7", "203.0.113.9"


class User:
    """Who is signed in."""

    is_authenticated = True

    def __init__(self, pk: int) -> None:
        self.pk = pk


def make_login(**options: Any) -> Any:
    given: dict[str, Any] = {
        "group": "login", "key": ("ip", "post:username"), "rate": "2/h", "ban_after": 3, "ban_for": "10m",
        "ban_key": "ip", "ban_spare": 5, **options,
    }  # fmt: skip

    @ratelimit(**given)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("in")

    return view


def ask(view: Any, username: str, address: str = OFFICE, user: Any = None) -> int:
    request = RequestFactory().post("/login", {"username": username}, REMOTE_ADDR=address)
    request.user = user or AnonymousUser()
    return int(view(request).status_code)


def fill_office(view: Any, people: int = 6) -> None:
    """So many sign in at the office."""
    for number in range(people):
        assert ask(view, f"user{number}", user=User(number)) == 200
    neighbours.write()


def attack(view: Any, address: str = OFFICE, times: int = 6, user: Any = None) -> None:
    for _ in range(times):
        ask(view, "root", address, user)
    assert ask(view, "root", address, user) == 429


def test_an_attacker_at_an_office_is_banned_alone(told: list[dict[str, Any]]) -> None:
    """Six others sign in on, while the attacker stays out; whom the ban is of, the signal and the list say."""
    view = make_login()
    fill_office(view)
    attack(view)
    assert [ask(view, f"user{number}") for number in range(6)] == [200] * 6
    (arguments,) = told
    assert arguments["ban"].is_narrow
    assert arguments["ban"].offences == 3
    assert arguments["evidence"].users == 6
    assert len(arguments["evidence"].offences) == 3
    (active,) = active_bans()
    assert active.identity == arguments["identity"]
    assert active.who == [("ip", "198.51.100.0/24"), ("post:username", "ro…")]
    evidence_notes.write(Patience(PATIENCE))
    (evidence,) = evidence_of_bans([active])
    assert evidence.users == 6
    assert len(evidence.offences) == 3
    lift_bans([active], forget=True)
    assert not active_bans()


def test_an_attacker_alone_is_banned_by_address(told: list[dict[str, Any]]) -> None:
    """Whatever name is tried next."""
    view = make_login()
    attack(view, ALONE)
    assert ask(view, "somebody else", ALONE) == 429
    assert ask(view, "somebody else", OFFICE) == 200
    (arguments,) = told
    assert not arguments["ban"].is_narrow
    assert arguments["evidence"].users == 0
    (active,) = active_bans()
    assert active.who == [("ip", "203.0.113.0/24")]


@pytest.mark.parametrize("people", [5, 6])
def test_more_than_so_many_others_are_spared(people: int) -> None:
    """Five are not more than five."""
    view = make_login()
    fill_office(view, people)
    attack(view)
    assert ask(view, "somebody else") == (200 if people > 5 else 429)


@pytest.mark.parametrize(("people", "spared"), [(6, False), (7, True)])
def test_who_attacks_is_none_of_the_others(people: int, spared: bool) -> None:
    """Somebody who is signed in themselves is not counted among them."""
    view = make_login()
    fill_office(view, people)
    attack(view, user=User(0))
    assert ask(view, "somebody else") == (200 if spared else 429)


def test_planning_a_request_again_spares_no_fewer() -> None:
    """As it is where overrides were not known yet."""
    once = _sparing_others(Limit("login", "1/h", ban_after=1, ban_for="1m", ban_spare=5, ban_key="ip"))
    again = _sparing_others(once)
    assert once.ban is not None
    assert (once.ban.spare, again.ban) == (6, once.ban)


def test_a_ban_of_the_address_holds_though_others_come(told: list[dict[str, Any]]) -> None:
    """Until it ends; offences after it are the attacker's own."""
    view = make_login()
    attack(view)
    for number in range(6):
        assert ask(view, f"user{number}", user=User(number)) == 429
    neighbours.write()
    (active,) = active_bans()
    lift_bans([active])
    attack(view)
    assert [each["ban"].is_narrow for each in told] == [False, True]
    assert ask(view, "user1") == 200


def test_offences_before_count_for_whom_they_were() -> None:
    """Those of an address that is shared by then are none of whoever comes next."""
    view = make_login(ban_after=2, rate="1/h")
    ask(view, "ada")
    ask(view, "ada")  # One refusal, while nobody else is there.
    fill_office(view)
    assert [ask(view, "ben") for _ in range(3)] == [200, 429, 429]
    assert ask(view, "user7") == 200
    assert ask(view, "ada") == 429
    assert len(active_bans()) == 1


def test_reported_offences_spare_the_others() -> None:
    """Also where the view says what is one."""
    view = make_login(
        rate="100/h", ban_on="counted", count_if=lambda request, response: request.POST["username"] == "root"
    )
    fill_office(view)
    attack(view)
    assert ask(view, "user1") == 200
    attack(view, ALONE)
    assert ask(view, "user1", ALONE) == 429


def test_a_lookup_asks_nothing_of_the_users(direct: redis.Redis) -> None:
    """They are counted at an offence only."""
    view = make_login()
    direct.config_resetstat()
    ask(view, "ada")
    assert "cmdstat_pfcount" not in direct.info("commandstats")


def test_sparing_needs_an_address() -> None:
    """What contradicts itself is an error that says what would be right."""
    with pytest.raises(LimitError, match="ban_spare needs ban_key"):
        Limit("login", "1/h", ban_after=1, ban_for="1m", ban_spare=5)
    with pytest.raises(LimitError, match="ban_key='ip'"):
        Limit("login", "1/h", ban_after=1, ban_for="1m", ban_spare=5, ban_key="user")


def test_resetting_keeps_the_register_of_the_others() -> None:
    """Whose counts are reset is banned no more; everybody else is, and is listed."""
    limiter = RateLimiter("mail", "0/s", ban_after=1, ban_for="1m")
    limiter.hit("ada")
    limiter.hit("bob")
    limiter.reset("ada")
    assert len(active_bans()) == 1
