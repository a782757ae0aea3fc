"""Overrides apply to services that call the gateway as they do to requests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.gateway.asgi import application as alone
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.rules.overrides import override_cache
from django_ratelimit_lua.testing import move_clock
from tests.contrib.gateway import proxies
from tests.contrib.gateway import test_gateway_decide as deciding
from tests.contrib.gateway.asgi import ask
from tests.contrib.gateway.test_gateway_decide import EXAMPLES, Decide, verdicts
from tests.engine.test_cost import calls

pytestmark = pytest.mark.django_db(transaction=True)
decide, token = deciding.decide, deciding.token
ADA = {"user": 7}
ORDER = {"rule": "orders", "identity": ADA}


def ok(request: HttpRequest, shop: str) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [
    path("orders/<slug:shop>/", ok),
    path("ratelimit/", include("django_ratelimit_lua.contrib.gateway.urls")),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    """A site with Django's requests and services."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [
        "tests.users.logged_in",
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ]


@pytest.fixture
def orders() -> RateLimitRule:
    """Return a rule for users."""
    return RateLimitRule.objects.create(
        name="orders", path="/orders/", key="user", limit=2, unit="h"
    )


@pytest.fixture
def ada() -> User:
    return User.objects.create(pk=7, username="ada")


def override(**fields: Any) -> RateLimitOverride:
    """Create an override. `value` is that of its field, and `client` is the identity for its
    digest.
    """
    value = fields.pop("value", None)
    if "client" in fields:
        fields["client_digest"] = digest(fields.pop("client")).decode()
    row = RateLimitOverride(**fields)
    if value is not None:
        row.set_value(value)
    row.save()
    return row


@dataclass(frozen=True)
class Whom:
    """The subject of an override, the key of the rule, the data of the request, and the identity in
    a call of a service.
    """

    about: dict[str, Any]
    key: str
    sends: dict[str, Any]
    identity: dict[str, Any]
    others: dict[str, Any] = field(default_factory=dict)
    method: str = "get"


WHOM = {
    "a user": Whom({"user_id": 7}, "user", {"headers": {"X-User": "7"}}, {"user": 7}, {"user": 8}),
    "a user, written otherwise": Whom(
        {"user_id": 7}, "user", {"headers": {"X-User": "7"}}, {"user": "07"}
    ),
    "an address": Whom(
        {"network": "203.0.113.9"},
        "ip",
        {"REMOTE_ADDR": "203.0.113.9"},
        {"ip": "203.0.113.9:4711"},
        {"ip": "203.0.113.10"},
    ),
    "a network": Whom(
        {"network": "203.0.113.0/26"},
        "ip",
        {"REMOTE_ADDR": "203.0.113.9"},
        {"ip": "203.0.113.9"},
        {"ip": "203.0.113.64"},
    ),
    "a prefix of IPv6": Whom(
        {"network": "2001:db8:1::/48"},
        "ip",
        {"REMOTE_ADDR": "2001:db8:1:2::7"},
        {"ip": "[2001:db8:1:2::7]:443"},
        {"ip": "2001:db8:2::7"},
    ),
    "an address of IPv6, of a network that is counted as one": Whom(
        {"network": "2001:db8:1:2::7"},
        "ip",
        {"REMOTE_ADDR": "2001:db8:1:2::7"},
        {"ip": "2001:db8:1:2::7"},
        {"ip": "2001:db8:3:2::8"},
    ),
    "a header": Whom(
        {"field": "header:X-API-Key", "value": "Gold"},
        "header:x-api-key",
        {"headers": {"X-API-Key": "gold"}},
        {"header:x-api-key": "GOLD"},
        {"header:x-api-key": "tin"},
    ),
    "a header, letter by letter": Whom(
        {"field": "exact:header:X-API-Key", "value": "Gold"},
        "header:X-API-Key",
        {"headers": {"X-API-Key": "Gold"}},
        {"header:X-API-Key": "Gold"},
    ),
    "a cookie": Whom(
        {"field": "cookie:sid", "value": "S1"},
        "cookie:sid",
        {"headers": {"Cookie": "sid=S1"}},
        {"cookie:sid": "S1"},
        {"cookie:sid": "s1"},
    ),
    "a parameter": Whom(
        {"field": "get:q", "value": "a"},
        "get:q",
        {"query_params": {"q": "a"}},
        {"get:q": "a"},
        {"get:q": "b"},
    ),
    "a field of a form": Whom(
        {"field": "data:name", "value": "ada"},
        "post:name",
        {"data": {"name": "Ada"}},
        {"post:name": "Ada"},
        {"get:name": "Ada"},
        "post",
    ),
    "a part of the path": Whom(
        {"field": "kwarg:shop", "value": "one"}, "kwarg:shop", {}, {"kwarg:shop": "one"}
    ),
    "a user at an address, by the digest of both": Whom(
        {"client": (("user", "7"), ("ip", "203.0.113.9"))},
        "user+ip",
        {"headers": {"X-User": "7"}, "REMOTE_ADDR": "203.0.113.9"},
        {"user": 7, "ip": "203.0.113.9"},
        {"user": 7, "ip": "198.51.100.9"},
    ),
    "an address with a field, by the digest of both": Whom(
        {"client": (("ip", "203.0.113.9"), ("header", "X-Tenant", "acme"))},
        "ip+header:X-Tenant",
        {"headers": {"X-Tenant": "acme"}, "REMOTE_ADDR": "203.0.113.9"},
        {"ip": "203.0.113.9", "header:X-Tenant": "acme"},
        {"ip": "203.0.113.9", "header:X-Tenant": "b"},
    ),
}


@pytest.mark.parametrize("name", WHOM)
def test_an_override_applies_to_requests_and_to_services(
    name: str, decide: Decide, ada: User
) -> None:
    """Requests and services share the count and the limit of the override. Other clients have the
    limit of the rule.
    """
    whom = WHOM[name]
    rule = RateLimitRule.objects.create(
        name="orders", path="/orders/", key=whom.key, limit=1, unit="h"
    )
    row = override(**whom.about, rule=rule, effect="limit", limit=3, unit="h")

    def request() -> int:
        browser: Any = Client()
        return int(getattr(browser, whom.method)("/orders/one/", **whom.sends).status_code)

    charge = {"rule": "orders", "identity": whom.identity}
    assert request() == 200
    first = decide(charge).json()["decisions"][0]
    assert (first["allowed"], first["remaining"]) == (True, 1)
    assert request() == 200
    assert [verdicts(decide(charge))[0], request()] == [False, 429]
    if whom.others:
        other = {"rule": "orders", "identity": whom.others}
        assert [verdicts(decide(other))[0] for _ in range(2)] == [True, False]
    RateLimitOverride.objects.filter(pk=row.pk).update(effect="exempt", limit=None)
    assert [verdicts(decide(charge))[0], request()] == [True, 200]
    RateLimitRule.objects.update(limit=100)
    RateLimitOverride.objects.filter(pk=row.pk).update(effect="block")
    assert [verdicts(decide(charge))[0], request()] == [False, 429]
    row.delete()
    assert [verdicts(decide(charge))[0], request()] == [True, 200]


def test_the_most_specific_override_of_several_subjects_applies(
    decide: Decide, orders: RateLimitRule, ada: User
) -> None:
    """The order is that of docs/reference/rules.rst: the digest of the whole identity, a user, a
    value, an address, its network.
    """
    who = {"ip": "203.0.113.9", "user": 7, "header:X-Tenant": "acme"}
    charge = {"rule": "orders", "identity": who}
    rows = [
        ({"network": "203.0.113.0/24"}, "block"),
        ({"network": "203.0.113.9"}, "exempt"),
        ({"field": "header:x-tenant", "value": "acme"}, "block"),
        ({"user_id": 7}, "exempt"),
        (
            {"client": (("ip", "203.0.113.9"), ("user", "7"), ("header", "X-Tenant", "acme"))},
            "block",
        ),
    ]
    for about, effect in rows:
        override(**about, effect=effect)
        assert verdicts(decide(charge))[0] is (effect == "exempt"), about
    assert verdicts(decide({**charge, "identity": {"user": 7}}))[0]
    assert verdicts(decide({**charge, "identity": {"ip": "203.0.113.8"}})) == (False, [False])


def test_a_block_defines_the_response(decide: Decide, orders: RateLimitRule, ada: User) -> None:
    """It defines the status, the message and the end. A block with a 403 has no retry time."""
    row = override(user=ada, effect="block", message="Write to abuse@example.org.")
    refused = decide(ORDER).json()["decisions"][0]
    assert refused["block"] == {"status": 429, "message": "Write to abuse@example.org."}
    assert (
        refused["allowed"],
        refused["granted"],
        refused["remaining"],
        refused["retry_after"],
    ) == (False, 0, 0, None)
    row.ends = timezone.now() + timedelta(hours=1)
    row.save()
    assert 3500 < decide(ORDER).json()["decisions"][0]["retry_after"] <= 3600
    row.forbids, row.message = True, ""
    row.save()
    forbidden = decide(ORDER).json()["decisions"][0]
    assert (forbidden["block"], forbidden["retry_after"], forbidden["reset_after"]) == (
        {"status": 403, "message": ""},
        None,
        0.0,
    )
    assert "block" not in decide({**ORDER, "identity": {"user": 8}}).json()["decisions"][0]


def test_a_blocked_client_takes_no_units_of_others(
    decide: Decide, orders: RateLimitRule, ada: User
) -> None:
    """Together, no charge takes units. Separately, only the blocked client is refused."""
    override(user=ada, effect="block")
    grace = {"rule": "orders", "identity": {"user": 8}}
    assert verdicts(decide(ORDER, grace)) == (False, [False, True])
    assert verdicts(decide(ORDER, grace, together=False)) == (False, [False, True])
    assert decide(grace, operation="peek").json()["decisions"][0]["remaining"] == 1
    for operation, more in (
        ("peek", {}),
        ("reserve", {"timeout": 60}),
        ("acquire", {"timeout": 60}),
    ):
        assert verdicts(decide(ORDER, operation=operation, **more)) == (False, [False])


def test_nothing_is_counted_for_an_exempt_client(
    decide: Decide, orders: RateLimitRule, ada: User
) -> None:
    """Charges of other clients in the same call are counted. Refunds of an exempt client change no
    count.
    """
    assert [verdicts(decide(ORDER))[0] for _ in range(3)] == [True, True, False]
    row = override(user=ada, rule=orders, effect="exempt")
    grace = {"rule": "orders", "identity": {"user": 8}}
    free, counted = decide(ORDER, grace).json()["decisions"]
    assert (free["allowed"], free["granted"], free["remaining"], free["retry_after"]) == (
        True,
        1,
        None,
        0.0,
    )
    assert (counted["allowed"], counted["remaining"]) == (True, 1)
    for operation, more in (
        ("peek", {}),
        ("refund", {}),
        ("reserve", {"timeout": 1}),
        ("acquire", {"timeout": 1}),
    ):
        assert verdicts(decide(ORDER, operation=operation, **more)) == (True, [True])
    row.delete()
    assert decide(ORDER, operation="peek").json()["decisions"][0]["remaining"] == 0


def test_units_taken_before_a_block_can_be_refunded(
    decide: Decide, orders: RateLimitRule, ada: User
) -> None:
    """For example, a job failed after its client was blocked."""
    assert verdicts(decide({**ORDER, "cost": 2}))[0]
    row = override(user=ada, effect="block")
    assert decide(ORDER, operation="refund").status == 200
    row.delete()
    assert decide(ORDER, operation="peek").json()["decisions"][0]["remaining"] == 1


def test_the_wait_for_a_turn_uses_the_rate_of_the_override(decide: Decide, ada: User) -> None:
    """`reserve` and `acquire` wait according to the rate of the override."""
    rule = RateLimitRule.objects.create(
        name="turns", path="/turns/", key="user", limit=1, unit="h", algorithm="leaky_bucket"
    )
    override(user=ada, rule=rule, effect="limit", limit=10, unit="s")
    turns = {"rule": "turns", "identity": ADA}
    waits = [
        decide(turns, operation="reserve", timeout=10).json()["decisions"][0]["wait"]
        for _ in range(4)
    ]
    assert 0 < waits[-1] < 1
    assert decide(turns, operation="acquire", timeout=10).json()["allowed"]
    assert not decide(
        {**turns, "identity": {"user": 8}, "cost": 2}, operation="reserve", timeout=10
    ).json()["allowed"]


def test_a_slot_is_released_although_an_override_was_added(decide: Decide, ada: User) -> None:
    """A client that is now blocked or exempt releases its slot. A blocked client gets no new slot,
    and an exempt client's slot is not counted.
    """
    RateLimitRule.objects.create(
        name="reports", group="reports", key="user", limit=1, unit="x", algorithm="concurrency"
    )
    report = {"rule": "reports", "identity": ADA}
    for effect in ("block", "exempt"):
        taken = decide(report, operation="slot", seconds=600).json()
        assert taken["allowed"]
        row = override(user=ada, effect=effect)
        again = decide(report, operation="slot", seconds=600).json()
        assert (again["allowed"], "slot" in again) == ((effect == "exempt"), (effect == "exempt"))
        for slot in filter(None, (taken["slot"], again.get("slot"))):
            assert decide(report, operation="release", slot=slot).status == 200
        row.delete()
        assert decide(report, operation="peek").json()["decisions"][0]["remaining"] == 1
    override(user=ada, effect="limit", limit=2, unit="x")
    slots = [decide(report, operation="slot", seconds=600).json().get("slot") for _ in range(3)]
    assert [slot is not None for slot in slots] == [True, True, False]


def test_an_unnamed_client_has_no_overrides(
    decide: Decide, orders: RateLimitRule, ada: User
) -> None:
    """Text, numbers and lists are not values of keys, so no override matches them. Overrides do not
    apply to limiters in code either.
    """
    override(user=ada, effect="block")
    override(field="get:q", value="7", effect="block")
    for identity in (7, "7", None, ["user", 7], ["user", "7"], {"session": "7"}, {"path": "/7"}):
        assert verdicts(decide({"rule": "orders", "identity": identity}))[0], identity
    limiter = RateLimiter("in the code", "1/h")
    assert verdicts(decide({"limit": "in the code", "identity": ADA}))[0]
    assert not limiter.hit(("user", "7"))
    assert verdicts(decide({"limit": "in the code", "identity": ADA}, ORDER)) == (
        False,
        [False, False],
    )


def test_a_block_for_all_rules_needs_no_rule_that_refuses(decide: Decide, ada: User) -> None:
    """A block applies under a rule that is off or in shadow mode, as in requests. Under an
    exempting rule it does not.
    """
    for number, more in enumerate(
        ({"mode": "off"}, {"mode": "shadow"}, {"exempt": True, "limit": None})
    ):
        RateLimitRule.objects.create(
            name=f"rule {number}", path=f"/{number}/", key="user", unit="h", **{"limit": 5, **more}
        )
    row = override(user=ada, effect="block")
    asked = [{"rule": f"rule {number}", "identity": ADA} for number in range(3)]
    assert verdicts(decide(*asked)) == (False, [False, False, True])
    refused = decide(*asked, together=False).json()
    assert [bool(decision.get("block")) for decision in refused["decisions"]] == [True, True, False]
    assert decide(*asked[:2], operation="refund").json()["allowed"]
    RateLimitOverride.objects.filter(pk=row.pk).update(
        rule=RateLimitRule.objects.get(name="rule 1")
    )
    assert verdicts(decide(*asked)) == (True, [True, True, True]), (
        "of a rule in shadow mode it refuses nobody"
    )


def test_every_rate_of_a_rule_is_overridden(decide: Decide, ada: User) -> None:
    """An override gives one decision, whatever number of rates the rule has."""
    RateLimitRule.objects.create(
        name="orders", path="/orders/", key="user", limit=5, unit="m", more_rates=["9/h"]
    )
    row = override(user=ada, effect="block")
    assert verdicts(decide(ORDER, {**ORDER, "identity": {"user": 8}})) == (False, [False, True])
    RateLimitOverride.objects.filter(pk=row.pk).update(effect="exempt")
    free, counted = decide(ORDER, {**ORDER, "identity": {"user": 8}}).json()["decisions"]
    assert (free["remaining"], counted["remaining"]) == (None, 4)


def test_any_number_of_networks_is_looked_up(decide: Decide) -> None:
    """A call with the maximum number of addresses is decided for overrides of every
    prefix length.
    """
    RateLimitRule.objects.create(name="orders", path="/orders/", key="ip", limit=2, unit="h")
    RateLimitOverride.objects.bulk_create(
        RateLimitOverride(network=f"2001:db8::/{size}", effect="exempt") for size in range(33, 129)
    )
    override(network="2001:db8:9063::/48", effect="block")
    charges = [
        {"rule": "orders", "identity": {"ip": f"2001:db8:{0x9000 + n:x}:1::1"}} for n in range(100)
    ]
    answer = decide(*charges)
    assert verdicts(answer) == (False, [True] * 99 + [False])
    assert {decision["source"] for decision in answer.json()["decisions"]} == {"redis"}
    assert {decision["remaining"] for decision in decide(*charges[:99]).json()["decisions"]} == {1}


def test_an_override_begins_and_ends_on_time(token: str, orders: RateLimitRule, ada: User) -> None:
    """The override begins and ends by the clock of the process, without being saved again."""

    def is_allowed() -> bool:
        body = json.dumps({"charges": [{**ORDER, "cost": 0}]}).encode()
        answer = ask(
            alone, "/decide", [(b"authorization", f"Bearer {token}".encode())], "POST", body=(body,)
        )
        return bool(answer.json()["allowed"])

    with move_clock() as clock:
        now = timezone.now()
        override(
            user=ada, effect="block", starts=now + timedelta(hours=1), ends=now + timedelta(hours=2)
        )
        found = []
        for seconds in (0, 1800, 3600, 3600):
            clock.advance(seconds)
            found.append(is_allowed())
    assert found == [True, True, False, True]


@pytest.mark.usefixtures("quiet")
def test_looking_up_overrides_costs_no_further_call(
    token: str,
    orders: RateLimitRule,
    ada: User,
    direct: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each call runs one script, with or without overrides. After the first call, the clients with
    overrides are cached.
    """
    monkeypatch.setattr("django_ratelimit_lua.engine.decide.decision_hooks", [])
    body = json.dumps(
        {"charges": [{**ORDER, "cost": 0}, {**ORDER, "identity": {"user": 8}, "cost": 0}]}
    ).encode()

    def asked(times: int) -> dict[str, int]:
        direct.config_resetstat()
        for _ in range(times):
            answer = ask(
                alone,
                "/decide",
                [(b"authorization", f"Bearer {token}".encode())],
                "POST",
                body=(body,),
            )
            assert answer.status == 200
        found = calls(direct)
        return {name: found[name] for name in ("evalsha", "eval", "hget") if name in found}

    asked(2)
    assert asked(10) == {"evalsha": 10}
    override(user=ada, effect="limit", limit=5, unit="h")
    asked(2)
    assert asked(10) == {"evalsha": 10}
    override_cache.clear()
    assert asked(1)["evalsha"] == 2


MODELS = """
from django_ratelimit_lua.contrib.gateway.models import RateLimitClient
from django_ratelimit_lua.models import RateLimitOverride
"""


def shell(site: proxies.Site, code: str) -> str:
    """Return the output of code that runs with the site's models."""
    return site.command("shell", command=f"{MODELS}{code}", verbosity=0).strip()


@pytest.mark.parametrize("application", ["alone", "asgi"])
def test_an_edit_in_one_process_applies_to_the_next_request_in_another(
    application: str, tmp_path: Path
) -> None:
    """A block of a network begins and ends when the save returns. While Redis is unavailable, known
    overrides apply.
    """
    rules = [
        {
            "name": "orders",
            "path": "/orders/",
            "key": "ip",
            "rate": "1000/h",
            "on_store_error": "open",
        }
    ]
    addresses = ("203.0.113.9", "198.51.100.9", "2001:db8:1:2::3")
    with proxies.Site(tmp_path, rules, application) as site:
        token = shell(
            site,
            'one = RateLimitClient(name="shop", limits="*", '
            "may_refund=True)\nprint(one.new_token())\none.save()",
        )

        def allowed() -> list[bool]:
            charges = [{"rule": "orders", "identity": {"ip": address}} for address in addresses]
            body = json.dumps({"charges": charges, "together": False}).encode()
            bearer = f"Bearer {token}"
            answer = proxies.ask(site.port, "/ratelimit/decide", "POST", body, Authorization=bearer)
            assert answer.status == 200, answer
            return verdicts(answer)[1]

        assert allowed() == [True, True, True]
        for network, found in (
            ("203.0.113.0/24", [False, True, True]),
            ("2001:db8::/32", [False, True, False]),
        ):
            shell(site, f'RateLimitOverride.objects.create(network="{network}", effect="block")')
            assert allowed() == found
        shell(site, "RateLimitOverride.objects.last().delete()")
        first = allowed()
        assert first.count(False) == 1
        site.redis.stop()
        assert allowed() == first


ODD = {
    "ip": st.sampled_from(
        ["203.0.113.9", "203.0.113.9:80", "::ffff:203.0.113.9", "2001:db8::1%eth0", "x", "", "0"]
    ),
    "user": st.sampled_from([7, "7", " 7", "x", "", -1, 2**62, "\ud800"]),
    "header:X-A": st.sampled_from(["a", "A", "", "\x00"]),
    "exact:header:x_a": st.sampled_from(["a", "A"]),
    "get:q": st.sampled_from(["a", 0]),
}
charges = st.fixed_dictionaries(
    {
        "limit": st.sampled_from(["mail", "mail.all", "turns", "off", "shadow", "reports"]),
        "identity": st.fixed_dictionaries({}, optional=ODD) | st.sampled_from(["a", 7]),
    },
    optional={"cost": st.integers(0, 3)},
)
asking = st.sampled_from(
    [
        {},
        {"operation": "peek"},
        {"operation": "refund"},
        {"operation": "reserve", "timeout": 60},
        {"operation": "acquire", "timeout": 0},
        {"operation": "slot", "seconds": 2},
        {"operation": "release", "slot": "A" * 27},
    ]
)


@pytest.fixture
def said(settings: Any, ada: User) -> None:
    """Overrides of every subject and effect for all rules, and the rules of the other tests."""
    deciding.limits.__wrapped__(settings)  # type: ignore[attr-defined]
    override(user=ada, effect="exempt")
    override(network="203.0.113.0/24", effect="block")
    override(network="2001:db8::/32", effect="limit", limit=1, unit="s", burst=3)
    override(network="::/0", effect="exempt")
    override(field="header:X-A", value="a", effect="limit", limit=0, unit="h")
    override(field="exact:header:X-A", value="A", effect="block")
    override(client=("get", "q", "a"), effect="block", ends=timezone.now() + timedelta(seconds=5))
    override(field="get:q", value="0", effect="exempt")


@hypothesis_settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(charges=st.lists(charges, min_size=1, max_size=4), more=asking, together=st.booleans())
def test_no_request_causes_an_error_if_overrides_exist(
    token: str, said: None, charges: list[Any], more: dict[str, Any], together: bool
) -> None:
    """For any identities, each response matches the schema of the document."""
    body = json.dumps({"charges": charges, "together": together, **more}).encode()
    answer = ask(
        alone, "/decide", [(b"authorization", f"Bearer {token}".encode())], "POST", body=(body,)
    )
    assert answer.status in (200, 422), answer
    if answer.status == 200:
        deciding.schema("Answer").validate(answer.json())
