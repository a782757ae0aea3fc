"""A key of the site in `RATELIMIT_KEYS` works wherever a built-in key does."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management import CommandError, call_command
from django.http import HttpRequest
from django.test import AsyncClient, Client
from django.urls import path

from django_ratelimit_lua import LimitError, ratelimit
from django_ratelimit_lua.checks import check_settings
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.identity.keys import Key, compile_key, registered_keys
from django_ratelimit_lua.identity.names import display_name
from django_ratelimit_lua.management.arguments import build_request
from django_ratelimit_lua.management.verbs import clients
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.health import health
from tests.acceptance.admin.test_admin import CLIENTS, RULES, errors, given, page_text
from tests.acceptance.admin.test_admin_clients import press
from tests.acceptance.commands.test_forget import traces
from tests.support.limits import add_tier
from tests.urls import AUTHENTICATION, LIMITS, SESSIONS, aok, ok

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "203.0.113.9"


def tenant(request: HttpRequest) -> str | None:
    """Return the first part of the host, as in acme.example.org, or a header."""
    name, dot, _ = request.get_host().partition(".")
    return name if dot else request.headers.get("x-tenant")


def plan_of(request: HttpRequest, user: Any) -> str:
    return "pro" if user.is_authenticated and user.username.startswith("pro") else "free"


def groups_of(request: HttpRequest, user: Any) -> str:
    """Query the database, which Django refuses in an event loop."""
    return ",".join(user.groups.values_list("name", flat=True)) or "none"


async def later(request: HttpRequest) -> int:
    return 7


def broken(request: HttpRequest) -> Any:
    return object()


PLAN = Key("plan", plan_of, label="plan", mask=lambda value: "secret", needs_user=True)
GROUPS = Key("groups", groups_of, needs_user=True, blocks=True)


urlpatterns = [
    path("ok/", ok),
    path("aok/", aok),
    path("free/", ok),
    path("admin/", admin.site.urls),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.ALLOWED_HOSTS = ["*"]
    settings.RATELIMIT_KEYS = {
        "tenant": f"{__name__}.tenant",
        "plan": f"{__name__}.PLAN",
        "groups": GROUPS,
        "broken": broken,
    }
    settings.MIDDLEWARE = [
        SESSIONS,
        AUTHENTICATION,
        "django.contrib.messages.middleware.MessageMiddleware",
        LIMITS,
    ]


def get(host: str, url: str = "/ok/", client: Client | None = None) -> int:
    client = client or Client(REMOTE_ADDR=ADDRESS)
    return int(client.get(url, headers={"host": f"{host}.example.org"}).status_code)


def block(field: str, value: str) -> RateLimitOverride:
    override = RateLimitOverride(field=field, effect="block")
    override.set_value(value)
    override.full_clean()
    override.save()
    return override


def rule(**fields: Any) -> RateLimitRule:
    return RateLimitRule.objects.create(
        **{"name": "api", "path": "/ok/", "key": "tenant", "rate": "2/m", **fields}
    )


def test_a_rule_can_count_by_tenant() -> None:
    """The rule applies after it was saved, and each tenant has its own count."""
    rule()
    assert [get("acme") for _ in range(3)] == [200, 200, 429]
    assert get("globex") == 200


def test_a_key_is_read_again_if_the_view_authenticates_another_user() -> None:
    """The middleware has read the plan of an anonymous user before DRF authenticates."""
    request = build_request("/ok/")
    users = (request.user, User(username="pro", pk=7))
    plans = [compile_key("plan").read("", request, user) for user in users]
    assert plans == [("plan", "free"), ("plan", "pro")]


def test_a_view_can_count_by_tenant_and_address(rf: Any) -> None:
    """The key works alone and in a combination. Requests without a value share a count."""

    def statuses(name: str, key: Any, *hosts: str) -> list[int]:
        view = ratelimit(name, key=key, rate="1/h")(ok)
        return [view(rf.get("/", headers={"host": host})).status_code for host in hosts]

    hosts = ("acme.example.org", "acme.example.org", "globex.example.org")
    assert statuses("both", ("tenant", "ip"), *hosts) == [200, 429, 200]
    assert statuses("alone", "tenant", "a", "b") == [200, 429]


def test_a_key_value_of_another_type_is_an_error_that_names_the_key(rf: Any) -> None:
    """A rule of the admin with such a key is left out."""
    with pytest.raises(LimitError, match=r"RATELIMIT_KEYS\['broken'\] returned a object"):
        ratelimit("broken", key="broken", rate="1/h")(ok)(rf.get("/"))
    rule(key="broken", rate="0/m")
    assert get("acme") == 200


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (["tenant"], "must be a dict"),
        ({"Tenant": tenant}, "the name 'Tenant' is invalid"),
        ({"a:b": tenant}, "the name 'a:b' is invalid"),
        *(({name: tenant}, "reserved") for name in ("ip", "header", "exact", "network")),
        *(({name: tenant}, "reserved") for name in ("digest", "entry")),
        ({"tenant": "nowhere.tenant"}, "cannot be imported"),
        ({"tenant": 7}, "use a function"),
        ({"tenant": later}, "is a coroutine function; use a plain one"),
        ({"tenant": lambda group, request: "x"}, "must accept \\(request\\)"),
        ({"tenant": Key("tenant", tenant, needs_user=True)}, "must accept \\(request, user\\)"),
    ],
)
def test_an_invalid_key_setting_is_an_error_of_the_check(
    keys: Any, problem: str, settings: Any
) -> None:
    """The message names the setting and the key."""
    settings.RATELIMIT_KEYS = keys
    with pytest.raises(ImproperlyConfigured, match=problem):
        registered_keys()
    (message,) = check_settings()
    assert message.id == "django_ratelimit_lua.E001"
    assert re.search(problem, message.msg)
    assert compile_key("ip").name == "ip"


def test_the_rule_form_offers_registered_keys(operator: Client) -> None:
    """The keys have their labels, and an unknown key is an error."""
    page = operator.get(f"{RULES}add/").content.decode()
    assert '<option value="tenant">Tenant</option>' in page
    assert '<option value="plan">Plan</option>' in page
    sent = given(name="form", path="/ok/", key="tenant", rate="1/h")
    assert operator.post(f"{RULES}add/", sent).status_code == 302
    assert [get("acme"), get("acme")] == [200, 429]
    page = operator.post(f"{RULES}add/", given(name="x", path="/", key="tenat", rate="1/h"))
    assert "Unknown key" in str(errors(page))


def test_a_tenant_can_be_blocked_and_exempt_by_overrides() -> None:
    """An override applies to rules with other keys, and without a rule."""
    rule(key="ip", rate="100/m")
    override = block("tenant", "acme")
    assert [get("acme"), get("globex"), get("acme", "/free/")] == [429, 200, 429]
    override.delete()
    assert get("acme") == 200


def test_an_override_needs_a_key_and_a_value() -> None:
    """The error lists the keys of the site."""
    with pytest.raises(ValidationError, match=r"kwarg:NAME, tenant, plan"):
        RateLimitOverride(field="tenat", effect="block").full_clean(exclude=["subject", "kind"])
    with pytest.raises(ValidationError, match="value is missing"):
        RateLimitOverride(field="tenant", effect="block").full_clean(exclude=["subject", "kind"])


@pytest.mark.parametrize(("field", "value"), [("plan", "pro"), ("groups", "gold")])
@pytest.mark.parametrize("url", ["/ok/", "/aok/"])
def test_keys_that_use_the_user_work_under_wsgi_and_asgi(field: str, value: str, url: str) -> None:
    """Rules, tiers and overrides may query the database."""
    user = User.objects.create(username="pro")
    user.groups.add(Group.objects.create(name="gold"))
    row = rule(key=field, path=url, rate="1/m")
    client, aclient = Client(), AsyncClient()
    client.force_login(user)
    async_to_sync(aclient.aforce_login)(user)
    aget = async_to_sync(aclient.get)

    def statuses(*ways: Any) -> list[int]:
        return [way(url).status_code for way in ways]

    assert statuses(client.get, aget) == [200, 429]
    add_tier(row, f"{field}:{value}", "2/m")
    assert statuses(client.get, aget, aget) == [200, 200, 429]
    row.delete()
    block(field, value)
    assert statuses(client.get, aget) == [429, 429]
    assert [Client().get(url).status_code, get("acme", url)] == [200, 200]


def test_an_override_by_plan_reports_a_missing_middleware(settings: Any, caplog: Any) -> None:
    """The log names the missing middleware, and the request is served."""
    settings.MIDDLEWARE = [LIMITS]
    block("plan", "pro")
    assert get("acme") == 200
    assert "Overrides by plan are not applied" in caplog.text
    assert "add django.contrib.auth.middleware.AuthenticationMiddleware" in caplog.text


def test_a_plan_can_be_the_audience_of_a_tier() -> None:
    """A tier by a key needs no Django group, and works together with one."""
    row = rule(key="user_or_ip", rate="1/m")
    add_tier(row, "plan:pro", "3/m")
    add_tier(row, "gold", "4/m")
    clients = {}
    for name in ("free", "pro", "pro-gold"):
        clients[name] = Client(REMOTE_ADDR=ADDRESS)
        clients[name].force_login(User.objects.create(username=name))
    User.objects.get(username="pro-gold").groups.add(Group.objects.create(name="gold"))
    admitted = {
        name: [get("acme", client=client) for _ in range(5)].count(200)
        for name, client in clients.items()
    }
    assert admitted == {"free": 1, "pro": 3, "pro-gold": 4}
    assert [get("acme") for _ in range(2)] == [200, 429]


def test_a_tier_by_tenant_needs_no_user(settings: Any) -> None:
    """It needs no middleware for users, and works in async views."""
    settings.MIDDLEWARE = [LIMITS]
    row = rule(key="ip", path="/aok/", rate="1/m")
    add_tier(row, "tenant:acme", "3/m")

    def admitted(host: str) -> int:
        send = async_to_sync(AsyncClient().get)
        headers = {"x-tenant": host}
        return [send("/aok/", headers=headers).status_code for _ in range(5)].count(200)

    assert admitted("globex") == 1
    row.delete()
    row = rule(name="again", key="ip", path="/aok/", rate="1/m")
    add_tier(row, "tenant:acme", "3/m")
    assert admitted("acme") == 3


def test_a_client_is_found_by_the_value_of_a_key(operator: Client) -> None:
    """Its page shows the limit, and a block of the client applies."""
    rule(rate="1/m")
    for name in ("acme", "globex"):
        get(name)
    page = operator.get(CLIENTS, {"q": "acme"}, follow=True)
    assert "Refused by" in page_text(page)
    assert digest(("tenant", "acme")).decode() in page.redirect_chain[-1][0]
    RateLimitRule.objects.update(rate="9/m")
    RateLimitRule.objects.get().save()
    press(operator, digest(("tenant", "globex")).decode(), "block", duration="3600")
    assert [get("globex"), get("initech")] == [429, 200]


def test_commands_accept_a_tenant(
    direct: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands are `ratelimit explain`, `block` and `forget`."""

    def said(*arguments: str) -> str:
        output = io.StringIO()
        call_command("ratelimit", *arguments, stdout=output, stderr=output)
        return output.getvalue()

    monkeypatch.setattr(clients, "IN_FLIGHT_SECONDS", 0.0)
    rule(rate="1/m")
    assert get("acme") == 200
    assert "would be refused" in said("rules", "explain", "--path=/ok/", "--key", "tenant=acme")
    said("block", "--key", "tenant=globex", "--for", "1h")
    assert get("globex") == 429
    unknown = "--key 'tenat' is not in RATELIMIT_KEYS; known keys: tenant, plan"
    with pytest.raises(CommandError, match=unknown):
        said("block", "--key", "tenat=acme", "--for", "1h")
    client = digest(("tenant", "acme")).decode()
    assert traces(direct, prefix, client)
    said("forget", "--key", "tenant=acme")
    assert traces(direct, prefix, client) == []
    assert get("acme") == 200


def test_a_key_masks_its_values(settings: Any) -> None:
    """The function of the key masks its values, except missing ones."""
    assert display_name(("plan", "pro")) == [("plan", "secret")]
    assert display_name(("plan", None)) == [("plan", "—")]
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"
    assert display_name(("plan", "pro")) == [("plan", "pro")]


def test_rules_with_a_removed_key_are_skipped_and_reported(
    caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    """Other rules apply, and the log names the unknown key."""
    rule()
    rule(name="plain", key="ip", rate="1/m")
    settings.RATELIMIT_KEYS = {}
    assert [get("acme"), get("acme")] == [200, 429]
    assert "Unknown key 'tenant'" in caplog.text


def test_operators_see_that_a_key_was_removed(operator: Client, settings: Any) -> None:
    """A tier by the removed key is left out, but its rule is not."""
    rule()
    add_tier(rule(name="plain", key="ip", rate="1/m"), "plan:pro", "5/m")
    block("tenant", "acme")
    settings.RATELIMIT_KEYS = {}
    page = page_text(operator.get(RULES))
    found = " ".join(health().problems)
    for problem in ("Unknown key 'tenant'", "'plan:pro' is not KEY:VALUE"):
        assert problem in found
        assert problem in page
    assert "'tenant' match no request: the key is not registered" in found
    assert [get("acme"), get("acme")] == [200, 429]
