"""The log of refusals has one record per client and minute, and few records of a flood."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.test import RequestFactory

from django_ratelimit_lua import Decision
from django_ratelimit_lua.engine.logs import MAX_OF_LIMIT, MAX_OF_LOG
from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.web.reference import refusal_log

rf = RequestFactory()


def refused(name: str = "search:*:ip:10/s", identity: bytes = b"0123456789abcdef") -> Decision:
    state = LimitState(name, False, 10, 10, 0, 1.0, 1.0, 0.0, period=1.0)
    return Decision(False, (state,), identity=identity)


def write(
    number: int = 1, name: str = "search:*:ip:10/s", path: str = "/search/", **meta: Any
) -> None:
    """Write the refusals of this number of clients."""
    for client in range(number):
        identity = b"0123456789abcdef" if number == 1 else b"%016x" % client
        refusal_log.write(rf.get(path, **meta), refused(name, identity), "api", "7ZK4M")


def test_a_log_record_contains_the_limit_the_client_and_the_path(caplog: Any) -> None:
    """Address and digest are shortened, and the query is left out."""
    write(REMOTE_ADDR="203.0.113.77", path="/search/?q=secret")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("django_ratelimit_lua.refused", logging.WARNING)
    assert record.getMessage() == (
        "Refused by search:*:ip:10/s (rule: api): GET /search/ of 203.0.113.0/24, identity "
        "01234567, reference 7ZK4M; "
        "records dropped before: 0"
    )
    parts = {"limit": "search:*:ip:10/s", "rule": "api", "client": "203.0.113.0/24", "skipped": 0}
    parts |= {"identity": "01234567", "reference": "7ZK4M", "method": "GET", "path": "/search/"}
    assert {part: getattr(record, part) for part in parts} == parts
    assert json.dumps({part: getattr(record, part) for part in parts})


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("nonsense", "unknown"),
        ("", "unknown"),
        ("::ffff:192.0.2.9", "192.0.2.0/24"),
    ],
)
def test_an_address_is_masked(address: str, client: str, caplog: Any) -> None:
    """The record contains the network of an address, or "unknown" if the address is invalid."""
    write(REMOTE_ADDR=address)
    assert caplog.records[0].client == client


def test_client_text_cannot_add_log_lines(caplog: Any) -> None:
    """A path with a line break or with 100,000 characters stays one short line."""
    write(path="/a%0AWARNING%20all%20is%20well" + "x" * 100_000)
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 600


def admit(limit: str, identity: bytes, now: float) -> int | None:
    """Return the number of skipped records before this one; None if this one is skipped, too."""
    if not refusal_log.admit(limit, identity, now):
        return None
    return refusal_log.take_skipped(limit)


def test_a_client_is_logged_once_a_minute() -> None:
    """Each limit has a record. Unknown clients are bounded as a flood is."""
    ada, grace = b"a" * 32, b"b" * 32
    assert [admit("search", ada, 1000.0 + second) for second in range(59)] == [0] + [None] * 58
    assert admit("search", grace, 1059.0) == 58
    assert admit("login", ada, 1059.0) == 0
    assert admit("search", ada, 1060.0) == 0
    assert admit("search", ada, 1061.0) is None
    assert [admit("search", b"", 1062.0) for _ in range(3)] == [1, 0, 0]


def test_clients_skipped_in_a_flood_are_logged_later() -> None:
    """They do not count as logged."""
    for client in range(MAX_OF_LIMIT):
        admit("search", b"%032x" % client, 1000.0)
    assert admit("search", b"a" * 32, 1000.0) is None
    assert admit("search", b"a" * 32, 1060.0) == 1


def test_omissions_are_logged_with_the_next_record() -> None:
    """They are counted for each limit."""
    said = [admit("search", b"%032x" % client, 1000.0) for client in range(5000)]
    assert said == [0] * 10 + [None] * 4990
    assert admit("login", b"x" * 32, 1000.0) == 0
    assert [admit("search", b"%032x" % client, 1060.0) for client in (11, 12, 12)] == [
        4990,
        0,
        None,
    ]
    assert admit("search", b"x" * 32, 1061.0) == 1


def test_made_up_limit_names_write_few_records() -> None:
    """All limits together write at most sixty records a minute."""
    said = [admit(f"made-up-{number}", b"x" * 32, 1000.0) for number in range(3000)]
    assert said == [0] * MAX_OF_LOG + [None] * (3000 - MAX_OF_LOG)


def test_nothing_is_counted_as_skipped_while_logging_is_off(caplog: Any) -> None:
    """If the logger's level excludes the records, none is counted as skipped."""
    logger = logging.getLogger("django_ratelimit_lua.refused")
    with caplog.at_level(logging.ERROR, logger.name):
        write(100)
    write()
    (record,) = caplog.records
    assert record.skipped == 0


def test_a_failing_project_function_does_not_prevent_a_record(caplog: Any, settings: Any) -> None:
    """If the function for the address raises an exception, the record has the client "unknown"."""

    def fail(request: Any) -> str:
        raise RuntimeError

    settings.RATELIMIT_IP_META_KEY = fail
    write()
    assert caplog.records[0].client == "unknown"
