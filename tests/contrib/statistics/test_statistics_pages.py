"""The statistics on *Overview* and on the pages of limits, for permitted users and any name."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics import reading
from django_ratelimit_lua.contrib.statistics import recorder as recording
from django_ratelimit_lua.contrib.statistics.counters import key_of
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.contrib.statistics.report import (
    PERIODS,
    read_limits,
    read_outages,
    read_timelines,
)
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.process.tasks import stop
from django_ratelimit_lua.store import get_store
from django_ratelimit_lua.testing.server import Server
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import given, site, staff, visits  # noqa: F401 - a fixture
from tests.acceptance.admin.test_admin_outage import hanging, server  # noqa: F401 - fixtures
from tests.support.redis_server import CLOSED, caches, url

pytestmark = pytest.mark.django_db(transaction=True)
OVERVIEW = "/admin/django_ratelimit_lua/overview/"
RULES = test_admin.RULES
LIMIT = f"{RULES}limit/"
AUTHENTICATED = {"audience": "authenticated"}
ODD = (
    "größe/naïve ✓",
    "a/b?c=d&e#f",
    "\"quoted\" 'twice'",
    "<script>alert(1)</script>",
    "n" * 500,
    "%41%2F",
    "…\x00…",
    "half \ud800",
)


def text(client: Client, where: str = "", **query: str) -> str:
    """Return a page as HTML. Without an address, it is that of a limit or the overview."""
    response = client.get(where or (LIMIT if "name" in query else OVERVIEW), query)
    assert response.status_code == 200
    return str(response.content.decode())


def words(page: str) -> str:
    """Return the text of a page."""
    return " ".join(unescape(re.sub(r"<title>.*?</title>|<[^>]+>", " ", page)).split())


def test_the_page_shows_exact_counts_in_every_period(operator: Client) -> None:
    """A limit shows its requests by result, and the site each request once."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    RateLimitRule.objects.create(name="quiet", path="/ok", key="ip", rate="1/h", mode="shadow")
    statuses = Counter(visits(5, "203.0.113.1") + visits(2, "203.0.113.2"))
    assert statuses == {200: 4, 429: 3}
    RateLimitRule.objects.create(name="idle", path="/idle", key="ip", rate="1/h")
    assert "refused 0 share of requests —" in words(text(operator, name="idle"))
    for period in [*PERIODS][:-1]:
        page = words(text(operator, name="site", period=period))
        assert "requests 7 refused 3 share of requests 43%" in page, period
        quiet = words(text(operator, name="quiet", period=period))
        assert re.search("from requests would be refused allowed .* 7 5 2", quiet), period
        tiles = "requests 7 would be refused 5 share of requests 71%"
        assert tiles in quiet, period
        assert "Clients that would be refused most" in quiet, period
        whole = words(text(operator, period=period))
        assert "requests 7 refused 3 share of requests 43%" in whole, period
        assert re.search(r"site 2 per hour per address, on / ?ok 7 3 43% quiet", whole), period
        assert re.search(r"Clients refused most.* 203\.0\.113\.0/24 \w{12} 3 ", whole), period
        assert re.search(r"Clients that used most.* 203\.0\.113\.0/24 \w{12} 2 ", whole), period
        assert "7 0 would be refused: 5 71%" in whole, period


def test_the_chart_shows_the_numbers_of_each_step_without_a_script(operator: Client) -> None:
    """A pointer shows the text of a step. No style or script is inline."""
    RateLimiter("drawn", "2/h").hit("ada", 2)
    RateLimiter("drawn", "2/h").hit("ada")
    for query in ({}, {"name": "drawn"}):
        page = text(operator, period="day", **query)
        assert len(re.findall(r'<rect class="hover"', page)) == 24
        assert re.search(r"<title>\d\d:00, requests: 2, refused: 1, allowed: 1</title>", page)
        assert re.search(r'aria-label="last day, requests: 2, refused: 1, allowed: 1"', page)
        content = page.partition('id="content-main"')[2]
        assert "style=" not in content
        assert "<script" not in content.partition('id="footer"')[0]


def test_a_settings_rule_in_shadow_mode_shows_its_refusals(operator: Client, settings: Any) -> None:
    """Its page has the same sentence as that of a rule of the admin."""
    settings.RATELIMIT_RULES = [
        {"name": "planned", "path": "/ok", "key": "ip", "rate": "1/h", "mode": "shadow"}
    ]
    assert visits(3, "203.0.113.1") == [200, 200, 200]
    page = words(text(operator, name="planned"))
    assert "This version of the rule has seen 3 requests, from about 1 client." in page
    assert "Would have refused: 2 (67%)" in page


def test_the_period_stays_in_every_link(operator: Client) -> None:
    """Links between the overview, limits and clients keep the period."""
    RateLimitRule.objects.create(name="linked", path="/ok", key="ip", rate="1/h")
    assert visits(2, "203.0.113.1") == [200, 429]
    page = unescape(text(operator, period="hour")).partition("<main")[2]
    links = re.findall(r'href="([^"]*/limit/\?[^"]*|[^"]*/client/\?[^"]*)"', page)
    assert f"{LIMIT}?name=linked&period=hour" in links
    client = next(link for link in links if "/client/" in link)
    assert all("period=hour" in link for link in links)
    periods = re.findall(r'href="\?period=(\w+)"', page)
    assert periods == ["hour", "day", "week", "90d"]
    for where in (f"{LIMIT}?name=linked&period=hour", client):
        page = unescape(text(operator, where))
        links = re.findall(r'href="[^"]*/(?:limit|client)/\?[^"]*"', page)
        assert links
        assert all("period=hour" in link for link in links), where
    assert 'href="?name=linked&period=year"' in unescape(text(operator, name="linked"))


def test_an_outage_is_shown_with_its_time_and_its_decisions(
    operator: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names the minutes and the number of decisions that were made without Redis."""
    limiter = RateLimiter("through", "100/h", on_store_error="local")
    now = time.time() // 60 * 60
    clock = [now - 3600.0]
    monkeypatch.setattr(recording.time, "time", lambda: clock[0])
    limiter.hit("ada")
    recorder.flush()
    stop(20)
    settings.CACHES = caches(CLOSED)
    for minutes, times in ((50, 3), (48, 4)):
        clock[0] = now - minutes * 60
        for _ in range(times):
            limiter.hit("ada")
        with recorder._flushing, recorder._lock:
            recorder._count_queue()
            tables, recorder._tables = recorder._tables, type(recorder._tables)()
            recorder._writer.take(tables, {}, {})
    settings.CACHES = caches(url())
    clock[0] = now - 120
    limiter.hit("ada")
    recorder.flush()
    monkeypatch.undo()
    for period in ("hour", "day", "week", "90d"):
        assert read_outages() == [(int(now) - 3000, int(now) - 2820, 7)]
        page = words(text(operator, period=period))
        assert re.search(r"Decided without Redis from .*:\d\d to .*:\d\d: 7 decisions", page)


def test_an_outage_ends_at_the_latest_now() -> None:
    """An outage of the current minute has not ended yet."""
    minute = int(time.time()) // 60
    key = key_of("", b"minutes:%d" % (minute // 60))
    get_store().execute(b"HSET", key, b"Sf%02d" % (minute % 60), b"2")
    (outage,) = read_outages()
    assert (outage.start, outage.decisions) == (minute * 60, 2)
    assert outage.end <= time.time()


def test_longer_periods_list_clients_of_a_day(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists cover the current hour and the 23 hours before."""
    now = time.time()
    limiter = RateLimiter("early", "1/h")
    monkeypatch.setattr(recording.time, "time", lambda: now - 23 * 3600)
    for _ in range(3):
        limiter.hit("ada")
    recorder.flush()
    monkeypatch.undo()
    client = digest("ada").decode()[:12]
    for period in ("day", "week", "90d", "year"):
        assert client in text(operator, name="early", period=period), period
    assert client not in text(operator, name="early", period="hour")


def test_refused_clients_are_shown_to_permitted_users() -> None:
    """The permission to view rules is enough for the numbers. Names need another permission."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    visits(5, "203.0.113.1")
    viewer = staff("view_ratelimitrule", name="viewer")
    other = staff("view_ratelimitoverride", name="other")
    both = staff("view_ratelimitrule", "view_identities", name="both")
    hidden = text(viewer, name="site")
    assert "203.0.113.0/24" not in hidden
    assert digest(("ip", "203.0.113.1")).decode()[:12] in hidden
    shown = text(both, name="site")
    assert "203.0.113.0/24" in shown
    assert "ask=block" not in shown
    assert "ratelimitoverride/add/" not in shown
    for where in (OVERVIEW, f"{LIMIT}?name=site"):
        assert other.get(where).status_code == 403
        assert Client().get(where).status_code == 302


@pytest.mark.parametrize("name", ODD)
def test_every_name_has_its_page(operator: Client, name: str) -> None:
    """The list links to the page, and no part of a name is rendered as markup."""
    limiter = RateLimiter(name, "1/h")
    limiter.hit("<img src=x>")
    assert not limiter.hit("<img src=x>").allowed
    page = text(operator)
    links = [unescape(link) for link in re.findall(r'href="([^"]*\?name=[^"]*)"', page)]
    if "\ud800" in name:  # No address can have it.
        assert 404 in [operator.get(link).status_code for link in links]
        return
    pages = [text(operator, link) for link in links]
    assert all("<img src" not in shown and "<script>alert" not in shown for shown in pages)
    assert any("requests 2 refused 1 " in words(shown) for shown in pages)


def test_each_client_has_its_actions_in_the_row(operator: Client) -> None:
    """The row links to the client's page, a block and an override of exactly this client."""
    user = User.objects.create_user("ada")
    for name, who in (("site", {"key": "ip"}), ("users", {"key": "user"} | AUTHENTICATED)):
        RateLimitRule.objects.create(name=name, path="/ok", rate="1/h", **who)
    visits(3, "203.0.113.1")
    ada = Client(REMOTE_ADDR="203.0.113.9")
    ada.force_login(user)
    assert [ada.get("/ok").status_code for _ in range(2)] == [200, 429]
    shown = text(operator, name="site")
    client = digest(("ip", "203.0.113.1")).decode()
    override = unescape(re.findall(r'href="([^"]*override/add/[?][^"]*)"', shown)[0])
    assert f"client_digest={client}&duration=86400" in override
    block = unescape(re.findall(r'href="([^"]*ask=block)"', shown)[0])
    assert f"digest={client}" in block
    assert "Block 203.0.113.0/24 (" in text(operator, block)
    shown = text(operator, name="users")
    assert "user ada" in shown
    override = unescape(re.findall(r'href="([^"]*override/add/[?][^"]*)"', shown)[0])
    assert f"user={user.pk}" in override


@pytest.mark.usefixtures("no_others")
def test_many_names_are_read_in_few_trips(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that refuse most are listed."""
    for number in range(1000):
        RateLimiter(f"name-{number:04}", "5/h").hit("x")
        if number % 100 == 0:
            reading.read_names()
    store, trips = get_store(background=True), []
    execute_all = store.execute_all

    def several(parts: Any, deadline: Any = None) -> Any:
        trips.append(len(parts))
        return execute_all(parts)

    reading.read_names()
    monkeypatch.setattr(store, "execute_all", several)
    assert len(read_limits("day")) >= 1000
    assert len(trips) <= 20
    assert text(operator).count(">name-") == 10


def test_every_query_gets_a_page(operator: Client) -> None:
    """An invalid period is the last day."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    visits(1, "203.0.113.1")
    for query in ({"period": "x"}, {"period": "year"}, {"name": "site", "period": "\x00"}):
        assert 'aria-current="page">last day' in text(operator, **query)


def test_lists_show_the_last_day_with_a_link(operator: Client, settings: Any) -> None:
    """Rules and limits in the code have the cell. Without Redis, all pages omit the counts."""
    rule = RateLimitRule.objects.create(name="site & all", path="/ok", key="ip", rate="2/h")
    RateLimitRule.objects.create(name="tried", path="/ok", key="ip", rate="1/h", mode="shadow")
    mail = RateLimiter("mail.lists", "2/h")
    assert [mail.hit("ada").allowed for _ in range(3)] == [True, True, False]
    assert visits(3, "203.0.113.9") == [200, 200, 429]
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block", rule=rule.name)
    assert visits(2, "203.0.113.9") == [429, 429]
    link = f'<a href="{LIMIT}?name=site+%26+all"><svg '
    shown = unescape(text(operator, RULES))
    assert link in shown
    assert "refused: 1, blocked: 2</div>" in shown
    assert "would be refused: 4</div>" in shown
    assert f'<a href="{LIMIT}?name=mail.lists"><svg' in unescape(text(operator, RULES))
    stop(20)  # No thread is to ask the one server for the other.
    settings.CACHES = caches(CLOSED)
    for where in (RULES, OVERVIEW, f"{LIMIT}?name=tried"):
        assert "ratelimit-bars" not in text(operator, where)


def test_the_last_hour_is_sixty_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older requests are left out, which the day includes."""
    limiter = RateLimiter("spans", "2/d")
    now = time.time()
    for minutes, times in ((61, 3), (58, 4)):
        monkeypatch.setattr(recording.time, "time", lambda at=now - minutes * 60: at)
        for _ in range(times):
            limiter.hit("ada")
        recorder.flush()
    monkeypatch.undo()
    assert read_timelines(["spans"], "hour")["spans"].numbers["requests"] == 4
    assert read_timelines(["spans"], "day")["spans"].numbers["requests"] == 7


def test_clients_are_added_up_over_all_limits(operator: Client) -> None:
    """Each refused request of a client counts once, whichever limits refused it."""
    for name in ("first", "second"):
        RateLimitRule.objects.create(name=name, path="/search", key="ip", rate="3/h")
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h")
    RateLimitRule.objects.create(name="quiet", path="/", key="ip", rate="1/h", mode="shadow")
    statuses = visits(5, "203.0.113.1", "/search") + visits(4, "203.0.113.1")
    assert Counter(visits(3, "203.0.113.2")) == {200: 1, 429: 2}
    assert statuses.count(429) == 5
    page = words(text(operator, period="hour")).partition("Clients refused most, since")[2]
    assert re.search(r"203\.0\.113\.0/24 \w{12} 5 .*203\.0\.113\.0/24 \w{12} 2 ", page)


def test_clients_whose_count_may_be_zero_are_left_out(operator: Client) -> None:
    """A count such as "49 ± 49" is not informative."""
    limiter = RateLimiter("noise", "1/h")
    for _ in range(3):
        limiter.hit("ada")
    recorder.flush()
    key = key_of("noise", b"top:%d" % (time.time() // 3600))
    noise = json.dumps({"used": [0, []], "refused": [98, [["f" * 32, 98, 98, []]]]})
    get_store().execute(b"HSET", key, b"another process", noise.encode())
    page = text(operator, name="noise")
    assert "51 ± 49" in page
    assert "f" * 12 not in page


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York"])
def test_pages_are_equal_without_time_zones(zone: str, operator: Client, settings: Any) -> None:
    """With `USE_TZ = False`, every period works."""
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h")
    assert visits(2, "203.0.113.1") == [200, 429]
    for period in PERIODS:
        assert "requests 2 refused 1" in words(text(operator, name="site", period=period))


def test_the_page_takes_a_constant_number_of_queries(operator: Client) -> None:
    """The number does not depend on the number of rules."""
    numbers = []
    for count in (5, 30):
        for number in range(count):
            name = f"rule {count} {number}"
            RateLimitRule.objects.create(name=name, path="/x", key="ip", rate="1/m")
        operator.get(OVERVIEW)
        with CaptureQueriesContext(connection) as captured:
            operator.get(OVERVIEW)
        numbers.append(len(captured))
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize(
    "page", ["overview/", "ratelimitrule/", "ratelimitrule/limit/?name=search"]
)
def test_a_page_takes_a_second_at_most(page: str, operator: Client, hanging: Server) -> None:  # noqa: F811
    """It opens without the statistics, and says once that Redis does not answer."""
    began = time.monotonic()
    response = operator.get(f"/admin/django_ratelimit_lua/{page}")
    assert time.monotonic() - began < 1.0
    assert response.status_code == 200
    text = response.content.decode()
    assert text.count("Redis does not answer (") == 1
    assert "ratelimit-tiles" not in text
