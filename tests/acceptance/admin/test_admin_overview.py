"""The page *Overview* lists problems first, each with a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.core.checks import Warning, register
from django.core.checks.registry import registry
from django.test import Client
from django.urls import path

from django_ratelimit_lua import extension
from django_ratelimit_lua.admin import overview, pages
from django_ratelimit_lua.extension import Extension, Section
from django_ratelimit_lua.models import RateLimitRevision, RateLimitRule
from tests.support.users import staff

pytestmark = pytest.mark.django_db(transaction=True)
HOME = "/admin/django_ratelimit_lua/"
OVERVIEW = f"{HOME}overview/"
urlpatterns = [path("admin/", admin.site.urls)]


def html_of(client: Client) -> str:
    """Return the main part of the page."""
    response = client.get(OVERVIEW)
    assert response.status_code == 200
    return str(response.content.decode().partition('id="main"')[2])


def shown(client: Client) -> str:
    """Return its text in one line."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html_of(client)))


def test_the_overview_shows_the_state_and_the_last_changes(operator: Client) -> None:
    """Each change is a link."""
    rule = RateLimitRule.objects.create(name="search <b>", path="/search", key="ip", rate="5/m")
    rule.rate = "7/m"
    rule.save()
    assert f'href="{OVERVIEW}"' in operator.get(HOME).content.decode()
    text = shown(operator)
    assert "Problems" not in text
    assert "Redis is available Rules up to date (revision 2)" in text
    assert "Last changes" in text
    assert "search &lt;b&gt; (rule, changed) : Rate: 5 per minute → 7 per minute" in text
    links = re.findall(rf'href="({HOME}ratelimitchange/\d+/change/)"', html_of(operator))
    assert [operator.get(link).status_code for link in links] == [200, 200]


def test_the_menu_has_six_entries(operator: Client) -> None:
    """The page of the processes has an entry only while a limit is split."""

    def entries() -> list[str]:
        menu = operator.get(HOME).context["app_list"][0]["models"]
        return [str(entry["name"]) for entry in menu]

    six = ["Bans", "Changes", "Clients", "Overrides", "Overview", "Rules"]
    assert entries() == six
    values = {"name": "burst", "path": "/", "key": "ip", "rate": "100/m"}
    rule = RateLimitRule.from_spec({**values, "algorithm": "token_bucket", "split": True})
    rule.save()
    assert entries() == [*six[:4], "Overview", "Processes", "Rules"]
    rule.set_mode("off")
    assert entries() == six


def test_rules_that_are_not_in_force_are_a_problem(operator: Client) -> None:
    """The page has the numbers of both revisions, and a link to the changes."""
    RateLimitRule.objects.create(name="search", path="/search", key="ip", rate="5/m")
    assert "Problems" not in shown(operator)
    # As a database that was written to while nothing could be published.
    RateLimitRevision.objects.update(revision=9)
    assert "Revision 9 is saved, but revision 1 is in force." in shown(operator)
    assert f'href="{HOME}ratelimitchange/"' in html_of(operator).partition("Problems")[2]


def test_a_rule_that_is_left_out_is_a_problem(operator: Client) -> None:
    """The page has the description of the problem, and a link to the rules."""
    row = RateLimitRule(name="broken", path="/", key="nonsense", rate="5/m")
    RateLimitRule.objects.bulk_create([row])
    text = shown(operator)
    assert "broken" in text.partition("Problems")[2].partition("Last changes")[0]
    assert "View rules" in text


def test_messages_of_our_checks_are_listed_as_problems(operator: Client, settings: Any) -> None:
    """They have their hints, unless they are silenced. Messages of other apps are not listed."""
    settings.RATELIMIT_NONSENSE = 1

    @register()
    def check_of_others(**kwargs: Any) -> list[Warning]:
        return [Warning("Something else", id="shop.W001")]

    try:
        text = shown(operator)
    finally:
        registry.registered_checks.discard(check_of_others)
    assert "RATELIMIT_NONSENSE is not a setting of django_ratelimit_lua." in text
    assert "W025" in text
    assert "Something else" not in text
    settings.SILENCED_SYSTEM_CHECKS = ["django_ratelimit_lua.W025"]
    assert "RATELIMIT_NONSENSE" not in shown(operator)


def test_the_number_of_listed_problems_is_bounded(operator: Client, settings: Any) -> None:
    """Further problems are counted."""
    for number in range(overview.MAX_PROBLEMS + 3):
        setattr(settings, f"RATELIMIT_NONSENSE_{number}", 1)
    assert "3 more" in shown(operator)


def test_users_see_only_what_their_permissions_allow() -> None:
    """The page needs the permission to see rules. The last changes need another permission."""
    RateLimitRule.objects.create(name="search", path="/search", key="ip", rate="5/m")
    assert staff("view_ratelimitoverride").get(OVERVIEW).status_code == 403
    rules = staff("view_ratelimitrule", name="rules")
    assert "Redis is available" in shown(rules)
    assert "Last changes" not in shown(rules)
    both = staff("view_ratelimitrule", "view_ratelimitchange", name="both")
    assert "Last changes" in shown(both)


class Annex(Extension):
    """An optional app that adds a problem and a section."""

    name = "test"

    def sections(self, request: Any, name: str = "") -> Iterator[Section]:
        yield Section("Quiet", "<i>text</i>")
        yield Section("Loud", "text", is_problem=True)


def test_optional_apps_add_sections(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems come first, and text that is not marked as safe is escaped."""
    monkeypatch.setattr(extension, "extensions", [*extension.extensions, Annex()])
    monkeypatch.setattr(pages, "extensions", [*extension.extensions])
    text = shown(operator)
    assert text.index("Loud") < text.index("Quiet")
    assert "&lt;i&gt;text" in text


def test_the_number_of_queries_does_not_grow_with_the_rules(
    operator: Client, django_assert_max_num_queries: Any
) -> None:
    """The page takes a constant number of queries."""
    rule = {"path": "/search", "key": "ip", "rate": "5/m"}
    RateLimitRule.objects.bulk_create(
        RateLimitRule(name=f"rule {number}", **rule) for number in range(100)
    )
    with django_assert_max_num_queries(12):
        operator.get(OVERVIEW)


def test_the_page_of_a_limit_shows_that_requests_without_its_header_share_a_count(
    operator: Client,
) -> None:
    """A header that no request has would make one count of all clients, without an error."""
    RateLimitRule.objects.create(name="api", path="/x", key="header:X-API-Key", rate="50/m")
    where = f"{HOME}ratelimitrule/limit/?name=api"
    with_key = Client(REMOTE_ADDR="203.0.113.1")
    assert with_key.get("/x", headers={"X-API-Key": "k1"}).status_code == 404
    assert "share one count" not in operator.get(where).content.decode()
    for number in range(3):
        Client(REMOTE_ADDR=f"203.0.113.{number}").get("/x")
    page = operator.get(where).content.decode()
    assert "All requests without header:X-API-Key share one count: 3 of 50." in page
