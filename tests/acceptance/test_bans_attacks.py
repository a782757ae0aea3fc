"""Attacks as the logs of public rule sets have them, in the middle of a real log, as real requests:
exactly the bans of the reference.

The log is NASA's of 1995, and the attacks are what CrowdSec's rules are tested on (see
`tests/logs`): a scanner, passwords that are tried, floods of paths that do not exist, and of others
that no cache has. Beside them are some that no sample shows, for they take longer: passwords tried
slowly all night, a botnet of many addresses, and somebody who comes back as soon as a ban ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.engine import decide
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.operations.bans import active_bans
from django_ratelimit_lua.signals import banned
from django_ratelimit_lua.store import flusher
from tests import reference

LOGS = Path(__file__).parents[1] / "logs"
SECOND = 1_000_000
RATE = "10/m"
OPTIONS: dict[str, Any] = {
    "algorithm": "sliding_log",
    "ban_after": 4,
    "ban_window": "5m",
    "ban_for": "1m,2m,4m,20m",
}


class Line(NamedTuple):
    """A request in a log."""

    now: int
    address: str
    path: str


def visitors() -> Iterator[Line]:
    """Yield the requests of the real log, with an address for each host."""
    addresses: dict[str, str] = {}
    lines = [
        line.split("\t")
        for line in (LOGS / "nasa.tsv").read_text(encoding="latin-1").splitlines()[1:]
    ]
    for host, _logname, second, _method, path, _status, _size in lines:
        number = len(addresses)
        address = addresses.setdefault(host, f"11.0.{number // 250}.{number % 250 + 1}")
        yield Line(int(second) * SECOND, address, path.partition("?")[0] or "/")


def attackers(start: int) -> Iterator[Line]:
    """Yield the requests of the samples, each two minutes after the one before, and all again after
    ten minutes. Each client has an address.
    """
    addresses: dict[tuple[str, str], str] = {}
    begins: dict[str, int] = {}
    lines = [line.split("\t") for line in (LOGS / "attacks.tsv").read_text().splitlines()[1:]]
    for again in (0, 600):
        for sample, client, second, _method, path, _status, _agent in lines:
            number = len(addresses)
            address = addresses.setdefault((sample, client), f"14.0.0.{number + 1}")
            begin = begins.setdefault(sample, int(second) - 120 * len(begins))
            yield Line(start + (int(second) - begin + again) * SECOND, address, path)


def attacks(start: int) -> Iterator[Line]:
    """Yield the generated attacks, from that moment on."""
    for number in range(80):  # A scanner, all within a second.
        yield Line(start + number * 11_000, "12.0.0.1", f"/cgi-bin/test{number}.php")
    for number in range(60):  # Passwords, five in a second.
        yield Line(start + number * SECOND // 5, "12.0.0.2", "/login")
    for number in range(40):  # One every 25 seconds.
        yield Line(start + number * 25 * SECOND, "12.0.0.3", "/login")
    for number in range(120):  # Sixty addresses, two tries each.
        yield Line(start + number * 3 * SECOND, f"13.0.0.{number % 60 + 1}", "/login")
    for number in range(200):  # Every 4 seconds, whatever comes back.
        yield Line(start + number * 4 * SECOND, "12.0.0.4", "/xmlrpc.php")


def mixed() -> list[Line]:
    """Return all requests in the order of their times, which are unique."""
    real = list(visitors())
    start = min(line.now for line in real)
    lines = sorted(
        [*real, *attackers(start), *attacks(start + 2 * SECOND)], key=lambda line: line.now
    )
    return [line._replace(now=line.now + number) for number, line in enumerate(lines)]


class Model:
    """The reference model of one address."""

    def __init__(self) -> None:
        self.limits = [reference.REFERENCES["sliding_log"](Limit("log", RATE, **OPTIONS))]

    def answer(self, line: Line) -> tuple[bool, Any]:
        """Return whether the request is allowed, and the ban after it."""
        allowed, _granted, _answers = reference.decide(self.limits, "hit", line.now, 1)
        bans = self.limits[0].bans
        return allowed, bans.report(line.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the time of the limits."""
    return lambda now: monkeypatch.setattr(decide, "clock", lambda: now)


@pytest.mark.django_db(transaction=True)
def test_attacks_trigger_exactly_the_bans_of_the_reference_model(
    clock: Callable[[int], None],
) -> None:
    """Each decision is equal, and so is each ban with its end, its number of offences and its
    count.
    """

    @ratelimit(group="log", key="ip", rate=RATE, **OPTIONS)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    told: list[tuple[str, Any]] = []

    def hear(sender: Any, identity: str, ban: Any, **arguments: Any) -> None:
        told.append((identity, ban))

    banned.connect(hear)
    models: dict[str, Model] = {}
    expected: list[tuple[str, Any]] = []
    try:
        for line in mixed():
            clock(line.now)
            model = models.setdefault(line.address, Model())
            allowed, ban = model.answer(line)
            if ban.is_new:
                expected.append((digest(("ip", line.address)).decode(), ban))
            response = view(RequestFactory().get(line.path, REMOTE_ADDR=line.address))
            assert (response.status_code != 429) is allowed, line
    finally:
        banned.disconnect(hear)
    assert told == expected
    attackers = {digest(("ip", f"12.0.0.{number}")).decode() for number in range(1, 5)}
    whom = {identity for identity, _ in expected}
    assert whom & attackers >= attackers - {digest(("ip", "12.0.0.3")).decode()}
    assert digest(("ip", "14.0.0.1")).decode() in whom  # The scanner of the first sample.
    assert not whom & {digest(("ip", f"13.0.0.{number}")).decode() for number in range(1, 61)}
    assert max(ban.times for _, ban in expected) >= 3
    assert flusher.error is None
    assert active_bans() == []  # By the time of the server's clock, that was long ago.
