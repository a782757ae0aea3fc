"""Overrides about several things together: a user, an address or network, and fields; all of it, or it is another's."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
import redis
from asgiref.sync import iscoroutinefunction
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser, User
from django.core import checks
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils import translation
from django.utils.decorators import method_decorator, sync_and_async_middleware
from django.views import View
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.publishing.publish import publish, snapshot_of
from django_ratelimit_lua.rules import provider
from django_ratelimit_lua.rules.overrides import override_cache, split_fields
from django_ratelimit_lua.throttling import RuleThrottle, UserRateThrottle
from tests.acceptance import test_admin
from tests.acceptance.test_admin import OPERATOR, OVERRIDES
from tests.acceptance.test_inspector import INSPECTOR, pressed
from tests.acceptance.test_reset_and_block import said
from tests.acceptance.test_rules import another_process

pytestmark = pytest.mark.django_db(transaction=True)
operator = test_admin.operator
ADDRESS, NEIGHBOUR, STRANGER = "203.0.113.9", "203.0.113.10", "198.51.100.7"


def ok(request: HttpRequest) -> HttpResponse:
    found = getattr(request, "ratelimit", None)
    return JsonResponse({state.name: state.limit for state in (found.limits if found is not None else ())})


@ratelimit("site", "ip", "1000/h")
def at_a_call_site(request: HttpRequest) -> HttpResponse:
    return ok(request)


@ratelimit("async", "ip", "1000/h")
async def at_an_async_call_site(request: HttpRequest) -> HttpResponse:
    return ok(request)


@method_decorator(ratelimit("login", ("ip", "post:username"), "2/h"), name="post")
class Login(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return ok(request)


class Throttle(UserRateThrottle):
    rate = "1000/h"
    scope = "throttled"


class Throttled(APIView):
    throttle_classes = (Throttle,)

    def post(self, request: Any) -> Response:
        return Response({})


class Ruled(APIView):
    throttle_classes = (RuleThrottle,)

    def post(self, request: Any) -> Response:
        return Response({})


urlpatterns = [
    path("rule/", ok), path("free/", ok), path("site/", at_a_call_site), path("async/", at_an_async_call_site),
    path("admin/", admin.site.urls),
    path("login/", Login.as_view()), path("throttled/", Throttled.as_view()), path("ruled/", Ruled.as_view()),
]  # fmt: skip


@sync_and_async_middleware
def logged_in(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A middleware that takes the word of a header for who is logged in."""

    def log_in(request: HttpRequest) -> None:
        pk = request.headers.get("X-User")
        if pk is None and hasattr(request, "user"):
            return
        user = request.user = User(pk=int(pk)) if pk else AnonymousUser()

        async def auser() -> Any:
            return user

        request.auser = auser

    def middleware(request: HttpRequest) -> Any:
        log_in(request)
        return get_response(request)

    async def amiddleware(request: HttpRequest) -> Any:
        log_in(request)
        return await get_response(request)

    return amiddleware if iscoroutinefunction(get_response) else middleware


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [f"{__name__}.logged_in", "django_ratelimit_lua.middleware.RateLimitMiddleware"]


@pytest.fixture
def forms(settings: Any) -> None:
    """The site has an admin as well."""
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        f"{__name__}.logged_in",
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ]


@pytest.fixture
def ada() -> User:
    return User.objects.create(pk=7, username="ada")


def combined(*values: str, **fields: Any) -> RateLimitOverride:
    """An override about all of that, saved."""
    override = RateLimitOverride(**{"effect": "block", **fields})
    override.set_value(dict(zip(split_fields(override.field), values, strict=True)))
    override.full_clean()
    override.save()
    return override


def sent(address: str = ADDRESS, user: Any = None, tenant: str = "", **posted: str) -> dict[str, Any]:
    """A request, as `Client.post` takes it."""
    headers = {"x-user": str(user) if user else "", "x-tenant": tenant}
    return {"data": posted, "REMOTE_ADDR": address, "headers": {name: text for name, text in headers.items() if text}}


def status(page: str, request: dict[str, Any]) -> int:
    meta = {"REMOTE_ADDR": request["REMOTE_ADDR"]}
    return int(Client(**meta).post(page, request["data"], headers=request["headers"]).status_code)


async def astatus(page: str, request: dict[str, Any]) -> int:
    headers = {**request["headers"], "x-address": request["REMOTE_ADDR"]}
    return int((await AsyncClient().post(page, request["data"], headers=headers)).status_code)


WHOLE = {"address": ADDRESS, "user": 7, "tenant": "acme", "username": "alice"}
LACKING: dict[str, dict[str, Any]] = {
    "user": {"user": 8}, "network": {"address": STRANGER}, "header:X-Tenant": {"tenant": "other"},
    "post:username": {"username": "bob"},
}  # fmt: skip
GONE: dict[str, dict[str, Any]] = {
    "user": {"user": None}, "network": {"address": "2001:db8::7"}, "header:X-Tenant": {"tenant": ""},
    "post:username": {"username": ""},
}  # fmt: skip
COMBINATIONS = [parts for size in (2, 3, 4) for parts in itertools.combinations(tuple(LACKING), size)]


def made(parts: tuple[str, ...], **more: Any) -> RateLimitOverride:
    """An override about these parts of `WHOLE`."""
    fields = [part for part in parts if ":" in part]
    values = {"header:X-Tenant": "acme", "post:username": "alice"}
    about = {"user_id": 7 if "user" in parts else None, "network": "203.0.113.8/29" if "network" in parts else ""}
    return combined(*(values[field] for field in fields), field=", ".join(fields), **{**about, **more})


@pytest.mark.usefixtures("ada")
@pytest.mark.parametrize("page", ["free", "rule", "site", "async", "throttled", "ruled"])
def test_a_block_holds_for_who_is_all_of_it_and_for_nobody_else(page: str, settings: Any) -> None:
    """Without any rule, by the middleware; at call sites, also asynchronous ones, and at throttles of DRF's views.

    Every combination, with the part missing, and with another's in its place."""
    RateLimitRule.objects.create(name="rule", path="/rule/", key="ip", limit=1000, unit="h")
    RateLimitRule.objects.create(name="throttle", path="/ruled/", key="ip", limit=1000, unit="h")
    if page == "async":
        settings.RATELIMIT_IP_META_KEY = "HTTP_X_ADDRESS"

    def answer(**changes: Any) -> int:
        request = sent(**{**WHOLE, **changes})
        return asyncio.run(astatus("/async/", request)) if page == "async" else status(f"/{page}/", request)

    for parts in COMBINATIONS:
        block = made(parts)
        assert answer() == 429, parts
        for part, change in itertools.product(parts, (LACKING, GONE)):
            assert answer(**change[part]) == 200, (parts, part, change[part])
        block.delete()
        assert answer() == 200


@pytest.mark.usefixtures("ada")
@pytest.mark.parametrize("page", ["login", "rule", "throttled"])
def test_a_block_for_one_rule_or_all_at_a_place_that_the_middleware_does_not_guard(page: str, settings: Any) -> None:
    """The view and the throttle decide by themselves, by the body as well."""
    settings.MIDDLEWARE = [f"{__name__}.logged_in"]
    rule = RateLimitRule.objects.create(name="login", group="login", key="ip", limit=1000, unit="h")
    made(("network", "post:username"), rule=rule)
    expected = 429 if page == "login" else 200
    assert status(f"/{page}/", sent(**WHOLE)) == expected
    assert status(f"/{page}/", sent(**{**WHOLE, "username": "bob"})) == 200
    RateLimitOverride.objects.update(rule=None)
    assert status(f"/{page}/", sent(**WHOLE)) == (200 if page == "rule" else 429)


def test_an_exemption_lets_exactly_that_customer_in() -> None:
    """A login limit by address and name, with its customers locked out: one is let in, from there alone."""
    for username, address in itertools.product(("alice", "bob"), (ADDRESS, NEIGHBOUR)):
        request = sent(address, username=username)
        assert [status("/login/", request) for _ in range(3)] == [200, 200, 429]
    override = combined("Alice ", network=ADDRESS, field="post:username", effect="exempt")
    # Whoever was refused is remembered as refused, but not as who is exempt.
    assert [status("/login/", sent(username="alice")) for _ in range(4)] == [200] * 4
    assert status("/login/", sent(username="bob")) == 429
    assert status("/login/", sent(NEIGHBOUR, username="alice")) == 429
    override.delete()
    assert status("/login/", sent(username="alice")) == 429


def test_another_limit_for_who_is_all_of_it() -> None:
    """A number of its own, for one rule."""
    rule = RateLimitRule.objects.create(name="rule", path="/rule/", key="ip", limit=5, unit="h")
    combined("acme", network="203.0.113.0/24", field="header:X-Tenant", effect="limit", limit=77, unit="h", rule=rule)
    limits = [
        Client(REMOTE_ADDR=address).get("/rule/", headers=headers).json()["rule"]
        for address, headers in ((ADDRESS, {"x-tenant": "acme"}), (ADDRESS, {}), (STRANGER, {"x-tenant": "acme"}))
    ]
    assert limits == [77, 5, 5]


@pytest.mark.usefixtures("ada")
def test_more_parts_go_before_fewer() -> None:
    """A combination before a user alone; three parts before two; of as many, the more particular. Whatever is newer."""
    ranked = [
        ("user", "network", "post:username"),
        ("network", "header:X-Tenant", "post:username"),
        ("user", "post:username"),
        ("user", "network"),
        ("header:X-Tenant", "post:username"),
        ("network", "post:username"),
        ("user",),
        ("post:username",),
        ("network",),
    ]
    for first, second in itertools.pairwise(ranked):
        for effects in (("exempt", "block"), ("block", "exempt")):
            for order in (1, -1):
                for parts, effect in [*zip((first, second), effects, strict=True)][::order]:
                    made(parts, effect=effect)
                expected = 429 if effects[0] == "block" else 200
                assert status("/free/", sent(**WHOLE)) == expected, (first, second, effects, order)
                RateLimitOverride.objects.all().delete()
    combined("alice", network=ADDRESS, field="post:username", effect="exempt")
    combined("alice", network="203.0.113.0/24", field="post:username")
    assert [status("/free/", sent(one, username="alice")) for one in (ADDRESS, NEIGHBOUR)] == [200, 429]


def test_a_field_that_can_be_read_in_two_ways_is_met_in_both() -> None:
    """As an override by the field alone; the other parts have to be there in any case."""
    combined("ädä", network=ADDRESS, field="post:username")
    body, kind = "username=ädä".encode("latin-1"), "application/x-www-form-urlencoded; charset=latin-1"
    answers = [
        Client(REMOTE_ADDR=one).generic("POST", "/free/", body, kind).status_code for one in (ADDRESS, NEIGHBOUR)
    ]
    assert answers == [429, 200]
    utf8 = Client(REMOTE_ADDR=ADDRESS).generic("POST", "/free/", "username=ädä".encode(), kind)
    assert utf8.status_code == 429


@pytest.mark.usefixtures("ada")
def test_nobodys_session_is_loaded_for_what_is_about_others(settings: Any, django_assert_num_queries: Any) -> None:
    """The user is asked for last, where all else is there."""
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ]
    made(("user", "network", "header:X-Tenant"))
    client = Client(REMOTE_ADDR=ADDRESS)
    client.force_login(User.objects.get())
    client.get("/free/")
    with django_assert_num_queries(0):
        answer = client.get("/free/")
    assert (answer.status_code, answer.has_header("Vary")) == (200, False)
    assert client.get("/free/", headers={"x-tenant": "acme"}).status_code == 429


@pytest.mark.usefixtures("ada")
def test_who_it_is_about_can_be_changed_without_the_value() -> None:
    """Of fields only digests are kept, and these are enough to say the rest anew: row by row, and in bulk."""
    override = made(("user", "network", "post:username"))
    assert override.kind == "all:user & ip4/29 & post:username"
    RateLimitOverride.objects.update(network=STRANGER)
    assert [status("/free/", sent(**{**WHOLE, "address": one})) for one in (ADDRESS, STRANGER)] == [200, 429]
    override.refresh_from_db()
    override.user = None
    override.save()
    assert override.kind == "all:ip4/32 & post:username"
    assert status("/free/", sent(STRANGER, username="alice")) == 429
    override.network = ""
    override.save()
    assert (override.kind, override.subject) == ("post:username", digest(("post", "username", "alice")).decode())
    assert status("/free/", sent(NEIGHBOUR, username="alice")) == 429
    assert "alice" not in json.dumps([*RateLimitChange.objects.values("name", "before", "after", "subjects")])


def test_who_is_deleted_takes_along_what_is_about_them(ada: User) -> None:
    """Never is an override left that is about fewer than before."""
    made(("user", "network"), effect="exempt")
    ada.delete()
    assert not RateLimitOverride.objects.exists()
    publish()
    assert snapshot_of("default")["kinds"] == {}


def test_an_empty_value_and_a_field_twice_are_nobodys() -> None:
    """A request without the value, with an empty one, or with several of which the last is another's, is not meant."""
    combined("alice", "acme", field="post:username, header:X-Tenant")
    assert RateLimitOverride.objects.get().field == "header:X-Tenant, post:username"
    client, kind = Client(headers={"x-tenant": "acme"}), "application/x-www-form-urlencoded"
    bodies = {"username=": 200, "": 200, "username=alice&username=bob": 200, "username=bob&username=alice": 429}
    for body, expected in bodies.items():
        assert client.generic("POST", "/free/", body, kind).status_code == expected, body


def test_what_is_rolled_back_was_never_there() -> None:
    """Nor published."""
    with transaction.atomic():
        made(("network", "post:username"))
        transaction.set_rollback(True)
    assert status("/free/", sent(**WHOLE)) == 200
    assert publish() == 0


def test_a_kind_that_is_not_known_is_left_out(direct: redis.Redis, prefix: str, caplog: Any) -> None:
    """A newer version may have published it; the others hold."""
    key = f"{prefix}{{rules}}"
    RateLimitOverride.objects.create(network=STRANGER, effect="block")
    snapshot = {
        **json.loads(direct.hget(key, "rules")),
        "blocks": ["all:moon & user", "ip4/32"],
        "revision": "99-" + "a" * 16,
    }
    direct.hset(key, mapping={"revision": snapshot["revision"], "rules": json.dumps(snapshot)})
    another_process()
    assert [status("/free/", sent(one)) for one in (STRANGER, ADDRESS)] == [429, 200]
    assert "overrides of the kind 'all:moon & user', which is none" in caplog.text


def test_only_what_is_known_of_the_subject_is_asked_about() -> None:
    """A process that has just started learns of the block in the call that decides; of others, it learns nothing."""
    made(("network", "header:X-Tenant"))
    another_process()
    override_cache.clear()
    assert status("/free/", sent(tenant="other")) == 200
    assert not override_cache._known.entries
    assert status("/free/", sent(tenant="acme")) == 429
    assert len(override_cache._known.entries) == 1
    assert provider.current().blocks == ["all:ip4/29 & header:X-Tenant"]


@pytest.mark.parametrize("name", ["a & post:b", "X, post", "ä\u2028", "exact:x", "a:b", "%", "all:user & ip4/32"])
def test_names_of_fields_may_be_odd(name: str) -> None:
    """Whatever a request may have as a name; what cannot be told from a combination stands alone."""
    field, value = f"get:{name}", "v"
    alone = combined(value, field=field)
    assert Client().get("/free/", {name: "v"}).status_code == 429
    assert Client().get("/free/", {name: "w"}).status_code == 200
    alone.delete()
    override = RateLimitOverride(effect="block", network="127.0.0.1", field=field)
    override.set_value(value)
    if " & " in name or "," in name:
        with pytest.raises(Exception, match="can only stand alone"):
            override.full_clean()
        return
    override.full_clean()
    override.save()
    assert [Client(REMOTE_ADDR=one).get("/free/", {name: "v"}).status_code for one in ("127.0.0.1", ADDRESS)] == [
        429,
        200,
    ]


@pytest.mark.parametrize("network", ["", ADDRESS], ids=["alone", "together"])
def test_letter_by_letter_and_otherwise_are_two_kinds_of_one_field(network: str) -> None:
    """Who is blocked by an exact spelling is blocked by no other, whatever overrides there are beside."""
    combined("bob", network=network, field="exact:post:username")
    combined("someone", network=network, field="post:username", effect="exempt")
    for _ in range(2):
        assert [status("/free/", sent(username=one)) for one in ("bob", "BOB", " bob", "Eve")] == [429, 200, 200, 200]
        another_process()
        override_cache.clear()
        publish(rebuild=True)


def test_two_kinds_of_one_field_are_written_as_one_subject() -> None:
    """Their digest is the same: one by one and all anew, both are written, however the database orders them."""
    combined("ada", field="exact:header:X-Tenant")
    for other in ("bob", "carl", "dan", "zoe"):
        combined(other, field="exact:header:X-Tenant", effect="exempt")
    combined("ada", field="header:X-Tenant", effect="exempt")
    assert [status("/free/", sent(tenant=one)) for one in ("ada", "ADA", "bob")] == [429, 200, 200]
    publish(rebuild=True)
    assert [status("/free/", sent(tenant=one)) for one in ("ada", "ADA", "bob")] == [429, 200, 200]


def test_values_go_to_their_fields_whatever_order_these_are_in() -> None:
    """Also where the row was saved meanwhile, which sorts its fields."""
    values = {"post:username": "alice", "header:X-Tenant": "acme"}
    override = RateLimitOverride(field="post:username, header:X-Tenant", effect="block")
    for _ in range(2):
        override.set_value(values)
        override.save()
        assert status("/free/", sent(tenant="acme", username="alice")) == 429
    with pytest.raises(ValueError, match="Use a mapping with header:X-Tenant, post:username"):
        override.set_value("alice")
    with pytest.raises(ValueError, match="get:a: no field of this override, which has header:X-Tenant, post:username"):
        override.set_value({**values, "get:a": "b"})
    override.set_value({"post:username": "alice"})
    with pytest.raises(ValidationError, match="The value of header:X-Tenant is missing"):
        override.full_clean()


FORM = {"effect": "block", "period": 1, "unit": "m", "duration": "3600"}


@pytest.mark.usefixtures("forms")
def test_a_form_makes_one_override_of_all_that_is_filled_in(operator: Client, ada: User) -> None:
    """The values are kept as digests; which are left empty in an edit stay, also where another part is changed."""
    given = {
        **FORM, "user": ada.pk, "network": "203.0.113.9/32", "field": "post:username", "value": "alice",
        "field_2": "header:X-Tenant", "value_2": "acme", "label": "the loud one",
    }  # fmt: skip
    assert operator.post(f"{OVERRIDES}add/", given).status_code == 302
    override = RateLimitOverride.objects.get()
    assert override.kind == "all:user & ip4/32 & header:X-Tenant & post:username"
    whom = "user ada from address 203.0.113.9 with header X-Tenant and form field username (the loud one)"
    assert override.whom() == whom
    assert whom in unescape(operator.get(OVERRIDES).content.decode())
    assert [status("/free/", sent(**{**WHOLE, "user": user})) for user in (ada.pk, None)] == [429, 200]
    page = operator.get(f"{OVERRIDES}{override.pk}/change/").content.decode()
    assert [f'name="{name}" value="{field}"' in page for name, field in (
        ("field", "header:X-Tenant"), ("field_2", "post:username"),
    )] == [True, True]  # fmt: skip
    assert not {"acme", "alice"} & {*re.findall(r"\w+", page)}
    edited = {**FORM, "network": STRANGER, "field": "post:username", "field_2": "header:X-Tenant", "value_2": "other"}
    assert operator.post(f"{OVERRIDES}{override.pk}/change/", edited).status_code == 302
    request = {"user": None, "address": STRANGER, "username": "alice"}
    assert [status("/free/", sent(**request, tenant=tenant)) for tenant in ("other", "acme")] == [429, 200]
    edited = {**FORM, "field": "post:username"}
    assert operator.post(f"{OVERRIDES}{override.pk}/change/", edited).status_code == 302
    assert status("/free/", sent(username="alice")) == 429
    change = RateLimitChange.objects.earliest("pk")
    assert (change.name, change.after["whom"]) == (whom, whom)
    assert {"acme", "alice"}.isdisjoint(re.findall(r"\w+", str([*RateLimitChange.objects.values()])))


@pytest.mark.usefixtures("forms")
def test_each_of_many_networks_is_combined_with_the_rest(operator: Client) -> None:
    """One override each, in one change."""
    given = {**FORM, "network": f"{ADDRESS}\n{STRANGER}\n2001:db8::/48", "field": "post:username", "value": "alice"}
    operator.post(f"{OVERRIDES}add/", given)
    assert RateLimitOverride.objects.count() == 3
    assert RateLimitChange.objects.values("revision").distinct().count() == 1
    for address in (ADDRESS, STRANGER, "2001:db8::7"):
        assert [status("/free/", sent(address, username=name)) for name in ("alice", "bob")] == [429, 200]
    assert status("/free/", sent(NEIGHBOUR, username="alice")) == 200


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"field": "post:a", "value": "1", "field_2": "post:a", "value_2": "2"}, "field", "post:a is there twice"),
        ({"field": "post:a, post:b", "value": "1"}, "field", "Enter one field here"),
        ({"field": "post:a", "value": "1", "field_2": "post:b"}, "field", "The value of post:b is missing"),
        ({"field": "post:a", "value": "1", "value_2": "2"}, "field_2", "Enter the field that has this value"),
        ({"field": "post:a", "value": "1", "field_3": "ip", "value_3": "2"}, "field_3", "Enter one of header"),
        ({"network": ADDRESS, "field": "get:a,b", "value": "1"}, "field", "can only stand alone"),
        ({"network": ADDRESS, "field": "get:a & b", "value": "1"}, "field", "can only stand alone"),
        ({"network": OPERATOR, "user": "own"}, "network", "you would lock yourself out"),
        ({"network": "10.0.0.1", "field": "get:a", "value": "1"}, "network", "it tells nobody apart"),
    ],
)  # fmt: skip
def test_a_form_says_what_is_wrong_with_a_combination(
    fields: dict[str, str], field: str, problem: str, operator: Client, settings: Any
) -> None:
    """At its field, and nothing is saved."""
    settings.RATELIMIT_TRUSTED_PROXIES = ["10.0.0.1"]
    own = User.objects.get(username="grace").pk
    answer = operator.post(f"{OVERRIDES}add/", {**FORM, **fields, **({"user": own} if "user" in fields else {})})
    assert problem in str(answer.context["adminform"].form.errors[field])
    assert not RateLimitOverride.objects.exists()


@pytest.mark.usefixtures("forms")
def test_who_shares_the_operators_address_can_be_blocked(operator: Client, ada: User) -> None:
    """By what the operator does not have: another user, a value."""
    for about in ({"user": ada.pk}, {"field": "post:username", "value": "alice"}):
        assert operator.post(f"{OVERRIDES}add/", {**FORM, "network": OPERATOR, **about}).status_code == 302
    assert operator.get(OVERRIDES).status_code == 200


@pytest.mark.usefixtures("forms")
def test_after_a_rotation_all_values_are_entered_again(operator: Client, settings: Any) -> None:
    """Digests by two keys make no one; one that is kept as it is goes on by the earlier key."""
    settings.SECRET_KEY = "before"
    combined("alice", "acme", field="post:username, header:X-Tenant")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "now", ["before"]
    operator.force_login(User.objects.get())
    publish()
    page = f"{OVERRIDES}{RateLimitOverride.objects.get().pk}/change/"
    given = {**FORM, "field": "post:username", "field_2": "header:X-Tenant"}
    assert operator.post(page, {**given, "reason": "kept"}).status_code == 302
    assert status("/free/", sent(tenant="acme", username="alice")) == 429
    answer = operator.post(page, {**given, "value": "bob"})
    assert "The value of header:X-Tenant is missing" in str(answer.context["adminform"].form.errors["field"])
    assert operator.post(page, {**given, "value": "bob", "value_2": "acme"}).status_code == 302
    assert [status("/free/", sent(tenant="acme", username=name)) for name in ("alice", "bob")] == [200, 429]
    settings.SECRET_KEY_FALLBACKS = []
    assert status("/free/", sent(tenant="acme", username="bob")) == 429


LOGIN = {"path": "/login/", "method": "POST", "address": ADDRESS, "post": "username=alice"}


@pytest.mark.usefixtures("forms")
def test_the_inspector_offers_whom_the_limit_counts(operator: Client) -> None:
    """The customer who is locked out at the login is let in with one button, and nobody else."""
    for username in ("alice", "bob"):
        assert [status("/login/", sent(username=username)) for _ in range(3)] == [200, 200, 429]
    page = operator.get(INSPECTOR, LOGIN)
    whom = f"address {ADDRESS} with form field username = alice"
    assert page.context["subjects"] == [
        ("address", ADDRESS), ("post:username", "form field username = alice"), ("ip+post:username", whom),
    ]  # fmt: skip
    page = pressed(operator, LOGIN, action="exempt", subject="ip+post:username", duration="3600")
    assert f"A{whom[1:]} is exempt for 1 hour from: login:*:ip+post:username:2/h." in page
    assert "would be allowed" in page
    assert [status("/login/", sent(username=name)) for name in ("alice", "bob")] == [200, 429]
    assert status("/login/", sent(NEIGHBOUR, username="alice")) == 200
    override = RateLimitOverride.objects.get()
    assert (override.kind, override.effect, "alice" in str(vars(override))) == (
        "all:ip4/32 & post:username",
        "exempt",
        False,
    )
    page = pressed(operator, LOGIN, action="block", subject="ip+post:username", duration="3600")
    assert f"Block {whom}" in page
    page = pressed(operator, LOGIN, action="block", subject="ip+post:username", duration="3600", confirm="yes")
    assert "would be refused" in page
    page = pressed(operator, LOGIN, action=f"end:{RateLimitOverride.objects.latest('pk').pk}")
    assert "Ended: address 203.0.113.9 with form field username (without a label)." in page
    assert status("/login/", sent(username="alice")) == 200
    page = operator.get(f"{INSPECTOR}?path=/login/&method=POST&post=username%3Dalice")
    assert page.context["subjects"] == [("post:username", "form field username = alice")]


@pytest.mark.usefixtures("forms")
@pytest.mark.parametrize(
    ("key", "asked", "whom"),
    [
        ("ip", {"address": "2001:db8::7"}, "2001:db8::/64"),
        ("ip", {"address": "203.0.113.0/24"}, None),
        ("user_or_ip+header:X", {"user": "ada", "header": "X: ACME"}, "user ada with header X = acme"),
        ("user_or_ip+header:X", {"address": ADDRESS, "header": "X: a"}, f"address {ADDRESS} with header X = a"),
        ("user+path+ip", {"user": "ada", "address": ADDRESS}, f"user ada from address {ADDRESS}"),
        ("user", {"address": ADDRESS}, None),
        ("session+get:q", {"path": "/rule/?q=x", "address": ADDRESS}, f"address {ADDRESS} with query parameter q = x"),
        ("header:X-Tenant+ip", {"address": ADDRESS}, None),
        ("path", {"address": ADDRESS}, None),
        ("get:a+get:b+get:c+get:d", {"path": "/rule/?a=1&b=2&c=3&d=4"}, None),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("ada")
def test_whom_a_key_counts(key: str, asked: dict[str, str], whom: str | None, operator: Client) -> None:
    """As far as it is known, and is not one of those that were entered."""
    RateLimitRule.objects.create(name="rule", path="/rule/", key=key, limit=5, unit="h")
    page = operator.get(INSPECTOR, {"path": "/rule/", **asked})
    assert dict(page.context["subjects"]).get(key) == (whom if whom is None or whom != "user ada" else None)


@pytest.mark.usefixtures("forms")
def test_the_inspector_knows_when_operators_would_lock_themselves_out(operator: Client) -> None:
    """Their own address alone, or they themselves at it; not another who shares it."""
    RateLimitRule.objects.create(name="rule", path="/rule/", key="user+ip", limit=5, unit="h")
    asked = {"path": "/rule/", "address": OPERATOR, "user": "grace"}
    page = pressed(operator, asked, action="block", subject="user+ip", duration="3600")
    assert "you would lock yourself out" in page
    RateLimitRule.objects.update(key="ip+get:q")
    asked = {"path": "/rule/?q=x", "address": OPERATOR}
    page = pressed(operator, asked, action="block", subject="ip+get:q", duration="3600")
    assert "with query parameter q = x for 1 hour?" in page


def test_options_of_a_command_are_about_all_of_it_together(ada: User) -> None:
    """`ratelimit block` and `ratelimit unblock`; what a narrower block is not, and what goes on refusing, is told."""
    asked = ("--ip", ADDRESS, "--field", "username=alice", "--header", "X-Tenant: acme")
    whom = f"address {ADDRESS} with header X-Tenant = acme and form field username = alice"
    text = said("block", *asked, "--user", "ada")
    assert "user ada from address 203.0.113.9 with" in text
    assert [status("/free/", sent(**{**WHOLE, "user": user})) for user in (ada.pk, None)] == [429, 200]
    assert f"{whom} is blocked until 2" in said("block", *asked)
    assert [status("/free/", sent(**{**WHOLE, "user": None, "username": name})) for name in ("alice", "bob")] == [
        429,
        200,
    ]
    assert "Nothing was ended: no block is about 203.0.113.9." in said("unblock", "--ip", ADDRESS)
    assert "is blocked, and with it" not in said("unblock", "--ip", ADDRESS)
    text = said("unblock", *asked, "--user", "ada")
    narrow, wide = RateLimitOverride.objects.order_by("pk")
    assert f"ended: override {narrow.pk}, of user ada from address" in text
    assert f"is blocked, and with it user ada from address {ADDRESS}" in text
    assert f": override {wide.pk}\n" in text
    assert status("/free/", sent(**WHOLE)) == 429
    swapped = ("--header", "X-Tenant: acme", "--ip", f"{ADDRESS}/32", "--field", "username=Alice")
    assert f"ended: override {wide.pk}" in said("unblock", *swapped)
    assert status("/free/", sent(**WHOLE)) == 200


def test_explain_names_the_combination() -> None:
    """In the words of the list."""
    combined("acme", network=ADDRESS, field="header:X-Tenant", label="a partner")
    text = said("rules", "explain", "--path", "/free/", "--ip", ADDRESS, "--header", "X-Tenant: acme")
    assert "address 203.0.113.9 with header X-Tenant (a partner)" in text


def test_whom_it_is_about_in_german(ada: User) -> None:
    """Every kind of combination."""
    with translation.override("de"):
        texts = [made(parts, effect="exempt", label="x").whom() for parts in COMBINATIONS]
    assert texts[:2] == ["Benutzer ada von Netz 203.0.113.8/29", "Benutzer ada mit Header X-Tenant (x)"]
    assert "Netz 203.0.113.8/29 mit Header X-Tenant und Formularfeld username (x)" in texts


def test_a_check_warns_of_more_kinds_than_a_request_should_look_for() -> None:
    """Not of many overrides: those about networks of one size and a field of one name are one kind."""

    def warned() -> list[str]:
        found = checks.run_checks(databases=["default"], tags=[checks.Tags.database])
        return [one.msg for one in found if one.id == "django_ratelimit_lua.W016"]

    def rows(names: Callable[[int], str]) -> list[RateLimitOverride]:
        made = [RateLimitOverride(network=f"10.0.{n}.0/24", field=names(n), effect="block") for n in range(101)]
        for row in made:
            row.set_value("1")
        return made

    RateLimitOverride.objects.bulk_create(rows(lambda n: "get:a"))
    assert warned() == []
    RateLimitOverride.objects.bulk_create(rows(lambda n: f"get:a{n}"))
    assert "about 102 kinds of subjects" in warned()[0]
    assert status("/free/", sent("10.0.7.7")) == 200
    assert Client(REMOTE_ADDR="10.0.7.7").get("/free/?a7=1").status_code == 429
