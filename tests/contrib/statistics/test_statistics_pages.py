"""The pages of the statistics show the decisions to permitted users, for names of any form."""

from __future__ import annotations

import csv
import datetime
import importlib
import io
import json
import re
import sys
import time
from collections import Counter
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ratelimit_lua import RateLimiter, extension
from django_ratelimit_lua.contrib.statistics import reading
from django_ratelimit_lua.contrib.statistics.keys import key_of
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.contrib.statistics.report import PERIODS, one, overview
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import (
    RateLimitChange,
    RateLimitOverride,
    RateLimitRule,
)
from django_ratelimit_lua.operations import rules_yaml
from django_ratelimit_lua.process.tasks import stop
from django_ratelimit_lua.store import get_store
from example_project import sample
from tests.acceptance import test_admin
from tests.acceptance.test_admin import given, site, staff, visits  # noqa: F401 - a fixture
from tests.bench.many_rules import rules_text
from tests.tiers import add_tier

pytestmark = pytest.mark.django_db(transaction=True)
STATISTICS = "/admin/ratelimit_statistics/statistics/"
ONE = f"{STATISTICS}one/"
RULES = test_admin.RULES
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


NOTHING = tuple((limit, "0 of 91 requests, and 0") for limit in ("14", "9999999"))


def told(client: Client, where: str = STATISTICS, **query: str) -> Any:
    """Return a page as JSON."""
    response = client.get(where, {**query, "format": "json"})
    assert response.headers["Content-Type"] == "application/json"
    return response.json()


def text(client: Client, where: str = STATISTICS, **query: str) -> str:
    """Return a page as HTML."""
    response = client.get(where, query)
    assert response.status_code == 200
    return str(response.content.decode())


def row(client: Client, name: str) -> Any:
    return next(row for row in told(client)["rows"] if row["name"] == name)


def test_the_pages_show_exact_counts(operator: Client) -> None:
    """Allowed, refused, shadow-refused and blocked requests are each counted once, in every period
    and in their sum.
    """
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    RateLimitRule.objects.create(name="quiet", path="/ok", key="ip", rate="1/h", mode="shadow")
    statuses = Counter(visits(5, "203.0.113.1") + visits(2, "203.0.113.2"))
    assert statuses == {200: 4, 429: 3}
    of = row(operator, "site")
    assert (of["requests"], of["allowed"], of["refused"], of["people_refused"]) == (7, 4, 3, 1)
    assert of["share_refused"] == round(3 / 7, 6)
    assert sum(point["refused"] for point in of["points"]) == 3
    quiet = row(operator, "quiet")
    assert (quiet["allowed"], quiet["would_be_refused"], quiet["refused"]) == (2, 5, 0)
    for period in PERIODS:
        page = told(operator, ONE, name="site", period=period)
        assert (page["requests"], page["refused"], page["people_refused"]) == (7, 3, 1), period
        for word in ("requests", "allowed", "refused"):
            assert sum(point[word] for point in page["points"]) == page[word], (period, word)
    whole = told(operator)["site"]
    assert whole["requests"] == 7


def test_a_page_and_its_json_show_the_same_numbers(operator: Client) -> None:
    """Requests, refusals, clients and curves are equal."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    visits(5, "203.0.113.1")
    page = text(operator, ONE, name="site")
    json_page = told(operator, ONE, name="site")
    assert re.search(r"Refused: 3 of 5 requests \(60%\)\. From about 1 client\.", page)
    assert (json_page["requests"], json_page["refused"], json_page["people_refused"]) == (5, 3, 1)
    assert json_page["identities"]["refused"] == [
        {
            "digest": json_page["identities"]["refused"][0]["digest"],
            "least": 3,
            "most": 3,
            "parts": [{"kind": "ip", "value": "203.0.113.0/24"}],
        }
    ]
    drawn = json.loads(
        re.findall(r'id="ratelimit-curve-0"[^>]*>(.*?)</script>', page, re.DOTALL)[0]
    )
    assert [{key: point[key] for key in ("limit", "requests", "people")} for point in drawn] == (
        json_page["curves"][0]["points"]
    )
    assert "203.0.113.0/24" in page


def test_refused_clients_are_shown_to_permitted_users() -> None:
    """The permission to view rules is enough for the numbers. Names need another permission, in
    JSON as well.
    """
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    visits(5, "203.0.113.1")
    viewer, other = (
        staff("view_ratelimitrule", name="viewer"),
        staff("view_ratelimitoverride", name="other"),
    )
    both = staff("view_ratelimitrule", "view_identities", name="both")
    assert "203.0.113" not in text(viewer, ONE, name="site")
    hidden = told(viewer, ONE, name="site")["identities"]["refused"]
    assert [(row["least"], row["parts"]) for row in hidden] == [(3, [])]
    assert hidden[0]["digest"][:12] in text(viewer, ONE, name="site")
    assert "203.0.113" not in json.dumps(told(viewer, ONE, name="site"))
    assert "203.0.113.0/24" in text(both, ONE, name="site")
    for page in (STATISTICS, ONE):
        assert other.get(page, {"name": "site"}).status_code == 403
        assert Client().get(page, {"name": "site"}).status_code == 302
    shown = text(both, ONE, name="site")
    assert "ask=block" not in shown
    assert "ratelimitoverride/add/" not in shown
    assert "Use this limit in" not in shown
    assert "statistics/" in viewer.get("/admin/").content.decode()
    assert "statistics/" not in other.get("/admin/").content.decode()


@pytest.mark.parametrize("name", ODD)
def test_every_name_has_its_page(operator: Client, name: str) -> None:
    """The overview links to the page, and no part of a name is rendered as markup."""
    limiter = RateLimiter(name, "1/h")
    limiter.hit("<img src=x>")
    assert not limiter.hit("<img src=x>").allowed
    page = text(operator)
    assert "<script>alert" not in page
    links = [unescape(link) for link in re.findall(r'href="([^"]*statistics/one/\?[^"]*)"', page)]
    if "\ud800" in name:  # No address can have it.
        pages = [operator.get(link).content.decode() for link in links]
    else:
        pages = [text(operator, link) for link in links]
        assert any("Refused: 1 of 2 requests" in shown for shown in pages)
        assert told(operator, ONE, name=name)["refused"] == 1
    assert all("<img src" not in shown and "<script>alert" not in shown for shown in pages)


def test_the_curve_shows_what_other_limits_would_have_refused(operator: Client) -> None:
    """For a fixed window, the curve is exact up to the current limit, and an upper bound
    above it.
    """
    RateLimitRule.objects.create(
        name="site",
        path="/ok",
        key="ip",
        rate="9/d",
        options={"algorithm": "fixed_window", "align": "day"},
    )
    asked = {f"203.0.113.{number}": number for number in range(1, 14)}
    refused = sum(visits(times, address).count(429) for address, times in asked.items())
    assert refused == sum(max(0, times - 9) for times in asked.values())
    curve = told(operator, ONE, name="site")["curves"][0]
    assert (curve["today"], curve["requests"], curve["people"]) == (9, sum(asked.values()), 13)
    assert curve["is_exact"]
    by_limit = {point["limit"]: point for point in curve["points"]}
    for limit in range(10):
        requests = sum(max(0, times - limit) for times in asked.values())
        people = sum(times > limit for times in asked.values())
        assert by_limit[limit]["requests"] == [requests, requests], limit
        assert by_limit[limit]["people"] == [people, people], limit
    assert by_limit[10]["requests"] == [0, sum(max(0, times - 10) for times in asked.values())]
    assert by_limit[10]["people"] == [0, 3]
    shown = text(operator, ONE, name="site", limit0="5")
    requests, people = sum(max(0, times - 5) for times in asked.values()), 8
    assert (
        f"5 per day would have refused {requests} of 91 requests, and {people} of 13 clients."
        in shown
    )
    for limit, answer in (("10", "at most 6 of 91 requests, and at most 3"), *NOTHING):
        assert f"{int(limit):,} per day would have refused {answer} of 13 clients." in text(
            operator, ONE, name="site", limit0=limit
        )


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_the_effect_of_any_limit_is_shown(operator: Client, mode: str) -> None:
    """This includes limits above the current one, and shadow mode. Of 12 requests, 9 per hour would
    have refused at most 3.
    """
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="4/h", mode=mode)
    refused = visits(12).count(429)
    assert refused == (8 if mode == "enforce" else 0)
    for limit, answer in (("9", "at most 3"), ("4", "8"), ("12", "0"), ("9" * 13, "0")):
        page = text(operator, ONE, name="site", period="hour", limit0=limit)
        assert f"{int(limit):,} per hour would have refused {answer} of 12 requests" in page
        assert f'value="{limit}"' in page


def test_a_curve_says_that_the_limit_was_changed(operator: Client) -> None:
    """If the limit was different for a part of the period, the curve shows the current limit for
    all of it, and the page explains that.
    """
    rule = RateLimitRule.objects.create(
        name="site", path="/ok", key="ip", rate="6/d", options={"algorithm": "fixed_window"}
    )
    assert visits(9, "203.0.113.1").count(429) == 3
    curve = told(operator, ONE, name="site")["curves"][0]
    assert curve["others"] == []
    assert "what this limit alone would have refused" not in text(operator, ONE, name="site")
    rule.rate = "4/d"
    rule.save()
    assert visits(7, "203.0.113.2").count(429) == 3
    curve = told(operator, ONE, name="site")["curves"][0]
    assert curve["others"] == ["changes"]
    assert "what this limit alone would have refused" in text(operator, ONE, name="site")
    by_limit = {point["limit"]: point["requests"] for point in curve["points"]}
    assert (by_limit[2], by_limit[4], by_limit[5]) == ([12, 12], [8, 8], [4, 8])
    assert who(operator, "90d") == who(operator, "day") == [3, 3]


def test_a_curve_with_tiers_explains_its_difference_from_the_counts(operator: Client) -> None:
    """Clients with a tier are in the curve with the units that they requested from the tier. So it
    shows more refusals than there were, and the page explains that.
    """
    rule = RateLimitRule.objects.create(
        name="site",
        path="/ok",
        key="user",
        rate="6/d",
        audience="authenticated",
        options={"algorithm": "token_bucket", "burst": 3},
    )
    plain = Client()
    plain.force_login(User.objects.create_user("ada"))
    assert [plain.get("/ok").status_code for _ in range(5)].count(429) == 2
    of = told(operator, ONE, name="site")["curves"][0]
    assert (of["today"], of["others"]) == (3, [])
    page = unescape(text(operator, ONE, name="site"))
    assert "what this limit alone would have refused" not in page
    add_tier(rule, "pro", "60/d", burst=50)
    user = User.objects.create_user("carol")
    user.groups.add(Group.objects.create(name="pro"))
    paying = Client()
    paying.force_login(user)
    assert [paying.get("/ok").status_code for _ in range(20)].count(429) == 0
    of = told(operator, ONE, name="site")["curves"][0]
    assert (of["today"], of["others"]) == (3, ["changes", "tiers"])
    page = unescape(text(operator, ONE, name="site"))
    assert (
        "Other limits also applied to these requests (changes, tiers). The curve shows what this "
        "limit alone would have refused. 2 requests were refused." in page
    )


def test_a_curve_explains_why_other_limits_applied(operator: Client) -> None:
    """The reasons are changes of the rule, overrides and tiers during the period."""
    rule = RateLimitRule.objects.create(
        name="site", path="/ok", key="ip", rate="6/h", options={"algorithm": "fixed_window"}
    )
    RateLimitChange.objects.all().delete()
    assert visits(9, "203.0.113.1").count(429) == 3

    def others() -> list[str]:
        recorder.flush()
        of = one("site", "hour")
        return list(of.curves[0].others)

    start = timezone.now() - datetime.timedelta(minutes=50)
    assert others() == []
    minute = datetime.timedelta(minutes=1)
    override = RateLimitOverride.objects.create(
        rule=rule.name, network="203.0.113.9", effect="limit", rate="99/h"
    )
    moments = RateLimitOverride.objects.filter(pk=override.pk)
    for starts, ends, created, found in (
        (None, start + minute, start - minute, ["overrides"]),
        (None, start - 15 * minute, start - 16 * minute, []),
        (start + 120 * minute, None, start - minute, []),
        (start + minute, start + 2 * minute, start - minute, ["overrides"]),
    ):
        moments.update(starts=starts, ends=ends, created_at=created)
        assert others() == found, (starts, ends)
    override.delete()
    rule.rate = "7/h"
    rule.save()
    RateLimitChange.objects.update(at=start - minute)
    assert others() == ["changes"]
    RateLimitChange.objects.update(at=start - 15 * minute)
    assert others() == []
    add_tier(rule, "pro", "60/h")
    assert "tiers" in others()


def test_a_curve_includes_counts_of_the_call_site_that_a_rule_replaced(operator: Client) -> None:
    """The page explains the difference after a rule replaced the limit, and after the rule was
    deleted.
    """
    limiter = RateLimiter("of.code", "3/h", algorithm="fixed_window")
    assert [limiter.hit("ada").allowed for _ in range(6)].count(False) == 3
    of = told(operator, ONE, name="of.code")["curves"][0]
    assert (of["today"], of["others"]) == (3, [])
    rule = RateLimitRule.objects.create(
        name="of.code", rate="30/h", options={"algorithm": "fixed_window"}
    )
    of = told(operator, ONE, name="of.code")["curves"][0]
    assert (of["today"], of["others"]) == (30, ["changes"])
    assert {point["limit"]: point["requests"] for point in of["points"]}[20][0] == 0
    rule.delete()
    of = told(operator, ONE, name="of.code")["curves"][0]
    assert (of["today"], of["others"]) == (3, ["changes"])


def test_a_curve_takes_overrides_into_account(operator: Client) -> None:
    """They are mentioned for rules and for limits in code."""
    RateLimitRule.objects.create(
        name="site", path="/ok", key="ip", rate="2/h", options={"algorithm": "fixed_window"}
    )
    RateLimitChange.objects.all().delete()
    for name in ("site", "of.code"):
        RateLimitOverride.objects.create(
            network="203.0.113.1", rule=name, effect="limit", rate="30/h"
        )
    assert visits(5, "203.0.113.1").count(429) == 0
    RateLimiter("of.code", "2/h").hit("ada")
    for name in ("site", "of.code"):
        assert told(operator, ONE, name=name)["curves"][0]["others"] == ["overrides"]


def test_shadow_mode_reports_no_refusal(operator: Client) -> None:
    """The page reports refusals that would have happened, and no actual ones."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h", mode="shadow")
    assert visits(3) == [200] * 3
    page = text(operator, ONE, name="site")
    assert "clients that would be refused" in page
    assert "Would be refused most" in page
    assert "Refused most" not in page
    assert "<dt>clients refused<" not in page


def test_json_without_a_name_is_that_of_the_overview(operator: Client) -> None:
    """The redirect to the overview keeps the format."""
    answer = operator.get(f"{ONE}?format=json", follow=True)
    assert answer.headers["Content-Type"] == "application/json"


def who(client: Client, period: str) -> list[int]:
    """Return the number of refusals of each listed client."""
    return [
        each["most"]
        for each in told(client, ONE, name="site", period=period)["identities"]["refused"]
    ]


def test_a_limit_chosen_on_the_curve_fills_in_the_form(operator: Client) -> None:
    """The link opens the form of the rule, or of a new rule for a limit in code. The operator saves
    it, and the history records the change.
    """
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="9/m, 50/h")
    visits(3, "203.0.113.1")
    shown = text(operator, ONE, name="site", limit0="4")
    (link, further) = [
        unescape(link)
        for link in re.findall(r'class="button ratelimit-take" href="([^"]*)"', shown)
    ]
    assert link == f"{RULES}{rule.pk}/change/?period=m&limit=4"
    assert 'name="rate" value="4/m, 50/h"' in text(operator, link)
    assert further.endswith("?period=h&limit=50")
    assert 'name="rate" value="9/m, 62/h"' in text(operator, further.replace("=50", "=62"))
    assert RateLimitRule.objects.get().rate == "9/m, 50/h"
    changed = given(key="ip", path="/ok", rate="4/m, 50/h")
    assert operator.post(link, changed).status_code == 302
    assert RateLimitChange.objects.first().after["rate"] == ["4/m", "50/h"]
    assert LogEntry.objects.latest("pk").get_change_message() == "Changed Rate."
    RateLimiter("of.code", "5/m").hit("x")
    RateLimiter("of.two", ["5/s", "50/h"]).hit("x")
    (_, second) = re.findall(
        r'class="button ratelimit-take" href="([^"]*)"', text(operator, ONE, name="of.two")
    )
    form = text(operator, unescape(second).rpartition("=")[0] + "=44")
    assert 'name="rate" value="5/s, 44/h"' in form
    link = unescape(
        re.findall(
            r'class="button ratelimit-take" href="([^"]*)"', text(operator, ONE, name="of.code")
        )[0]
    )
    assert link.startswith(f"{RULES}add/?instead=of.code&period=m&limit=")
    assert 'name="rate" value="3/m"' in text(operator, link.rpartition("=")[0] + "=3")


def test_each_client_has_its_actions_in_the_row(operator: Client) -> None:
    """The row links to the client's page, a block and an override of exactly this client. A user is
    identified by its key, and a masked address by its digest.
    """
    user = User.objects.create_user("ada")
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h")
    RateLimitRule.objects.create(
        name="users", path="/ok", key="user", rate="1/h", audience="authenticated"
    )
    visits(3, "203.0.113.1")
    ada = Client(REMOTE_ADDR="203.0.113.9")
    ada.force_login(user)
    assert [ada.get("/ok").status_code for _ in range(2)] == [200, 429]
    shown = text(operator, ONE, name="site")
    client = digest(("ip", "203.0.113.1")).decode()
    override = unescape(re.findall(r'href="([^"]*override/add/[?][^"]*)"', shown)[0])
    assert f"client_digest={client}&duration=86400" in override
    assert re.search(rf'name="client_digest" value="{client}"', text(operator, override))
    block = unescape(re.findall(r'href="([^"]*ask=block)"', shown)[0])
    assert f"digest={client}" in block
    assert "Block 203.0.113.0/24 (" in text(operator, block)
    shown = text(operator, ONE, name="users")
    assert f"/admin/auth/user/{user.pk}/change/" not in shown or "ada" in shown
    assert "user ada" in shown
    override = unescape(re.findall(r'href="([^"]*override/add/[?][^"]*)"', shown)[0])
    assert f"user={user.pk}" in override
    assert re.search(rf'<option value="{user.pk}" selected', text(operator, override))


def inspected(operator: Client, name: str) -> tuple[str, str]:
    """Return the first "Inspect" link on the page of a name, and the linked page."""
    links = re.findall(
        r'href="([^"]*client/[^"]*)" aria-label="Inspect', text(operator, ONE, name=name)
    )
    url = unescape(links[0])
    return url, text(operator, url)


@pytest.mark.parametrize("shows", ["masked", "plain", "off"])
def test_the_inspect_link_leads_to_exactly_that_client(
    operator: Client, settings: Any, shows: str
) -> None:
    """Under every display setting, the page has the client's own counts and verdict, and resets
    only this client.
    """
    settings.RATELIMIT_SHOW_IDENTITIES = shows
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    assert visits(9, "203.0.113.77") == [200] * 2 + [429] * 7
    assert visits(1, "203.0.113.1") == [200]
    url, page = inspected(operator, "site")
    assert "Refused by site: 2 of 2 used" in page
    assert "2 / 2" in page
    assert "requests refused: 7" in page
    assert operator.post(url, {"action": "reset"}).status_code == 302
    assert "No limit refuses this client now" in text(operator, url)
    assert visits(1, "203.0.113.77") == [200]
    assert "1 / 2" in text(operator, url)
    assert (
        staff("view_ratelimitrule", name="reader").post(url, {"action": "reset"}).status_code == 403
    )
    assert "Refused by site" not in text(operator, url.replace("digest=", "digest=x"))


def test_the_pages_report_that_redis_is_unavailable(operator: Client, settings: Any) -> None:
    """Both pages report it, and the JSON has a status of 503 with the reason."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="9/m")
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    }
    shown = text(operator)
    assert "Redis is unavailable" in shown
    assert "Redis is unavailable" in text(operator, ONE, name="site")
    for page in (STATISTICS, ONE):
        response = operator.get(page, {"format": "json", "name": "site"})
        assert response.status_code == 503
        assert response.json()["error"]


@pytest.mark.usefixtures("no_others")
def test_a_thousand_names_are_read_in_few_round_trips(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for every sort order. Names are paginated, and found by a part of the name."""
    for number in range(1000):
        RateLimiter(f"name-{number:04}", "5/h").hit("x")
        if number % 100 == 0:
            reading.known_names()
    store, trips, commands = get_store(background=True), [], Counter[str]()
    execute, execute_all = store.execute, store.execute_all

    def one(*parts: bytes, **more: Any) -> Any:
        trips.append(1)
        commands[sort] += 1
        return execute(*parts, **more)

    def several(parts: Any, patience: Any = None) -> Any:
        trips.append(len(parts))
        commands[sort] += len(parts)
        return execute_all(parts)

    sort = ""
    reading.known_names()
    monkeypatch.setattr(store, "execute", one)
    monkeypatch.setattr(store, "execute_all", several)
    for sort in ("-refused", "name", "-requests", "-share"):
        trips.clear()
        found = overview(sort)
        assert len(found.rows) == 50
        assert found.pages * 50 >= found.names >= 1000
        assert len(trips) <= 40, (sort, len(trips), commands[sort])
    print(dict(commands))
    names = [row["name"] for row in told(operator, sort="name", page="2", q="name-")["rows"]]
    assert names == [f"name-{number:04}" for number in range(50, 100)]
    assert [row["name"] for row in told(operator, q="-0777")["rows"]] == ["name-0777"]


def test_every_query_gets_a_page(operator: Client) -> None:
    """Invalid periods, sort orders, pages and limits cause no error."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    visits(1, "203.0.113.1")
    for query in (
        {"page": "x"},
        {"page": "999999"},
        {"sort": "nonsense"},
        {"q": "\x00"},
        {"page": "-1"},
    ):
        text(operator, **query)
    for query in ({"period": "x"}, {"limit0": "-5"}, {"limit0": "9" * 40}):
        text(operator, ONE, **{"name": "site", **query})
    assert operator.get(ONE).status_code == 302
    response = operator.get(ONE, {"name": "never <b>"})
    assert response.status_code == 404
    assert "No rule or limit has this name, and it has no counts" in response.content.decode()
    assert "never <b>" not in response.content.decode()
    response = operator.get(ONE, {"name": "never", "format": "json"})
    assert response.status_code == 404
    assert "it has no counts" in response.json()["error"]
    RateLimitRule.objects.create(name="unused", path="/nowhere", key="ip", rate="1/m")
    assert "No requests in this period." in text(operator, ONE, name="unused")
    assert urlencode({"name": "site"}) in "name=site"


def test_lists_show_the_last_day_with_a_link_to_the_statistics(operator: Client) -> None:
    """Rules of the admin have the cell in their list, with the counts of the current version in
    shadow mode. Rules of the settings and limits in the code have it on their page. Blocked
    requests are not counted as refused by a rule.
    """
    rule = RateLimitRule.objects.create(name="site & all", path="/ok", key="ip", rate="2/h")
    RateLimitRule.objects.create(name="tried", path="/ok", key="ip", rate="1/h", mode="shadow")
    RateLimitRule.objects.create(name="unused", path="/nowhere", key="ip", rate="1/h")
    mail = RateLimiter("mail.lists", "2/h")
    assert [mail.hit("ada").allowed for _ in range(3)] == [True, True, False]
    assert visits(3, "203.0.113.9") == [200, 200, 429]
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block", rule=rule.name)
    assert visits(2, "203.0.113.9") == [429, 429]
    page = unescape(operator.get(RULES).content.decode())
    assert f'<a href="{ONE}?name=site+%26+all"><svg ' in page
    assert 'aria-label="Last day: 1 refused, 2 blocked, 2 allowed"' in page
    assert "1 refused, 2 blocked</div>" in page
    assert (
        "would be refused</div>This version of the rule has seen 5 requests, "
        "from about 1 client. Would have refused: 4 (80%)" in page
    )
    assert page.count("ratelimit-spark") == 2
    page = operator.get("/admin/django_ratelimit_lua/ratelimitrule/limits/").content.decode()
    assert f'<a href="{ONE}?name=mail.lists"><svg' in page
    assert "Last day: 1 refused, 2 allowed" in page


def test_lists_work_without_redis_and_link_only_for_permitted_users(
    operator: Client,
    settings: Any,
) -> None:
    """A user who may change rules but not view them gets no link. While Redis is unavailable, the
    lists omit the counts.
    """
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    assert visits(3) == [200, 200, 429]
    page = staff("change_ratelimitrule").get(RULES).content.decode()
    assert "ratelimit-spark" in page
    assert ONE not in page
    stop(20)  # No thread is to ask the one server for the other.
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    }
    for where in (RULES, "/admin/django_ratelimit_lua/ratelimitrule/limits/"):
        response = operator.get(where)
        assert response.status_code == 200
        assert "ratelimit-spark" not in response.content.decode()


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("long" + "x" * 300, "long" + "x" * 26 + "…" + "x" * 29),
        ("   ", "&quot;   &quot;"),
        ("a\nb", "a\\nb"),
    ],
)
def test_odd_names_are_cut_escaped_and_quoted(operator: Client, name: str, cell: str) -> None:
    """Names are shortened, escaped and quoted. A name of an existing limiter is not reported as
    removed.
    """
    RateLimiter(name, "1/h").hit("ada")
    page = text(operator)
    assert f">{cell}</a>" in page
    assert "removed limit" not in page.replace("limit in the code, or a removed limit", "")
    of = told(operator, ONE, name=name)
    assert (of["name"], of["kind"], of["requests"]) == (
        name,
        "gone" if len(name) > 200 else "code",
        1,
    )
    out = io.StringIO()
    call_command("ratelimit", "stats", "show", stdout=out)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith(unescape(cell))
    assert len(lines[1]) <= 60 + 8 * 12


def test_the_report_ends_at_the_current_moment_and_not_after_the_step(operator: Client) -> None:
    """The current step ends at its end, but the report ends now."""
    RateLimiter("moment", "1/h").hit("ada")
    for period in PERIODS:
        of = told(operator, ONE, name="moment", period=period)
        at, until = (datetime.datetime.fromisoformat(of[word]) for word in ("at", "to"))
        assert at <= timezone.now() < until + datetime.timedelta(minutes=1)


def test_sample_users_match_no_account() -> None:
    """The ids of sample users are larger than those of any account."""
    api = next(place for place in sample.PLACES if place.by == "user")
    assert min(int(sample._client(api, who)) for who in range(2500)) > 1_000_000_000


def test_the_last_hour_is_sixty_minutes(
    operator: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page of the hour and the overview leave out older requests, which the day includes."""
    limiter = RateLimiter("spans", "2/d")
    now = time.time()
    clock = "django_ratelimit_lua.contrib.statistics.recorder.time.time"
    monkeypatch.setattr(clock, lambda: now - 61 * 60)
    for who in ("ada", "bob", "cleo"):
        assert [limiter.hit(who).allowed for _ in range(3)] == [True, True, False]
    recorder.flush()
    monkeypatch.setattr(clock, lambda: now - 58 * 60)
    assert [limiter.hit("dora").allowed for _ in range(4)] == [True, True, False, False]
    recorder.flush()
    monkeypatch.undo()
    of = told(operator, ONE, name="spans", period="hour")
    assert (of["requests"], of["refused"], of["people_refused"], of["units"]) == (4, 2, 1, 2)
    assert (of["since"], of["counts_since"]["requests"]) == (of["from"], 4)
    assert sum(of["sources"].values()) == 4
    assert (of["curves"][0]["requests"], of["curves"][0]["people"]) == (4, 1)
    assert [(one["least"], one["most"]) for one in of["identities"]["refused"]] == [(2, 2)]
    assert [(one["least"], one["most"]) for one in of["identities"]["used"]] == [(2, 2)]
    assert "<small>since" not in text(operator, ONE, name="spans", period="hour")
    found = told(operator, period="hour")
    (spans,) = (each for each in found["rows"] if each["name"] == "spans")
    assert (spans["requests"], spans["people_refused"]) == (4, 1)
    assert (found["site"]["refused"], sum(found["site"]["sources"].values())) == (2, 4)
    assert [one["most"] for one in found["identities"]] == [2]
    day = told(operator, ONE, name="spans", period="day")
    assert (day["requests"], day["people_refused"], day["units"]) == (13, 4, 8)
    assert len(told(operator)["identities"]) == 4


def test_the_overview_has_periods(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour, a day and a week have the same numbers on the overview, on the page of a name and in
    the CSV file.
    """
    limiter = RateLimiter("periods", "1/d")
    for days, times in ((0, 2), (3, 4)):
        moment = time.time() - days * 86_400
        monkeypatch.setattr(
            "django_ratelimit_lua.contrib.statistics.recorder.time.time",
            lambda moment=moment: moment,
        )
        for _ in range(times):
            limiter.hit(f"ada {days}")
        recorder.flush()
    monkeypatch.undo()
    for period, requests in (("hour", 2), ("day", 2), ("week", 6), ("nonsense", 2)):
        found = told(operator, period=period)
        (of,) = (each for each in found["rows"] if each["name"] == "periods")
        assert (of["requests"], found["site"]["requests"]) == (requests, requests), period
        assert sum(point["requests"] for point in of["points"]) == requests
        page = told(operator, ONE, name="periods", period=found["period"])
        assert (page["requests"], page["refused"]) == (of["requests"], of["refused"])
        (cells,) = (each for each in table(operator, period=period) if each["name"] == "periods")
        assert (cells["requests"], cells["refused"]) == (str(requests), str(of["refused"]))
    assert "requests, last week" in text(operator, period="week")


def table(client: Client, where: str = STATISTICS, **query: str) -> list[dict[str, str]]:
    """Return a page as CSV."""
    response = client.get(where, {**query, "format": "csv"})
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(response.content.decode().splitlines()))


def test_a_page_is_a_table_for_spreadsheets(operator: Client, settings: Any) -> None:
    """The CSV has the displayed rows, and no name can be read as a formula."""
    for name in ("=1+1", "search me"):
        RateLimiter(name, "1/h").hit("ada")
    assert [each["name"] for each in table(operator, q="1+1")] == ["'=1+1"]
    assert [each["name"] for each in table(operator, q="search m")] == ["search me"]
    (shown,) = (each for each in table(operator, ONE, name="=1+1") if each["requests"] != "0")
    assert (shown["requests"], shown["allowed"]) == ("1", "1")
    settings.RATELIMIT_TIMEOUT = 0.05
    for query in ({}, {"name": "=1+1"}):
        page = operator.get(ONE if query else STATISTICS, {**query, "format": "csv"})
        assert page.status_code == 200


def test_clients_are_added_up_over_all_limits(operator: Client) -> None:
    """Each refused request of a client counts once, whichever limits refused it. Shadow refusals
    are not counted.
    """
    for name in ("first", "second"):
        RateLimitRule.objects.create(name=name, path="/search", key="ip", rate="3/h")
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h")
    RateLimitRule.objects.create(name="quiet", path="/", key="ip", rate="1/h", mode="shadow")
    statuses = visits(5, "203.0.113.1", "/search") + visits(4, "203.0.113.1")
    assert Counter(visits(3, "203.0.113.2")) == {200: 1, 429: 2}
    found = told(operator, period="hour")["identities"]
    refused = {one["parts"][0]["value"]: one["most"] for one in found}
    assert [one["most"] for one in found] == [statuses.count(429), 2] == [5, 2]
    assert refused == {"203.0.113.0/24": 2}  # Two clients of one network.
    assert "Clients refused most, last hour" in text(operator, period="hour")


def test_clients_whose_count_may_be_zero_are_left_out(operator: Client) -> None:
    """A count such as "49 ± 49" is not informative."""
    limiter = RateLimiter("noise", "1/h")
    for _ in range(3):
        limiter.hit("ada")
    recorder.flush()
    key = key_of("noise", b"top:minute:%d" % (time.time() // 60))
    noise = json.dumps({"used": [0, []], "refused": [98, [["f" * 32, 98, 98, []]]]})
    get_store().execute(b"HSET", key, b"another process", noise.encode())
    (found,) = told(operator, ONE, name="noise", period="hour")["identities"]["refused"]
    assert (found["least"], found["most"]) == (2, 100)


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York"])
def test_a_site_without_time_zones_has_the_same_pages(
    zone: str, operator: Client, settings: Any
) -> None:
    """With `USE_TZ = False`, HTML and JSON work in every period."""
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h")
    assert visits(2, "203.0.113.1") == [200, 429]
    assert told(operator)["site"]["requests"] == 2
    for period in PERIODS:
        assert text(operator, ONE, name="site", period=period)
        assert told(operator, ONE, name="site", period=period)["requests"] == 2


def test_the_pages_of_rules_link_to_their_statistics(operator: Client) -> None:
    """The form of a rule has a link, for operators who may view the statistics."""
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="2/h")
    link = f'<a href="{ONE}?name=site">'
    assert link in text(operator, f"{RULES}{rule.pk}/change/")
    assert link not in text(staff("change_ratelimitrule"), f"{RULES}{rule.pk}/change/")


def test_urls_of_a_missing_app_name_the_line_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """A project includes the URLs of the metrics without the app."""
    name = "django_ratelimit_lua.contrib.statistics.urls"
    monkeypatch.setattr(extension, "is_installed", lambda name: False)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(
        ImproperlyConfigured,
        match=r'Add "django_ratelimit_lua\.contrib\.statistics" to INSTALLED_APPS',
    ):
        importlib.import_module(name)


def test_the_overview_takes_a_constant_number_of_queries(operator: Client) -> None:
    """The number does not depend on the number of rules."""
    numbers = []
    for count in (60, 200):
        rules_yaml.apply(rules_yaml.plan(rules_text(count)))
        operator.get(STATISTICS)
        with CaptureQueriesContext(connection) as captured:
            operator.get(STATISTICS)
        numbers.append(len(captured))
    assert numbers[0] == numbers[1]
