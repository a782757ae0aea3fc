"""The shadow counts of a rule are the requests that the current version of the rule has seen and
would have refused.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.test import Client

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics.reading import ShadowNumbers, shadow_numbers
from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance import test_admin
from tests.acceptance.test_admin import RULES, confirmed, errors, given, staff, visits
from tests.acceptance.test_command import said

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
parcels = RateLimiter("shadow.parcels", "100/h")


def rule(**fields: object) -> RateLimitRule:
    return RateLimitRule.objects.create(
        **{
            "name": "site",
            "path": "/ok",
            "key": "ip",
            "rate": "2/h",
            "mode": "shadow",
            **fields,
        }
    )


def test_shadow_mode_counts_requests_refusals_and_identities() -> None:
    """A request counts once, whatever number of rates the rule has. Requests under an enforced rule
    are not counted.
    """
    one = rule(rate="2/h, 2/d")
    for address, times in (("203.0.113.1", 4), ("203.0.113.2", 1), ("203.0.113.3", 3)):
        assert visits(times, address) == [200] * times
    assert shadow_numbers(one.spec) == ShadowNumbers(seen=8, refused=3, people=3, refused_people=2)
    one.switch("enforce")
    assert visits(2, "203.0.113.9") == [200, 200]
    assert shadow_numbers(one.spec).seen == 8


def test_another_version_of_a_rule_starts_with_new_counts() -> None:
    """A change of the limit starts a new version, but a change of description, order or message
    does not. The counts of the earlier version are kept.
    """
    one = rule()
    assert visits(3) == [200] * 3
    one.description, one.order, one.message = "Better.", 5, "Slower."
    one.save()
    assert visits() == [200]
    assert shadow_numbers(one.spec).seen == 4
    one.rate = "50/h"
    one.save()
    assert visits() == [200]
    assert shadow_numbers(one.spec) == ShadowNumbers(1, 0, 1, 0)
    one.rate = "2/h"
    assert shadow_numbers(one.spec).refused == 2


def test_shadow_requests_of_a_replaced_limiter_are_counted() -> None:
    """The limiter's identities are counted as clients."""
    one = rule(name="shadow.parcels", path="", key="", rate="1/h")
    assert [parcels.hit(who).allowed for who in ("ada", "ada", "grace")] == [True] * 3
    assert shadow_numbers(one.spec) == ShadowNumbers(3, 1, 2, 1)


def test_the_enforce_button_shows_the_numbers_and_asks_for_confirmation(operator: Client) -> None:
    """Viewing the page changes nothing, and a user without the permission to change rules gets a
    403.
    """
    one = rule()
    assert visits(3) == [200] * 3
    words = (
        "This version of the rule has seen 3 requests, from about 1 client. Would have refused: 1 "
        "(33%), from about 1 client."
    )
    url = f"{RULES}{one.pk}/mode/enforce/"
    page = operator.get(f"{RULES}{one.pk}/change/").content.decode()
    assert words in page
    assert f'href="{url}"' in page
    asked = operator.get(url).content.decode()
    assert words in asked
    assert "2 per hour per address, on /ok" in asked
    assert visits() == [200]
    assert staff("view_ratelimitrule").get(url).status_code == 403
    assert "Enforce this rule?" in operator.post(url).content.decode()
    assert visits() == [200]
    assert pressed(operator, operator.get(url), url).status_code == 302
    assert visits() == [429]


def pressed(client: Client, page: Any, url: str = RULES) -> Any:
    """Submit the page's form with its hidden fields."""
    form = re.search(r'<form method="post">.*?</form>', page.content.decode(), re.DOTALL)
    assert form is not None, "the page does not ask"
    sent: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form[0]):
        sent.setdefault(name, []).append(value)
    return client.post(url, sent)


def test_the_list_action_enforce_shows_shadow_counts_and_asks_for_confirmation(
    operator: Client,
) -> None:
    """It shows the counts of each rule that is not enforced. After the confirmation, all are."""
    one, other = rule(), rule(name="other", path="/other", order=3)
    assert visits(3) == [200] * 3

    chosen = {"action": "enforce", "_selected_action": [one.pk, other.pk], "index": 0}
    asked = operator.post(RULES, chosen)
    assert "Enforce these rules?" in asked.content.decode()
    assert (
        "has seen 3 requests, from about 1 client. Would have refused: 1" in asked.content.decode()
    )
    assert "has seen no request in shadow mode yet" in asked.content.decode()
    assert visits() == [200]
    assert pressed(operator, asked).status_code == 302
    assert [row.mode for row in RateLimitRule.objects.all()] == ["enforce"] * 2
    assert visits() == [429]
    assert operator.post(RULES, chosen).status_code == 302


def test_only_the_version_that_was_shown_is_enforced(operator: Client) -> None:
    """If another user edits the rule in the meantime, the page asks for confirmation again. This
    holds for the button and for the list action.
    """
    one = rule()
    url = f"{RULES}{one.pk}/mode/enforce/"
    for number, (target, sent) in enumerate(
        (
            (url, None),
            (RULES, {"action": "enforce", "_selected_action": one.pk, "index": 0}),
        )
    ):
        RateLimitRule.objects.filter(pk=one.pk).update(mode="shadow")
        asked = operator.get(url) if sent is None else operator.post(target, sent)
        RateLimitRule.objects.filter(pk=one.pk).update(rate=f"{10 + number}/h")
        again = pressed(operator, asked, target)
        assert f"{10 + number} per hour per address" in again.content.decode()
        assert RateLimitRule.objects.get().mode == "shadow"
        assert pressed(operator, again, target).status_code == 302
        assert RateLimitRule.objects.get().mode == "enforce"


def test_enforcing_in_the_form_shows_the_numbers_and_asks_for_confirmation(
    operator: Client,
) -> None:
    """The numbers are those of the version that is saved."""
    one = rule()
    assert visits(3) == [200] * 3
    form = given(name="site", path="/ok", key="ip", rate="2/h", mode="enforce")
    url = f"{RULES}{one.pk}/change/"
    assert "If the rule is enforced" in errors(operator.post(url, form))
    page = operator.get(url).content.decode()
    assert "has seen 3 requests, from about 1 client. Would have refused: 1" in page
    assert visits() == [200]
    assert confirmed(operator, url, form).status_code == 302
    assert visits() == [429]
    assert (
        operator.post(url, {**form, "description": "Enforced already: nothing to ask."}).status_code
        == 302
    )


def test_enforcing_a_new_rule_or_an_exemption_needs_no_confirmation(operator: Client) -> None:
    """The mode of a new rule was chosen in its form, and an exemption refuses no request."""
    assert (
        operator.post(
            f"{RULES}add/", given(name="site", path="/ok", key="ip", rate="2/h")
        ).status_code
        == 302
    )
    exempt = rule(name="exempt", rate="", options={"exempt": True})
    form = given(name="exempt", path="/ok", exempt="on", mode="enforce")
    assert operator.post(f"{RULES}{exempt.pk}/change/", form).status_code == 302


def test_the_command_enforces_only_with_confirm() -> None:
    """Other modes, and a rule that is already enforced, need no `--confirm`."""
    rule()
    assert visits(3) == [200] * 3
    with pytest.raises(CommandError) as refused:
        said("mode", "site", "enforce")
    assert "Nothing was changed. Use --confirm to change it anyway." in str(refused.value)
    assert visits() == [200]
    for arguments in (("enforce", "--confirm"), ("enforce",)):
        assert said("mode", "site", *arguments) == "site: 2 per hour per address, on /ok\n"
    assert visits() == [429]
    said("mode", "site", "shadow")
    assert visits() == [200]
