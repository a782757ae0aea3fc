"""The protocol as JSON over HTTP, with the statuses and bodies of envoyproxy/ratelimit."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.test import Client

from django_ratelimit_lua.contrib.gateway.asgi import application as alone
from django_ratelimit_lua.contrib.gateway.endpoints import MAX_BODY_BYTES
from tests.contrib.gateway.asgi import aask, ask
from tests.contrib.gateway.proxies import SECRET, Answer

pytestmark = pytest.mark.django_db(transaction=True)
Post = Callable[..., Answer]
ENTRIES = [{"key": "generic_key", "value": "mail"}, {"key": "user", "value": "7"}]
MAIL = {"domain": "site", "descriptors": [{"entries": ENTRIES}]}


@pytest.fixture(autouse=True)
def gateway(settings: Any) -> None:
    """A gateway with secrets, and a rule for descriptors and requests."""
    settings.ROOT_URLCONF = "tests.contrib.gateway.gateway_site"
    settings.RATELIMIT_GATEWAY_SECRET = {
        "shop": {"secret": SECRET, "for": "protocol"},
        "edge": {"secret": "the-secret-of-the-edge", "for": "check"},
    }
    descriptor = ["domain=site", "generic_key=mail", "user"]
    rule = {"name": "mail", "descriptor": descriptor, "key": "user", "rate": "2/h"}
    settings.RATELIMIT_RULES = [rule]


@pytest.fixture(params=["alone", "asgi", "wsgi"])
def post(request: pytest.FixtureRequest) -> Post:
    """Call the URL as a service does, on the gateway's own server, under ASGI or under WSGI."""

    def posting(body: object, secret: str = SECRET) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if request.param == "wsgi":
            headers = {"X-RateLimit-Secret": secret}
            path = "/ratelimit/json"
            found = Client().post(path, data, content_type="application/json", headers=headers)
            return Answer(found.status_code, {**found.headers}, found.content)
        application = alone if request.param == "alone" else ASGIHandler()
        pairs = [(b"x-ratelimit-secret", secret.encode())]
        return ask(application, "/ratelimit/json", pairs, "POST", body=[data[:9], data[9:]])

    return posting


def test_the_response_is_a_rate_limit_response(post: Post) -> None:
    """200 or 429, and the message as proto3 JSON without default values."""
    first, _, third = [post(MAIL) for _ in range(3)]
    assert first.status == 200
    found = first.json()
    assert found.pop("responseHeadersToAdd")[0]["key"] == "ratelimit-policy"
    (status,) = found.pop("statuses")
    assert 3600 <= int(status.pop("durationUntilReset").removesuffix("s")) <= 3961
    limit = {"name": "mail", "requestsPerUnit": 2, "unit": "HOUR"}
    assert found == {"overallCode": "OK"}
    assert status == {"code": "OK", "currentLimit": limit, "limitRemaining": 1}
    assert (third.status, third.json()["overallCode"]) == (429, "OVER_LIMIT")
    assert third.json()["statuses"][0]["code"] == "OVER_LIMIT"
    assert "limitRemaining" not in third.json()["statuses"][0]
    headers = {name.lower(): value for name, value in third.headers.items()}
    assert headers["content-type"] == "application/json"
    in_body = {each["key"]: each["value"] for each in third.json()["responseHeadersToAdd"]}
    assert 0 < int(headers["retry-after"]) == int(in_body["retry-after"])


def test_fields_are_read_as_in_proto3_json(post: Post) -> None:
    """Names in both spellings, numbers as text, units by name or number, and null."""
    peek = {"entries": ENTRIES, "hitsAddend": "0", "limit": None}
    assert post({"domain": "site", "descriptors": [peek, peek]}).status == 200
    assert post({**MAIL, "hits_addend": 0}).json()["statuses"][0]["limitRemaining"] == 1
    for limit in ({"requests_per_unit": 5, "unit": "MINUTE"}, {"requestsPerUnit": "5", "unit": 2}):
        found = post({"domain": "x", "descriptors": [{"entries": ENTRIES, "limit": limit}]})
        assert found.json()["statuses"][0]["currentLimit"]["unit"] == "MINUTE"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 60_000,
        b'{"a\\nCRITICAL: \\u001b[31m\\u2028": 1}',
        {"descriptors": MAIL["descriptors"]},
        {"domain": "site"},
        {**MAIL, "operation": "refund"},
        {**MAIL, "hitsAddend": -1},
        {"domain": "\ud800", "descriptors": MAIL["descriptors"]},
        json.dumps(MAIL).encode().ljust(MAX_BODY_BYTES + 1),
    ],
    ids=lambda body: str(body)[:40],
)
def test_bad_requests_are_logged(
    body: object, post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    """The body is that of envoyproxy/ratelimit."""
    found = post(body)
    assert (found.status, found.body) == (400, b"Bad Request\n")
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert line.startswith("The gateway refused a request with the secret 'shop': ")
    assert line.isprintable()
    assert post(json.dumps(MAIL).encode().ljust(MAX_BODY_BYTES)).status == 200


def test_the_protocol_needs_a_secret_that_permits_it(post: Post, settings: Any) -> None:
    """A missing secret, a wrong one, and one for `check` get a 403, which counts nothing."""
    for secret in ("", f"{SECRET}x", "the-secret-of-the-edge", f"{SECRET},{SECRET}"):
        assert post(MAIL, secret).status == 403
    names, settings.RATELIMIT_GATEWAY_SECRET = settings.RATELIMIT_GATEWAY_SECRET, None
    assert post(MAIL).status == 403
    settings.RATELIMIT_GATEWAY_SECRET = names
    assert post(MAIL).json()["statuses"][0]["limitRemaining"] == 1


def test_no_body_is_read_without_a_secret() -> None:
    """The client is refused by the headers of the request, and its body does not come."""

    async def refused() -> Answer:
        async with asyncio.timeout(30):
            return await aask(alone, "/json", [], "POST", body=[])

    assert asyncio.run(refused()).status == 403


LOGGED = """
import asyncio
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_ratelimit_lua", "django_ratelimit_lua.contrib.gateway"],
    LOGGING={
        "version": 1,
        "handlers": {"console": {"class": "logging.StreamHandler"}},
        "root": {"handlers": ["console"], "level": "INFO"},
    },
)
from django_ratelimit_lua.contrib.gateway.asgi import application
from tests.contrib.gateway.asgi import ask
ask(application, "/json", [], "POST")
"""


def test_the_log_is_written_if_logging_disables_existing_loggers() -> None:
    """That is the default of `LOGGING`, and this package has loggers before Django is set up."""
    command = [sys.executable, "-c", LOGGED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "X-RateLimit-Secret is missing" in done.stderr
