"""Any accepted rule, any content of Redis and any request lead to a response without a server
error.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from hypothesis import HealthCheck, event, example, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.models.rule import METHODS
from django_ratelimit_lua.operations.health import health
from django_ratelimit_lua.rules import RuleError, provider
from django_ratelimit_lua.rules.snapshot import FORMAT
from tests.acceptance.rules.rule_strategies import moments, numbers, rules, texts
from tests.examples import examples

pytestmark = pytest.mark.django_db(transaction=True)
ANSWERS = {200, 302, 400, 404, 429}


def ok(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse("ok")


def away(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect("/ok")


@ratelimit("search", "ip", "100/m")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        ",".join(f"{state.name}={state.limit}" for state in request.ratelimit.limits)
    )


@ratelimit("search", ("ip", "get:who"), "100/m", method="POST")
@ratelimit("other", "ip", "100/m", block=False)
async def asearch(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found")


urlpatterns = [
    path("ok", ok, name="ok"),
    path("away", away, name="away"),
    path("search", search, name="search"),
    path("asearch", asearch),
    path("things/<slug:name>/", ok, name="thing"),
]
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
USERS = "django.contrib.auth.middleware.AuthenticationMiddleware"
OURS = "django_ratelimit_lua.middleware.RateLimitMiddleware"
STACKS = [
    [SESSIONS, USERS, OURS],
    [OURS, SESSIONS, USERS],
    [SESSIONS, OURS, USERS],
    [SESSIONS, OURS],
    [OURS],
    [SESSIONS, USERS],
]


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = STACKS[0]
    # Who has to wait for a turn has been answered, which is all that is asked here.
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(0))


def rule(name: str = "site", **fields: Any) -> RateLimitRule:
    return RateLimitRule.objects.create(
        name=name, **{"path": "/", "key": "ip", "rate": "2/h", **fields}
    )


def get(address: str = "/ok", times: int = 1) -> list[int]:
    return [Client(raise_request_exception=False).get(address).status_code for _ in range(times)]


def by_hand(direct: redis.Redis, prefix: str, *rules: Any, revision: int = 1) -> None:
    """Write rules to Redis that the package would not write."""
    known = direct.hgetall(f"{prefix}{{rules}}:1")
    snapshot = {
        "format": FORMAT,
        **json.loads(known.get(b"rules", b"{}")),
        "revision": revision,
        "rules": list(rules),
    }
    direct.hset(
        f"{prefix}{{rules}}:1",
        mapping={**known, b"revision": revision, b"rules": json.dumps(snapshot)},
    )


PATHS = ["/ok", "/search?who=ada", "/asearch", "/things/a-b/", "/nowhere", "/away", "//"]
PATHS += ["/ok/%00", "/%ff", "/" + "a" * 3000, "/ok?q=%ff%00"]
FIELDS = ["path", "route", "group", "method", "audience", "key", "rate", "tiers", "cost", "exempt"]
FIELDS += ["message", "order", "mode", "algorithm", "burst", "align", "time_zone", "max_wait"]
FIELDS += ["count_denied", "lease", "split", "id"]
BODIES = [
    (b"", "text/plain"),
    (b"username=ada", "application/x-www-form-urlencoded"),
    (b'{"a": {"b": "c"}}', "application/json"),
    (b"{", "application/json"),
    (b"[" * 3000, "application/json"),
    (b"\xff\xfe=\x00&&", "application/x-www-form-urlencoded"),
    (b"--x\r\n\r\n", "multipart/form-data; boundary=x"),
    (b"--x", "multipart/form-data"),
    (b"a=1&" * 2000, "application/x-www-form-urlencoded"),
    (b'{"a": 1}', "application/json; charset=nonsense"),
    (b"x" * 70_000, "application/json"),
]
requests = st.fixed_dictionaries(
    {
        "method": st.sampled_from([*METHODS, "TRACE", "PROPFIND"]),
        "path": st.sampled_from(PATHS),
        "body": st.sampled_from(BODIES),
        "user": st.sampled_from([None, "ada", "grace"]),
        "cookie": st.sampled_from([None, "", "made-up", "x" * 5000, "\u00e9"]),
        "header": st.sampled_from([None, "\u00e9", "a" * 5000]),
        "stack": st.sampled_from(STACKS),
        "asynchronous": st.booleans(),
    }
)


def answer(asked: dict[str, Any]) -> int:
    """Return the status of a request through the whole stack."""
    content, kind = asked["body"]
    headers = (
        {}
        if asked["header"] is None
        else {"User-Agent": asked["header"], "Accept": asked["header"]}
    )
    with override_settings(MIDDLEWARE=asked["stack"]):
        client: Any = (AsyncClient if asked["asynchronous"] else Client)(
            raise_request_exception=False
        )
        if asked["user"] is not None:
            client.force_login(User.objects.get(username=asked["user"]))
        if asked["cookie"] is not None:
            client.cookies["sessionid"] = asked["cookie"]
        response = client.generic(asked["method"], asked["path"], content, kind, headers=headers)
        response = asyncio.run(response) if asked["asynchronous"] else response
    return int(response.status_code)


@pytest.fixture
def people() -> None:
    ada, grace = User.objects.create(username="ada"), User.objects.create_superuser("grace")
    ada.groups.add(Group.objects.create(name="pro"))
    grace.groups.add(Group.objects.create(name="free"))


@example_settings(
    max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(rules, st.lists(requests, min_size=3, max_size=6))
@example(
    {"name": "site", "path": "/", "key": "ip", "rate": "5/m", "options": {"cost": 2**53 + 1}}, []
)
def test_a_valid_rule_can_be_applied_to_every_request(
    people: None,
    caplog: pytest.LogCaptureFixture,
    fields: dict[str, Any],
    asked: list[dict[str, Any]],
) -> None:
    """Every request under a rule that can be saved gets a response, and later rules are loaded."""
    RateLimitRule.objects.all().delete()
    one = RateLimitRule(**fields)
    try:
        one.full_clean()
        one.save()
    except (ValidationError, RuleError):
        event("refused")
        return
    event("accepted")
    assert RateLimitRule.objects.get().spec == one.spec
    assert provider.reload_ruleset().problems == []
    statuses = [answer(request) for request in asked]
    assert set(statuses) <= ANSWERS, [*zip(statuses, asked, strict=True)]


@pytest.mark.usefixtures(
    "quiet"
)  # Other rules have the same revision, which no process can notice.
@example_settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.fixed_dictionaries(
            {"name": st.sampled_from(["site", "search", "a\ud800"])},
            optional={
                field: st.none()
                | st.booleans()
                | numbers
                | texts
                | moments
                | st.lists(texts | numbers, max_size=2)
                | st.just({"a": [1]})
                for field in FIELDS
            },
        )
        | texts
        | st.none()
        | st.lists(texts),
        max_size=3,
    ),
    st.lists(requests, min_size=1, max_size=3),
)
def test_any_content_of_redis_is_applied_or_ignored(
    people: None, direct: redis.Redis, prefix: str, found: list[Any], asked: list[dict[str, Any]]
) -> None:
    """An older version or an operator has written the content."""
    provider.load_ruleset()  # Which database is ours is known from here on.
    direct.delete(f"{prefix}{{rules}}:1")
    provider._ruleset = provider._snapshot = None
    by_hand(
        direct,
        prefix,
        {"name": "last", "path": "/ok", "key": "ip", "rate": "0/h", "id": 99, "order": 10**6},
        *found,
        revision=7,
    )
    assert get() == [429]
    statuses = [answer(request) for request in asked]
    assert set(statuses) <= ANSWERS, [*zip(statuses, asked, strict=True)]


@pytest.mark.parametrize(
    "stack", STACKS[1:5], ids=lambda stack: "-".join(one.rpartition(".")[2] for one in stack)
)
@pytest.mark.parametrize("key", ["session", "user", "user_or_ip"])
def test_a_rule_that_fails_is_left_out_and_can_be_switched_off(
    key: str, stack: list[str], settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log, `check` and `health` report it once."""
    settings.MIDDLEWARE = stack
    one = rule("bad", key=key, rate="1/h")
    rule("other", path="/other", rate="0/h")
    assert set(get(times=3)) <= {200, 429}
    assert get("/other") == [429]
    said_once = [record for record in caplog.records if "Left out: rule 'bad'" in record.message]
    if said_once:
        assert len(said_once) == 1
        assert any("'bad' cannot be applied" in problem for problem in health().problems)
    known = provider.load_ruleset()
    RateLimitRule.objects.filter(pk=one.pk).update(key="ip", rate="0/h")
    provider._ruleset = known  # A process that has not received the change.
    assert get() == [429]
    assert not health().problems


@pytest.mark.parametrize(
    "fields",
    [{"cost": 2**53 + 1}, {"algorithm": "fixed_window", "align": "day"}, {"audience": "nobody"}],
)
def test_invalid_settings_prevent_the_middleware_from_starting(
    fields: dict[str, Any], settings: Any
) -> None:
    """The settings are validated when the middleware is created, before any request."""
    settings.RATELIMIT_RULES = [{"name": "site", "path": "/", "key": "ip", "rate": "5/m", **fields}]
    with pytest.raises(ImproperlyConfigured, match="rule 'site'"):
        RateLimitMiddleware(ok)
