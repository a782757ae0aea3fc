"""What a decision costs over gRPC, as Envoy asks: a second and core, and the time of each, beside a question that
decides nothing."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from grpc import aio
from grpc_health.v1 import health_pb2

from django_ratelimit_lua.gateway.envoy import messages
from tests.bench.gateway import Cost, _cpu
from tests.grpc_gateway import Gateway, question

CLIENTS, QUESTIONS, ROUNDS = 16, 4000, 3
RULES = [
    {"name": "by address", "descriptor": ["generic_key=site", "remote_address"], "key": "ip", "rate": "100000000/h"},
    {"name": "by key", "descriptor": ["header:x-api-key"], "rate": "100000000/h"},
    {"name": "nothing", "descriptor": ["generic_key=nothing", "remote_address"], "rate": "0/h"},
]
QUIET = {"version": 1, "loggers": {"django_ratelimit_lua.refused": {"level": "ERROR"}}}
DECIDES = f"/{messages.SERVICE}/{messages.METHOD}"


def _question(number: int, *more: list[tuple[str, str]], name: str = "site") -> bytes:
    return question([("generic_key", name), ("remote_address", f"203.0.113.{number}")], *more)


def envoy() -> None:
    """The table."""
    health = health_pb2.HealthCheckRequest().SerializeToString()
    cases = {
        "health, which decides nothing": ("/grpc.health.v1.Health/Check", [health] * CLIENTS),
        "one descriptor": (DECIDES, [_question(number) for number in range(CLIENTS)]),
        "two descriptors": (
            DECIDES,
            [_question(number, [("header:x-api-key", f"key {number}")]) for number in range(CLIENTS)],
        ),
        "one that is refused": (DECIDES, [_question(number, name="nothing") for number in range(CLIENTS)]),
    }
    found: dict[str, list[Cost]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder, Gateway(Path(folder), RULES, LOGGING=QUIET) as gateway:
        for _ in range(ROUNDS):
            for name, (method, questions) in cases.items():
                found[name].append(asyncio.run(_measured(gateway, method, questions)))
    columns = f"{'questions/s':>12}{'p50 ms':>8}{'p99 ms':>8}{'CPU µs':>8}{'a core/s':>10}"
    print(f"{'over gRPC, one process, 16 at once':36}{columns}")
    for name, rounds in found.items():
        cost = Cost(*(statistics.median(column) for column in zip(*rounds, strict=True)))
        per_core = 1e6 / cost.cpu_us
        print(f"{name:36}{cost.per_second:12.0f}{cost.p50:8.1f}{cost.p99:8.1f}{cost.cpu_us:8.0f}{per_core:10.0f}")
    print()


async def _measured(gateway: Gateway, method: str, questions: list[bytes]) -> Cost:
    took: list[float] = []
    async with aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        ask = channel.unary_unary(method)

        async def client(data: bytes, count: int) -> None:
            for _ in range(count):
                began = time.perf_counter()
                await ask(data, timeout=30)
                took.append(time.perf_counter() - began)

        await asyncio.gather(*(client(data, 20) for data in questions))
        took.clear()
        before, began = _cpu(gateway.process.pid), time.perf_counter()
        await asyncio.gather(*(client(data, QUESTIONS // CLIENTS) for data in questions))
        whole, cpu = time.perf_counter() - began, _cpu(gateway.process.pid) - before
    took.sort()
    return Cost(
        len(took) / whole, took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3, cpu / len(took) * 1e6
    )  # fmt: skip
