"""Two operators edit the same rules, and neither overwrites a change of the other unseen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection, connections
from django.test import Client

from django_ratelimit_lua.models import Conflict, RateLimitChange, RateLimitOverride, RateLimitRule
from tests.acceptance.admin.test_admin import OPERATOR, OVERRIDES, RULES, errors, given
from tests.support.users import form_data

pytestmark = pytest.mark.django_db(transaction=True)
TIER = {"group": "pro", "rate": "1000/m"}


@pytest.fixture
def other() -> Client:
    client = Client(REMOTE_ADDR=OPERATOR)
    client.force_login(User.objects.create_superuser("ada"))
    return client


@pytest.fixture
def rule() -> RateLimitRule:
    Group.objects.create(name="pro")
    return RateLimitRule.objects.create(
        name="api",
        path="/ok\n/api/",
        key="ip",
        rate="100/m",
        method="GET, POST",
        options={"tiers": [TIER]},
    )


def form_of(client: Client, rule: RateLimitRule) -> dict[str, Any]:
    """Return what a browser sends for a rule's form that was not edited."""
    return form_data(client.get(f"{RULES}{rule.pk}/change/"))


def test_the_second_editor_sees_both_versions_and_may_save_on_top(
    operator: Client, other: Client, rule: RateLimitRule
) -> None:
    """The error contains what the second version would change, in words."""
    url = f"{RULES}{rule.pk}/change/"
    mine = {**form_of(other, rule), "description": "Mine."}
    theirs = {**form_of(operator, rule), "rate": "70/h", "tiers-0-rate": "700/h"}
    assert operator.post(url, {**theirs, "method": ["GET"]}).status_code == 302
    answer = other.post(url, mine)
    shown = errors(answer)
    assert "grace changed this while you were editing it." in shown
    assert "yours replaces it, and reverts that change where they differ:" in shown
    for line in (
        "Rate: 70 per hour → 100 per minute",
        "Methods: GET → GET, POST",
        "Tiers: pro: 700 per hour → pro: 1000 per minute",
        "Description: — → Mine.",
    ):
        assert line in shown
    rule.refresh_from_db()
    assert (rule.rate, rule.description) == ("70/h", "")
    again = form_data(answer)
    assert again["description"] == ["Mine."]
    assert other.post(url, again).status_code == 302
    rule.refresh_from_db()
    assert (rule.rate, rule.description) == ("100/m", "Mine.")
    assert rule.options == {"tiers": [TIER]}


def test_a_row_that_changes_while_it_is_saved_is_read_again(
    operator: Client, rule: RateLimitRule
) -> None:
    """The row is saved only with the revision that the form was checked with."""
    changed: list[str] = []

    def change_first(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith("UPDATE") and not changed:
            changed.append(sql)
            RateLimitRule.objects.filter(pk=rule.pk).update(rate="70/h")
        return execute(sql, *args)

    form = {**form_of(operator, rule), "description": "Mine."}
    with connection.execute_wrapper(change_first):
        answer = operator.post(f"{RULES}{rule.pk}/change/", form)
    assert answer.status_code == 302
    assert changed
    rule.refresh_from_db()
    assert (rule.rate, rule.description) == ("100/m", "Mine.")


def test_an_override_changed_meanwhile_is_shown(operator: Client, other: Client) -> None:
    """Its reason and its end are compared like the fields of a rule."""
    row = RateLimitOverride.objects.create(network="203.0.113.9", effect="block", reason="bots")
    url = f"{OVERRIDES}{row.pk}/change/"
    mine = {**form_data(other.get(url)), "effect": "exempt"}
    theirs = {**form_data(operator.get(url)), "reason": "scraper"}
    assert operator.post(url, theirs).status_code == 302
    answer = other.post(url, mine)
    assert "Effect: block: every request is refused → exempt: no limit" in errors(answer)
    assert "Reason: scraper → bots" in errors(answer)
    assert other.post(url, form_data(answer)).status_code == 302
    row.refresh_from_db()
    assert (row.effect, row.reason) == ("exempt", "bots")


def test_of_editors_who_save_at_once_one_succeeds(rule: RateLimitRule) -> None:
    """Eight threads save the same revision, and all others get the version of the first."""
    rows = [RateLimitRule.objects.get(pk=rule.pk) for _ in range(8)]

    def save(number: int) -> str:
        row = rows[number]
        row.rate = f"{number + 1}/h"
        try:
            row.save(expected=rule.revision)
            return row.rate
        except Conflict as error:
            return f"then {error.stored.rate}"
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(rows)) as pool:
        found = sorted(pool.map(save, range(len(rows))))
    stored = RateLimitRule.objects.get(pk=rule.pk)
    assert found == [stored.rate, *[f"then {stored.rate}"] * 7]
    assert stored.revision == rule.revision + 1


def test_undoing_asks_for_the_confirmations_of_the_form(operator: Client) -> None:
    """A rule is not turned off, and refuses no one, by an undo that was not confirmed."""
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="0/m", mode="off")
    for mode, words in (
        ("enforce", "If the rule is off, it limits no client."),
        ("off", "A limit of 0"),
    ):
        rule.set_mode(mode)
        url = f"{RULES}undo/{RateLimitChange.objects.latest('pk').pk}/"
        page = operator.post(url, {"revision": rule.revision})
        assert words in page.content.decode()
        assert RateLimitRule.objects.get().mode == mode
        sent = {**dict(page.context["sent"]), "confirm": page.context["confirmed"]}
        assert operator.post(url, {**sent, "confirm": "another"}).status_code == 200
        assert operator.post(url, sent).status_code == 302
        rule.refresh_from_db()
        assert rule.mode != mode


def test_undoing_does_not_overwrite_a_newer_change(operator: Client) -> None:
    """The page with the button has sent another revision, or the rule already is as before."""
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="5/m")
    rule.rate = "6/m"
    rule.save()
    url = f"{RULES}undo/{RateLimitChange.objects.latest('pk').pk}/"
    history = operator.get(f"{RULES}{rule.pk}/history/")
    shown = history.context["undo_revision"]
    assert f'name="revision" value="{shown}"' in history.content.decode()
    rule.rate = "7/m"
    rule.save()
    page = operator.post(url, {"revision": shown}, follow=True).content.decode()
    assert "was changed since this page was opened" in page
    rule.refresh_from_db()
    assert rule.rate == "7/m"
    assert "as it was before" in operator.post(url, follow=True).content.decode()


def test_a_form_of_a_deleted_rule_does_not_overwrite_the_restored_one(operator: Client) -> None:
    """A restored rule has another revision than it ever had."""
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="5/m")
    url = f"{RULES}{rule.pk}/change/"
    rule.delete()
    operator.post(f"{RULES}undo/{RateLimitChange.objects.latest('pk').pk}/", {"revision": ""})
    form = given(path="/ok", key="ip", rate="9/m", revision="1")
    assert "changed this while you were editing" in errors(operator.post(url, form))
    assert RateLimitRule.objects.get().rate == "5/m"
