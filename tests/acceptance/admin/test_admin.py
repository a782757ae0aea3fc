"""The admin: an operator's changes apply to the next request, are recorded with the operator, and
need a permission.
"""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
import redis
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils import timezone

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.management.rules_yaml import apply, plan
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.health import health
from tests.support.users import OPERATOR, serve_admin, staff

pytestmark = pytest.mark.django_db(transaction=True)


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@ratelimit("search", "ip", "100/m")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found")


urlpatterns = [path("admin/", admin.site.urls), path("ok", ok, name="ok"), path("search", search)]
RULES = "/admin/django_ratelimit_lua/ratelimitrule/"
OVERRIDES = "/admin/django_ratelimit_lua/ratelimitoverride/"
CHANGES = "/admin/django_ratelimit_lua/ratelimitchange/"
CLIENTS, BANS = "/admin/django_ratelimit_lua/client/", "/admin/django_ratelimit_lua/bans/"
UNDO = "Undo this change"
UNDO_ALL = "Undo this and all later changes"
NO_TIERS = {
    "tiers-TOTAL_FORMS": 0,
    "tiers-INITIAL_FORMS": 0,
    "tiers-MIN_NUM_FORMS": 0,
    "tiers-MAX_NUM_FORMS": 1000,
}


@pytest.fixture(autouse=True)
def site(settings: Any, no_others: None) -> None:
    """Serve the admin, also for modules that import this fixture."""
    serve_admin(settings, __name__)


def page_text(response: Any) -> str:
    """Return the text of a page in one line."""
    html = response.content.decode().replace("<wbr>", "")
    html = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def given(**fields: Any) -> dict[str, Any]:
    """Return the data of a rule form as a browser sends it."""
    values = {"name": "site", "mode": "enforce", "order": 0, "audience": "everyone", **NO_TIERS}
    return {**values, **{name: value for name, value in fields.items() if value is not None}}


def visits(times: int = 1, address: str = "203.0.113.9", where: str = "/ok") -> list[int]:
    return [Client(REMOTE_ADDR=address).get(where).status_code for _ in range(times)]


def confirmed(client: Client, url: str, form: dict[str, Any]) -> HttpResponse:
    """Submit a form, confirm its warnings, and return the second response."""
    box = client.post(url, form).context["adminform"].form.fields["confirm"]
    return client.post(url, {**form, "confirm": box.widget.attrs["value"]})


def errors(response: HttpResponse) -> str:
    lists = r'<ul class="errorlist[^>]*>(.*?)</ul>'
    return " ".join(re.findall(lists, response.content.decode(), re.DOTALL))


def test_a_rule_is_created_changed_and_deleted_in_the_form(operator: Client) -> None:
    """Each change applies to the next request, and the history names the operator."""
    operator.post(f"{RULES}add/", given(path="/ok", key="ip", rate="2/h"))
    rule = RateLimitRule.objects.get()
    assert visits(3) == [200, 200, 429]
    operator.post(f"{RULES}{rule.pk}/change/", given(path="/ok", key="ip", rate="4/h"))
    assert visits(3) == [200, 200, 429]
    operator.post(f"{RULES}{rule.pk}/delete/", {"post": "yes"})
    assert visits(3) == [200, 200, 200]
    assert [change.by for change in RateLimitChange.objects.all()] == ["grace"] * 3


def test_the_rule_list_shows_sentences_and_switches_modes(operator: Client) -> None:
    """Each rule has a sentence, and links to its page and its form."""
    rule = RateLimitRule.objects.create(
        name="a/b c", path="/ok", key="user_or_ip", rate="1/h", mode="shadow"
    )
    assert visits(2) == [200, 200]
    page = operator.get(RULES).content.decode().replace("<wbr>", "")
    assert "1 per hour per user or address, on /ok, shadow" in page
    assert "no limits, on /admin/" in page
    assert '<a href="limit/?name=a%2Fb%20c">' in page
    assert f'<a href="{rule.pk}/change/">Edit</a>' in page
    action = {"_selected_action": rule.pk}
    page = operator.post(RULES, {**action, "action": "off"}).context
    assert page["texts"] == ["a/b c: If the rule is off, it limits no client."]
    rule.refresh_from_db()
    assert rule.mode == "shadow"
    operator.post(RULES, {**dict(page["sent"]), "confirm": page["confirmed"]})
    rule.refresh_from_db()
    assert rule.mode == "off"
    for mode in ("shadow", "enforce"):
        operator.post(RULES, {**action, "action": mode})
        rule.refresh_from_db()
        assert rule.mode == mode
    operator.get(RULES)  # It shows the messages of these actions.
    again = operator.post(RULES, {**action, "action": "enforce"}, follow=True).content.decode()
    assert "Nothing was changed" in again
    assert visits() == [429]


def test_the_plot_shows_the_effect_of_an_unsaved_rule(
    operator: Client, direct: Any, prefix: str
) -> None:
    """The script decides the requests of the plot, and no count is stored."""
    form = given(path="/ok", key="ip", rate="60/m", algorithm="token_bucket", burst=20)

    def drawn(**fields: Any) -> str:
        return operator.post(f"{RULES}preview/", {**form, **fields}).content.decode()

    page = drawn()
    assert "Of 40 requests at once, 20 are allowed." in page
    assert "Of the next 240, one by one, 120 are allowed." in page
    assert page.count('<path class="line') == 2
    page = drawn(algorithm="leaky_bucket", burst="", queue=4)
    assert "Of 10 requests at once, 5 are allowed." in page
    assert "The longest wait is 4 s." in page
    assert "sliding log has no option “Burst”" in drawn(algorithm="sliding_log")
    untouched = drawn(rate="")
    assert "Enter a limit to see what it would do." in untouched
    assert "ratelimit-problems" not in untouched
    assert "Of 1,000 requests at once, 1,000 are allowed." in drawn(rate="1000000/h", burst="")
    assert "none is counted" in drawn(exempt="on")
    assert "<svg" not in drawn(exempt="on")
    assert "2 at once" in drawn(rate="2", algorithm="concurrency", burst="")
    assert [key for key in direct.keys(f"{prefix}*") if b"preview" in key] == []
    assert "Of 8 requests at once, 4 are allowed." in drawn(rate="4/s, 9/m", algorithm="", burst="")
    assert operator.get(f"{RULES}preview/").status_code == 403
    assert not RateLimitRule.objects.exists()


def test_overrides_are_created_in_the_form_and_ended_by_an_action(operator: Client) -> None:
    """An override lasts for an hour, until a time or for good."""
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h")
    form = {"effect": "block", "network": "203.0.113.9", "duration": "3600", "reason": "scraping"}
    operator.post(f"{OVERRIDES}add/", form)
    block = RateLimitOverride.objects.get()
    assert block.created_by == "grace"
    assert block.ends is not None
    assert 3540 < (block.ends - timezone.now()).total_seconds() <= 3600
    assert visits() == [429]
    page = operator.get(OVERRIDES).content.decode()
    assert "203.0.113.9" in page
    assert "scraping" in page
    operator.post(OVERRIDES, {"action": "end_now", "_selected_action": block.pk})
    assert visits(2) == [200, 429]
    assert "203.0.113.9" not in operator.get(f"{OVERRIDES}?active=yes").content.decode()
    assert "203.0.113.9" in operator.get(f"{OVERRIDES}?active=no").content.decode()
    secret = {"field": "header:X-API-Key", "value": "hush-hush", "label": "partner"}
    secret |= {"effect": "exempt"}
    operator.post(f"{OVERRIDES}add/", {**secret, "rule": rule.name})
    key = RateLimitOverride.objects.get(label="partner")
    partner = Client(headers={"x-api-key": "hush-hush"})
    assert [partner.get("/ok").status_code for _ in range(3)] == [200] * 3
    pages = [OVERRIDES, f"{OVERRIDES}{key.pk}/change/", f"{OVERRIDES}{key.pk}/history/", CHANGES]
    assert not [page for page in pages if "hush-hush" in operator.get(page).content.decode()]
    operator.post(f"{OVERRIDES}{key.pk}/change/", {**secret, "value": "", "reason": "kept"})
    key.refresh_from_db()
    assert key.reason == "kept"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "Name one subject"),
        ({"network": "nowhere"}, "Enter an address or network"),
        ({"field": "X-API-Key", "value": "x"}, "Enter one of header"),
        ({"field": "header:X-API-Key"}, "The value is missing"),
        ({"value": "x"}, "Enter the field that has this value"),
        ({"network": "203.0.113.9", "effect": "limit"}, "Enter the other limit"),
        ({"network": "::", "effect": "limit", "rate": "3/m"}, "Another limit is for one rule"),
        ({"network": "203.0.113.9", "rule": "nothing"}, "Select a valid choice"),
        ({"network": f"{OPERATOR}/24"}, "you would lock yourself out"),
        ({"network": f"::ffff:{OPERATOR}"}, "you would lock yourself out"),
        ({"network": f"::ffff:{OPERATOR}/104"}, "you would lock yourself out"),
        ({"field": "post:username", "value": " \u3000"}, "The value is missing"),
        ({"field": "exact:ip", "value": "x"}, "Enter one of header"),
    ],
)
def test_an_invalid_override_is_an_error_of_its_field(
    fields: dict[str, Any], problem: str, operator: Client
) -> None:
    """The error is shown at the field."""
    response = operator.post(f"{OVERRIDES}add/", {"effect": "block", **fields})
    assert problem in errors(response)
    assert not RateLimitOverride.objects.exists()


def test_the_form_finds_users_by_autocomplete(operator: Client) -> None:
    """The rules are a list."""
    user = User.objects.create(username="lovelace")
    page = operator.get(f"{OVERRIDES}add/").content.decode()
    assert page.count('class="admin-autocomplete"') == 1
    query = {"app_label": "django_ratelimit_lua", "model_name": "ratelimitoverride"}
    query |= {"field_name": "user", "term": "love"}
    results = operator.get("/admin/autocomplete/", query).json()["results"]
    assert results == [{"id": str(user.pk), "text": "lovelace"}]
    operator.post(f"{OVERRIDES}add/", {"user": user.pk, "effect": "exempt"})
    assert RateLimitOverride.objects.get().client() == "user lovelace"


def test_the_history_shows_and_undoes_changes(operator: Client) -> None:
    """The history shows old and new values in words, and the operator."""
    operator.post(f"{RULES}add/", given(path="/ok", key="ip", rate="5/h"))
    rule = RateLimitRule.objects.get()
    for fields in ({"rate": "1/h", "name": "renamed"}, {"rate": "1/h", "method": ["GET"]}):
        operator.post(f"{RULES}{rule.pk}/change/", given(path="/ok", key="ip", **fields))
    page = operator.get(f"{RULES}{rule.pk}/history/").content.decode()
    assert "Rate: 5 per hour → 1 per hour" in page
    assert "Methods: — → GET" in page
    assert "grace" in page
    assert [page.count(f">{label}<") for label in (UNDO, UNDO_ALL)] == [1, 1], "not the creation"
    created, renamed, _restricted = RateLimitChange.objects.order_by("pk")
    assert UNDO not in operator.get(f"{CHANGES}{created.pk}/change/").content.decode()
    assert operator.post(f"{RULES}undo/{created.pk}/").status_code == 403
    assert operator.get(f"{RULES}undo/{renamed.pk}/").status_code == 403
    undone = operator.post(f"{RULES}undo/{renamed.pk}/", follow=True).content.decode()
    assert "“site” is as it was before the change: 5 per hour per address, on /ok." in undone
    rule.refresh_from_db()
    assert (rule.name, rule.rate, rule.method) == ("site", "5/h", "")
    assert visits(6) == [200] * 5 + [429]
    operator.post(f"{RULES}{rule.pk}/delete/", {"post": "yes"})
    assert visits() == [200]
    deleted = RateLimitChange.objects.order_by("-pk")[0]
    assert UNDO in operator.get(f"{CHANGES}{deleted.pk}/change/").content.decode()
    operator.post(f"{RULES}undo/{deleted.pk}/")
    assert visits() == [429]
    assert RateLimitRule.objects.get().pk == rule.pk
    assert UNDO not in operator.get(f"{CHANGES}{deleted.pk}/change/").content.decode()
    assert operator.get(f"{CHANGES}add/").status_code == 403
    assert operator.post(f"{CHANGES}{created.pk}/delete/", {"post": "yes"}).status_code == 403
    assert "5 per hour per address" in operator.get(CHANGES).content.decode()


def test_viewing_changing_and_blocking_need_separate_permissions() -> None:
    """A user who may view changes nothing, and a user who may block changes no rule."""
    rule = RateLimitRule.objects.create(
        name="site", path="/ok", key="ip", rate="2/h", mode="shadow"
    )
    rule.order = 1
    rule.save()
    change = RateLimitChange.objects.order_by("-pk")[0]
    looks = staff("view_ratelimitrule", "view_ratelimitchange", name="looks")
    assert looks.get(RULES).status_code == looks.get(f"{RULES}{rule.pk}/change/").status_code == 200
    action = {"action": "enforce", "_selected_action": rule.pk}
    looks.post(RULES, action)  # The mode is compared below.
    assert looks.post(f"{RULES}undo/{change.pk}/").status_code == 403
    assert looks.post(f"{RULES}add/", given(path="/x", key="ip", rate="1/h")).status_code == 403
    assert "Undo" not in looks.get(f"{CHANGES}{change.pk}/change/").content.decode()
    blocks = staff("block_identity", name="blocks")
    block = RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    assert visits() == [429]
    assert blocks.get(RULES).status_code == 403
    blocks.post(OVERRIDES, {"action": "end_now", "_selected_action": block.pk})
    assert visits() == [200]
    exempt = {"network": "203.0.113.1", "effect": "exempt"}
    assert blocks.post(f"{OVERRIDES}add/", exempt).status_code == 403
    assert staff(name="nobody").get(OVERRIDES).status_code == 403
    careless = Client(enforce_csrf_checks=True)
    careless.force_login(User.objects.create_superuser("root"))
    for target in (RULES, f"{RULES}undo/{change.pk}/", f"{RULES}preview/"):
        assert careless.post(target, action).status_code == 403
    rule.refresh_from_db()
    assert rule.mode == "shadow"


@pytest.mark.parametrize("permissions", [("change",), ("view",), ("add", "change"), ("add",)])
def test_pages_offer_only_permitted_actions(permissions: tuple[str, ...]) -> None:
    """Every action that a list or a history offers to a user is permitted."""
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h")
    rule.rate = "2/h"
    rule.save()
    client = staff(*(f"{one}_ratelimitrule" for one in permissions))
    listed = client.get(RULES)
    for words, permission in (("Edit", "change"), ("Add rule", "add")):
        if listed.status_code == 200:
            assert (words in listed.content.decode()) is (permission in permissions)
    change = RateLimitChange.objects.order_by("-pk")[0]
    history = client.get(f"{RULES}{rule.pk}/history/")
    undoable = UNDO in history.content.decode() if history.status_code == 200 else False
    undone = client.post(f"{RULES}undo/{change.pk}/").status_code
    assert undoable is (undone == 302) is ({"add", "change"} <= set(permissions))


def test_multiline_texts_are_kept_by_form_and_file_alike(operator: Client) -> None:
    """The form shows the lines of the file."""
    lines = 'message: "One.\\nTwo.", description: "A.\\nB."'
    text = f"- {{name: site, path: /ok, key: ip, rate: 5/h, {lines}}}"
    apply(plan(text))
    rule = RateLimitRule.objects.get()
    page = operator.get(f"{RULES}{rule.pk}/change/").content.decode()
    assert re.search(r"<textarea[^>]* name=\"message\"|<textarea name=\"message\"", page)
    lines = {"message": "One.\r\nTwo.", "description": "A.\r\nB."}
    form = given(path="/ok", key="ip", rate="5/h", **lines)
    assert operator.post(f"{RULES}{rule.pk}/change/", form).status_code == 302
    assert plan(text) == []


def test_a_save_that_is_not_published_is_reported(
    operator: Client, settings: Any, prefix: str, direct: redis.Redis
) -> None:
    """Redis is unavailable, or the prefix belongs to another database."""
    working, url = settings.CACHES, f"{RULES}add/"
    form = given(rate="2/h", key="ip", path="/ok", groups=[], method=[])
    settings.CACHES = {"default": {**working["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    saved = operator.post(url, form, follow=True)
    assert "Saved, but not published yet: " in saved.content.decode()
    settings.CACHES = working
    saved = operator.post(url, {**form, "name": "second"}, follow=True)
    assert "not published yet" not in saved.content.decode()
    theirs = {"database": "another", "revision": "99-00000000-00000000"}
    direct.hset(f"{prefix}{{rules}}:1", mapping={**theirs, "rules": json.dumps(theirs)})
    saved = operator.post(url, {**form, "name": "third"}, follow=True)
    page = saved.content.decode()
    assert "Saved, but not published yet: RATELIMIT_CACHE_PREFIX" in page
    assert "Redis is unavailable" not in page
    with pytest.raises(CommandError, match=r"^RATELIMIT_CACHE_PREFIX"):
        call_command("ratelimit", "publish")
    assert "Set RATELIMIT_CACHE_PREFIX to another value for each site" in page
    assert [Client().get("/ok").status_code for _ in range(3)] == [200, 200, 429]
    assert "belongs to the database another" in health().problems[0]
