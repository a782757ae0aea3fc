"""What the gateway costs: requests a second and the time of each, beside a view that answers 204; CPU beside `ahit`."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from django_ratelimit_lua import RateLimiter
from tests.proxies import SECRET, Site

CLIENTS, REQUESTS, ROUNDS = 16, 2000, 3
RULES = [{"name": "api", "path": "/api/", "key": "ip", "rate": "100000000/h"}]
CHECK = (
    "GET /ratelimit/check HTTP/1.1\r\nHost: gateway\r\nX-Original-Method: GET\r\nX-Original-URI: /api/orders\r\n"
    "X-Original-Host: shop.example\r\nX-Original-Address: 203.0.113.%d\r\n"
    f"X-RateLimit-Secret: {SECRET}\r\n\r\n"
)
NOTHING = "GET /nothing HTTP/1.1\r\nHost: gateway\r\n\r\n"
TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Requests a second, milliseconds of half and of 99 of 100 of them, and the server's CPU in microseconds."""

    per_second: float
    p50: float
    p99: float
    cpu_us: float


def gateway() -> None:
    """The table."""
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(3)]
        sites = {
            name: stack.enter_context(Site(folder, RULES, name, RATELIMIT_GATEWAY_DIALECT="nginx"))
            for name, folder in zip(("bare", "asgi", "alone"), folders, strict=True)
        }
        tokens = {name: _token(site) for name, site in sites.items() if name != "bare"}
        cases: dict[str, tuple[str, str]] = {
            "uvicorn alone, 204": ("bare", NOTHING),
            "a view of Django's, 204": ("asgi", NOTHING),
            "check, in Django": ("asgi", CHECK),
            "check, the gateway by itself": ("alone", CHECK),
            "decide, the gateway by itself": ("alone", _decide(tokens["alone"])),
        }
        found: dict[str, list[Cost]] = {name: [] for name in cases}
        own: list[float] = []
        for _ in range(ROUNDS):
            own.append(_ahit())
            for name, (site, request) in cases.items():
                found[name].append(_measured(sites[site], request))
    ahit = statistics.median(own)
    bare = statistics.median(cost.cpu_us for cost in found["uvicorn alone, 204"])
    columns = f"{'requests/s':>11}{'p50 ms':>8}{'p99 ms':>8}{'CPU µs':>8}{'beyond uvicorn':>16}"
    print(f"{'through uvicorn, 16 clients':34}{columns}")
    for name, rounds in found.items():
        cost = Cost(*(statistics.median(column) for column in zip(*rounds, strict=True)))
        beyond = f"{(cost.cpu_us - bare) / ahit:.1f} x ahit" if name.startswith(("check", "decide")) else ""
        print(f"{name:34}{cost.per_second:11.0f}{cost.p50:8.1f}{cost.p99:8.1f}{cost.cpu_us:8.0f}{beyond:>16}")
    print(f"ahit in this process, {CLIENTS} coroutines: {ahit:.0f} µs of CPU\naim: beyond uvicorn at most 3 x ahit\n")


def _token(site: Site) -> str:
    code = (
        "from django_ratelimit_lua.models import RateLimitClient\n"
        "client = RateLimitClient(name='bench', limits='*')\nprint(client.new_token())\nclient.save()"
    )
    return site.command("shell", command=code, verbosity=0).strip()


def _decide(token: str) -> str:
    body = json.dumps({"charges": [{"limit": "api", "identity": {"ip": "203.0.113.7"}}]})
    head = f"POST /ratelimit/decide HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}"


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _measured(site: Site, request: str) -> Cost:
    asyncio.run(_rush(site.port, request, 200))
    before, started = _cpu(site.pid), time.perf_counter()
    took = sorted(asyncio.run(_rush(site.port, request, REQUESTS)))
    whole, cpu = time.perf_counter() - started, _cpu(site.pid) - before
    return Cost(
        len(took) / whole, took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3, cpu / len(took) * 1e6
    )  # fmt: skip


async def _rush(port: int, request: str, count: int) -> list[float]:
    took: list[float] = []

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asks = (request % number if "%d" in request else request).encode()
        for _ in range(count // CLIENTS):
            started = time.perf_counter()
            writer.write(asks)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.split(b" ", 2)[1] in (b"200", b"204"), head
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            took.append(time.perf_counter() - started)
        writer.close()

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return took


def _ahit() -> float:
    """Microseconds of this process's CPU for each `ahit` of so many coroutines."""
    limiter = RateLimiter("bench-gateway", "100000000/h")

    async def hits(count: int) -> None:
        async def some(number: int) -> None:
            for _ in range(count // CLIENTS):
                await limiter.ahit(number)

        await asyncio.gather(*(some(number) for number in range(CLIENTS)))

    async def measured() -> float:
        await hits(200)
        before = time.process_time()
        await hits(REQUESTS)
        return (time.process_time() - before) / REQUESTS * 1e6

    return asyncio.run(measured())
