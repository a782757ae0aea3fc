"""The `decide` URL of the gateway for services: tokens, permitted limits, and decisions together or
separately.
"""

from __future__ import annotations

import asyncio
import html
import io
import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.gateway import asgi, decide_request, views
from django_ratelimit_lua.contrib.gateway.answer import ProblemError
from django_ratelimit_lua.contrib.gateway.asgi import application as alone
from django_ratelimit_lua.contrib.gateway.decide import noting
from django_ratelimit_lua.contrib.gateway.decide_request import read_decide_request
from django_ratelimit_lua.contrib.gateway.models import RateLimitClient, token_digest
from django_ratelimit_lua.contrib.gateway.openapi import document
from django_ratelimit_lua.limits.call import MAX_COST
from django_ratelimit_lua.models import RateLimitChange, RateLimitRule
from django_ratelimit_lua.web.refusal_log import refusal_log
from tests.contrib.gateway.asgi import aask, ask
from tests.contrib.gateway.proxies import Answer
from tests.examples import examples
from tests.users import ADMIN_MIDDLEWARE

EXAMPLES = examples(200)
pytestmark = pytest.mark.django_db(transaction=True)
Decide = Callable[..., Answer]
MAIL = {"limit": "mail", "identity": "ada"}


def schema(name: str) -> Draft202012Validator:
    whole = document()["components"]["schemas"]
    text = json.dumps({**whole[name], "$defs": whole}).replace("#/components/schemas/", "#/$defs/")
    return Draft202012Validator(json.loads(text))


@pytest.fixture(autouse=True)
def limits(settings: Any) -> None:
    """Rules in the settings."""
    settings.ROOT_URLCONF = "tests.contrib.gateway.gateway_site"
    settings.RATELIMIT_RULES = [
        {"name": "mail", "path": "/mail/", "key": "user", "rate": "3/h"},
        {"name": "mail.all", "path": "/mail/", "key": "ip", "rate": ["5/h", "100/d"]},
        {
            "name": "turns",
            "path": "/turns/",
            "key": "ip",
            "rate": "5/s",
            "algorithm": "leaky_bucket",
        },
        {
            "name": "reports",
            "group": "reports",
            "key": "ip",
            "rate": "1",
            "algorithm": "concurrency",
        },
        {"name": "off", "path": "/off/", "key": "ip", "rate": "0/h", "mode": "off"},
        {"name": "shadow", "path": "/shadow/", "key": "ip", "rate": "0/h", "mode": "shadow"},
        {
            "name": "shade",
            "path": "/",
            "key": "ip",
            "rate": "1/h",
            "algorithm": "leaky_bucket",
            "mode": "shadow",
        },
        {
            "name": "function",
            "path": "/f/",
            "key": "ip",
            "rate": "tests.contrib.gateway.test_gateway_decide.rate_of",
        },
    ]


def rate_of(group: str, request: Any) -> str:
    return "1/h"


@pytest.fixture
def token() -> str:
    """Return the token of a client with all permissions."""
    client = RateLimitClient(name="mailer", limits="*", may_refund=True)
    made = client.new_token()
    client.save()
    return made


@pytest.fixture(params=["alone", "asgi"])
def decide(request: pytest.FixtureRequest, token: str) -> Decide:
    """Call the URL as a service does."""

    def asks(
        *charges: Any,
        token: str | None = token,
        body: bytes | None = None,
        method: str = "POST",
        peer: str = "127.0.0.1",
        **more: Any,
    ) -> Answer:
        if body is None:
            body = json.dumps({"charges": charges, **more}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        headers += [(b"authorization", f"Bearer {token}".encode())] if token is not None else []
        application = alone if request.param == "alone" else ASGIHandler()
        answer = ask(application, "/ratelimit/decide", headers, method, body=(body,), peer=peer)
        assert noting.wait(30)  # SQLite takes one writer at a time.
        if answer.status == 200:
            schema("Answer").validate(answer.json())
        else:
            assert answer.headers["content-type"] == "application/problem+json"
            schema("Problem").validate(answer.json())
            assert answer.json()["status"] == answer.status
        return answer

    return asks


def verdicts(answer: Answer) -> tuple[bool, list[bool]]:
    return answer.json()["allowed"], [
        decision["allowed"] for decision in answer.json()["decisions"]
    ]


def test_a_batch_is_decided_together_or_each_charge_separately(decide: Decide) -> None:
    """Together, a refusal by one limit takes no units of any other."""
    both = ({**MAIL, "cost": 2}, {"rule": "mail.all", "identity": ["everybody", 1], "cost": 2})
    assert verdicts(decide(*both)) == (True, [True, True])
    refused = decide(*both)
    assert verdicts(refused) == (False, [False, True])
    assert [one["remaining"] for one in refused.json()["decisions"]] == [1, 3]
    assert refused.json()["decisions"][0]["retry_after"] > 0
    assert [one["granted"] for one in refused.json()["decisions"]] == [0, 0]
    assert verdicts(decide(*both, together=False)) == (False, [False, True])
    assert verdicts(decide(*both, operation="peek", together=False)) == (False, [False, False])


def test_a_partial_charge_takes_the_available_units(decide: Decide) -> None:
    """With `partial`, `granted` is the number of units, and the charge is refused only if there is
    none. Limits of one name, and charges that are decided together, take the same number. A
    separate charge takes its own.
    """

    def granted(*charges: Any, **more: Any) -> tuple[bool, list[int]]:
        answer = decide(*charges, **more).json()
        return answer["allowed"], [decision["granted"] for decision in answer["decisions"]]

    want = {**MAIL, "cost": 2, "partial": True}
    assert [granted(want) for _ in range(3)] == [(True, [2]), (True, [1]), (False, [0])]
    assert granted({**want, "identity": "bob", "cost": 9}) == (True, [3])
    assert granted({**want, "identity": "cy", "partial": False, "cost": 9}) == (False, [0])
    assert granted({**want, "limit": "off", "cost": 9}) == (True, [9])
    both = ({**want, "identity": "dee", "cost": 4}, {**want, "limit": "mail.all", "cost": 4})
    assert granted(*both) == (True, [3, 3])
    assert granted(*both) == (False, [0, 0])
    assert granted(*both, together=False) == (False, [0, 2])
    for other in ({"cost": 3}, {"partial": False}):
        refused = decide(want, {**want, "identity": "eve", **other})
        assert (refused.status, "together=false" in refused.json()["detail"]) == (422, True)


def test_units_can_be_peeked_and_refunded(decide: Decide) -> None:
    """The operations are `peek` and `refund`. The count is shared with a `RateLimiter` and Django's
    requests.
    """
    assert verdicts(decide({**MAIL, "cost": 3})) == (True, [True])
    assert verdicts(decide(MAIL, operation="peek")) == (False, [False])
    assert RateLimiter("mail", "3/h").peek("ada").remaining == 0
    assert decide(MAIL, operation="refund").json()["decisions"][0]["remaining"] == 1
    assert verdicts(decide(MAIL)) == (True, [True])
    with_key = {"limit": "mail", "identity": {"user": 7}}
    assert verdicts(decide({**with_key, "cost": 3}))[0]
    assert not RateLimiter("mail", "3/h").hit(("user", "7"))


def test_a_turn_is_reserved_or_waited_for(decide: Decide) -> None:
    """`reserve` returns the wait, and `acquire` responds when it is the client's turn. Both refuse
    a turn after the timeout.
    """
    turns = {"limit": "turns", "identity": None}
    waits = [
        decide(turns, operation="reserve", timeout=60).json()["decisions"][0]["wait"]
        for _ in range(3)
    ]
    assert waits[0] < waits[1] < waits[2]
    assert verdicts(decide(turns, operation="reserve", timeout=0.01)) == (False, [False])
    assert decide(turns, operation="acquire", timeout=10).json()["allowed"]
    assert verdicts(
        decide({"limit": "mail", "identity": "b", "cost": 3}, operation="acquire", timeout=1)
    )[0]
    assert not verdicts(decide({"limit": "mail", "identity": "b"}, operation="acquire", timeout=1))[
        0
    ]


def test_a_shadow_limit_delays_no_request(decide: Decide) -> None:
    """The `wait` is zero, so a service that sleeps for it does not wait."""
    for operation in ("hit", "hit", "peek", "reserve"):
        told = {"operation": operation, **({"timeout": 60} if operation == "reserve" else {})}
        [decision] = decide({"limit": "shade", "identity": "ada"}, **told).json()["decisions"]
        assert (decision["allowed"], decision["wait"]) == (True, 0)


def test_slots_are_held_until_they_are_released(decide: Decide) -> None:
    """The slot in the response releases it. No other value releases anything."""
    report = {"limit": "reports", "identity": "ada"}
    taken = decide(report, operation="slot", seconds=30)
    assert taken.json()["allowed"]
    refused = decide(report, operation="slot", seconds=30)
    assert (refused.json()["allowed"], "slot" in refused.json()) == (False, False)
    other = decide({**report, "identity": "grace"}, operation="slot", seconds=30).json()["slot"]
    assert decide(report, operation="release", slot=other).status == 200
    assert decide(report, operation="release", slot="A" * 27).status == 200
    assert not decide(report, operation="slot", seconds=30).json()["allowed"]
    assert decide(report, operation="release", slot=taken.json()["slot"]).status == 200
    assert decide(report, operation="slot", seconds=30).json()["allowed"]
    for wrong in (
        {"operation": "hit"},
        {"operation": "release", "slot": "short"},
        {"operation": "slot"},
    ):
        assert decide(report, **wrong).status == 422
    assert decide(MAIL, operation="slot", seconds=30).status == 422
    assert decide(MAIL, operation="release", slot=other).status == 422


def test_each_slot_taken_separately_can_be_released(decide: Decide) -> None:
    """Each allowed decision has its own slot, and a refused decision has none."""
    reports = [{"limit": "reports", "identity": name} for name in ("ada", "grace", "ada")]
    answer = decide(*reports, operation="slot", seconds=30, together=False).json()
    slots = [decision.get("slot") for decision in answer["decisions"]]
    assert sorted(decision["allowed"] for decision in answer["decisions"]) == [False, True, True]
    assert [slot is not None for slot in slots] == [
        decision["allowed"] for decision in answer["decisions"]
    ]
    for report, slot in zip(reports, slots, strict=True):
        assert slot is None or decide(report, operation="release", slot=slot).status == 200
    assert verdicts(decide(*reports[:2], operation="slot", seconds=30)) == (True, [True, True])


def test_services_cannot_ban_networks_that_are_never_banned(decide: Decide, settings: Any) -> None:
    """An address in the list is not banned, alone or with a user. Another address is banned."""
    settings.RATELIMIT_NEVER_BAN = ["192.0.2.0/24"]
    settings.RATELIMIT_RULES = [
        {
            "name": "tries",
            "path": "/tries/",
            "key": "ip",
            "rate": "1/d",
            "ban_after": 1,
            "ban_for": "30d",
        }
    ]
    for address, is_banned in (("192.0.2.7", False), ("198.51.100.7", True)):
        for key in ("ip", "user"):
            who = {"ip": address, "user": 7} if key == "user" else {"ip": address}
            decisions = [
                decide({"limit": "tries", "identity": who}).json()["decisions"][0] for _ in range(3)
            ]
            assert (decisions[-1]["retry_after"] > 10 * 86_400) is is_banned, who


def test_a_disabled_site_allows_every_request(decide: Decide, settings: Any) -> None:
    """Releasing a slot is no error either."""
    settings.RATELIMIT_ENABLE = False
    report = {"limit": "reports", "identity": "ada"}
    taken = [decide(report, operation="slot", seconds=30).json() for _ in range(2)]
    assert [answer["allowed"] for answer in taken] == [True, True]
    assert decide(report, operation="release", slot=taken[0]["slot"]).status == 200


@pytest.mark.parametrize(
    "wrong", [{"limit": "nowhere"}, {"limit": "reports"}, {"limit": "function"}]
)
def test_a_refused_batch_takes_no_units(decide: Decide, wrong: dict[str, str]) -> None:
    """No unit is taken with `together=false` either, because a repeated call would take
    it again.
    """
    assert decide(MAIL, {**wrong, "identity": 1}, together=False).status == 422
    assert decide(MAIL, operation="peek").json()["decisions"][0]["remaining"] == 3


def test_a_body_is_read_only_up_to_its_maximum(settings: Any) -> None:
    """Django's view also stops at the maximum if the body has no length."""
    body = io.BytesIO(bytes(1_000_000))
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/decide",
        "query_string": b"",
        "headers": [],
    }
    assert asyncio.run(views.decide(ASGIRequest(scope, body))).status_code == 401
    assert body.tell() <= decide_request.MAX_BYTES + 1


def test_a_rule_that_is_off_or_in_shadow_mode_never_refuses(decide: Decide) -> None:
    """This is the same as for requests."""
    for name in ("off", "shadow"):
        assert decide({"limit": name, "identity": 1}).json()["allowed"]


def test_a_token_allows_only_the_limits_of_its_client(decide: Decide) -> None:
    """A call without a token, or for another limit, is refused. A revoked or replaced token is
    refused immediately.
    """
    few = RateLimitClient(name="few", limits="mail*\nsms")
    token = few.new_token()
    few.save()
    for wrong in (None, "", "rl_other", "é", token + "x"):
        answer = decide(MAIL, token=wrong)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert decide(body=b"no json", token="rl_other").status == 401
    assert decide(MAIL, {"limit": "mail.all", "identity": 1}, token=token).status == 200
    forbidden = decide(MAIL, {"limit": "turns", "identity": 1}, token=token)
    assert (
        forbidden.status,
        "few is not allowed to use the limit 'turns'" in forbidden.json()["detail"],
    ) == (403, True)
    assert (
        decide(
            {"limit": "reports", "identity": 1}, operation="release", slot="A" * 27, token=token
        ).status
        == 403
    )
    few.refresh_from_db()
    assert few.last_used is not None
    another = few.new_token()
    few.save()
    assert [decide(MAIL, operation="peek", token=each).status for each in (token, another)] == [
        401,
        200,
    ]
    few.is_active = False
    few.save()
    assert decide(MAIL, operation="peek", token=another).status == 401
    RateLimitClient.objects.filter(name="few").update(is_active=True)
    assert decide(MAIL, operation="peek", token=another).status == 200
    RateLimitClient.objects.filter(name="few").delete()
    assert decide(MAIL, operation="peek", token=another).status == 401
    kinds = RateLimitChange.objects.filter(kind="client", name="few").values_list(
        "action", flat=True
    )
    assert set(kinds) == {"created", "changed", "deleted"}
    assert not [
        change
        for change in RateLimitChange.objects.all()
        if another in str((change.before, change.after))
    ]


def test_only_permitted_clients_may_refund(decide: Decide) -> None:
    """A refund can undo any limit, so it needs a permission. A changed permission applies to the
    next call.
    """
    client = RateLimitClient(name="asking", limits="mail")
    token = client.new_token()
    client.save()
    assert decide({**MAIL, "cost": 3}, token=token).json()["allowed"]
    refused = decide(MAIL, operation="refund", token=token)
    assert (refused.status, refused.json()["detail"]) == (
        403,
        "asking is not allowed to refund units.",
    )
    assert not decide(MAIL, operation="peek", token=token).json()["allowed"]
    client.may_refund = True
    client.save()
    assert decide(MAIL, operation="refund", token=token).json()["allowed"]
    assert decide(MAIL, token=token).json()["allowed"]


def test_wrong_tokens_are_limited_and_logged(
    decide: Decide, caplog: pytest.LogCaptureFixture
) -> None:
    """They are limited by address, without an effect on valid tokens or new ones. No token is
    logged.
    """
    refusal_log.clear()
    answers = [decide(MAIL, token=f"rl_{number}") for number in range(13)]
    assert [answer.status for answer in answers] == [401] * 10 + [429] * 3
    assert 0 < int(answers[-1].headers["retry-after"]) <= 70
    assert decide(MAIL).status == 200
    client = RateLimitClient(name="new", limits="*")
    made = client.new_token()
    client.save()
    assert decide(MAIL, token=made).status == 200
    assert decide(MAIL, token="rl_0").status == 429
    assert decide(MAIL, token="rl_0", peer="198.51.100.7").status == 401
    records = [
        record.getMessage()
        for record in caplog.records
        if record.name == "django_ratelimit_lua.refused"
    ]
    assert [record.partition(", digest ")[0] for record in records] == [
        "Wrong token for the gateway from 127.0.0.0/24",
        "Wrong token for the gateway from 198.51.100.0/24",
    ]
    assert token_digest("rl_0")[:8] in records[0]
    assert "rl_" not in caplog.text


def test_rules_of_the_admin_can_be_used_by_name(decide: Decide) -> None:
    """The current limits of the rule apply. Limiters in imported code can be used by name
    as well.
    """
    rule = RateLimitRule.objects.create(name="orders", path="/orders/", key="ip", limit=1, unit="h")
    order = {"rule": "orders", "identity": {"ip": "203.0.113.9"}}
    assert [verdicts(decide(order))[0] for _ in range(2)] == [True, False]
    rule.limit = 3
    rule.save()
    assert verdicts(decide(order))[0]
    RateLimiter("gateway-limiter", "1/h")
    assert [verdicts(decide({"limit": "gateway-limiter", "identity": 1}))[0] for _ in range(2)] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b"{", 400, "not JSON"),
        (b'{"charges": NaN}', 400, "NaN is not a JSON number"),
        (b"[" * 60_000, 400, "not JSON"),
        (
            b'{"charges": [{"identity": 1, "limit": "mail", "limit": "off"}]}',
            400,
            "a name occurs twice",
        ),
        (b" " * 70_000, 413, "more than 65536 bytes"),
        (b"{}", 422, "The body needs charges"),
        (b'{"charges": [], "x": 1}', 422, "unknown 'x'; known members: charges, operation"),
        (b'{"charges": [1]}', 422, "charges[0] is 1. A charge is an object"),
        (
            b'{"charges": [{"limit": "mail"}]}',
            422,
            "charges[0] needs identity; known members: cost, identity",
        ),
        (b'{"charges": [{"identity": 1}]}', 422, "must have either limit or rule"),
        (
            b'{"charges": [{"identity": 1.5, "limit": "mail"}]}',
            422,
            "charges[0].identity is 1.5. An identity is text",
        ),
        (
            b'{"charges": [{"identity": [[[[1]]]], "limit": "mail"}]}',
            422,
            "nested more than 3 deep",
        ),
        (b'{"charges": [{"identity": {"id": 1}, "limit": "mail"}]}', 422, "unknown key 'id'"),
        (
            b'{"charges": [{"identity": {"ip": [1]}, "limit": "mail"}]}',
            422,
            "identity.ip is an array. Text of at most",
        ),
        (
            b'{"charges": [{"identity": {"ip": "no address"}, "limit": "mail"}]}',
            422,
            "charges[0]: identity: 'ip'",
        ),
        (
            b'{"charges": [{"identity": {"user": "ada"}, "limit": "mail"}]}',
            422,
            "'user' must be a primary key",
        ),
        (
            b'{"charges": [{"identity": 1, "limit": "mail", "cost": -1}]}',
            422,
            "[0].cost is -1. A whole number from 0",
        ),
        (
            b'{"charges": [{"identity": 1, "limit": "mail", "partial": true}], "operation": '
            b'"peek"}',
            422,
            "the operation peek does not take partial",
        ),
        (
            b'{"charges": [{"identity": 1, "limit": "nowhere"}]}',
            422,
            "There is no limit 'nowhere'.",
        ),
        (b'{"charges": [{"identity": 1, "limit": "function"}]}', 422, "are functions of a request"),
        (
            b'{"charges": [{"identity": 1, "limit": "mail"}], "operation": "take"}',
            422,
            'operation is "take". One of hit: take units; peek',
        ),
        (
            b'{"charges": [{"identity": 1, "limit": "mail"}], "together": 1}',
            422,
            "together is 1. true:",
        ),
        (
            b'{"charges": [{"identity": 1, "limit": "mail"}], "timeout": 1}',
            422,
            "the operation hit does not take timeout",
        ),
        (
            b'{"charges": [{"identity": 1, "limit": "mail"}], "operation": "acquire", "timeout": '
            b"61}",
            422,
            "timeout is 61. Of reserve and acquire: seconds from 0 to 60",
        ),
        (
            b'{"charges": [{"identity": 1, "limit": "mail"}, {"identity": 1, "limit": "mail"}]}',
            422,
            "Two charges have the same limit",
        ),
    ],
)
def test_errors_are_reported(decide: Decide, body: bytes, status: int, detail: str) -> None:
    """The problem document names the invalid member, and nothing is counted."""
    answer = decide(body=body)
    assert answer.status == status
    assert detail in answer.json()["detail"]


def test_other_methods_and_paths_are_not_answered(decide: Decide) -> None:
    """Another method gets a 405 with the allowed one, and another path a 404."""
    answer = decide(MAIL, method="GET")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert ask(alone, "/admin/", []).status == 404


def test_a_slow_client_gets_a_timeout(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """The status is 408 if the body does not arrive in time."""
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.05)

    async def slow() -> Answer:
        headers = [(b"authorization", f"Bearer {token}".encode())]
        return await aask(alone, "/decide", headers, "POST", body=[])

    assert asyncio.run(slow()).status == 408


def test_while_redis_is_unavailable_policies_decide(decide: Decide, settings: Any) -> None:
    """The response is not a server error."""
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    }
    answer = decide(MAIL)
    assert answer.status in (200, 401), "rules that were never read know no clients"


def test_the_openapi_document_matches_requests_and_responses() -> None:
    """The document is public, valid OpenAPI, and complete. The fuzz test below compares it with the
    parser.
    """
    served = ask(alone, "/ratelimit/openapi.json", [])
    assert served.json() == document()
    assert Client().get("/ratelimit/openapi.json").json() == document()
    assert served.json()["openapi"].startswith("3.1.")
    for name in document()["components"]["schemas"]:
        Draft202012Validator.check_schema(schema(name).schema)
    references = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document()))
    assert set(references) <= set(document()["components"]["schemas"])
    assert schema("Charge").schema["properties"]["cost"]["maximum"] == MAX_COST


parts = st.one_of(st.none(), st.text(max_size=5), st.integers(-(2**62), 2**62))
identities = st.one_of(
    parts,
    st.lists(parts, min_size=1, max_size=3),
    st.dictionaries(
        st.sampled_from(["ip", "user", "header:X-A", "get:q"]), st.text(max_size=4), min_size=1
    ),
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from(
    ["mail", "mail.all", "turns", "off", "shadow", "function", "nowhere", "reports"]
)
charges = st.fixed_dictionaries(
    {"identity": identities | anything},
    optional={
        "limit": names | st.text(max_size=3),
        "cost": st.integers(-1, 4) | anything,
        "partial": st.booleans() | anything,
    },
)
questions = st.fixed_dictionaries(
    {"charges": st.lists(charges, max_size=3) | anything},
    optional={
        "operation": st.sampled_from(["hit", "peek", "refund", "reserve", "slot", "release"])
        | anything,
        "together": st.booleans() | anything,
        "timeout": st.floats(0, 60) | anything,
        "seconds": st.floats(0, 60) | anything,
        "slot": st.text("Ab_-", max_size=30) | anything,
    },
)


@hypothesis_settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    body=st.one_of(questions.map(lambda asks: json.dumps(asks).encode()), st.binary(max_size=40))
)
def test_any_body_is_answered_without_a_server_error(token: str, body: bytes) -> None:
    """No body causes a server error, and every accepted body is valid under the
    document's schema.
    """
    headers = [(b"authorization", f"Bearer {token}".encode())]
    answer = ask(alone, "/decide", headers, "POST", body=(body,))
    assert answer.status in (200, 400, 422), answer
    try:
        read_decide_request(body)
    except ProblemError:
        return
    schema("Question").validate(json.loads(body))


def test_a_token_is_shown_once_in_the_admin(settings: Any) -> None:
    """It is shown when the client is created, and when the token is replaced. The list shows the
    limits, and an action revokes the client.
    """
    settings.ROOT_URLCONF = "tests.acceptance.test_admin"
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    browser = Client()
    browser.force_login(User.objects.create_superuser("root"))
    pages = "/admin/ratelimit_gateway/ratelimitclient/"
    odd = browser.post(f"{pages}add/", {"name": "shop", "limits": "a*b", "is_active": "on"})
    assert "A star is only allowed at the end: a*b." in odd.content.decode()
    made = browser.post(f"{pages}add/", {"name": "shop", "limits": "mail*\nsms", "is_active": "on"})
    token, in_command = re.findall(r"rl_[\w-]{43}", made.content.decode())
    assert token == in_command
    assert "no-store" in made.headers["cache-control"]
    shop = RateLimitClient.objects.get()
    assert (shop.names(), token in str(vars(shop))) == (["mail*", "sms"], False)
    for page in (pages, f"{pages}{shop.pk}/change/", f"{pages}{shop.pk}/history/"):
        shown = browser.get(page).content.decode()
        assert token not in shown
        assert shop.digest not in shown
    assert "mail*<br>sms" in browser.get(pages).content.decode()
    form = browser.get(f"{pages}{shop.pk}/change/").content.decode()
    assert form.index('name="_save"') < form.index(f"{shop.pk}/token/"), (
        "Enter saves, and ends no token"
    )
    again = browser.post(f"{pages}{shop.pk}/token/")
    other, _in_command = re.findall(r"rl_[\w-]{43}", again.content.decode())
    assert other != token
    assert browser.get(f"{pages}{shop.pk}/token/").status_code == 403
    saved = {"name": "shop", "limits": "sms", "may_refund": "on", "is_active": "on"}
    assert browser.post(f"{pages}{shop.pk}/change/", saved).status_code == 302
    browser.post(pages, {"action": "revoke", "_selected_action": shop.pk})
    shop.refresh_from_db()
    assert not shop.is_active
    history = browser.get("/admin/django_ratelimit_lua/ratelimitchange/").content.decode()
    assert "May use" in history
    assert "May refund units" in history
    assert RateLimitChange.objects.filter(kind="client", by="root").count() == 4
    browser.force_login(User.objects.create_user("nobody", is_staff=True))
    assert browser.get(pages).status_code == 403
    assert browser.post(f"{pages}{shop.pk}/token/").status_code == 403


def test_the_command_for_a_new_client_names_a_limit_that_it_may_use(settings: Any) -> None:
    """The name is quoted for a shell. For a pattern with a star, the text before it is used.
    Without URLs of the gateway, the command has the address of its own server.
    """
    settings.ROOT_URLCONF = "tests.acceptance.test_admin"
    settings.MIDDLEWARE = ADMIN_MIDDLEWARE
    browser = Client()
    browser.force_login(User.objects.create_superuser("root"))

    def command(name: str, limits: str) -> list[str]:
        sent = {"name": name, "limits": limits, "is_active": "on"}
        page = browser.post("/admin/ratelimit_gateway/ratelimitclient/add/", sent)
        text = re.search(r"<pre[^>]*>(.*?)</pre>", page.content.decode(), re.DOTALL)
        assert text is not None
        return shlex.split(html.unescape(text[1]))

    words = command("shop", "sms*\nit's\nmail*")
    assert words[:2] == ["curl", "http://127.0.0.1:8001/ratelimit/decide"]
    assert json.loads(words[-1])["charges"] == [{"limit": "it's", "identity": "example"}]
    words = command("mailer", "mail*")
    assert json.loads(words[-1])["charges"][0]["limit"] == "mail"
    assert json.loads(command("all", "*")[-1])["charges"][0]["limit"] == "mail"
