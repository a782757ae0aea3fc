"""The inspector shows the used units of real requests, and its actions apply to real requests."""

from __future__ import annotations

import datetime
import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import path
from django.utils import timezone

from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from tests.acceptance import test_explained_views as explained
from tests.acceptance.test_explained_views import ADDRESS

pytestmark = pytest.mark.django_db(transaction=True)
urlpatterns = [path("admin/", admin.site.urls), *explained.urlpatterns]
INSPECTOR = "/admin/django_ratelimit_lua/ratelimitoverride/inspect/"
ALLOWED, REFUSED = "request like this would be allowed", "request like this would be refused"
POSTED = {"path": "/posted/", "method": "POST", "address": ADDRESS}


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.locale.LocaleMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ]


def text_of(response: Any) -> str:
    """Return the text of a page."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", response.content.decode(), flags=re.S)
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))


def shown(operator: Client, description: dict[str, Any]) -> str:
    response = operator.get(INSPECTOR, description)
    assert response.status_code == 200
    return text_of(response)


def pressed(operator: Client, description: dict[str, Any], **buttons: str) -> str:
    """Press a button of the page, and return the text of the result."""
    return text_of(operator.post(f"{INSPECTOR}?{urlencode(description)}", buttons, follow=True))


def post(username: str = "ada", address: str = ADDRESS, **meta: Any) -> int:
    return int(
        Client(REMOTE_ADDR=address).post("/posted/", {"username": username}, **meta).status_code
    )


def test_the_inspector_reports_an_undetected_limit_as_unknown(operator: Client) -> None:
    """The page does not report that no rule applies."""
    page = shown(operator, {"path": "/hides/", "address": ADDRESS})
    assert f"{ALLOWED}, as far as known" in page
    assert "Unknown: whether the view calls OnMethod.get" in page
    assert "No rule applies." not in page


def test_a_link_to_the_inspector_shows_the_same_request(operator: Client) -> None:
    """After an action, the URL of the page has the entered request, and nothing else."""
    description = {
        **POSTED,
        "header": "X-API-Key: k",
        "post": "username=ada\r\nq=1",
        "json": "",
        "host": "one.example",
    }
    response = operator.post(INSPECTOR, {**description, "action": "reset"})
    assert response.status_code == 302
    page = operator.get(response["Location"])
    assert page.context["form"].sent() == [
        ("post:username", "ada"),
        ("post:q", "1"),
        ("header:X-API-Key", "k"),
    ]
    assert page.context["form"].cleaned_data["host"] == "one.example"
    assert "csrf" not in response["Location"]
    assert operator.get(INSPECTOR).status_code == 200


def test_an_exemption_shows_the_limits_it_applies_to(operator: Client) -> None:
    """An exemption of a user does not apply to a login form, and the page explains that. An
    exemption of the form's field applies.
    """
    User.objects.create(username="ada")
    RateLimitRule.objects.create(name="site", path="/posted/", key="user_or_ip", rate="100/h")
    assert [post() for _ in range(3)] == [200, 200, 429]
    description = {**POSTED, "user": "ada", "post": "username=ada"}
    page = pressed(operator, description, action="exempt", subject="user", duration="3600")
    assert "User ada is exempt for 1 hour." in page
    assert "This applies only while user ada is logged in, not at a login form." in page
    assert post() == 429
    description = {**POSTED, "post": "username=ada"}
    page = pressed(operator, description, action="exempt", subject="post:username", duration="3600")
    assert "Form field username = ada is exempt for 1 hour." in page
    assert "This holds only" not in page
    assert ALLOWED in page
    assert post() == 200
    RateLimitOverride.objects.all().delete()
    page = pressed(operator, description, action="exempt:site", subject="address", duration="3600")
    assert [
        met.name
        for met in operator.get(INSPECTOR, description).context["found"].met
        if met.override
    ] == ["site"]


def test_permanent_blocks_and_exemptions_have_to_be_confirmed(operator: Client) -> None:
    """Nothing is changed before the confirmation. The override then lasts as confirmed, and can be
    ended on the page.
    """
    description = {**POSTED, "address": "203.0.113.0/24", "post": "username=ada"}
    for action, duration, words in (
        ("block", "3600", "Block 203.0.113.0/24 for 1 hour?"),
        ("block", "", "Block 203.0.113.0/24 for good?"),
        ("exempt", "", "Exempt 203.0.113.0/24 for good?"),
    ):
        page = pressed(operator, description, action=action, subject="address", duration=duration)
        assert words in page
        assert not RateLimitOverride.objects.exists()
    block = {"action": "block", "subject": "address", "confirm": "yes"}
    page = pressed(operator, description, **block)
    assert "203.0.113.0/24 is blocked for 1 hour." in page
    assert page.count("Blocked by an override until") == 1
    assert "0 of 0" not in page
    assert (post(), post(address="203.0.114.9")) == (429, 200)
    override = RateLimitOverride.objects.get()
    assert 3590 < (override.ends - override.created_at).total_seconds() < 3610
    page = pressed(operator, description, action=f"end:{override.pk}")
    assert "Ended: 203.0.113.0/24." in page
    assert ALLOWED in page
    assert post() == 200
    assert "has already ended" in pressed(operator, description, action=f"end:{override.pk}")
    pressed(operator, description, **block, duration="")
    assert RateLimitOverride.objects.lasting().get().ends is None
    pressed(operator, description, action="exempt", subject="address", duration="", confirm="yes")
    assert RateLimitOverride.objects.lasting().filter(effect="exempt").get().ends is None


def test_the_client_of_the_refusing_limit_is_preselected(operator: Client) -> None:
    """So an operator exempts one customer by default, and not the whole office."""
    description = {**POSTED, "post": "username=ada"}
    assert (
        '<option value="address">203.0.113.9'
        in operator.get(INSPECTOR, description).content.decode()
    )
    assert [post() for _ in range(3)] == [200, 200, 429]
    page = operator.get(INSPECTOR, description).content.decode()
    chosen = re.findall(r'<option value="([^"]*)" selected>', page)
    assert "ip+post:username" in chosen
    assert "address" not in chosen


def test_a_value_stored_as_a_digest_may_have_a_label(operator: Client) -> None:
    """The label is kept by the confirmation and shown in the list. An address needs no label."""
    description = {**POSTED, "post": "username=ada"}
    assert 'name="label"' in operator.get(INSPECTOR, description).content.decode()
    button = {"action": "block", "subject": "post:username", "label": " the partner "}
    page = operator.post(f"{INSPECTOR}?{urlencode(description)}", button).content.decode()
    assert '<input type="hidden" name="label" value="the partner">' in page
    pressed(operator, description, **button, confirm="yes")
    assert str(RateLimitOverride.objects.get()) == "post:username (the partner)"
    assert (
        'name="label"'
        not in operator.get(INSPECTOR, {"path": "/ok/", "address": ADDRESS}).content.decode()
    )


def test_actions_in_the_inspector_are_logged(operator: Client) -> None:
    """Overrides, their ends and resets of counts are in the log, with the user."""
    RateLimitRule.objects.create(name="site", path="/ok/", key="ip", rate="1/h")
    Client(REMOTE_ADDR=ADDRESS).get("/ok/")
    description = {"path": "/ok/", "address": ADDRESS}
    pressed(operator, description, action="reset:site")
    pressed(operator, description, action="block", subject="address", confirm="yes")
    pressed(operator, description, action=f"end:{RateLimitOverride.objects.get().pk}")
    messages = [
        (entry.user.username, entry.change_message) for entry in LogEntry.objects.order_by("pk")
    ]
    assert messages == [
        ("grace", "Reset counts in the inspector."),
        ("grace", "From the inspector."),
        ("grace", "Ended."),
    ]


NETWORK = {"path": "/posted/", "address": "203.0.113.0/24"}


def test_the_inspector_shows_all_overrides_that_overlap_a_network(operator: Client) -> None:
    """It shows overrides of the network, of larger networks and of parts, but no adjacent or ended
    ones. Each can be ended.
    """
    made = {
        network: RateLimitOverride.objects.create(network=network, effect=effect)
        for network, effect in {
            "203.0.112.0/20": "exempt",
            "203.0.113.0/24": "block",
            "203.0.113.9": "exempt",
            "203.0.114.0/24": "block",
            "2001:db8::/32": "block",
        }.items()
    }
    ended = RateLimitOverride.objects.create(
        network="203.0.113.8", effect="block", ends=timezone.now()
    )
    page = shown(operator, NETWORK)
    assert "Shown for 203.0.113.0, the first address of 203.0.113.0/24" in page
    told = [
        "About a larger network: 203.0.112.0/20",
        "203.0.113.0/24 is blocked, unless",
        "About a part of it: 203.0.113.9",
    ]
    assert [words for words in told if words not in page] == []
    assert [one for one in ("203.0.114.0", "2001:db8::", str(ended)) if one in page] == []
    page = pressed(operator, NETWORK, action=f"end:{made['203.0.113.9'].pk}")
    assert "Ended: 203.0.113.9." in page
    assert "About a part of it" not in page
    assert "Overrides about" not in shown(operator, {**NETWORK, "address": "203.0.113.9"})


@pytest.mark.parametrize(
    ("overrides", "blocked_by"),
    [
        ([("203.0.0.0/16", "block")], "203.0.0.0/16"),
        ([("203.0.0.0/16", "block"), ("203.0.113.0/24", "exempt")], None),
        ([("203.0.0.0/16", "exempt"), ("203.0.113.0/24", "block")], "203.0.113.0/24"),
        ([("203.0.113.0/24", "exempt"), ("203.0.113.0/24", "block")], "203.0.113.0/24"),
        ([("203.0.113.128/25", "block")], None),
    ],
)
def test_the_inspector_shows_a_blocked_network_at_refused_requests(
    overrides: list[tuple[str, Any]], blocked_by: str | None, operator: Client
) -> None:
    """The override with the highest precedence decides, as for a request under a rule."""
    RateLimitRule.objects.create(name="site", path="/", key="ip", rate="100/m")
    for network, effect in overrides:
        RateLimitOverride.objects.create(network=network, effect=effect)
    page = shown(operator, NETWORK)
    found = re.search(r"203.0.113.0/24 is blocked, [^:]*: (\S+)", page)
    assert (found and found[1]) == blocked_by
    assert (post(address="203.0.113.1") == 429) is (blocked_by is not None)


def test_the_reason_of_a_refusal_is_a_sentence(operator: Client) -> None:
    """It has the used units, their start, and the retry time."""
    RateLimitRule.objects.create(
        name="hourly",
        path="/posted/",
        key="ip",
        rate="3/h",
        order=-1,
        options={"algorithm": "fixed_window"},
    )
    RateLimitRule.objects.create(
        name="bucket", path="/posted/", key="ip", rate="2/d", options={"algorithm": "token_bucket"}
    )
    client = Client(REMOTE_ADDR=ADDRESS)
    began = timezone.localtime()
    statuses = [client.post("/posted/").status_code for _ in range(4)]
    assert statuses[2:] == [429, 429]
    text = shown(operator, POSTED)
    assert re.search(
        r"Refused by bucket: 2 of 2 used; allowed again: in (11 h|12 h)[^.;]*\. ", text
    )
    assert "Refused by hourly" not in text
    RateLimitRule.objects.filter(name="bucket").delete()
    statuses = [client.post("/posted/").status_code for _ in range(2)]
    assert statuses[1] == 429
    text = shown(operator, POSTED)
    moments = {(began + datetime.timedelta(minutes=late)).strftime("%H:%M") for late in range(2)}
    found = re.search(
        r"Refused by hourly: 3 of 3 used; allowed again: in [^.;]*; used 3 since (\d\d:\d\d)\.",
        text,
    )
    assert found is not None
    assert found[1] in moments
    stranger = shown(operator, {**POSTED, "address": "203.0.113.200"})
    assert "Refused by" not in stranger
