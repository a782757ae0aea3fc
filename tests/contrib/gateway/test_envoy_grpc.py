"""Envoy's rate limit service over gRPC, in separate processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from django.core.management import CommandError, call_command
from grpc_health.v1 import health_pb2, health_pb2_grpc

from django_ratelimit_lua.contrib.gateway.envoy import messages, server
from django_ratelimit_lua.contrib.gateway.envoy.question import MAX_BYTES
from django_ratelimit_lua.contrib.gateway.verbs import grpc as grpc_verb
from tests.contrib.gateway.grpc_gateway import Gateway, question

OK, OVER = messages.OK, messages.OVER_LIMIT
LOGIN = [("generic_key", "login"), ("remote_address", "203.0.113.9")]
RULES = [
    {"name": "login", "descriptor": ["generic_key=login", "remote_address"], "rate": "2/h"},
    {
        "name": "many",
        "descriptor": ["generic_key=many"],
        "rate": "500/h",
        "algorithm": "sliding_log",
    },
    {
        "name": "slow",
        "descriptor": ["generic_key=slow"],
        "rate": "1/s",
        "algorithm": "leaky_bucket",
        "queue": 5,
    },
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(
        tmp_path_factory.mktemp("gateway"), RULES, processes=2, RATELIMIT_ON_STORE_ERROR="closed"
    ) as found:
        yield found


def until(is_so: Callable[[], Any], seconds: float = 30) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_grpc_service_responds_over_a_real_connection(gateway: Gateway) -> None:
    """Each of the processes responds, with shared counts."""
    with gateway.client() as one, gateway.client() as other:
        assert [client.code(LOGIN) for client in (one, other, one, other)] == [OK, OK, OVER, OVER]


@pytest.mark.parametrize(
    ("method", "data", "status"),
    [
        (f"/{messages.SERVICE}/{messages.METHOD}", b"\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (f"/{messages.SERVICE}/{messages.METHOD}", question(), grpc.StatusCode.INVALID_ARGUMENT),
        (
            f"/{messages.SERVICE}/{messages.METHOD}",
            bytes(MAX_BYTES + 1),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        ),
        (f"/{messages.SERVICE}/Other", b"", grpc.StatusCode.UNIMPLEMENTED),
        (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            b"",
            grpc.StatusCode.UNIMPLEMENTED,
        ),
    ],
    ids=["garbage", "nothing asked", "too large", "another method", "reflection"],
)
def test_every_invalid_request_has_a_status(
    method: str, data: bytes, status: grpc.StatusCode, gateway: Gateway
) -> None:
    """The status is specific and has no traceback. The next request gets a response."""
    with gateway.client() as client:
        with pytest.raises(grpc.RpcError) as raised:
            client.channel.unary_unary(method)(data, timeout=20, wait_for_ready=True)
        error: Any = raised.value
        assert error.code() == status
        assert "Traceback" not in error.details()
        assert client.code([("other", "x")]) == OK


def test_exactly_the_allowed_requests_pass_with_several_processes(gateway: Gateway) -> None:
    """Sixteen clients make two thousand calls over separate connections to two processes."""

    def some(_: int) -> Counter[int]:
        with gateway.client() as client:
            return Counter(client.code([("generic_key", "many")]) for _ in range(125))

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(some, range(16)), Counter()) == {OK: 500, OVER: 1500}


def test_an_edit_applies_to_the_next_request(gateway: Gateway, tmp_path: Path) -> None:
    """A rule is imported from YAML, and the next request uses it."""
    text = "- name: edited\n  descriptor:\n  - domain=edge\n  - tenant\n  rate: {}/h\n"
    file = tmp_path / "rules.yaml"
    descriptor = [("tenant", "acme")]
    with gateway.client() as client:
        for number in (1, 3):
            file.write_text(text.format(number))
            gateway.run("ratelimit", "rules", "import", str(file))
            assert client.ask(descriptor).statuses[0].current_limit.requests_per_unit == number
        assert [client.code(descriptor) for _ in range(2)] == [OK, OVER]
    assert "- domain=edge\n  - tenant\n" in gateway.run("ratelimit", "rules", "export")


def test_the_health_service_follows_redis(gateway: Gateway) -> None:
    """Without Redis, the health service reports NOT_SERVING and the fallback policy decides. It
    reports SERVING when Redis is back.
    """
    with gateway.client() as client:
        stub = health_pb2_grpc.HealthStub(client.channel)

        def says(name: str = "") -> int:
            request = health_pb2.HealthCheckRequest(service=name)
            status: int = stub.Check(request, timeout=20, wait_for_ready=True).status
            return status

        serving, not_serving = (
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        assert (says(), says(messages.SERVICE)) == (serving, serving)
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            says("another")
        gateway.redis.stop()
        until(lambda: says() == says(messages.SERVICE) == not_serving)
        assert client.code(LOGIN) == OVER
        gateway.redis.start()
        until(lambda: says() == serving)
        until(lambda: client.code(LOGIN) == OK)


def test_pending_calls_are_answered_before_the_server_stops(gateway: Gateway) -> None:
    """Calls that are held get their response before all processes end."""
    slow = [("generic_key", "slow")]
    with ThreadPoolExecutor(2) as pool, gateway.client() as client:
        first = client.ask(slow).statuses[0]
        held = [pool.submit(client.code, slow) for _ in range(2)]
        look = {"entries": slow, "hits": 0}
        until(lambda: client.ask(look).statuses[0].limit_remaining < first.limit_remaining)
        gateway.stop()
        try:
            assert [first.code, *(future.result() for future in held)] == [OK] * 3
            assert [process.returncode for process in gateway.processes] == [0, 0]
        finally:
            gateway.start()


def test_a_tls_service_accepts_only_known_clients(tmp_path: Path) -> None:
    """With `--client-ca`, only clients with a certificate of this authority are served."""
    authority = trustme.CA()
    own, known = authority.issue_cert("localhost"), authority.issue_cert("envoy@example.org")
    files = {
        "certificate": own.cert_chain_pems[0],
        "key": own.private_key_pem,
        "client-ca": authority.cert_pem,
    }
    for name, blob in files.items():
        blob.write_to_path(str(tmp_path / f"{name}.pem"))
    options = tuple(f"--{name}={tmp_path}/{name}.pem" for name in files)
    trusted = authority.cert_pem.bytes()
    with Gateway(tmp_path, RULES, options=options) as gateway:
        pair = (known.private_key_pem.bytes(), known.cert_chain_pems[0].bytes())
        with gateway.client(grpc.ssl_channel_credentials(trusted, *pair)) as client:
            assert client.code(LOGIN) == OK
        for credentials in (grpc.ssl_channel_credentials(trusted), None):
            with gateway.client(credentials) as client, pytest.raises(grpc.RpcError):
                client.channel.unary_unary(f"/{messages.SERVICE}/{messages.METHOD}")(
                    question(LOGIN), timeout=20
                )


def test_an_internal_error_is_a_status_without_details(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the details. The server continues, reports its health, and stops at SIGTERM."""
    state = {"is_healthy": True}

    async def is_healthy() -> bool:
        return state["is_healthy"]

    async def broken(data: bytes) -> bytes:
        raise RuntimeError("a secret of the site")

    async def asked() -> None:
        ready = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(server.serve("127.0.0.1:0", is_healthy, ready.set_result))
        port = await ready
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask: Any = channel.unary_unary(f"/{messages.SERVICE}/{messages.METHOD}")
            assert (
                messages.Response.FromString(await ask(question([("other", "x")]))).overall_code
                == OK
            )
            for answer, data, status in (
                (server.answer, b"\xff", grpc.StatusCode.INVALID_ARGUMENT),
                (broken, question(LOGIN), grpc.StatusCode.INTERNAL),
            ):
                monkeypatch.setattr(server, "answer", answer)
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await ask(data)
                assert raised.value.code() == status
                assert "secret" not in str(raised.value)
            stub = health_pb2_grpc.HealthStub(channel)
            state["is_healthy"] = False
            answers = health_pb2.HealthCheckResponse
            while (await stub.Check(health_pb2.HealthCheckRequest())).status != answers.NOT_SERVING:
                await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, 30)

    asyncio.run(asked())
    assert "a secret of the site" in caplog.text


def test_invalid_options_are_errors(
    tmp_path: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command reports a missing extra, incomplete TLS options, a missing file and an invalid
    port.
    """
    for arguments, problem in (
        (["--key", __file__], "--certificate and --key"),
        (["--key", __file__, "--certificate", str(tmp_path / "c")], "No such file"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
    ):
        with pytest.raises(CommandError, match=problem):
            call_command("ratelimit", "grpc", *arguments)
    broken = tmp_path / "broken.pem"
    broken.write_text("?")
    arguments = ("ratelimit", "grpc", "--port=0", f"--key={broken}", f"--certificate={broken}")
    assert "cannot listen" in gateway.run(*arguments, status=1)
    monkeypatch.setattr(grpc_verb, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match=r"django-ratelimit-lua\[grpc\]"):
        call_command("ratelimit", "grpc")
