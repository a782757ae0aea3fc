"""Slots for operators: the holders on a page and by a command, and the release of a slot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
import redis
from django.contrib import admin
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.urls import path

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.admin.history import changed_words
from django_ratelimit_lua.conf import conf
from django_ratelimit_lua.engine.slots import HeldSlots, in_flight
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
from django_ratelimit_lua.operations.slots import slots_held
from django_ratelimit_lua.store import get_store
from tests.clusters import until
from tests.users import ADMIN_MIDDLEWARE, staff

pytestmark = pytest.mark.django_db(transaction=True)
urlpatterns = [path("admin/", admin.site.urls)]
HERE = "/admin/django_ratelimit_lua/slots/"


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    """A site with an admin and short slots."""
    settings.ROOT_URLCONF = __name__
    settings.RATELIMIT_SLOT_SECONDS = 0.8
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"
    settings.MIDDLEWARE = ADMIN_MIDDLEWARE


@pytest.fixture
def held() -> Iterator[tuple[RateLimiter, RateLimiter]]:
    """Hold slots of two limiters until they are reported."""
    exports = RateLimiter("exports", "3", algorithm="concurrency")
    imports = RateLimiter("imports", ["100/h", "2"])
    with (
        exports.slot(("user", "7"), what="GET /exports/7/"),
        exports.slot(("user", "8"), what="GET /exports/<b>/", cost=2),
        imports.slot(("ip", "203.0.113.9"), what="POST /imports/"),
    ):
        until(lambda: len(slots_held()) == 3, "they are told", 20)
        yield exports, imports


def id_of(what: str) -> str:
    return next(holder.id for holder in slots_held() if what in holder.what)


def test_the_slot_page_lists_the_holders(held: tuple[RateLimiter, RateLimiter]) -> None:
    """It shows the purpose, the limit, the client, the units, the start and the process, and can be
    filtered by rule.
    """
    RateLimitRule.objects.create(
        name="exports", limit=3, unit="x", algorithm="concurrency", key="user"
    )
    page = staff("view_ratelimitrule", "view_identities", name="ada").get(HERE).content.decode()
    assert "3 slots are held" in page
    for text in (
        "GET /<wbr>exports/<wbr>7/",
        "&lt;b&gt;",
        "user, 7",
        "203.0.113.9",
        "1 of 3",
        "2 of 3",
    ):
        assert text in page
    assert "/ratelimitrule/" in page
    assert 'name="release"' not in page  # Who may not release one has no button.
    only = (
        staff("view_ratelimitrule", "view_identities", name="bob")
        .get(HERE, {"rule": "imports"})
        .content.decode()
    )
    assert "POST /<wbr>imports/" in only
    assert "exports/<wbr>7/" not in only
    assert (
        "No slot of this rule is held."
        in staff("view_ratelimitrule", name="eve").get(HERE, {"rule": "others"}).content.decode()
    )


def test_names_of_holders_require_the_permission_to_view_identities(
    held: tuple[RateLimiter, RateLimiter],
) -> None:
    """Other users see a part of the digest and the first part of paths. Without the permission to
    view rules, the page is a 403.
    """
    page = staff("view_ratelimitrule", name="ada").get(HERE).content.decode()
    assert "user, 7" not in page
    assert "GET /<wbr>exports/<wbr>…" in page
    assert "exports/7" not in page.replace("<wbr>", "")
    assert all(f"<code>{holder.digest[:12]}</code>" in page for holder in slots_held())
    assert staff("view_identities", name="bob").get(HERE).status_code == 403
    assert "Slots" in staff("view_ratelimitrule", name="eve").get("/admin/").content.decode()


def test_releasing_a_slot_affects_every_process(held: tuple[RateLimiter, RateLimiter]) -> None:
    """The slot is available immediately and stays released. The history names the operator."""
    exports, _ = held
    ada = staff("view_ratelimitrule", "block_identity", "view_ratelimitchange", name="ada")
    assert exports.peek(("user", "7")).remaining == 2
    page = ada.post(HERE, {"release": id_of("/exports/7/")}, follow=True).content.decode()
    assert "Released: GET /exports/…, of exports." in page
    assert exports.peek(("user", "7")).remaining == 3
    change = RateLimitChange.objects.get()
    assert (change.by, change.name) == ("ada", "exports")
    digest = change.after["digests"][0]
    assert changed_words(change)[0].startswith(
        f"A slot of {digest[:12]} is released: GET /exports/… ("
    )
    assert changed_words(change, may_see_who=True)[0].startswith(
        f"A slot of user, 7 ({digest[:12]}) is released: "
    )
    assert "exports/7" not in str(change.after)
    assert (
        "This slot is no longer held."
        in ada.post(HERE, {"release": "0"}, follow=True).content.decode()
    )
    until(lambda: len(slots_held()) == 2, "it is told no more", 20)
    assert exports.peek(("user", "7")).remaining == 3
    bob = staff("view_ratelimitrule", name="bob")
    assert bob.post(HERE, {"release": id_of("/imports/")}).status_code == 403
    assert len(slots_held()) == 2


def test_a_slot_is_released_once(direct: redis.Redis) -> None:
    """A slot that was released or has ended cannot be released again, on the page or by the
    command, although a process still reports it. The history has one entry.
    """
    exports = RateLimiter("exports", "3", algorithm="concurrency")
    listed = conf.CACHE_PREFIX + b"{rules}:slots"
    with exports.slot("eva", what="POST /ended/"), exports.slot("ada", what="GET /released/"):
        until(lambda: len(slots_held()) == 2, "they are told", 20)
        (process,) = direct.zrange(listed, 0, -1)
        told = direct.get(listed + b":" + process)
        assert told is not None
        direct.set(
            listed + b":stopped", told
        )  # As a process tells them that cannot be heard any more.
        direct.zadd(listed, {b"stopped": time.time()})
        released, ended = id_of("/released/"), id_of("/ended/")
        ada = staff("view_ratelimitrule", "block_identity", name="ada")
        assert "Released: " in ada.post(HERE, {"release": released}, follow=True).content.decode()
        _assert_nobody_holds(ada, released)
    _assert_nobody_holds(ada, ended)
    assert RateLimitChange.objects.count() == 1


def test_the_list_is_correct_right_after_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not depend on the last reports: neither the released slot is listed, nor one whose
    work has ended. The page explains before the click what a release does not do.
    """
    exports = RateLimiter("exports", "3", algorithm="concurrency")
    ada = staff("view_ratelimitrule", "block_identity", name="ada")
    with exports.slot("ada", what="GET /released/"), exports.slot("ada", what="GET /running/"):
        with exports.slot("ada", what="GET /ended/"):
            until(lambda: len(slots_held()) == 3, "they are told", 20)
            page = ada.get(HERE).content.decode()
            assert page.index("Release frees the slot only.") < page.index('name="release"')
            monkeypatch.setattr(HeldSlots, "_report", lambda *arguments: None)
            page = ada.post(HERE, {"release": id_of("/released/")}, follow=True).content.decode()
            assert "2 slots are held" in page
            assert 'aria-label="Release: GET /released/' not in page
        assert [holder.what for holder in slots_held()] == ["GET /running/"]


def _assert_nobody_holds(client: Client, slot: str) -> None:
    page = client.post(HERE, {"release": slot}, follow=True).content.decode()
    assert "This slot is no longer held." in page
    assert "Released: " not in page
    with pytest.raises(CommandError, match="no held slot has an id that begins with"):
        call_command("ratelimit", "slots", "release", slot)


def test_the_slot_page_shows_an_empty_list_and_an_outage(settings: Any) -> None:
    """Without slots, the page reports that none is held. Without Redis, it reports only
    the outage.
    """
    ada = staff("view_ratelimitrule", name="ada")
    assert "No slot is held." in ada.get(HERE).content.decode()
    settings.CACHES = {
        **settings.CACHES,
        "away": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1"},
    }
    settings.RATELIMIT_USE_CACHE = "away"
    page = ada.get(HERE).content.decode()
    assert "Redis is unavailable" in page
    assert "No slot is held." not in page
    get_store().close()


def test_the_command_lists_slots_and_releases_one(held: tuple[RateLimiter, RateLimiter]) -> None:
    """The list can be filtered by rule, and an id can be shortened. An unknown id is an error."""
    exports, _ = held
    said = StringIO()
    call_command("ratelimit", "slots", "list", "--rule", "exports", stdout=said)
    assert [line.split()[-1] for line in sorted(said.getvalue().splitlines())] != []
    assert said.getvalue().count("exports (") == 2
    assert "imports" not in said.getvalue()
    call_command(
        "ratelimit", "slots", "release", id_of("/exports/7/")[:12], "--reason", "stuck", stdout=said
    )
    assert "released: " in said.getvalue()
    assert exports.peek(("user", "7")).remaining == 3
    change = RateLimitChange.objects.get()
    assert (change.by, changed_words(change, may_see_who=True)[-1]) == (
        "ratelimit slots release",
        "stuck",
    )
    for odd, problem in (("", "2 slots have an id"), ("nothing", "no held slot has an id")):
        with pytest.raises(CommandError, match=f"{problem} that begins with"):
            call_command("ratelimit", "slots", "release", odd)


def test_a_released_slot_is_not_in_flight(settings: Any) -> None:
    """The number of slots in flight by limit decreases."""
    with RateLimiter("short", "3", algorithm="concurrency").slot("ada"):
        until(lambda: in_flight() == {"short": 1}, "it is told", 20)
    until(lambda: in_flight() == {}, "it is told no more", 20)
