"""Whom a key counts, in views and rules."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.exceptions import LimitError
from django_ratelimit_lua.identity.keys import FIELDS
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.rules import RuleError, compile
from django_ratelimit_lua.rules.describe import describe_spec
from tests.examples import examples
from tests.urls import AUTHENTICATION, LIMITS, SESSIONS, aok, ok

KEYS = [
    "ip",
    "user",
    "user_or_ip",
    "session",
    "path",
    "route",
    *(f"{prefix}{kind}:name" for kind in FIELDS for prefix in ("", "exact:", "int:")),
]
HOSTILE = ["", " ", "\x00", "\ud800", "\u3000", "a" * 70_000, "%00%ff%", "[" * 2000]
NASTY = st.text(max_size=40) | st.sampled_from([*HOSTILE, '{"name": [1, {"a": null}]}'])
ONE_LINE: Any = {"min_codepoint": 1, "exclude_characters": "\r\n"}
LATIN = st.text(st.characters(max_codepoint=255, **ONE_LINE), max_size=40)
TYPES = [
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "a/b+json",
    "",
]
SITE = {
    "ROOT_URLCONF": __name__,
    "MIDDLEWARE": [
        SESSIONS,
        AUTHENTICATION,
        LIMITS,
    ],
    "SESSION_ENGINE": "django.contrib.sessions.backends.cache",
    "RATELIMIT_RULES": [
        {"name": key, "path": "/", "key": key, "rate": "1000000/h"} for key in KEYS
    ],
}
urlpatterns = [path("ok/<str:name>", ok), path("aok/<path:name>", aok)]


@pytest.mark.parametrize("way", ["ok", "aok"])
@override_settings(**SITE)
@hypothesis_settings(max_examples=examples(25))
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
    name=NASTY,
    body=st.binary(max_size=200) | NASTY.map(lambda text: text.encode(errors="surrogatepass")),
    kind=st.sampled_from(TYPES)
    | st.text(st.characters(max_codepoint=126, **ONE_LINE), max_size=20),
    header=LATIN,
    cookie=LATIN,
    forwarded=LATIN,
)
@example("POST", "ada", b"name=ada", "application/x-www-form-urlencoded", "x", "y", "z")
@example("PUT", "\0\ud800", b'{"name": {"name": 1}}', TYPES[0], "\x80", "\xff", "::ffff:192.0.2.1")
def test_a_key_reads_any_request_without_an_error(
    way: str,
    method: str,
    name: str,
    body: bytes,
    kind: str,
    header: str,
    cookie: str,
    forwarded: str,
) -> None:
    """Rules with all keys apply to a view, under WSGI and ASGI. The response is never a 500."""
    quoted = quote(name.encode(errors="surrogatepass"))[:3000]
    url = f"/{way}/{quoted}?name={quoted}"
    headers = {
        "name": header,
        "cookie": f"name={cookie}; sessionid={cookie}",
        "x-forwarded-for": forwarded,
    }
    client: Any = Client() if way == "ok" else AsyncClient()
    response = client.generic(method, url, body, kind, headers=headers)
    if way == "aok":
        response = asyncio.run(response)
    assert response.status_code in (200, 404, 400)
    if response.status_code == 200:
        request = response.wsgi_request if way == "ok" else response.asgi_request
        assert len(request.ratelimit.limits) >= 10


def test_a_limiter_without_an_identity_counts_all_callers_together(settings: Any) -> None:
    """It is the same count as that of a call site with the key `all`. It never bans."""
    limiter = RateLimiter("everyone", "3/h", ban_after=1, ban_for="1h")
    assert (limiter.hit().allowed, limiter.hit(None).allowed) == (True, True)
    assert limiter.peek().remaining == 1
    assert limiter.refund().remaining == 2
    assert [limiter.hit().allowed for _ in range(4)] == [True, True, False, False]
    assert limiter.hit().banned_until is None
    limiter.reset()
    assert limiter.acquire().allowed
    for change in (limiter.ban, limiter.unban):
        with pytest.raises(LimitError, match="a ban needs an identity"):
            change(None)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"key": ["all", "ip"]}, "use it alone"),
        ({"key": "all", "ban_after": 3, "ban_for": "1h"}, "would refuse every client"),
    ],
)
def test_the_key_all_cannot_be_combined_or_banned(given: dict[str, Any], problem: str) -> None:
    """The code and the settings raise the same error."""
    with pytest.raises(RuleError, match=problem):
        compile({"name": "x", "path": "/", "rate": "1/m", **given})
    key = given["key"]
    with pytest.raises(LimitError, match=problem):
        ratelimit(rate="1/m", **{**given, "key": key if isinstance(key, str) else tuple(key)})


@pytest.mark.django_db(transaction=True)
def test_the_admin_and_the_checks_support_the_key_all(settings: Any) -> None:
    """The admin describes it, the checks refuse combinations, and a block needs a client."""
    rule = RateLimitRule(name="database", path="/ok", key="all", rate="500/s")
    rule.save()
    assert describe_spec(rule.spec) == "500 per second for all clients together, on /ok"
    bans = {"ban_after": 3, "ban_for": "1h"}
    for wrong in ({"key": "all+ip"}, {"options": bans}):
        with pytest.raises(RuleError):
            RateLimitRule(
                **{"name": "x", "path": "/ok", "key": "all", "rate": "5/s", **wrong}
            ).save()
    with pytest.raises(ValidationError):
        RateLimitOverride(field="all", effect="block").full_clean()
    with pytest.raises(CommandError):
        call_command("ratelimit", "block", "--header", "all")
