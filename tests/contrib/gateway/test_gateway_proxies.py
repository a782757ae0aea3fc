"""Real proxies in front of a service without Django, with the printed configuration."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from tests.contrib.gateway.echo import serving
from tests.contrib.gateway.proxies import PROXIES, SECRET, Site, ask, needs, rush, say
from tests.support.processes import running

REQUESTS = int(os.environ.get("RATELIMIT_TEST_RUSH", "800"))
"""Those of 16 clients; `.ci/run` sends 10,000."""
GO_THROUGH = REQUESTS * 3 // 10
COUNTED = (
    "few,ip,2/d spoofed,ip,3/d keys,header:X-API-Key,1/d cookies,cookie:visitor,1/d "
    "queries,get:q,1/d hosts,header:Host,1/d users,user,1/d killed,ip,240/d clients,ip,1/d "
    f"none,ip,0/d rush,ip,{GO_THROUGH}/d"
)
"""The path, the key and the rate of rules."""
MANY = {"path": "/many/", "key": "ip", "rate": "1/d", "message": "Слишком много запросов! " * 12}
RULES = [
    *(
        {"name": name, "path": f"/{name}/", "key": key, "rate": rate}
        for name, key, rate in [each.split(",") for each in COUNTED.split()]
    ),
    {"name": "posts", "path": "/posts/", "method": "POST", "key": "ip", "rate": "1/d"},
    {"name": "bodies", "path": "/few/", "key": "post:name", "rate": "0/d"},
    {"name": "sessions", "path": "/few/", "key": "session", "rate": "0/d"},
    {"name": "routes", "path": "/few/", "route": "ratelimit-check", "key": "ip", "rate": "0/d"},
    {"name": "open-door", "path": "/few/free/", "exempt": True},
    *({"name": f"one of the many limits that hold, number {each}", **MANY} for each in range(60)),
]
UPGRADES = "h2c H2C websocket,h2c h2c,websocket websocket|h2c h2c|websocket"
BROKEN = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Broken(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(502)
    def log_message(self, *args): pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Broken).serve_forever()
"""


class Proxied(NamedTuple):
    """A proxy, its port, and the site with its gateway."""

    proxy: str
    port: int
    site: Site


@pytest.fixture(scope="module", params=[needs(proxy) for proxy in PROXIES])
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    """Run each proxy with the configuration that refuses requests while the gateway is down."""
    proxy = request.param
    user = {"RATELIMIT_GATEWAY_USER_HEADER": "X-Auth-User"}
    names = {"RATELIMIT_GATEWAY_DIALECT": proxy, "RATELIMIT_TRUSTED_PROXIES": 1, **user}
    with Site(tmp_path_factory.mktemp(proxy), RULES, **names) as site, site.behind(proxy) as port:
        yield Proxied(proxy, port, site)


@pytest.fixture(scope="module")
def ports(proxied: Proxied) -> Iterator[dict[str, int]]:
    """Run the same proxy with both policies for a gateway that is down, and yield their ports."""
    with proxied.site.behind(proxied.proxy, fail="open") as port:
        yield {"closed": proxied.port, "open": port}


def test_requests_pass_until_the_limit_and_show_the_remaining_units(proxied: Proxied) -> None:
    """A client gets a 429 with the retry time and the reason, as text or as JSON."""
    allowed = [ask(proxied.port, "/few/") for _ in range(2)]
    assert [answer.json()["path"] for answer in allowed] == ["/few/", "/few/"]
    # Traefik forwards no header of an answer that admits a request.
    if proxied.proxy != "traefik":
        found = [answer.headers["ratelimit"].partition(";t=")[0] for answer in allowed]
        assert found == ['"few";r=1', '"few";r=0']
        assert allowed[0].headers["ratelimit-policy"] == '"few";q=2;w=86400'
    refused = ask(proxied.port, "/few/")
    assert (refused.status, refused.headers["content-type"]) == (429, "text/plain; charset=utf-8")
    assert 0 < int(refused.headers["retry-after"]) <= 95_040
    assert refused.headers["ratelimit-policy"] == '"few";q=2;w=86400'
    assert refused.headers["ratelimit"].startswith('"few";r=0;t=')
    assert refused.body.startswith(b"Too many requests. Try again in ")
    problem = ask(proxied.port, "/few/", Accept="application/json")
    assert (problem.status, problem.headers["content-type"]) == (429, "application/problem+json")
    assert problem.json()["violated-policies"] == ["few"]
    assert problem.json()["reference"] == problem.headers["ratelimit-reference"]
    assert ask(proxied.port, "/few/free/").status == 200
    assert ask(proxied.port, "/few/free/../").status == 429
    free = ask(proxied.port, "/elsewhere")
    assert free.status == 200
    assert "ratelimit" not in free.headers


def test_many_long_limits_fit_into_a_response(proxied: Proxied) -> None:
    """Headers of more than 4 KiB cause no error of the proxy."""
    assert ask(proxied.port, "/many/").status == 200
    refused = ask(proxied.port, "/many/", Accept="application/json")
    assert (refused.status, refused.headers["content-type"]) == (429, "application/problem+json")
    assert len(refused.headers["ratelimit-policy"]) > 2000
    assert "Слишком" in refused.json()["detail"]


def test_headers_that_proxies_write_cannot_be_forged(proxied: Proxied) -> None:
    """A client cannot set its address, user or secret, and the service gets no secret."""
    addresses = ("X_Original_Address", "X_Forwarded_For", "X_Real_IP", "Forwarded")
    other = {"X_RateLimit_Secret": SECRET}
    for name, value in (("URI", "/free"), ("Method", "OPTIONS"), ("Host", "other")):
        other |= dict.fromkeys((f"X_Original_{name}", f"X_Forwarded_{name}"), value)
    answers = []
    for number in range(5):
        forged = {**dict.fromkeys(addresses, f"203.0.113.{number}"), "X_Auth_User": str(number)}
        answers.append(ask(proxied.port, "/spoofed/", **forged, **other))
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert not {"x-ratelimit-secret", "x-auth-user"} & answers[0].json()["headers"].keys()
    users = [ask(proxied.port, "/users/", X_Auth_User=str(number)) for number in range(3)]
    # No user is signed in, and all of these share one count.
    assert [answer.status for answer in users] == [200, 429, 429]
    # Traefik forwards underscores, unless its entry point has another setting.
    if proxied.proxy != "traefik":
        lines = ("Connection: close", "X_Auth_User: 7", "X-Auth_User: 7", "x_auth-user: 7")
        answer = say(proxied.port, "GET /elsewhere HTTP/1.1", "Host: a", *lines)[1]
        assert b"auth" not in answer.lower()
    smuggled = ask(proxied.port, "/spoofed/", **{"X_Original_URI": "/free"})
    assert smuggled.status == 429


def test_rules_use_all_values_that_a_proxy_reports(proxied: Proxied) -> None:
    """The values are the method, a header, a cookie, the query and the host."""
    port = proxied.port
    methods = ("PUT", "POST", "POST", "GET")
    posts = [ask(port, "/posts/", method, b"{}").status for method in methods]
    assert posts == [200, 200, 429, 200]
    for found in (
        [ask(port, "/keys/", X_API_Key=key) for key in "aab"],
        [ask(port, "/cookies/", Cookie=f"visitor={who}") for who in "aab"],
        [ask(port, f"/queries/?q={q}") for q in "aab"],
        [ask(port, "/hosts/", Host=f"{host}.example") for host in "aab"],
    ):
        assert [answer.status for answer in found] == [200, 429, 200]


@pytest.mark.parametrize("fail", ["closed", "open"])
def test_a_websocket_upgrade_is_limited(proxied: Proxied, ports: dict[str, int], fail: str) -> None:
    """The upgrade reaches the service as often as the limit allows, with both policies."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "X_API_Key": f"upgrade-{fail}"}
    upgrade |= {"Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    answers = [ask(ports[fail], "/keys/", **upgrade) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 429, 429]
    # Envoy forwards no body of a service that answers 200 to an upgrade.
    if proxied.proxy != "envoy":
        assert answers[0].json()["headers"]["upgrade"] == "websocket"


def upgrade_to_http2(port: int, *lines: str) -> bytes:
    """Return the response to an upgrade. The service repeats the request."""
    begin = ("GET / HTTP/1.1", "Host: a", "Connection: close, Upgrade, HTTP2-Settings")
    upgrades = [f"Upgrade: {line}" for line in lines]
    return say(port, *begin, *upgrades, "HTTP2-Settings: AAMAAABkAAQAAP__")[1].lower()


@pytest.fixture(scope="module")
def other(proxied: Proxied) -> Iterator[int]:
    """Run the same proxy in front of a service that repeats the request."""
    with serving() as upstream:
        assert b"upgrade: h2c" in upgrade_to_http2(upstream, "h2c"), "without a proxy"
        # nginx refuses by itself, too.
        own = ("location / {", "location / {\nif ($arg_own) { return 403; }")
        places = {"upstream": f"127.0.0.1:{upstream}"}
        with proxied.site.behind(
            proxied.proxy, change=lambda text: text.replace(*own), **places
        ) as port:
            yield port


def test_an_upgrade_cannot_bypass_the_limits(other: int) -> None:
    """No spelling of an upgrade to HTTP/2 reaches the service."""
    for way in UPGRADES.split():
        answer = upgrade_to_http2(other, *way.split("|"))
        assert not answer.startswith(b"http/1.1 101")
        assert b"h2c" not in answer, way
    answer = upgrade_to_http2(other, "something")
    assert b"upgrade: something" not in answer
    assert b"connection: upgrade" not in answer


def test_the_client_receives_the_status_of_the_service(proxied: Proxied, other: int) -> None:
    """A 403 or a 500 of the service, or a 403 of nginx itself, is not the gateway's."""
    statuses = (200, 400, 401, 403, 404, 429, 431, 500, 503)
    assert [ask(other, f"/status/{status}").status for status in statuses] == list(statuses)
    if proxied.proxy == "nginx":
        assert ask(other, "/?own=1").status == 403


def test_a_refusal_is_no_error_in_the_log_of_the_proxy(proxied: Proxied) -> None:
    """The gateway refuses by a limit, for an invalid path, and for too many headers."""
    log = proxied.site.folder / f"{proxied.proxy}-{proxied.port}" / "log"
    before = log.read_bytes()
    paths = ("/none/", "/none/", "/none/;" + "x" * 4200)
    assert [ask(proxied.port, path).status for path in paths] == [429, 429, 400]
    many = {f"X_{number}": "1" for number in range(300)}
    assert ask(proxied.port, "/elsewhere", **many).status == 431
    assert log.read_bytes() == before


def test_a_request_without_a_host_is_limited(proxied: Proxied) -> None:
    """HTTP/1.0 clients send no host. A forwarded host from the client is not used instead."""
    statuses = []
    for number in range(3):
        forged = (f"X-Original-Host: {number}", f"X-Forwarded-Host: {number}")
        statuses.append(say(proxied.port, "GET /hosts/ HTTP/1.0", *forged)[0])
    assert statuses == [200, 429, 429]


def test_invalid_requests_get_the_same_kind_of_error(proxied: Proxied) -> None:
    """The status is a 4xx, with at most one content type."""
    status, answer = say(proxied.port, f"{'M' * 40} / HTTP/1.1", "Host: a", "Connection: close")
    assert 400 <= status < 500
    assert answer.lower().count(b"content-type:") <= 1


@pytest.mark.alone
def test_exactly_the_limit_is_admitted(proxied: Proxied) -> None:
    """Many clients send requests simultaneously."""
    assert rush(proxied.port, "/rush/", REQUESTS) == {200: GO_THROUGH, 429: REQUESTS - GO_THROUGH}


@pytest.mark.alone
def test_clients_that_hang_up_and_a_killed_gateway_admit_no_more(proxied: Proxied) -> None:
    """Only calls that a killed gateway was deciding may have counted without a response."""
    site = proxied.site
    head = b"GET /killed/ HTTP/1.1\r\nHost: a\r\n\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", proxied.port), timeout=30) as connection:
            connection.sendall(head)
    with ThreadPoolExecutor(1) as pool:
        during = pool.submit(rush, proxied.port, "/killed/", 800)
        before = ask(proxied.port, "/killed/").status
        os.kill(site.pid, signal.SIGKILL)
        site.stop()
        site.start()
        found = during.result()
    while ask(proxied.port, "/elsewhere").status != 200:  # Envoy may have to try again first.
        pass
    found += rush(proxied.port, "/killed/", 800) + Counter([before])
    assert 240 - 20 - 16 <= found[200] <= 240
    assert ask(proxied.port, "/killed/").status == 429


def test_without_the_gateway_requests_pass_or_fail(proxied: Proxied, ports: dict[str, int]) -> None:
    """Requests get a 5xx or pass, and are limited again when the gateway is back."""
    closed = 500 if proxied.proxy == "traefik" else 503
    for fail, port in ports.items():
        clients = [f"127.0.{len(fail)}.{number}" for number in (1, 1, 2)]
        statuses = [ask(port, "/clients/", client=client).status for client in clients]
        assert statuses == [200, 429, 200]
    proxied.site.stop()
    try:
        assert ask(ports["closed"], "/anything").status == closed
        away = ask(ports["open"], "/anything")
        assert (away.status, away.json()["path"]) == (200, "/anything")
        with running([sys.executable, "-c", BROKEN, str(proxied.site.port)], proxied.site.port):
            for _ in range(100):  # Until it is tried again.
                assert ask(ports["closed"], "/anything").status >= 500
                assert ask(ports["open"], "/anything").status == 200
    finally:
        proxied.site.start()
    for port in ports.values():
        for _ in range(100):  # Envoy may have to try again first.
            if ask(port, "/elsewhere").status == 200:
                break
        assert ask(port, "/elsewhere").status == 200
