"""The protocol over gRPC, in separate processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from django.core.management import CommandError, call_command
from grpc import aio
from grpc_health.v1 import health_pb2

from django_ratelimit_lua.contrib.gateway import grpc_server, protocol
from django_ratelimit_lua.contrib.gateway.protocol import MAX_BYTES
from tests.contrib.gateway.grpc_gateway import METADATA, METHOD, Gateway, question
from tests.contrib.gateway.proxies import SECRET
from tests.support.processes import until

OK, OVER = protocol.OK, protocol.OVER_LIMIT
LOGIN = [("generic_key", "login"), ("remote_address", "203.0.113.9")]
QUEUE = {"algorithm": "leaky_bucket", "queue": 5}
RULES: list[dict[str, Any]] = [
    {"name": "login", "descriptor": ["generic_key=login", "remote_address"], "rate": "2/h"},
    {"name": "many", "descriptor": ["generic_key=many"], "rate": "500/h"},
    {"name": "slow", "descriptor": ["generic_key=slow"], "rate": "1/s", **QUEUE},
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    secrets = {"edge": SECRET, "proxy": {"secret": f"proxy-{SECRET}", "for": "check"}}
    names = {"RATELIMIT_ON_STORE_ERROR": "closed", "RATELIMIT_GATEWAY_SECRET": secrets}
    with Gateway(tmp_path_factory.mktemp("gateway"), RULES, processes=2, **names) as found:
        yield found


REFUSED = {
    "garbage": (METHOD, b"\xff", SECRET, "INVALID_ARGUMENT"),
    "no descriptor": (METHOD, question(), SECRET, "INVALID_ARGUMENT"),
    "too large": (METHOD, bytes(MAX_BYTES + 1), SECRET, "RESOURCE_EXHAUSTED"),
    "for check": (METHOD, question(LOGIN), f"proxy-{SECRET}", "PERMISSION_DENIED"),
    "no secret": (METHOD, question(LOGIN), "", "PERMISSION_DENIED"),
    "two secrets": (METHOD, question(LOGIN), f"{SECRET} {SECRET}", "PERMISSION_DENIED"),
    "another method": (f"/{protocol.SERVICE}/Other", b"", SECRET, "UNIMPLEMENTED"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_refused_call_has_a_status(name: str, gateway: Gateway) -> None:
    """The status is specific and has no traceback. The next call gets a response."""
    method, data, secret, status = REFUSED[name]
    with gateway.client() as client:
        with pytest.raises(grpc.RpcError) as raised:
            client.call(data, method, [("x-ratelimit-secret", each) for each in secret.split()])
        error: Any = raised.value
        assert error.code().name == status
        assert "Traceback" not in error.details()
        assert client.code([("other", "x")]) == OK


def test_exactly_the_allowed_calls_pass_with_several_processes(gateway: Gateway) -> None:
    """Sixteen clients make two thousand calls over separate connections to two processes."""

    def some(_: int) -> Counter[int]:
        with gateway.client() as client:
            return Counter(client.code([("generic_key", "many")]) for _ in range(125))

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(some, range(16)), Counter()) == {OK: 500, OVER: 1500}


def test_the_policies_decide_while_redis_is_away(gateway: Gateway) -> None:
    """The health service reports SERVING, because the gateway decides."""
    check = "/grpc.health.v1.Health/Check"
    with gateway.client() as client:
        gateway.redis.stop()
        until(lambda: client.code([("generic_key", "many")]) == OVER, "the policy decides")
        for name in ("", protocol.SERVICE):
            request = health_pb2.HealthCheckRequest(service=name).SerializeToString()
            found = health_pb2.HealthCheckResponse.FromString(client.call(request, check, ()))
            assert found.status == health_pb2.HealthCheckResponse.SERVING
        gateway.redis.start()
        until(lambda: client.code([("tenant", "other")]) == OK, "Redis decides")


def test_pending_calls_are_answered_before_the_server_stops(gateway: Gateway) -> None:
    """Calls that are held get their response before all processes end."""
    slow = [("generic_key", "slow")]
    with ThreadPoolExecutor(2) as pool, gateway.client() as client:
        first = client.ask(slow).statuses[0]
        held = [pool.submit(client.code, slow) for _ in range(2)]
        until(lambda: client.left(*slow) < first.limit_remaining, "a call is held")
        gateway.stop()
        try:
            assert [first.code, *(future.result() for future in held)] == [OK] * 3
            assert [process.returncode for process in gateway.processes] == [0, 0]
        finally:
            gateway.start()


def test_calls_beyond_the_maximum_are_refused(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is RESOURCE_EXHAUSTED, also if one connection makes all calls."""
    settings.RATELIMIT_GATEWAY_SECRET, settings.RATELIMIT_RULES = SECRET, RULES
    monkeypatch.setattr(grpc_server, "MAX_CONCURRENT_CALLS", 2)
    tasks: list[asyncio.Task[list[Any]]] = []

    async def calls(port: int) -> list[Any]:
        try:
            async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call: Any = channel.unary_unary(METHOD)
                data = question([("generic_key", "slow")])
                every = [call(data, metadata=METADATA, timeout=20) for _ in range(20)]
                return await asyncio.gather(*every, return_exceptions=True)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def ready(port: int) -> None:
        tasks.append(asyncio.create_task(calls(port)))

    async def results() -> list[Any]:
        await grpc_server.serve("127.0.0.1:0", ready)
        return await tasks[0]

    found = asyncio.run(results())
    statuses = Counter("OK" if isinstance(each, bytes) else each.code().name for each in found)
    assert statuses.keys() == {"OK", "RESOURCE_EXHAUSTED"}
    assert statuses["RESOURCE_EXHAUSTED"] >= 15


def test_the_service_is_available_over_tls(tmp_path: Path) -> None:
    """`--tls` has the files of the certificate and of its key."""
    authority = trustme.CA()
    own = authority.issue_cert("localhost")
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "certificate.pem"))
    own.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    options = ("--tls", str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem"))
    with Gateway(tmp_path, RULES, options=options) as gateway:
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        with gateway.client(credentials) as client:
            assert client.code(LOGIN) == OK


def test_wrong_options_fail(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reports a missing secret, extra or file, and an address that it cannot use."""
    for secret in (None, {"edge": {"secret": SECRET, "for": "check"}}):
        settings.RATELIMIT_GATEWAY_SECRET = secret
        with pytest.raises(CommandError, match="has no secret for protocol"):
            call_command("ratelimit", "grpc")
    settings.RATELIMIT_GATEWAY_SECRET = SECRET
    broken = tmp_path / "broken.pem"
    broken.write_text("?")
    for arguments, problem in (
        (["--tls", str(broken), str(tmp_path / "missing.pem")], "No such file"),
        (["--tls", str(broken), str(broken)], "cannot listen"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
    ):
        with pytest.raises(CommandError, match=problem):
            call_command("ratelimit", "grpc", *arguments)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(CommandError, match=r"django-ratelimit-lua\[gateway\]"):
        call_command("ratelimit", "grpc")
