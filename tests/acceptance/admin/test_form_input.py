"""Nothing that an operator types causes a server error in the admin."""

from __future__ import annotations

import datetime
import io
import random
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path, reverse

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from tests.acceptance.admin.test_admin import CHANGES, CLIENTS, OVERRIDES, RULES, errors, given
from tests.examples import examples
from tests.support.limits import add_tier
from tests.support.users import staff

pytestmark = pytest.mark.django_db(transaction=True)
APP = "django_ratelimit_lua"
SEEDS = range(examples(3, at_least=1))
REQUESTS = 80


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@ratelimit("tenant", lambda group, request: request.tenant, "5/m")
@ratelimit("search", "ip", "5/m")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found")


urlpatterns = [path("admin/", admin.site.urls), path("ok", ok, name="ok"), path("search", search)]


@pytest.fixture
def rows(operator: Client) -> None:
    """Create rows of every kind, including those that only a script or an older version writes."""
    Group.objects.create(name="pro")
    fits = RateLimitRule.objects.create(
        name="site", path="/ok", key="ip", rate="5/m", mode="shadow"
    )
    RateLimitRule.objects.create(name="by session", path="/", key="session", rate="5/m")
    broken = RateLimitRule(name="broken", path="/", key="nonsense", rate="5/m")
    day = RateLimitRule(name="day", path="/", key="ip", rate="5/d")
    tiers = [{"group": "gone", "rate": "50/m"}]
    day.options = {"algorithm": "fixed_window", "align": "day", "tiers": tiers}
    strange = RateLimitRule(name="strange", path="/", audience="group:", method="{}", rate="y")
    strange.options = {"tiers": [5, {"rate": []}], "burst": {}, "cost": "x", "other": 1, "name": 2}
    listed = RateLimitRule(name="listed", options=[5])
    RateLimitRule.objects.bulk_create([broken, day, strange, listed])
    add_tier(fits, "pro", "50/m")
    forever = datetime.datetime(9999, 12, 31, 23, 59, tzinfo=datetime.UTC)
    RateLimitOverride.objects.create(rule=broken, network="203.0.113.9", rate="5/m", ends=forever)
    RateLimitOverride.objects.create(
        network="2001:db8::/32", effect="block", starts=forever.replace(year=1)
    )
    RateLimitOverride.objects.create(user=User.objects.get(), effect="exempt")
    key = RateLimitOverride(field="header:X-Key", effect="exempt", label="partner")
    key.set_value("hush")
    key.save()
    RateLimitRule.objects.filter(pk=fits.pk).update(name="renamed")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {APP}_ratelimitoverride SET rate = 'y' WHERE effect = 'limit'")
    changed = {"kind": "rule", "action": "changed", "object_id": fits.pk}
    typed = {"name": "x", "rate": [5], "tiers": 5}
    for spec in ({}, {"name": "renamed"}, typed, {"mode": "nonsense", "audience": 5}, [1]):
        change = {**changed, "before": spec, "after": spec}
        RateLimitChange.objects.create(revision=9, name="odd", **change)
    RateLimitChange.objects.create(revision=9, name="taken", after=day.spec, **changed)
    RateLimitChange.objects.create(revision=10, kind="rule", name="many", action="bulk")


WORDS = r"""
0 -1 1 2 abc 999999999999999999999999999999 1e400 nan -inf 1_000 None null on true //[ /[
http://[ % %00 %ff ../../ ' "><b> %(x)s {} 2147483648 9007199254740993 9223372036854775808
-99999999999999999999 9999-12-31 0001-01-01 23:59:59.999999 24:00 0.0.0.0/0 ::/0
::ffff:203.0.113.9 203.0.113.9 1.2.3 fe80::1%eth0 header:x : block:nobody exempt: reset:
block:site session user ip+session os.system Mars/Base __all__ _save pk__in day fixed_window
token_bucket 3600
"""
ODD = [*WORDS.split(), "", " ", "٣", "²", "\u2028", "a\nb", "a" * 250, "ö" * 1000, "{{ 5 }}"]


class Fields(HTMLParser):
    """The fields and buttons of a page, with their values."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: list[tuple[str, str]] = []
        self.typed: set[str] = set()
        self._select = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, value = given.get("name") or "", given.get("value") or ""
        if tag == "select":
            self._select = name
        if tag == "option" and self._select:
            self.fields.append((self._select, value))
        if tag in ("input", "textarea", "button") and name:
            self.fields.append((name, value))
        if tag == "textarea" or given.get("type") in ("text", "number"):
            self.typed.add(name)


def pages() -> list[str]:
    """Return the pattern of every URL of our pages, with arguments in angle brackets."""
    found = [reverse("admin:app_list", args=[APP])]
    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label == APP:
            prefix = reverse(f"admin:{APP}_{model._meta.model_name}_changelist")
            found += [f"{prefix}{pattern.pattern}" for pattern in model_admin.get_urls()]
    return found


def filled(dice: random.Random, pattern: str) -> str:
    """Return the URL with primary keys, of which some exist, for its arguments."""

    def argument(match: re.Match[str]) -> str:
        if match[1].startswith("str"):
            return dice.choice(["enforce", "off"])
        return str(dice.randint(1, 12))

    return re.sub(r"<([a-z]+:?[a-z_]*)>", argument, pattern)


def entered(dice: random.Random, page: str) -> list[tuple[str, str]]:
    """Return form data with most values of the page, some of them odd, and some boxes cleared."""
    fields = Fields(page)
    by_name: dict[str, list[str]] = {}
    for name, value in fields.fields:
        by_name.setdefault(name, []).append(value)
    data: list[tuple[str, str]] = []
    oddly = dice.choice([0.02, 0.1, 0.3])
    for name, values in by_name.items():
        if name.startswith("_") and dice.random() < 0.6:  # Only some of the buttons.
            continue
        value = dice.choice(values)
        if name in fields.typed and dice.random() < oddly:
            value = dice.choice(ODD)
        data.append((name, value))
    return data


def requests(
    client: Client, dice: random.Random, patterns: Sequence[str]
) -> Iterator[tuple[str, str, Any, int]]:
    """Yield requests of an operator as method, URL, data and status."""
    while True:
        url = filled(dice, dice.choice(patterns))
        response = client.get(url)
        yield "GET", url, None, response.status_code
        if response.status_code != 200:
            url = dice.choice([f"{RULES}add/", f"{OVERRIDES}add/", f"{CLIENTS}?digest={'a' * 32}"])
            response = client.get(url)
        fields = entered(dice, response.content.decode())
        response = client.post(
            url, urlencode(fields), content_type="application/x-www-form-urlencoded"
        )
        yield "POST", url, fields, response.status_code


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati"])
@pytest.mark.usefixtures("strict")
def test_every_form_handles_odd_values(
    seed: int, zone: str, operator: Client, rows: None, settings: Any, caplog: Any
) -> None:
    """Whatever an operator types gets a page, a redirect or a refusal, but no server error."""
    settings.TIME_ZONE = zone
    operator.raise_request_exception = False
    dice = random.Random(seed)
    patterns = pages()
    assert len(patterns) > 15
    answers = requests(operator, dice, patterns)
    for _ in range(REQUESTS):
        caplog.clear()
        method, url, fields, status = next(answers)
        failures = [
            record.exc_text or str(record.exc_info and record.exc_info[1])
            for record in caplog.records
            if record.name == "django.request"
        ]
        assert status < 500, (method, url, fields, failures[-1:])


def test_a_change_of_a_name_that_is_taken_since_is_not_undone(operator: Client) -> None:
    """The page reports it, and the other rule is not overwritten."""
    one = RateLimitRule.objects.create(name="first", path="/ok", key="ip", rate="5/m")
    RateLimitRule.objects.filter(pk=one.pk).update(name="second")
    renamed = RateLimitChange.objects.order_by("-pk")[0]
    other = RateLimitRule.objects.create(name="first", path="/other", key="ip", rate="7/m")
    for _ in range(2):
        page = operator.post(f"{RULES}undo/{renamed.pk}/", follow=True).content.decode()
        assert "Another rule has this name." in page
        RateLimitRule.objects.filter(pk=one.pk).delete()
    assert [rule.rate for rule in RateLimitRule.objects.all()] == ["7/m"]
    other.delete()
    operator.post(f"{RULES}undo/{renamed.pk}/")
    rule = RateLimitRule.objects.get()
    assert (rule.pk, rule.rate) == (renamed.object_id, "5/m")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"exempt": "maybe"}, "must be true or false"),
        ([1], "unknown"),
        ({"tiers": 5}, "must be a list"),
        ({"tiers": [{"group": "pro", "rate": "9/m", "x": 1}]}, "optionally"),
        ({"moon": 1, "rate": "9/m"}, "unknown"),
    ],
)
def test_invalid_options_are_shown_and_the_form_repairs_them(
    options: Any, problem: str, operator: Client
) -> None:
    """The page names them before the form is saved. No text becomes true."""
    Group.objects.create(name="pro")
    row = RateLimitRule(name="site", path="/ok", key="ip", rate="5/m", options=options)
    RateLimitRule.objects.bulk_create([row])
    url = f"{RULES}{row.pk}/change/"
    page = operator.get(url)
    assert re.search(f"The stored rule is invalid: .*{problem}", page.content.decode())
    assert page.context["adminform"].form["exempt"].as_widget().count("checked") == 0
    answer = operator.post(url, given(path="/ok", key="ip", rate="5/m"), follow=True)
    assert errors(answer) == ""
    assert RateLimitRule.objects.get(pk=row.pk).options == {}


def test_a_number_that_is_too_long_for_python_is_an_invalid_option(operator: Client) -> None:
    """Only SQL can write it. All pages open, and the form repairs the rule."""
    row = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="5/m")
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {APP}_ratelimitrule SET options = %s WHERE id = %s",
            ['{"burst": %s, "cost": 2}' % ("9" * 5000), row.pk],
        )
    for url in (RULES, f"{RULES}limit/?name=site", f"{RULES}{row.pk}/change/", CHANGES):
        assert operator.get(url).status_code == 200, url
    assert "The stored rule is invalid" in operator.get(f"{RULES}limit/?name=site").content.decode()
    operator.post(f"{RULES}{row.pk}/change/", given(path="/ok", key="ip", rate="5/m", cost=2))
    assert RateLimitRule.objects.get().options == {"cost": 2}


def test_the_page_of_a_rule_with_invalid_options_may_be_viewed() -> None:
    """It shows values of any type."""
    row = RateLimitRule(name="site", path="/ok", key="ip", rate="5/m")
    row.options = {"cost": {"a": 1}, "algorithm": {"b": 2}, "exempt": "maybe"}
    RateLimitRule.objects.bulk_create([row])
    page = staff("view_ratelimitrule", name="looks").get(f"{RULES}{row.pk}/change/")
    assert page.status_code == 200
    assert "maybe" in page.content.decode()


@pytest.mark.parametrize("way", ["list", "command"])
def test_an_invalid_row_can_be_switched_off(way: str, operator: Client) -> None:
    """Whatever its other fields contain."""
    row = RateLimitRule(name="broken", path="/ok", key="nonsense", rate="5/m")
    RateLimitRule.objects.bulk_create([row])
    if way == "list":
        action = {"action": "off", "_selected_action": [row.pk]}
        confirmed = operator.post(RULES, action).context["confirmed"]
        operator.post(RULES, {**action, "confirm": confirmed})
    else:
        words = ("ratelimit", "rules", "mode", "broken", "off", "--confirm")
        call_command(*words, stdout=io.StringIO())
    assert RateLimitRule.objects.get().mode == "off"


def test_a_change_that_was_edited_by_hand_is_shown(operator: Client) -> None:
    """The history of its rule shows values of any type."""
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="5/m")
    RateLimitChange.objects.update(before=[1], after=[2])
    for url in (CHANGES, f"{RULES}{rule.pk}/history/"):
        assert operator.get(url).status_code == 200
