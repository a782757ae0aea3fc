"""The subject of an override is a user, an address or network, the value of a field, or a client's
digest.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core import checks
from django.core.exceptions import ValidationError
from django.core.management import CommandError
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils import timezone
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.identity import Identity, digest
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.publishing import publish
from django_ratelimit_lua.throttling import AnonRateThrottle
from tests.acceptance.admin.test_admin import OVERRIDES, errors
from tests.acceptance.commands.test_reset_and_block import said
from tests.support.users import form_data, serve_admin

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS, NEIGHBOUR, STRANGER = "203.0.113.9", "203.0.113.10", "198.51.100.7"


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def who(group: str, request: HttpRequest) -> Identity:
    return request.headers.get("x-partner")


class Throttle(AnonRateThrottle):
    rate = "1000/h"


class Throttled(APIView):
    throttle_classes = (Throttle,)

    def post(self, request: Any) -> Response:
        return Response({})


@ratelimit("async", ("ip", "header:X-Tenant"), "1000/h")
async def aok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


login = ratelimit("login", ("ip", "post:username"), "2/h")(ok)
by_function = ratelimit("partner", who, "1000/h")(ok)
by_user = ratelimit("person", "user", "1000/h")(ok)
urlpatterns = [
    path("rule/", ok),
    path("free/", ok),
    path("login/", login),
    path("async/", aok),
    path("partner/", by_function),
    path("person/", by_user),
    path("throttled/", Throttled.as_view()),
    path("admin/", admin.site.urls),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    serve_admin(settings, __name__)


def override(value: str = "", **fields: Any) -> RateLimitOverride:
    """Save and return an override. An override by digest lasts for a day."""
    if "client" in fields:
        fields["client_digest"] = digest(fields.pop("client")).decode()
        fields.setdefault("ends", timezone.now() + datetime.timedelta(days=1))
    made = RateLimitOverride(**{"effect": "block", **fields})
    if made.field:
        made.set_value(value)
    made.full_clean()
    made.save()
    return made


def post(page: str, address: str = ADDRESS, headers: Any = None, **posted: str) -> int:
    return int(Client(REMOTE_ADDR=address, headers=headers or {}).post(page, posted).status_code)


def logged_in(username: str) -> Client:
    client = Client(REMOTE_ADDR=ADDRESS)
    client.force_login(User.objects.create(username=username))
    return client


def test_a_block_by_digest_applies_to_every_limit_that_counts_the_client() -> None:
    """It applies at sync and async call sites, to rules and throttles, and to keys by functions."""
    RateLimitRule.objects.create(name="rule", path="/rule/", key="ip", rate="1000/h")
    pair = (("ip", ADDRESS), ("post", "username", "ada"))
    block = override(client=pair)
    assert [post("/login/", username=name) for name in ("Ada", "bob")] == [429, 200]
    assert [post(page, username="ada") for page in ("/rule/", "/free/")] == [200, 200]
    block.delete()
    override(client=("ip", ADDRESS))
    assert [post("/rule/", one) for one in (ADDRESS, NEIGHBOUR)] == [429, 200]
    override(client="acme")
    found = [post("/partner/", headers={"x-partner": one}) for one in ("acme", "other")]
    assert found == [429, 200]
    override(client=f"throttle_anon_{ADDRESS}")
    assert [post("/throttled/", one) for one in (ADDRESS, NEIGHBOUR)] == [429, 200]
    override(client=(("ip", "127.0.0.1"), ("header", "X-Tenant", "acme")))
    answers = [
        asyncio.run(AsyncClient().get("/async/", headers={"x-tenant": one}))
        for one in ("acme", "other")
    ]
    assert [answer.status_code for answer in answers] == [429, 200]
    limiter = RateLimiter("mail", "5/h")
    assert limiter.hit("acme")  # A RateLimiter obeys no overrides.


def test_the_digest_of_a_missing_value_identifies_no_client() -> None:
    """Such a digest would block all visitors, and so would the digest of a path."""
    RateLimitRule.objects.create(name="rule", path="/rule/", key="all", rate="1000/h")
    RateLimitRule.objects.create(name="path", path="/free/", key="path", rate="1000/h")
    override(client=("path", "/free/"))
    override(client=("user", None))
    override(client=None)
    assert [post(page) for page in ("/person/", "/rule/", "/partner/", "/free/")] == [200] * 4


def test_an_exemption_by_digest_precedes_a_block_of_the_user_and_the_network() -> None:
    """It names exactly the client that a limit counts."""
    rule = RateLimitRule.objects.create(name="rule", path="/rule/", key="user+ip", rate="1/h")
    ada = logged_in("ada")
    pk = str(User.objects.get().pk)
    override(network="203.0.113.0/24")
    override(user_id=pk)
    assert ada.get("/rule/").status_code == 429
    limit = override(
        client=(("user", pk), ("ip", ADDRESS)), effect="limit", rate="2/h", rule=rule.name
    )
    assert [ada.get("/rule/").status_code for _ in range(3)] == [200, 200, 429]
    limit.effect = "exempt"
    limit.save()
    assert [ada.get("/rule/").status_code for _ in range(3)] == [200] * 3
    assert ada.get("/free/").status_code == 429


def test_a_digest_and_the_user_with_that_digest_are_two_subjects() -> None:
    """Publishing one of them does not replace the other."""
    RateLimitRule.objects.create(name="rule", path="/rule/", key="user", rate="1000/h")
    ada = logged_in("ada")
    user = User.objects.get()
    override(client=("user", str(user.pk)), effect="exempt")
    block = override(user=user)
    for _ in range(2):
        assert ada.get("/rule/").status_code == 200
        assert ada.get("/free/").status_code == 429
        publish(rebuild=True)
    block.delete()
    assert ada.get("/free/").status_code == 200


def test_a_row_with_several_subjects_is_not_saved() -> None:
    """An override without a subject is not saved either."""
    row = RateLimitOverride.objects.create(network=ADDRESS, effect="block")
    user = User.objects.create(username="ada")
    saves = [
        lambda: RateLimitOverride.objects.create(network=ADDRESS, user=user),
        lambda: RateLimitOverride.objects.bulk_create([RateLimitOverride(effect="block")]),
        lambda: RateLimitOverride.objects.update(field="get:q"),
    ]
    for save in saves:
        with pytest.raises((ValueError, ValidationError), match="Make one override for each"):
            save()
    row.refresh_from_db()
    assert (row.network, row.has_one_subject()) == (ADDRESS, True)


def test_a_changed_field_does_not_use_the_value_of_the_previous_field() -> None:
    """If a row is changed to another field, it has no value until one is set."""
    row = RateLimitOverride.objects.create(network=ADDRESS, effect="block")
    for field in ("get:q", "get:r"):
        RateLimitOverride.objects.update(network="", field=field)
        row.refresh_from_db()
        with pytest.raises(ValidationError, match="The value is missing"):
            row.clean()
        row.set_value("x")
        row.save()
        assert Client().get("/free/", {field.removeprefix("get:"): "X"}).status_code == 429


@pytest.mark.parametrize(
    "name", ["a & post:b", "X, post", "ä\u2028", "exact:x", "a:b", "%", "digest"]
)
def test_field_names_may_contain_any_characters(name: str) -> None:
    """The name may be any name of a request parameter."""
    override("v", field=f"get:{name}")
    assert [Client().get("/free/", {name: value}).status_code for value in ("v", "w")] == [429, 200]


def test_a_form_does_not_overwrite_a_newer_value(operator: Client) -> None:
    """Another operator changed only the value while the form was open. The value is not stored."""
    form = {"effect": "block", "field": "post:username", "value": "ada", "label": "the loud one"}
    assert operator.post(f"{OVERRIDES}add/", form).status_code == 302
    row = RateLimitOverride.objects.get()
    page = f"{OVERRIDES}{row.pk}/change/"
    edited = {**form_data(operator.get(page)), "label": "quiet"}
    row.set_value("bob")
    row.save()
    answer = operator.post(page, edited)
    assert "Another user changed this while you were editing it" in errors(answer)
    assert operator.post(page, form_data(answer)).status_code == 302
    row.refresh_from_db()
    assert row.client() == "post:username (quiet)"
    assert [post("/free/", username=name) for name in ("ada", "bob")] == [200, 429]
    kept = [*RateLimitOverride.objects.values(), *RateLimitChange.objects.values()]
    assert "ada" not in str(kept)


def test_a_block_by_digest_ends_within_30_days() -> None:
    """The command blocks and unblocks a client by its digest."""
    client = digest((("ip", ADDRESS), ("post", "username", "ada"))).decode()
    with pytest.raises(CommandError, match="at most 30 days from now"):
        said("block", "--digest", client, "--for-good")
    assert f"client {client[:12]} is blocked until 2" in said("block", "--digest", client)
    assert [post("/login/", username=name) for name in ("ada", "bob")] == [429, 200]
    assert "ended: override" in said("unblock", "--digest", client)
    assert post("/login/", username="ada") == 200


def test_a_check_warns_about_too_many_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended ones do not count."""

    def warned() -> list[str]:
        found = checks.run_checks(databases=["default"], tags=[checks.Tags.database])
        return [one.msg for one in found if one.id == "django_ratelimit_lua.W016"]

    monkeypatch.setattr("django_ratelimit_lua.checks.MAX_OVERRIDES", 2)
    override(network=ADDRESS)
    override(network=NEIGHBOUR)
    RateLimitOverride.objects.create(network=STRANGER, effect="block", ends=timezone.now())
    assert warned() == []
    RateLimitOverride.objects.update(ends=None)
    assert warned()[0].startswith("3 overrides have not ended")


def test_the_filter_by_rule_names_the_overrides_of_all_rules(operator: Client) -> None:
    """Overrides without a rule are listed as "all rules", the others by the rule."""
    RateLimitOverride.objects.create(network=ADDRESS, effect="block")
    RateLimitOverride.objects.create(network=NEIGHBOUR, effect="exempt", rule="one")
    page = operator.get(OVERRIDES).content.decode()
    assert words_of_link(page, "?rule=") == "all rules"
    assert words_of_link(page, "?rule=one") == "one"


def words_of_link(page: str, query: str) -> str:
    return page.partition(f'<a href="{query}">')[2].partition("</a>")[0].strip()
