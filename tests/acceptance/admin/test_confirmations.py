"""A change that turns a rule off, or that would refuse all clients, has to be confirmed. Any other
change is saved without a confirmation.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from tests.acceptance.admin.test_admin import OPERATOR, OVERRIDES, RULES, confirmed, errors, given

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("trusted", "network", "is_asked"),
    [
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.1.2.3"], "10.0.0.0/8", True),
        (["2001:db8::/32"], "10.0.0.0/9", False),
        (["10.0.0.0/8"], "203.0.113.9", False),
        (1, "192.0.2.1", True),
        (1, "192.0.2.2", False),
    ],
)
def test_a_block_of_a_known_proxy_has_to_be_confirmed(
    trusted: Any, network: str, is_asked: bool, settings: Any
) -> None:
    """A proxy is known by the settings, or because the operator's request came through it."""
    settings.RATELIMIT_TRUSTED_PROXIES = trusted
    client = Client(REMOTE_ADDR="192.0.2.1", headers={"x-forwarded-for": OPERATOR})
    client.force_login(User.objects.create_superuser("grace"))
    form = {"network": network, "effect": "block"}
    answer = client.post(f"{OVERRIDES}add/", form)
    assert ("is a proxy of this site" in errors(answer)) is is_asked
    assert RateLimitOverride.objects.exists() is not is_asked
    client.post(f"{OVERRIDES}add/", {**form, "effect": "exempt"})
    assert RateLimitOverride.objects.filter(effect="exempt").exists()
    if is_asked:
        assert confirmed(client, f"{OVERRIDES}add/", form).status_code == 302


def test_changing_an_ended_override_needs_no_confirmation(operator: Client) -> None:
    """The end in the past was not changed."""
    row = RateLimitOverride.objects.create(
        network="203.0.113.9", effect="block", ends=timezone.now()
    )
    page = operator.get(f"{OVERRIDES}{row.pk}/change/")
    ends = page.context["adminform"].form["ends"].value()
    day, time = f"{timezone.localtime(ends):%Y-%m-%d %H:%M:%S}".split()
    form = {"network": row.network, "effect": "block", "ends_0": day, "ends_1": time}
    for more in ({"reason": "scraper"}, {"duration": "3600"}):
        answer = operator.post(f"{OVERRIDES}{row.pk}/change/", {**form, **more})
        assert answer.status_code == 302
    row.refresh_from_db()
    assert row.is_active()


def test_a_new_override_cannot_end_in_the_past(operator: Client) -> None:
    """It would be reported as added, and have no effect."""
    form = {"effect": "block", "network": "203.0.113.9", "ends_0": "2001-01-01", "ends_1": "00:00"}
    assert "The end is in the past." in errors(operator.post(f"{OVERRIDES}add/", form))
    assert not RateLimitOverride.objects.exists()


def test_a_duration_and_an_end_contradict_each_other(operator: Client) -> None:
    """The form accepts either a duration or an end."""
    form = {"effect": "block", "network": "203.0.113.9", "duration": "3600"}
    answer = operator.post(f"{OVERRIDES}add/", {**form, "ends_0": "2099-01-01", "ends_1": "00:00"})
    assert "Choose either a duration or an end time" in errors(answer)
    assert not RateLimitOverride.objects.exists()


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
