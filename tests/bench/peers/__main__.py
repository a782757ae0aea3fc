"""`make bench-peers`: the costs of hits and requests with other limiters and with ours.

`--only` takes a part, `--quick` few rounds, to see that everything works; `--write` puts the tables
into `docs/benchmarks.inc` and `docs/comparison.inc`, if all of them were measured with all rounds.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.bench.settings")
django.setup()

from django.core.management import call_command  # noqa: E402

from tests.bench.measure import DIRECT  # noqa: E402
from tests.bench.peers.limiters import BARE_NAME, DRF_VIEW, LIMITERS, VIEW  # noqa: E402
from tests.bench.peers.promises import measure_promises  # noqa: E402
from tests.bench.peers.requests import CONNECTIONS, measure_requests  # noqa: E402
from tests.bench.peers.rounds import (  # noqa: E402
    IDENTITIES,
    PROCESSES,
    Failed,
    beyond_views,
    measure_coroutines,
    measure_footprints,
    measure_hits,
    measure_processes,
)
from tests.support.redis_server import server  # noqa: E402

DOCS = Path(__file__).parents[3] / "docs"
PAGE, COMPARISON = DOCS / "benchmarks.inc", DOCS / "comparison.inc"
PACKAGES = (
    "django-ratelimit-lua",
    "redis",
    "hiredis",
    "limits",
    "coredis",
    "throttled-py",
    "django-ratelimit",
    "django-smart-ratelimit",
    "djangorestframework",
    "Django",
    "django-redis",
    "gunicorn",
    "uvicorn",
)
COMPARED = (
    "django-ratelimit-lua",
    "django-ratelimit",
    "django-smart-ratelimit",
    "django-modern-rest",
    "django-trafficwatch",
    "djangorestframework",
    "limits",
)

Column = tuple[str, Callable[[str], str]]
"""A heading, and a function that returns the cell of a name."""


def versions(packages: Sequence[str] = PACKAGES) -> str:
    """Return the versions of the server, Python and packages."""

    def of(package: str) -> str:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            return f"{package} not installed"

    info = DIRECT.info("server")
    name = (
        f"Valkey {info['valkey_version']}"
        if "valkey_version" in info
        else f"Redis {info['redis_version']}"
    )
    return (
        f"{name}, Python {platform.python_version()}, {os.cpu_count()} cores; "
        f"{', '.join(map(of, packages))}."
    )


def table(title: str, names: Sequence[str], columns: Sequence[Column]) -> str:
    """Return a list-table of reStructuredText with a row for each name."""
    lines = [f".. list-table:: {title}".rstrip(), "   :header-rows: 1", "", "   * -"]
    lines += [f"     - {heading}" for heading, _ in columns]
    for name in names:
        lines += [f"   * - {name}", *(f"     - {cell(name)}".rstrip() for _, cell in columns)]
    return "\n".join([*lines, ""])


def failures(found: Mapping[str, Any]) -> list[str]:
    """Return the reasons for missing numbers."""
    return [f"{name}: not run, {why}\n" for name, why in found.items() if isinstance(why, Failed)]


def plain(found: Mapping[str, Any], field: str, form: str = "{:g}") -> Callable[[str], str]:
    """Return the cells of a number."""

    def cell(name: str) -> str:
        measured = found.get(name)
        if isinstance(measured, Failed):
            return "not run"
        return "" if measured is None else form.format(getattr(measured, field))

    return cell


def ratio(found: Mapping[str, Any], field: str, form: str = "{:.0f} µs") -> Callable[[str], str]:
    """Return the cells of a number as ratios to the bare call, which has the number itself."""
    if isinstance(found[BARE_NAME], Failed):
        raise SystemExit(f"{BARE_NAME}: {found[BARE_NAME]}")
    one, absolute = getattr(found[BARE_NAME], field), plain(found, field, form)

    def cell(name: str) -> str:
        measured = found.get(name)
        if name == BARE_NAME:
            return f"1 = {absolute(name)}"
        if measured is None or isinstance(measured, Failed):
            return absolute(name)
        return f"{getattr(measured, field) / one:.2f}"

    return cell


def hits(rounds: int) -> list[str]:
    """Return tables of hits in one process, of one limit and of several."""
    measurable = [limiter for limiter in LIMITERS if limiter.make is not None]
    names = [limiter.name for limiter in measurable]
    alone = beyond_views(measure_hits(measurable, 1, rounds, len(IDENTITIES)))
    left = measure_footprints(measurable)
    columns = [
        ("p50", ratio(alone, "p50")),
        ("p99", ratio(alone, "p99")),
        ("client CPU", ratio(alone, "client")),
        ("server CPU", ratio(alone, "server")),
        ("commands", ratio(alone, "commands", "{:.1f} µs")),
        ("round trips", plain(alone, "trips")),
        ("keys", plain(left, "keys")),
        ("bytes, 1 hit", plain(left, "bytes_of_one", "{:.0f}")),
        ("10 hits", plain(left, "bytes_of_ten", "{:.0f}")),
    ]
    tables = [table("A hit of one limit", names, columns), *failures(alone)]
    columns = []
    for limits in (3, 8):
        found = beyond_views(measure_hits(measurable, limits, rounds, len(IDENTITIES) // limits))
        columns += [
            (f"{limits} limits: p50", ratio(found, "p50")),
            ("client CPU", ratio(found, "client")),
            ("server CPU", ratio(found, "server")),
            ("round trips", plain(found, "trips")),
        ]
    return [
        *tables,
        table("A hit of several limits; the unit is as many bare calls", names, columns),
    ]


def coroutines(rounds: int) -> list[str]:
    """Return tables of hits of one limit by coroutines of one event loop."""
    measurable = [limiter for limiter in LIMITERS if limiter.amake is not None]
    columns, why = [], {}
    for count, found in measure_coroutines(measurable, (1, 10, 100), rounds).items():
        why |= {name: failed for name, failed in found.items() if isinstance(failed, Failed)}
        columns += [
            (f"{count}: hits/s", ratio(found, "per_second", "{:,.0f}")),
            ("client CPU", ratio(found, "client")),
            ("server CPU", ratio(found, "server")),
        ]
    names = [limiter.name for limiter in measurable]
    return [table("Hits of one limit by 1, 10 and 100 coroutines", names, columns), *failures(why)]


def processes(rounds: int) -> list[str]:
    """Return a table of hits of one limit by eight processes."""
    measurable = [
        limiter
        for limiter in LIMITERS
        if limiter.make is not None and limiter.name not in (VIEW, DRF_VIEW)
    ]
    found = measure_processes(measurable, rounds)
    columns = [
        ("hits/s", ratio(found, "per_second", "{:,.0f}")),
        ("client CPU", ratio(found, "client")),
        ("server CPU", ratio(found, "server")),
    ]
    names = [limiter.name for limiter in measurable]
    return [
        table(
            f"Hits of one limit by {PROCESSES} processes; views with all that they cost",
            names,
            columns,
        ),
        *failures(found),
    ]


def requests(rounds: int) -> list[str]:
    """Return tables of requests to servers of WSGI and ASGI."""
    tables = []
    for name, found in measure_requests(rounds).items():
        columns = [
            ("requests/s", plain(found, "per_second", "{:,.0f}")),
            ("x without a limit", plain(found, "share", "{:.2f}")),
            ("p50, ms", plain(found, "p50", "{:.1f}")),
            ("p99, ms", plain(found, "p99", "{:.1f}")),
        ]
        tables += [
            table(f"Requests by {CONNECTIONS} connections to {name}", list(found), columns),
            *failures(found),
        ]
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", choices=list(PARTS))
    options = parser.parse_args()
    logging.disable()  # Some log every hit.
    call_command("migrate", verbosity=0)
    texts = {}
    used, compared = versions(), versions(COMPARED)
    for name, part in PARTS.items():
        if name in (options.only or PARTS):
            print(f"{name} ...", file=sys.stderr, flush=True)
            texts[name] = "\n".join(part(2 if options.quick else 7))
    tried = texts.pop("promises", "")
    measured = "\n".join([used + "\n", *texts.values()])
    print(f"{tried}\n{measured}")
    if options.write and not options.quick:
        if tried:
            COMPARISON.write_text(f"{tried}\n{compared}\n")
        if not options.only:
            PAGE.write_text(measured)
    server.stop()


def promises(rounds: int) -> list[str]:
    """Return a table of promises. It comes last, because it stops the server."""
    found = measure_promises()
    columns = [
        ("passed of 100 at once, limit 10", plain(found, "at_once")),
        ("most in a second, limit 10/s", plain(found, "in_a_second")),
        ("lost", plain(found, "lost")),
        ("Redis hangs", plain(found, "hung", "{}")),
        ("Redis is gone", plain(found, "down", "{}")),
        ("Retry-After", plain(found, "retry_after", "{}")),
    ]
    return [table("", list(found), columns), *failures(found)]


PARTS = {
    "hits": hits,
    "coroutines": coroutines,
    "processes": processes,
    "requests": requests,
    "promises": promises,
}

if __name__ == "__main__":
    main()
