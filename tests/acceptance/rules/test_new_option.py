"""A new option of rules is one entry in the table of options."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_ratelimit_lua import extension
from django_ratelimit_lua.limits.options import Option
from django_ratelimit_lua.limits.values import Whole
from django_ratelimit_lua.management.rules_yaml import apply, export, plan
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
from django_ratelimit_lua.rules import RuleError, options
from docs import tables
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import RULES, errors, given, visits

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
TICKET = Option(Whole(1, 9999), "ticket", "The ticket that asked for the rule.")


class Tickets(extension.Extension):
    """An optional app with an option of rules."""

    name = "tickets"
    options = MappingProxyType({"ticket": TICKET})


@pytest.fixture(autouse=True, params=["core", "extension"])
def ticket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the entry to the core's table, or to the options of an extension."""
    if request.param == "core":
        monkeypatch.setitem(options.OPTIONS_OF_RULES, "ticket", TICKET)  # type: ignore[index]
    else:
        monkeypatch.setattr(extension, "extensions", [*extension.extensions, Tickets()])


def test_a_new_option_is_in_the_form_the_file_and_the_history(operator: Client) -> None:
    """The form has its label, its help text and its bounds."""
    page = operator.get(f"{RULES}add/").content.decode()
    assert 'name="ticket"' in page
    assert ">Ticket</label>" in page
    assert TICKET.help in page
    form: dict[str, Any] = given(path="/ok", key="ip", rate="2/h")
    answer = operator.post(f"{RULES}add/", {**form, "ticket": "10000"})
    assert [*answer.context["adminform"].form.errors] == ["ticket"]
    assert "9999" in errors(answer)
    assert operator.post(f"{RULES}add/", {**form, "ticket": "7"}).status_code == 302
    rule = RateLimitRule.objects.get()
    assert (rule.options, rule.spec["ticket"]) == ({"ticket": 7}, 7)
    assert visits(3) == [200, 200, 429]
    page = operator.get(f"{RULES}{rule.pk}/change/").content.decode()
    assert 'name="ticket" value="7"' in page

    text = export()
    assert "ticket: 7\n" in text
    assert plan(text) == []
    (change,) = plan(text.replace("ticket: 7", "ticket: 8"))
    assert change.describe() == ["~ site", "    Ticket: 7 → 8"]
    apply([change])
    assert RateLimitRule.objects.get().options == {"ticket": 8}
    with pytest.raises(RuleError, match="ticket is 10000"):
        plan(text.replace("ticket: 7", "ticket: 10000"))

    assert operator.post(f"{RULES}{rule.pk}/change/", {**form, "ticket": "9"}).status_code == 302
    assert "Ticket" in LogEntry.objects.latest("pk").get_change_message()
    assert "Ticket: 8 → 9" in operator.get(f"{RULES}{rule.pk}/history/").content.decode()
    latest = RateLimitChange.objects.first()
    assert latest is not None
    assert (latest.before["ticket"], latest.after["ticket"]) == (8, 9)  # type: ignore[index]


def test_a_new_option_is_checked_wherever_rules_are_written() -> None:
    """A save raises the error of its field."""
    row = RateLimitRule(name="a", path="/", key="ip", rate="1/m", options={"ticket": "seven"})
    with pytest.raises(RuleError, match="ticket is 'seven': must be a whole number") as raised:
        row.save()
    assert raised.value.field == "ticket"


def test_a_new_option_is_in_the_table_of_the_documentation() -> None:
    """The page of an optional app documents its own options."""
    rows = tables.option_rows()
    assert (("``ticket``", "rules", TICKET.help) in rows) == ("ticket" in options.OPTIONS_OF_RULES)
