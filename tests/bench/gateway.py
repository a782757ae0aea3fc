"""The CPU time of a decision over HTTP and over gRPC, compared with `ahit` in a process.

The servers themselves have a cost. So the same clients also send requests without a decision:
uvicorn responds with 204, and gRPC with its health. The difference is the cost of the gateway.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import redis
from grpc import aio
from grpc_health.v1 import health_pb2

from django_ratelimit_lua import RateLimiter
from tests.bench.measure import DIRECT
from tests.contrib.gateway.grpc_gateway import METADATA, METHOD, Gateway, question
from tests.contrib.gateway.proxies import SECRET, Site

CLIENTS, ROUNDS = 16, 12
MANY, FEW = 1280, 320
"""Requests in a round; few if each takes long. There are many short rounds, because the speed of a
machine changes.
"""
RULES = [
    {"name": "api", "path": "/api/", "key": "ip", "rate": "100000000/h"},
    {
        "name": "by address",
        "descriptor": ["generic_key=site", "remote_address"],
        "key": "ip",
        "rate": "100000000/h",
    },
    {"name": "by key", "descriptor": ["header:x-api-key"], "rate": "100000000/h"},
    {"name": "nothing", "descriptor": ["generic_key=nothing", "remote_address"], "rate": "0/h"},
]
CHECK = (
    "GET /ratelimit/check HTTP/1.1\r\nHost: gateway\r\nX-Original-Method: GET\r\nX-Original-URI: "
    "/api/orders\r\n"
    "X-Original-Host: shop.example\r\nX-Original-Address: 203.0.113.%d\r\n"
    f"X-RateLimit-Secret: {SECRET}\r\n\r\n"
)
CHECK_OF_NOTHING = CHECK.replace("/ratelimit/check", "/nothing")
QUIET = {"version": 1, "loggers": {"django_ratelimit_lua.refused": {"level": "ERROR"}}}
HEALTH = health_pb2.HealthCheckRequest().SerializeToString()

Client = Callable[[int, int, list[float]], Awaitable[None]]
"""Sends a number of requests as one client, and appends the seconds of each to a list."""


class Cost(NamedTuple):
    """The cost of the requests of one round."""

    per_second: float
    p50: float
    """Milliseconds."""
    p99: float
    """Milliseconds."""
    cpu_us: float
    """Microseconds of CPU of the deciding process for each request."""
    shared: float
    """The number of requests that share a trip to Redis, or 0."""


class Case(NamedTuple):
    """A kind of request.

    - `asked`: opens a client;
    - `cpu`: returns the CPU seconds of the deciding process;
    - `beside`: the name of the case without a decision.
    """

    asked: Callable[[], AbstractAsyncContextManager[Client]]
    cpu: Callable[[], float]
    redis: redis.Redis
    beside: str = ""
    requests: int = MANY


def gateway() -> None:
    """Print the table."""
    with ExitStack() as stack:
        cases = {
            "ahit, in a process": Case(_hits, time.process_time, DIRECT),
            **_over_http(stack),
            **_over_grpc(stack),
        }
        found: dict[str, list[Cost]] = {name: [] for name in cases}
        for _ in range(ROUNDS):
            for name, case in cases.items():
                found[name].append(asyncio.run(_measured(case)))
    own = found["ahit, in a process"]
    parser = "httptools" if find_spec("httptools") else "h11"
    print(
        f"{f'16 clients of one process ({parser})':38}{'':42}{'CPU, x ahit':>17}{'decisions':>11}"
    )
    columns = f"{'a second':>9}{'a core':>8}{'p50 ms':>8}{'p99 ms':>8}{'CPU µs':>9}{'whole':>8}{'beyond':>9}{'a trip':>11}"  # noqa: E501
    print(f"{'':38}{columns}")
    for name, rounds in found.items():
        cost = Cost(*(statistics.median(column) for column in zip(*rounds, strict=True)))
        whole = _times(rounds, own)
        beside = cases[name].beside
        beyond = f"{whole - _times(found[beside], own):.1f}" if beside else ""
        shared = f"{cost.shared:.1f}" if beside or rounds is own else ""
        print(
            f"{name:38}{cost.per_second:9.0f}{1e6 / cost.cpu_us:8.0f}{cost.p50:8.1f}{cost.p99:8.1f}{cost.cpu_us:9.0f}"  # noqa: E501
            f"{whole:8.1f}{beyond:>9}{shared:>11}"
        )
    print(
        "aim, over HTTP by itself: beyond a server that answers 204 to the same, at most 3 x ahit\n"
    )


def _times(rounds: Sequence[Cost], own: Sequence[Cost]) -> float:
    """Return the CPU time as a multiple of that of `ahit`: the median of the rounds."""
    return statistics.median(
        cost.cpu_us / ahit.cpu_us for cost, ahit in zip(rounds, own, strict=True)
    )


def _over_http(stack: ExitStack) -> dict[str, Case]:
    sites = {}
    for name in ("bare", "asgi", "alone"):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sites[name] = stack.enter_context(
            Site(folder, RULES[:2], name, RATELIMIT_GATEWAY_DIALECT="nginx")
        )
    body = _json()

    def case(name: str, request: str, *more: Any) -> Case:
        site = sites[name]
        cpu = partial(_cpu, site.pid)
        return Case(
            partial(_http, site.port, request), cpu, redis.Redis.from_url(site.redis.url), *more
        )

    return {
        "uvicorn, 204 to what check is asked": case("bare", CHECK),
        "HTTP: check": case("alone", CHECK, "uvicorn, 204 to what check is asked"),
        "uvicorn, 204 to the same JSON": case("bare", body),
        "HTTP: the protocol as JSON": case("alone", body, "uvicorn, 204 to the same JSON"),
        "a view of Django's, 204 to the same": case("asgi", CHECK_OF_NOTHING, "", FEW),
        "HTTP: check, as a view of the site": case(
            "asgi", CHECK, "a view of Django's, 204 to the same", FEW
        ),
    }


def _over_grpc(stack: ExitStack) -> dict[str, Case]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    service = stack.enter_context(Gateway(folder, RULES[1:], LOGGING=QUIET))
    one, two, refused = (
        [_question(number) for number in range(CLIENTS)],
        [_question(number, [("header:x-api-key", f"key {number}")]) for number in range(CLIENTS)],
        [_question(number, name="nothing") for number in range(CLIENTS)],
    )

    def case(questions: list[bytes], method: str = METHOD, beside: str = "gRPC, how it is") -> Case:
        cpu = partial(_cpu, service.processes[0].pid)
        asked = partial(_grpc, service.port, method, questions)
        return Case(asked, cpu, redis.Redis.from_url(service.redis.url), beside)

    return {
        "gRPC, how it is": case([HEALTH] * CLIENTS, "/grpc.health.v1.Health/Check", ""),
        "gRPC: one descriptor": case(one),
        "gRPC: two descriptors": case(two),
        "gRPC: one that is refused": case(refused),
    }


def _json() -> str:
    entries = [
        {"key": "generic_key", "value": "site"},
        {"key": "remote_address", "value": "203.0.113.7"},
    ]
    body = json.dumps({"domain": "site", "descriptors": [{"entries": entries}]})
    head = f"POST /ratelimit/json HTTP/1.1\r\nHost: gateway\r\nX-RateLimit-Secret: {SECRET}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}"


def _question(number: int, *more: list[tuple[str, str]], name: str = "site") -> bytes:
    return question([("generic_key", name), ("remote_address", f"203.0.113.{number}")], *more)


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process, by clock_getcpuclockid(3) of Linux."""
    return time.clock_gettime(~pid << 3 | 2)


async def _measured(case: Case) -> Cost:
    took: list[float] = []
    async with case.asked() as client:

        async def rush(count: int) -> None:
            took.clear()
            await asyncio.gather(
                *(client(number, count // CLIENTS, took) for number in range(CLIENTS))
            )

        await rush(case.requests // 10)
        cpu, began, trips = case.cpu(), time.perf_counter(), _trips(case.redis)
        await rush(case.requests)
        whole, cpu, trips = (
            time.perf_counter() - began,
            case.cpu() - cpu,
            _trips(case.redis) - trips,
        )
    took.sort()
    count = len(took)
    return Cost(
        count / whole,
        took[count // 2] * 1e3,
        took[count * 99 // 100] * 1e3,
        cpu / count * 1e6,
        count / trips,
    )


def _trips(server: redis.Redis) -> int:
    """Return how often a server has read from a connection, with this call."""
    found: int = server.info("stats")["total_reads_processed"]
    return found


@asynccontextmanager
async def _hits() -> AsyncIterator[Client]:
    limiter = RateLimiter("bench-gateway", "100000000/h")

    async def client(number: int, count: int, took: list[float]) -> None:
        for _ in range(count):
            began = time.perf_counter()
            await limiter.ahit(number)
            took.append(time.perf_counter() - began)

    yield client


@asynccontextmanager
async def _http(port: int, request: str) -> AsyncIterator[Client]:
    async def client(number: int, count: int, took: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asks = (request % number if "%d" in request else request).encode()
        for _ in range(count):
            began = time.perf_counter()
            writer.write(asks)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.split(b" ", 2)[1] in (b"200", b"204"), head
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            took.append(time.perf_counter() - began)
        writer.close()

    yield client


@asynccontextmanager
async def _grpc(port: int, method: str, questions: list[bytes]) -> AsyncIterator[Client]:
    channel = aio.insecure_channel(f"127.0.0.1:{port}")
    ask = channel.unary_unary(method)

    async def client(number: int, count: int, took: list[float]) -> None:
        for _ in range(count):
            began = time.perf_counter()
            await ask(questions[number], timeout=30, metadata=METADATA)
            took.append(time.perf_counter() - began)

    yield client
    await channel.close()
