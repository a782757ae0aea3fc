"""The `check` URL of the gateway: the trusted proxies, the counted values and the responses."""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.checks import run_checks
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua.contrib.gateway import secrets
from django_ratelimit_lua.contrib.gateway.asgi import application as alone
from django_ratelimit_lua.contrib.gateway.conf import DIALECTS
from django_ratelimit_lua.contrib.gateway.urls import check as check_view
from django_ratelimit_lua.identity.keys import Key
from django_ratelimit_lua.models import RateLimitOverride
from tests.contrib.gateway.asgi import ask
from tests.contrib.gateway.proxies import SECRET, Answer
from tests.examples import examples

EXAMPLES = examples(200)
"""`.ci/run` makes 10,000."""
pytestmark = pytest.mark.django_db(transaction=True)
Check = Callable[..., Answer]
WAYS = (
    "/api/ //api/ /x/../api/ /%61pi/ /./api/ /x/%2e%2e/api/ /health/../api/ /api/../health/ "
    "http://other/api/ /api/.. /api/?/health/ /api/# /health\\..\\api/ /x\\..\\api/ /api;x=1/ "
    "/health/..;/api/ /health/#/../../api/ /x/../api//../ /x/../api/y%2f..%2f..%2f "
    "/health/..%5capi/"
)
HOSTS = "shop.example shop.example:80 SHOP.example. shop.example.:8443 shop.example:"
KEYS = "user user_or_ip session route kwarg:pk post:name json:name data:name ip+user"
NAMES = (
    "X-Original-Method X-Original-URI X-Original-Host X-Original-Address X-Auth-User Accept Cookie "
    "Accept-Language Content-Type Content-Length X-Forwarded-For X_Original_URI Host X-API-Key"
)
TIERS = [{"group": "pro", "rate": "3/d"}]


def as_client(answer: Answer) -> Answer:
    """Return the response that the client of the proxy gets."""
    return answer._replace(status=int(answer.headers.get("x-ratelimit-status", answer.status)))


@pytest.fixture(autouse=True)
def gateway(settings: Any) -> None:
    """A gateway that trusts a proxy at 127.0.0.1."""
    settings.ROOT_URLCONF = "tests.contrib.gateway.gateway_site"
    settings.RATELIMIT_TRUSTED_PROXIES = ["127.0.0.1/32", "10.0.0.0/8"]
    settings.RATELIMIT_GATEWAY_SECRET = [SECRET, "the-secret-before-that"]
    settings.RATELIMIT_GATEWAY_DIALECT = "nginx"


def headers_of(dialect: str, more: Mapping[str, Any] = {}, **values: str) -> dict[str, Any]:
    """Return the headers with which a proxy describes a request."""
    given = {"method": "GET", "uri": "/", "host": "shop.example", "address": "203.0.113.9"}
    given |= values
    names = DIALECTS[dialect]._asdict()
    return {"X-RateLimit-Secret": SECRET, **{names[key]: given[key] for key in given}, **more}


def pairs_of(headers: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI has them."""
    pairs = [(name.lower().encode(), value) for name, value in headers.items()]
    return [(name, text.encode() if isinstance(text, str) else text) for name, text in pairs]


@pytest.fixture(params=["alone", "asgi", "wsgi"])
def check(request: pytest.FixtureRequest, settings: Any) -> Check:
    """Call the URL as a proxy does, on the gateway's own server, under ASGI or under WSGI."""

    def asked(uri: str = "/", method: str = "GET", peer: str = "127.0.0.1", **more: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in more.items()}
        dialect = settings.RATELIMIT_GATEWAY_DIALECT or "nginx"
        headers = headers_of(dialect, named, uri=uri, method=method)
        if request.param == "wsgi":
            response = Client(REMOTE_ADDR=peer).get("/ratelimit/check", headers=headers)
            found = {name.lower(): value for name, value in response.items()}
            return as_client(Answer(response.status_code, found, response.content))
        application = alone if request.param == "alone" else ASGIHandler()
        return as_client(ask(application, "/ratelimit/check", pairs_of(headers), peer=peer))

    return asked


@pytest.mark.parametrize("application", [alone, ASGIHandler()])
@pytest.mark.parametrize("path", ["/", "/json", "/health", "/x/check", "/a\nb", "//x", "/%", "*"])
def test_the_path_that_envoy_appends_is_ignored(settings: Any, application: Any, path: str) -> None:
    """No appended path or method leads to another URL of the gateway."""
    settings.RATELIMIT_GATEWAY_DIALECT = "envoy"
    pairs = pairs_of(headers_of("envoy", method="POST"))
    assert ask(application, f"/ratelimit/check{path}", pairs, "POST").status == 200


def test_only_a_trusted_proxy_with_the_secret_is_accepted(
    check: Check, settings: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other request gets a 403."""
    monkeypatch.setattr(secrets, "_logged", set())
    settings.RATELIMIT_RULES = [{"name": "all", "path": "/", "key": "ip", "rate": "100/d"}]
    with caplog.at_level(logging.DEBUG):
        assert check().status == 200
        assert check(X_RateLimit_Secret="the-secret-before-that").status == 200
        assert check(peer="10.1.2.3").status == 200
        refused = [check(peer="203.0.113.1")]
        refused += [check(X_RateLimit_Secret=wrong) for wrong in ("", SECRET + "x", "é")]
        for trusted in (None, 0, []):
            settings.RATELIMIT_TRUSTED_PROXIES = trusted
            refused.append(check())
        settings.RATELIMIT_TRUSTED_PROXIES = ["127.0.0.1"]
        settings.RATELIMIT_GATEWAY_SECRET = None
        refused.append(check())
        settings.RATELIMIT_GATEWAY_SECRET, settings.RATELIMIT_GATEWAY_DIALECT = SECRET, None
        refused.append(check())
        settings.RATELIMIT_GATEWAY_DIALECT, settings.RATELIMIT_TRUSTED_PROXIES = "nginx", 1
        shop = {"secret": "the-secret-of-a-shop", "for": "protocol"}
        settings.RATELIMIT_GATEWAY_SECRET = {"edge": SECRET, "shop": shop}
        assert check().status == 200
        refused.append(check(X_RateLimit_Secret="the-secret-of-a-shop"))
    assert [answer.status for answer in refused] == [403] * len(refused)
    body = b"Only trusted proxies of this site may use this URL.\n"
    assert {answer.body for answer in refused} == {body}
    assert SECRET not in caplog.text
    for text in (
        "its address is not in RATELIMIT_TRUSTED_PROXIES: 203.0.113.1",
        "X-RateLimit-Secret is missing, or not a secret of this site",
        "the secret 'shop' is only for protocol",
        "The secret '2' is in use for check",
        "The secret 'edge' is in use for check",
    ):
        assert caplog.text.count(text) == 1, text


def test_a_header_with_underscores_is_not_accepted(settings: Any) -> None:
    """Proxies forward such headers, and older releases of Django join them."""
    settings.RATELIMIT_RULES = [{"name": "one", "path": "/one", "key": "ip", "rate": "1/d"}]
    pairs = pairs_of(headers_of("nginx", {"X_Original_URI": "/other"}, uri="/one"))
    scope = {"type": "http", "method": "GET", "path": "/check", "query_string": b""}
    scope |= {"headers": pairs, "client": ("127.0.0.1", 50_000)}
    for status in (None, "429"):
        request = ASGIRequest(scope, io.BytesIO())
        request.META["HTTP_X_ORIGINAL_URI"] = "/one,/other"
        assert asyncio.run(check_view(request)).headers.get("X-RateLimit-Status") == status


def test_a_request_that_is_an_upgrade_is_refused() -> None:
    """The gateway closes the WebSocket, which the proxy reads as a 403."""
    scope = {"type": "websocket", "path": "/ratelimit/check", "headers": []}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(alone(scope, receive, send))
    assert sent == [{"type": "websocket.close"}]


@pytest.mark.parametrize("application", [alone, ASGIHandler()], ids=["alone", "view"])
def test_headers_are_bounded(settings: Any, application: Any) -> None:
    """Too many or too long headers get a 431, which is a 403 for nginx."""
    for settings.RATELIMIT_GATEWAY_DIALECT, status in (("nginx", 403), ("envoy", 431)):
        for headers in ([(b"x", b"1")] * 1000, [(b"x", b"1" * 1000)] * 100):
            answer = ask(application, "/ratelimit/check", headers)
            assert (answer.status, as_client(answer).status) == (status, 431)
    assert ask(alone, "/ratelimit/json", [(b"x", b"1")] * 1000, "POST").status == 431


@pytest.mark.parametrize("application", [alone, ASGIHandler()], ids=["alone", "view"])
def test_health_reports_whether_redis_replies(settings: Any, application: Any) -> None:
    """Load balancers read it without a secret."""
    settings.RATELIMIT_TRUSTED_PROXIES = None
    assert ask(application, "/ratelimit/health", []).status == 200
    away = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {"default": away}
    assert ask(application, "/ratelimit/health", []).status == 503


def test_a_missing_header_of_a_proxy_is_an_error_of_the_proxy(check: Check) -> None:
    """The response is a 400 with the name of the header. An invalid value gets a 400 as well."""
    assert check("no path").status == 400
    assert check(method="NO METHOD").status == 400
    assert check("/" + "x" * 20_000).status == 400
    missing = check(X_Original_URI="")
    assert (missing.status, b"X-Original-URI" in missing.body) == (400, True)
    assert check("http://shop.example/path?q").status == 200
    assert check("*", "OPTIONS").status == 200


def test_a_path_is_limited_in_every_way_that_servers_read_it(check: Check, settings: Any) -> None:
    """No spelling of a path avoids a limit or reaches an exemption."""
    settings.RATELIMIT_RULES = [
        {"name": "api", "path": "/api/", "key": "ip", "rate": "1/d"},
        {"name": "health", "path": "/health/", "exempt": True},
    ]
    ways = WAYS.split()
    assert [check(way).status for way in ways] == [200] + [429] * (len(ways) - 1)
    assert [check(way).status for way in ("/health/", "/health//a;v=1/b%2fc#d")] == [200, 200]
    assert check("/health/.." * 500).status == 400


def test_a_host_has_one_identity_in_every_spelling(check: Check, settings: Any) -> None:
    """A port, a final dot and capitals select the same site, so they have the same count."""
    settings.RATELIMIT_RULES = [{"name": "hosts", "path": "/", "key": "header:Host", "rate": "1/d"}]
    ways = HOSTS.split()
    assert [check(X_Original_Host=way).status for way in ways] == [200, 429, 429, 429, 429]
    assert check(X_Original_Host="[2001:db8::1]:80").status == 200
    assert check(X_Original_Host="[2001:db8::2]").status == 200


def test_rules_that_need_values_unknown_to_proxies_are_left_out(
    check: Check, settings: Any
) -> None:
    """A proxy reports no route, session or body, so these rules refuse no request."""
    base = {"path": "/", "rate": "0/d"}
    keys = [name.split("+") for name in KEYS.split()]
    settings.RATELIMIT_RULES = [
        *({**base, "name": f"key-{number}", "key": key} for number, key in enumerate(keys)),
        {**base, "name": "route", "route": "ratelimit-check", "key": "ip"},
        {**base, "name": "slots", "key": "ip", "rate": "1", "algorithm": "concurrency"},
        {**base, "name": "audience", "audience": "anonymous", "key": "ip"},
        {**base, "name": "tiers", "key": "ip", "tiers": [{"group": "pro", "rate": "1/m"}]},
    ]
    assert check(Content_Type="application/x-www-form-urlencoded").status == 200
    known = {**base, "name": "known", "key": ["ip", "header:Host"]}
    settings.RATELIMIT_RULES = [*settings.RATELIMIT_RULES, known]
    assert check(Accept="application/json").json()["violated-policies"] == ["known"]


def test_the_user_is_the_one_that_the_proxy_reports(check: Check, settings: Any) -> None:
    """Users are identified by primary key, as in Django's views."""
    settings.RATELIMIT_GATEWAY_USER_HEADER = "X-Auth-User"
    settings.RATELIMIT_RULES = [
        {"name": name, "path": f"/{name}/", "key": key, "rate": "1/d", **more}
        for name, key, more in (
            ("users", "user_or_ip", {}),
            ("tiers", "user", {"tiers": TIERS}),
            ("strangers", "ip", {"audience": "anonymous"}),
            ("staff", "user", {"audience": "staff"}),
        )
    ]
    ada = User.objects.create(username="ada")
    grace = User.objects.create(username="grace", is_staff=True)
    ada.groups.add(Group.objects.create(name="pro"))

    def of(path: str, *users: object) -> list[int]:
        return [check(path, X_Auth_User=str(user)).status for user in users]

    assert of("/users/", ada.pk, f" 0{ada.pk}", grace.pk, "", "") == [200, 429, 200, 200, 429]
    assert of("/tiers/", *[ada.pk] * 4, *[grace.pk] * 2) == [200, 200, 200, 429, 200, 429]
    assert of("/strangers/", "", ada.pk, "", ada.pk) == [200, 200, 429, 200]
    assert of("/staff/", ada.pk, ada.pk, grace.pk, grace.pk) == [200, 200, 200, 429]
    unknown = ("unknown", "unknown", 10**30, 10**30, "x" * 5000)
    assert of("/tiers/", *unknown) == [200, 429, 200, 429, 200]
    RateLimitOverride.objects.create(user=ada, effect="block")
    assert of("/elsewhere/", ada.pk, grace.pk, "") == [429, 200, 200]


def test_the_projects_pages_are_not_used_for_proxies(check: Check, settings: Any) -> None:
    """`RATELIMIT_VIEW` and the exception class are for the project's own views."""
    settings.RATELIMIT_RULES = [{"name": "none", "path": "/", "key": "ip", "rate": "0/d"}]
    settings.RATELIMIT_VIEW = "tests.urls.custom"
    settings.RATELIMIT_EXCEPTION_CLASS = "tests.urls.CustomError"
    settings.RATELIMIT_HEADERS = "x"
    answer = check(Accept="text/html,application/xhtml+xml")
    assert (answer.status, answer.headers["content-type"]) == (429, "text/plain; charset=utf-8")
    assert answer.headers["x-ratelimit-limit"] == "0"
    assert answer.headers["x-ratelimit-body"] == answer.body.decode().strip().replace("\n", " ")


def test_errors_are_reported_by_the_system_check(settings: Any, no_others: None) -> None:
    """The check reports a gateway without a secret for its use, or without trusted proxies."""

    def found() -> list[tuple[str, str]]:
        messages = run_checks(tags=["caches"])
        return [(message.id.rpartition(".")[2], message.msg[:7]) for message in messages]

    settings.RATELIMIT_RULES = [{"name": "a", "descriptor": ["user"], "rate": "5/m"}]
    assert found() == []
    settings.RATELIMIT_GATEWAY_SECRET = None
    assert [identifier for identifier, _ in found()] == ["E019", "E019"]
    for purpose, refused in (("check", "descriptor"), ("protocol", "proxy")):
        settings.RATELIMIT_GATEWAY_SECRET = {"edge": {"secret": SECRET, "for": purpose}}
        (error,) = run_checks(tags=["caches"])
        assert f"The gateway refuses every {refused}, because" in error.msg
    settings.RATELIMIT_GATEWAY_DIALECT = None
    assert found() == []
    for invalid in (
        "short",
        {"edge": "short"},
        {"edge": {"secret": SECRET, "for": "short"}},
        {},
        [],
        {"edge": SECRET, "shop": {"secret": SECRET, "for": "protocol"}},
        [SECRET, SECRET],
    ):
        settings.RATELIMIT_GATEWAY_SECRET = invalid
        (error,) = [each for each in run_checks(tags=["caches"]) if each.id.endswith("E001")]
        assert "short" not in error.msg
        assert SECRET not in error.msg


names = st.sampled_from(NAMES.split())
ODD = (
    b"/api/x /%ff%00/.. * GET POST [::1]:x application/json \xff de,en;q=x a/b;charset=hex http://["
    b" // application/json;charset=idna multipart/form-data;boundary=x"
).split()
LONG = [b"a" * 70_000, b"9" * 400, b";".join([b"a=b"] * 1100), b"/?" + b"a=b&" * 1500]
values = st.binary(max_size=60) | st.sampled_from([*ODD, *LONG])


@pytest.fixture
def odd_rules(settings: Any) -> None:
    """Rules with keys for all generated headers."""
    settings.RATELIMIT_GATEWAY_USER_HEADER = "X-Auth-User"
    settings.RATELIMIT_RULES = [
        {"name": "a", "path": "/", "key": ["ip", "header:X-API-Key"], "rate": "3/d"},
        {"name": "b", "path": "/api/**", "key": "cookie:a", "rate": "1/d"},
        {"name": "c", "path": "/", "key": "get:a", "rate": "1/d"},
        {"name": "d", "path": "/", "key": "user", "rate": "2/d", "tiers": TIERS},
        {"name": "e", "path": "/", "key": ["path", "header:Host"], "rate": "5/d"},
    ]


@hypothesis_settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(more=st.lists(st.tuples(names, values), max_size=8))
def test_any_header_gets_a_response(odd_rules: None, more: list[tuple[str, bytes]]) -> None:
    """For any headers of a trusted proxy, the response is not a server error."""
    pairs = pairs_of({**headers_of("nginx", uri="/api/x"), **dict(more)})
    answer = ask(alone, "/ratelimit/check", [*pairs, *pairs_of(dict(more[:1]))])
    assert answer.status in (200, 403)
    assert as_client(answer).status in (200, 400, 403, 429, 431)


def tenant(request: Any) -> str:
    return str(request.get_host().partition(".")[0])


def test_a_registered_key_applies_if_proxies_know_its_value(check: Check, settings: Any) -> None:
    """If proxies do not know the value, the rule is left out."""
    settings.ALLOWED_HOSTS = ["*"]
    settings.RATELIMIT_RULES = [{"name": "tenants", "path": "/", "key": "tenant", "rate": "1/d"}]
    settings.RATELIMIT_KEYS = {"tenant": Key("tenant", tenant, known_to_proxies=True)}
    host = DIALECTS["nginx"].host.replace("-", "_")
    found = [check(**{host: f"{name}.example"}).status for name in ("acme", "acme", "globex")]
    assert found == [200, 429, 200]
    settings.RATELIMIT_KEYS = {"tenant": tenant}
    assert [check(**{host: "acme.example"}).status for _ in range(2)] == [200, 200]


def test_conditions_of_rules_apply_to_the_described_request(check: Check, settings: Any) -> None:
    """Its user agent and network count. It did not wait for this site, whatever a header says."""
    settings.RATELIMIT_NETWORKS = {"ours": ["192.0.2.0/24"]}
    settings.RATELIMIT_REQUEST_START = "X-Request-Start"
    rule = {"path": "/", "key": "ip", "rate": "0/s"}
    settings.RATELIMIT_RULES = [
        {"name": "ours", "path": "/", "network": "ours", "exempt": True},
        {**rule, "name": "bots", "user_agent": "*bot*"},
        {**rule, "name": "busy", "waited": "1ms"},
    ]
    start = f"t={time.time() - 5:.3f}"
    more = {"X_Request_Start": start, "X_Original_Address": "127.0.0.1"}
    assert as_client(check("/", User_Agent="Firefox", **more)).status == 200
    assert as_client(check("/", User_Agent="a bot", **more)).status == 429
    assert as_client(check("/", User_Agent="a bot", X_Original_Address="192.0.2.9")).status == 200
