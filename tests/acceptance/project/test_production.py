"""The settings in the guide to Redis, Sentinel and Cluster work with other addresses."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.rules.provider import reset_rules
from django_ratelimit_lua.testing.server import Server
from tests.acceptance.store.test_topologies import create_documented_user, issued, used
from tests.support import clusters

GUIDE = Path(__file__).parents[3] / "docs/how-to/sentinel-and-cluster.rst"
EXAMPLES = [
    textwrap.dedent(block)
    for block in re.findall(r"\.\. code-block:: python\n\n((?:   .*\n|\n)+)", GUIDE.read_text())
    if "CACHES" in block
]
Address = dict[str, str]


@contextmanager
def one(folder: Path) -> Iterator[Address]:
    with Server() as server:
        with redis.Redis.from_url(server.url) as direct:
            direct.config_set("requirepass", "password")
        yield {
            "redis.internal:6379": f"127.0.0.1:{server.port}",
            "cache.internal:6379": "127.0.0.1:1",
        }


@contextmanager
def tls(folder: Path) -> Iterator[Address]:
    if not shutil.which("redis-server"):
        pytest.skip("NO TLS TEST: Debian's redis-server is not installed")
    key, chain, signer = issued(folder)
    with Server() as somewhere:
        port = somewhere.port
    options = ("--tls-port", str(port), "--tls-auth-clients", "no", "--tls-key-file", str(key))
    files = ("--tls-cert-file", str(chain), "--tls-ca-cert-file", str(signer))
    with Server(shutil.which("redis-server"), *options, *files) as server:
        with redis.Redis.from_url(server.url) as direct:
            create_documented_user(direct, "")
        yield {"redis.internal:6380": f"127.0.0.1:{port}", "/etc/ssl/redis-ca.pem": str(signer)}


@contextmanager
def socket(folder: Path) -> Iterator[Address]:
    with Server(None, "--unixsocket", str(folder / "redis.sock")):
        yield {"/run/redis/redis.sock": str(folder / "redis.sock")}


@contextmanager
def sentinel(folder: Path) -> Iterator[Address]:
    with clusters.watched() as found:
        yield {
            f'("10.0.0.{number}", 26379)': f'("127.0.0.1", {port})'
            for number, port in enumerate(found.sentinels, start=1)
        }


@contextmanager
def cluster(folder: Path) -> Iterator[Address]:
    with clusters.cluster(replicas=False) as found:
        yield {
            f"10.0.0.{number}:6379": f"127.0.0.1:{server.port}"
            for number, server in enumerate(found.servers[:2], start=1)
        }


SERVERS = [one, tls, socket, one, sentinel, cluster]


@pytest.mark.parametrize(("example", "servers"), list(zip(EXAMPLES, SERVERS, strict=True)))
def test_an_example_works_as_written(
    example: str, servers: Callable[[Path], Any], settings: Any, tmp_path: Path
) -> None:
    """Sync and async hits are counted on the servers of the example."""
    with servers(tmp_path) as addresses:
        for address, real in addresses.items():
            example = example.replace(address, real)
        given: dict[str, Any] = {}
        exec(example, given)
        settings.RATELIMIT_TIMEOUT = 5
        for name in [name for name in given if name.isupper()]:
            setattr(settings, name, given[name])
        reset_rules()
        assert used() == [1, 2]
        assert RateLimiter("where", "100/h").peek("someone").source == "redis"
