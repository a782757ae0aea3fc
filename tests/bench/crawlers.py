"""Whether people are served while crawlers flood a site: `python -m tests.bench.crawlers`.

Two workers of gunicorn behind nginx answer with a view of 50 ms, so 40 requests a second. People
send 0.6 times as many, half of them signed in, and crawlers 2.4 times as many: 40 % with their
names, 20 % as a false Googlebot, 40 % with the user agent of a browser from twenty /24 networks.
The settings are those of the how-to page.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
import timeit
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import django
from django.test import RequestFactory, override_settings

from django_ratelimit_lua.rules.ruleset import Ruleset, settings_rules
from django_ratelimit_lua.web.request_plan import RequestPlanner
from tests.acceptance.middleware.crawled_site import Site, crawled_site, documented_settings
from tests.support.redis_server import server

CAPACITY = 2 / 0.05
PEOPLE = 0.6 * CAPACITY
CRAWLERS = 2.4 * CAPACITY
SECONDS = 20
IN_TIME = 2.0
ROUNDS = 3
BROWSER = "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:140.0) Gecko/20100101 Firefox/140.0"
NAMES = ("GPTBot/1.2", "ClaudeBot/1.0", "Bytespider", "meta-externalagent/1.1 (crawler)")
GOOGLEBOT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
SIGNED_IN, ANONYMOUS, NAMED, FALSE, HIDDEN = KINDS = (
    "signed-in people",
    "anonymous people",
    "named crawlers",
    "false Googlebots",
    "hidden crawlers",
)
RATES = {
    SIGNED_IN: PEOPLE / 2,
    ANONYMOUS: PEOPLE / 2,
    NAMED: 0.4 * CRAWLERS,
    FALSE: 0.2 * CRAWLERS,
    HIDDEN: 0.4 * CRAWLERS,
}
"""Requests a second."""


class Sender(NamedTuple):
    """The address and the headers of a request."""

    address: str
    headers: str


def sender_of(kind: str, number: int, site: Site) -> Sender:
    """Return the sender of a request. Each anonymous person sends one."""
    chance = random.Random(f"{kind} {number}")
    address = f"127.{chance.randint(100, 250)}.{chance.randint(0, 255)}.{chance.randint(1, 254)}"
    user_agent = BROWSER
    cookie = ""
    if kind == SIGNED_IN:
        cookie = f"Cookie: sessionid={site.cookies[number % len(site.cookies)]}\r\n"
    elif kind == ANONYMOUS:
        address = f"127.{40 + number // 250}.{number % 250}.1"
    elif kind == NAMED:
        user_agent = f"Mozilla/5.0 (compatible; {chance.choice(NAMES)})"
    elif kind == FALSE:
        user_agent = GOOGLEBOT
    else:
        address = f"127.20.{chance.randrange(20)}.{chance.randint(1, 254)}"
    return Sender(address, f"User-Agent: {user_agent}\r\n{cookie}")


async def ask(port: int, sender: Sender) -> int:
    """Return the status of a request, or 0 if it was not answered in time."""
    writer = None
    try:
        async with asyncio.timeout(IN_TIME):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(sender.address, 0)
            )
            head = f"GET /50 HTTP/1.1\r\nHost: site\r\n{sender.headers}Connection: close\r\n\r\n"
            writer.write(head.encode())
            return int((await reader.readline()).split()[1])
    except (TimeoutError, OSError, IndexError):
        return 0
    finally:
        if writer is not None:
            writer.close()


async def flood(site: Site) -> Mapping[str, Counter[int]]:
    """Send all requests at random moments; return the statuses by kind."""
    found: dict[str, Counter[int]] = {kind: Counter() for kind in KINDS}
    chance = random.Random(7)
    plan = [
        (chance.uniform(0, SECONDS), kind, number)
        for kind, rate in RATES.items()
        for number in range(round(rate * SECONDS))
    ]
    begin = time.monotonic()

    async def send(kind: str, number: int) -> None:
        found[kind][await ask(site.proxy, sender_of(kind, number, site))] += 1

    async with asyncio.TaskGroup() as group:
        for moment, kind, number in sorted(plan):
            await asyncio.sleep(moment - (time.monotonic() - begin))
            group.create_task(send(kind, number))
    return found


def crawlers(show: Callable[[str], object] = print) -> None:
    """The table: the median share of requests that were served within two seconds."""
    shares: dict[bool, dict[str, list[float]]] = {
        has_rules: {kind: [] for kind in KINDS} for has_rules in (True, False)
    }
    load = os.getloadavg()[0]
    show(f"{SECONDS} s of a flood, load {load:.1f}; served within {IN_TIME:g} s")
    for number in range(ROUNDS):
        for has_rules, of_kinds in shares.items():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                settings: dict[str, Any] = documented_settings(folder / "google.json")
                if not has_rules:
                    settings["RATELIMIT_RULES"] = []
                with crawled_site(folder, settings, workers=2, users=50) as site:
                    found = asyncio.run(flood(site))
            for kind, statuses in found.items():
                of_kinds[kind].append(statuses[200] / statuses.total())
            words = "; ".join(
                f"{kind} {dict(sorted(each.items()))}" for kind, each in found.items()
            )
            show(f"run {number + 1}, {'with' if has_rules else 'without'} rules: {words}")
    show(f"{'share of requests served':28}{'with the rules':>16}{'without':>10}")
    for kind in KINDS:
        with_rules, without = (statistics.median(each[kind]) for each in shares.values())
        show(f"{kind:28}{with_rules:16.1%}{without:10.1%}")
    show("aim: signed-in people at least 99 %, anonymous people 95 %\n")


def calm_cost(show: Callable[[str], object] = print) -> None:
    """Print the cost of the documented rules for a request that did not wait."""
    with tempfile.TemporaryDirectory() as name:
        documented = documented_settings(Path(name) / "google.json")
        others = {**documented, "RATELIMIT_RULES": [], "RATELIMIT_REQUEST_START": None}
        with_rules, without = _least_us(documented), _least_us(others)
    show(f"documented rules in calm times: {with_rules - without:.1f} µs a request; aim: 3\n")


def _least_us(settings: Mapping[str, Any]) -> float:
    """Return the microseconds of a request in the fastest of many short rounds."""
    start = f"t={time.time():.3f}"
    names = {"HTTP_USER_AGENT": BROWSER, "HTTP_X_FORWARDED_FOR": "203.0.113.9"}
    request = RequestFactory().get("/page", HTTP_X_REQUEST_START=start, **names)
    with override_settings(**settings):
        ruleset = Ruleset(settings_rules())

        def gather() -> None:
            vars(request).pop("_ratelimit", None)  # As a new request.
            RequestPlanner(request, ())
            ruleset.matching(request)

        return min(timeit.repeat(gather, number=100, repeat=2000)) * 1e4


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.bench.settings")
    django.setup()
    calm_cost()
    crawlers()
    server.stop()
