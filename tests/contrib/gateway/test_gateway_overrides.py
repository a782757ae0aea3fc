"""Overrides apply to services that call the gateway as they do to requests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path
from django.utils import timezone
from hypothesis import strategies as st

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.gateway.asgi import application as alone
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from tests.contrib.gateway import test_gateway_decide as deciding
from tests.contrib.gateway.asgi import ask
from tests.contrib.gateway.test_gateway_decide import Decide, verdicts
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
    "a header": Whom(
        {"field": "header:X-API-Key", "value": "Gold"},
        "header:x-api-key",
        {"headers": {"X-API-Key": "gold"}},
        {"header:x-api-key": "GOLD"},
        {"header:x-api-key": "tin"},
    ),
    "a field of a form": Whom(
        {"field": "data:name", "value": "ada"},
        "post:name",
        {"data": {"name": "Ada"}},
        {"post:name": "Ada"},
        {"get:name": "Ada"},
        "post",
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
    row = override(**whom.about, rule=rule.name, effect="limit", limit=3, unit="h")

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
    row = override(user=ada, rule=orders.name, effect="exempt")
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
    override(user=ada, rule="reports", effect="limit", limit=2, unit="x")
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


@pytest.mark.usefixtures("quiet")
def test_looking_up_overrides_costs_no_further_call(
    token: str,
    orders: RateLimitRule,
    ada: User,
    direct: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each call runs one script, with or without overrides."""
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
    override(user=ada, rule=orders.name, effect="limit", limit=5, unit="h")
    asked(2)
    assert asked(10) == {"evalsha": 10}


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
