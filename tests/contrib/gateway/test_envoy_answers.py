"""The responses to descriptors, in the process and without gRPC."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua.contrib.gateway import protocol
from django_ratelimit_lua.contrib.gateway.endpoints import answer_check
from django_ratelimit_lua.contrib.gateway.protocol import (
    MAX_DESCRIPTORS,
    MAX_VALUE_LENGTH,
    ProtocolError,
    read_request,
)
from django_ratelimit_lua.contrib.gateway.should_rate_limit import UNLIMITED, should_rate_limit
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.signals import limit_exceeded
from tests.acceptance.admin import test_admin
from tests.contrib.gateway.grpc_gateway import question
from tests.contrib.gateway.proxies import SECRET
from tests.examples import examples

EXAMPLES = examples(200)
OK, OVER = protocol.OK, protocol.OVER_LIMIT
SECOND, MINUTE, HOUR, DAY, MONTH, YEAR, WEEK = range(1, 8)
ADA, GRACE = ("remote_address", "203.0.113.9"), ("remote_address", "198.51.100.7")
LOGIN = ("generic_key", "login")
LOGIN_RULE = {"name": "login", "descriptor": ["generic_key=login", "remote_address"], "rate": "2/h"}
site = test_admin.site


def ask(*descriptors: Any, **more: Any) -> Any:
    """Return the response to a request with these descriptors."""
    return asyncio.run(should_rate_limit(question(*descriptors, **more)))


def code(*descriptors: Any, **more: Any) -> int:
    found: int = ask(*descriptors, **more).overall_code
    return found


def hits(number: int, **more: Any) -> dict[str, Any]:
    """Return a descriptor with a number of hits."""
    return {"entries": [LOGIN, ADA], "hits": number, **more}


def left(*descriptors: Any) -> list[int]:
    """Return the remaining units of these descriptors, without a hit."""
    looks = [{"entries": entries, "hits": 0} for entries in descriptors or ([LOGIN, ADA],)]
    return [status.limit_remaining for status in ask(*looks).statuses]


def test_a_status_shows_the_remaining_units(settings: Any) -> None:
    """It has the limit, its unit, the remaining units and the time until the reset."""
    settings.RATELIMIT_RULES = [LOGIN_RULE, {"name": "odd", "descriptor": ["odd"], "rate": "9/15m"}]
    found = ask([LOGIN, ADA], [("nobody", "knows")], [("odd", "1")])
    first, nothing, odd = found.statuses
    assert (found.overall_code, first.code, first.limit_remaining) == (OK, OK, 1)
    limit = first.current_limit
    assert (limit.name, limit.requests_per_unit, limit.unit) == ("login", 2, HOUR)
    assert 3600 <= first.duration_until_reset.seconds <= 3600 * 1.1 + 1
    assert (nothing.code, nothing.limit_remaining) == (OK, 0)
    assert not nothing.HasField("current_limit")
    assert (odd.current_limit.requests_per_unit, odd.current_limit.unit) == (9, 0)


@pytest.mark.parametrize(("accept", "style"), [("", None), ("application/json", "x")])
def test_a_refusal_equals_that_of_check(accept: str, style: str | None, settings: Any) -> None:
    """Headers and body are equal for each `Accept` header in a descriptor."""
    rule = {**LOGIN_RULE, "path": "/login/", "key": "ip", "rate": "1/h", "message": "Slower."}
    settings.RATELIMIT_RULES = [rule]
    settings.RATELIMIT_GATEWAY_DIALECT, settings.RATELIMIT_GATEWAY_SECRET = "envoy", SECRET
    settings.RATELIMIT_TRUSTED_PROXIES, settings.RATELIMIT_HEADERS = ["127.0.0.1/32"], style
    names = {"METHOD": "GET", "URI": "/login/", "HOST": "shop", "ADDRESS": GRACE[1]}
    meta = {f"HTTP_X_ORIGINAL_{name}": value for name, value in names.items()}
    meta |= {"REMOTE_ADDR": "127.0.0.1", "HTTP_X_RATELIMIT_SECRET": SECRET, "HTTP_ACCEPT": accept}
    for status in (200, 429):
        checked = asyncio.run(answer_check(meta))
        found = ask([LOGIN, ADA], [("header:accept", accept)])
        assert (checked.status, found.overall_code) == (status, OK if status == 200 else OVER)
        headers = {header.key: header.value for header in found.response_headers_to_add}
        lowered = {name.lower(): value for name, value in checked.headers.items()}
        assert headers.keys() == lowered.keys()
        for name in headers.keys() & {"content-type", "cache-control", "ratelimit-policy"}:
            assert headers[name] == lowered[name]
    assert ("x-ratelimit-limit" if style else "ratelimit") in headers
    if accept:
        varying = dict.fromkeys(("reference", "retry_after", "detail"))
        assert json.loads(found.raw_body) | varying == json.loads(checked.body) | varying
    else:
        assert found.raw_body.count(b"\n") == checked.body.count(b"\n") == 2


@pytest.mark.django_db(transaction=True)
def test_a_refusal_is_in_the_language_of_the_client(settings: Any) -> None:
    """The body has the status that Envoy sends, even if a block has another status."""
    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware"]
    settings.RATELIMIT_RULES = [{**LOGIN_RULE, "rate": "0/h"}]
    RateLimitOverride.objects.create(network=GRACE[1], effect="block", forbids=True)
    accepts = [("header:accept", "application/json"), ("header:accept-language", "de")]
    for who, detail in ((ADA, "Das ist nicht verfügbar."), (GRACE, "Sie sind gesperrt.")):
        body = json.loads(ask([LOGIN, who], *([entry] for entry in accepts)).raw_body)
        assert (body["status"], body["detail"]) == (429, detail)


def test_the_descriptors_of_a_request_are_decided_all_or_nothing(settings: Any) -> None:
    """If one descriptor is refused, none is charged."""
    every = {"name": "all", "descriptor": ["generic_key=all"], "rate": "100/h"}
    settings.RATELIMIT_RULES = [LOGIN_RULE, every]
    everything = [("generic_key", "all")]
    answers = [ask([LOGIN, ADA], everything) for _ in range(5)]
    assert [found.overall_code for found in answers] == [OK, OK, OVER, OVER, OVER]
    assert [status.code for status in answers[-1].statuses] == [OVER, OK]
    assert left([LOGIN, ADA], everything) == [0, 98]
    twice = ask([LOGIN, GRACE], [LOGIN, GRACE])
    assert [status.limit_remaining for status in twice.statuses] == [0, 0]
    assert code([LOGIN, GRACE]) == OVER


def test_domains_and_values_have_separate_counts(settings: Any) -> None:
    """Without a key in the rule, each descriptor has its own count."""
    settings.RATELIMIT_RULES = [{**LOGIN_RULE, "rate": "1/h"}]
    assert [code([LOGIN, who]) for who in (ADA, GRACE)] == [OK, OK]
    assert code([LOGIN, ADA], domain="other") == OK
    assert [code([LOGIN, ("remote_address", f"2001:db8::{end}")]) for end in (1, 2)] == [OK, OVER]


def test_hits_of_a_descriptor_are_its_units(settings: Any) -> None:
    """With 0 hits, a descriptor takes no units, and is over the limit if none remain."""
    settings.RATELIMIT_RULES = [{**LOGIN_RULE, "rate": "100/h"}]
    remaining = 100
    for descriptors, taken in (([hits(0)], 0), ([hits(3)], 3), ([[LOGIN, ADA], hits(2)], 3)):
        assert code(*descriptors) == OK
        remaining -= taken
        assert left() == [remaining]
    assert [code(hits(remaining)), code(hits(0))] == [OK, OVER]


def test_the_hits_of_a_request_apply_to_descriptors_without_hits(settings: Any) -> None:
    """For these, 0 hits count as 1. The cost of a rule is multiplied by the hits."""
    settings.RATELIMIT_RULES = [{**LOGIN_RULE, "rate": "100/h", "cost": 2}]
    for number, remaining in ((0, 98), (5, 88)):
        assert code([LOGIN, ADA], hits=number) == OK
        assert left() == [remaining]
    assert code(hits(2), hits=30) == OK
    assert left() == [84]
    assert code(hits(2**64 - 1)) == OVER
    assert left() == [84]


def test_used_units_are_charged_and_never_refused(settings: Any) -> None:
    """The entry `charge` with the value `after` requests it."""
    settings.RATELIMIT_RULES = [{**LOGIN_RULE, "algorithm": "token_bucket"}]
    after = {"entries": [LOGIN, ADA, ("charge", "after")], "hits": 7}
    assert code(after) == OK
    found = ask([LOGIN, ADA])
    assert found.overall_code == OVER
    waits = [each.value for each in found.response_headers_to_add if each.key == "retry-after"]
    assert int(waits[0]) > 3600
    assert code(after) == OK


def test_an_exempt_descriptor_is_unlimited(settings: Any) -> None:
    """The status has the maximum of remaining units, and no limit."""
    descriptor = ["generic_key=login", "remote_address=198.51.100.*"]
    rule = {"name": "monitor", "descriptor": descriptor, "exempt": True}
    settings.RATELIMIT_RULES = [LOGIN_RULE, rule]
    found = ask([LOGIN, GRACE])
    assert (found.overall_code, found.statuses[0].limit_remaining) == (OK, UNLIMITED)
    assert not found.statuses[0].HasField("current_limit")
    assert left() == [2]


def test_a_limit_in_the_request_replaces_the_rules(settings: Any) -> None:
    """It has a count of its own. All units of time are supported."""
    settings.RATELIMIT_RULES = [LOGIN_RULE]
    assert [code(hits(1, limit=(5, HOUR))) for _ in range(6)] == [OK] * 5 + [OVER]
    assert left() == [2]
    for unit in (SECOND, MINUTE, DAY, WEEK, MONTH, YEAR):
        of_unit = {"entries": [("path", f"/{unit}")], "limit": (1000, unit)}
        assert ask(of_unit).statuses[0].limit_remaining == 999
        assert ask(of_unit).statuses[0].current_limit.unit == unit


def test_the_status_is_that_of_the_limit_with_the_least_remaining(settings: Any) -> None:
    """If several limits remain, it is the one that refuses or has the least remaining."""
    settings.RATELIMIT_RULES = [{**LOGIN_RULE, "rate": ["2/h", "100/d"]}]
    found = [ask([LOGIN, ADA]) for _ in range(3)]
    assert [each.statuses[0].current_limit.requests_per_unit for each in found] == [2, 2, 2]
    assert [each.overall_code for each in found] == [OK, OK, OVER]


@pytest.mark.django_db(transaction=True)
def test_overrides_apply_to_descriptors() -> None:
    """A block, a limit and an exemption apply to an address, a user or a header."""
    entries = ["generic_key=login", "remote_address", "header:x-api-key"]
    RateLimitRule.objects.create(name="login", rate="1/h", options={"descriptor": entries})
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    RateLimitOverride.objects.create(network="198.51.100.0/24", effect="exempt")
    gold = RateLimitOverride(field="header:X-API-Key", rule="login", effect="limit", rate="3/h")
    gold.set_value("gold")
    gold.save()
    key = ("header:x-api-key", "tin")
    assert [code([LOGIN, ADA, key]), code([("other", "x"), ADA])] == [OVER, OVER]
    assert ask([LOGIN, GRACE, key]).statuses[0].limit_remaining == UNLIMITED
    assert code([LOGIN, GRACE, key]) == OK
    other = ("remote_address", "192.0.2.1")
    assert [code([LOGIN, other, key]) for _ in range(2)] == [OK, OVER]
    found = [code([LOGIN, other, ("header:x-api-key", "gold")]) for _ in range(4)]
    assert found == [OK] * 3 + [OVER]


def test_keys_read_the_entries_of_a_descriptor(settings: Any) -> None:
    """A user, a path, a header, a cookie and a query parameter are counted as in Django's views."""
    for key in ["user", "path", "header:X-Api-Key", "cookie:sid", "get:q", "exact:get:q"]:
        name = key.removeprefix("exact:")
        settings.RATELIMIT_RULES = [
            {"name": key, "descriptor": ["generic_key", name], "key": key, "rate": "1/h"}
        ]
        values = ("1", "1", "2", "01")
        found = [code([("generic_key", "a"), (name, value)]) for value in values]
        # As in a view, 01 is the user 1.
        assert found == [OK, OVER, OK, OVER if key == "user" else OK], key


def test_only_envoy_receives_the_address_of_a_client(settings: Any) -> None:
    """The address is that of Envoy's entry."""
    settings.RATELIMIT_TRUSTED_PROXIES = ["203.0.113.0/24"]
    entries = ["header:x-forwarded-for", "remote_address"]
    rule = {"name": "by ip", "descriptor": entries, "key": "ip", "rate": "1/h"}
    settings.RATELIMIT_RULES = [rule]
    for settings.RATELIMIT_IP_META_KEY in (None, "HTTP_X_FORWARDED_FOR"):
        claims = [[("header:x-forwarded-for", f"192.0.2.{end}"), ADA] for end in (1, 2)]
        found = [code(claim) for claim in claims]
        assert found in ([OK, OVER], [OVER, OVER])


def test_signal_receivers_get_refusals(settings: Any) -> None:
    """They get a request with the values of the descriptor."""
    settings.RATELIMIT_RULES = [{**LOGIN_RULE, "rate": "0/h"}]
    heard: list[Any] = []

    def hear(**arguments: Any) -> None:
        heard.append(arguments)

    limit_exceeded.connect(hear)
    try:
        assert code([LOGIN, ADA]) == OVER
    finally:
        limit_exceeded.disconnect(hear)
    assert [one["rule"] for one in heard] == ["login"]
    assert heard[0]["request"].META["REMOTE_ADDR"] == "203.0.113.9"


def test_a_disabled_site_admits_every_descriptor(settings: Any) -> None:
    """Redis is not called."""
    settings.RATELIMIT_RULES, settings.RATELIMIT_ENABLE = [{**LOGIN_RULE, "rate": "0/h"}], False
    assert code([LOGIN, ADA]) == OK


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff", "not a RateLimitRequest"),
        (b"", "domain"),
        (question(domain="edge"), "0 descriptors"),
        (question([LOGIN], domain=""), "domain"),
        (question([]), "no entry"),
        (question(hits(1, negative=True)), "is_negative_hits"),
        (question(hits(1, limit=(1, 99))), "unit 99"),
        (question([("", "x")]), "without a key"),
        (question([("charge", "after")]), "no entry"),
        (question(*[[LOGIN]] * (MAX_DESCRIPTORS + 1)), "descriptors"),
    ],
)
def test_invalid_requests_are_errors(data: bytes, problem: str) -> None:
    """The configuration that causes them is wrong."""
    with pytest.raises(ProtocolError, match=problem):
        read_request(data)


def test_no_value_from_a_client_evades_a_limit(settings: Any) -> None:
    """Invalid and very long values are counted: after an error, Envoy admits the request."""
    rule = {"name": "by key", "descriptor": ["header:x-api-key"], "rate": "1/h"}
    settings.RATELIMIT_RULES = [rule]
    for value in (b"\xff\xfe", b"x" * 1_000_000, b"\x00", "é" * MAX_VALUE_LENGTH, ""):
        assert [code([("header:x-api-key", value)]) for _ in range(2)] == [OK, OVER]
    rule = {"name": "k", "descriptor": ["header:x"], "key": "header:x", "rate": "1/h"}
    settings.RATELIMIT_RULES = [rule]
    assert [code([("header:x", b"y" * 1_000_000)]) for _ in range(2)] == [OK, OVER]
    assert code([("header:x", b"y" * 1_000_001)]) == OK


KEYS = b"generic_key remote_address user path header: get:q charge".split()
VALUES = b"login after 203.0.113.9 2001:db8::1 \xff api".split()
KEY = st.sampled_from(KEYS) | st.binary(max_size=10)
VALUE = st.sampled_from(VALUES) | st.binary(max_size=20)
ENTRIES = st.lists(st.tuples(KEY, VALUE), max_size=4)
LIMIT = st.tuples(st.integers(0, 2**32 - 1), st.integers(-1, 8))
OPTIONAL = {"hits": st.integers(0, 2**64 - 1), "negative": st.booleans(), "limit": LIMIT}
DESCRIPTORS = st.fixed_dictionaries({"entries": ENTRIES}, optional=OPTIONAL)
QUESTIONS = st.builds(
    lambda descriptors, domain, hits: question(*descriptors, domain=domain, hits=hits),
    st.lists(DESCRIPTORS, max_size=3),
    st.binary(max_size=5),
    st.integers(0, 2**32 - 1),
)
FUZZED = [
    LOGIN_RULE,
    {"name": "api", "path": "/", "key": ["ip", "header:x"], "rate": ["5/s", "9/h"]},
    {"name": "q", "descriptor": ["path=/*", "get:q"], "key": "get:q", "rate": "1/s"},
    {"name": "any", "descriptor": ["user"], "exempt": True},
]


def _mutated(data: bytes, seed: int) -> bytes:
    """Return the data with a few bytes changed, lost or doubled."""
    dice, changed = random.Random(seed), bytearray(data)
    for _ in range(dice.randrange(4)):
        at = dice.randrange(len(changed) + 1)
        changed[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
    return bytes(changed)


def test_every_message_gets_a_response_or_an_error(settings: Any) -> None:
    """Arbitrary bytes and messages get a response or a `ProtocolError`."""
    settings.RATELIMIT_RULES = FUZZED
    seen = {"answers": 0, "errors": 0}

    @hypothesis_settings(max_examples=EXAMPLES, database=None)
    @given(
        st.binary(max_size=200) | QUESTIONS | st.builds(_mutated, QUESTIONS, st.integers(0, 2**32))
    )
    @example(b"")
    @example(question([LOGIN, ADA]))  # Of few examples, none may be a question that has an answer.
    def fuzz(data: bytes) -> None:
        try:
            found = runner.run(should_rate_limit(data))
        except ProtocolError:
            seen["errors"] += 1
        else:
            seen["answers"] += 1
            assert found.overall_code in (OK, OVER)
            assert len(found.statuses) == len(protocol.Request.FromString(data).descriptors)

    with asyncio.Runner() as runner:
        fuzz()
    assert min(seen.values()) > EXAMPLES / 100
