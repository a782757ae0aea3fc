"""The log of decisions has a record for each decision if its logger is enabled."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.engine import decide, holding
from django_ratelimit_lua.engine.logs import logger
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.identity.request_state import request_state
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.models import RateLimitOverride

ADDRESS = "203.0.113.77"


Records = Callable[[], list[logging.LogRecord]]


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Records:
    """Enable the logger, and return a function that returns the records."""
    caplog.set_level(logging.DEBUG, logger.name)
    return lambda: [record for record in caplog.records if record.name == logger.name]


def of(record: logging.LogRecord) -> dict[str, Any]:
    words = ("operation", "allowed", "remaining", "retry_after", "source", "denied_by", "limits")
    return {word: getattr(record, word) for word in words}


@pytest.mark.usefixtures("quiet")
def test_each_decision_is_logged_with_its_numbers(records: Records, settings: Any) -> None:
    """The record has those of the decision and of each limit, for every source."""
    settings.RATELIMIT_DENY_CACHE_SECONDS = 60
    mail = RateLimiter("mail", ["1/h", "9/d"], algorithm="sliding_log")
    mail.hit("ada")
    refused = mail.hit("ada")
    mail.hit("ada")
    asyncio.run(mail.apeek("bob"))
    first, second, third, fourth = map(of, records())
    ada = digest("ada")[:8].decode()
    common = {"rule": None, "identity": ada, "mode": "enforce"}
    fresh = {"allowed": True, "retry_after": 0.0}
    assert first == {
        **{"operation": "hit", "remaining": 0, "source": "redis", "denied_by": (), **fresh},
        "limits": [
            {"limit": state.name, **common, **fresh, "remaining": left}
            for state, left in zip(mail.limits, (0, 8), strict=True)
        ],
    }
    assert 3590 < refused.retry_after <= 3600
    assert (second["allowed"], second["source"]) == (False, "redis")
    assert second["retry_after"] == refused.retry_after
    assert [limit["allowed"] for limit in second["limits"]] == [False, True]
    assert (third["allowed"], third["source"]) == (False, "deny-cache")
    assert (fourth["operation"], fourth["remaining"]) == ("peek", 1)
    assert all(
        (record.name, record.levelname) == ("django_ratelimit_lua.decisions", "DEBUG")
        for record in records()
    )
    text = records()[1].getMessage()
    assert text.startswith(
        f"hit: allowed False, remaining 0, retry_after {refused.retry_after}, source redis, "
    )
    assert all(limit.name in text for limit in mail.limits)
    json.dumps(second)  # As a formatter for JSON has it.


@pytest.mark.django_db(transaction=True)
def test_no_log_record_names_a_client(records: Records) -> None:
    """Clients are identified by digests. The record has no object of the request."""

    @ratelimit(group="search", key=("ip", "header:X-Api-Key"), rate="9/h")
    def search(request: HttpRequest) -> HttpResponse:
        return HttpResponse("found")

    request = RequestFactory().get("/", REMOTE_ADDR=ADDRESS, headers={"X-Api-Key": "a-key-of-ada"})
    assert search(request).status_code == 200
    RateLimitOverride.objects.create(network=ADDRESS, effect="block", message="of ada")
    assert search(request).status_code == 429
    assert RateLimitMiddleware(lambda request: HttpResponse("found"))(request).status_code == 429
    decisions = records()
    found = [(of(record)["allowed"], of(record)["denied_by"]) for record in decisions]
    name = "search:*:ip+header:X-Api-Key:9/h"
    assert found == [(True, ()), (False, (name,)), (False, ("block",))]
    whole = b"".join(pickle.dumps(vars(each)) + each.getMessage().encode() for each in decisions)
    secrets = (ADDRESS.encode(), b"a-key-of-ada", b"of ada")
    assert [secret for secret in secrets if secret in whole] == []


def test_a_disabled_decision_log_creates_no_records(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By default, no record is created and the decision is not read."""
    made: list[Any] = []
    monkeypatch.setattr(decide, "log_decision", lambda *given: made.append(given))
    mail = RateLimiter("mail", "1/h")
    mail.hit("ada")
    assert made == []
    caplog.set_level(logging.DEBUG, logger.name)
    mail.hit("ada")
    assert len(made) == 1


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the arguments of each call of a hook."""
    found: list[tuple[Any, ...]] = []
    for module in (decide, holding):
        monkeypatch.setattr(module, "decision_hooks", [lambda *given: found.append(given)])
    return found


def test_decision_hooks_receive_each_hit_with_its_request(
    decisions: list[Any], rf: RequestFactory
) -> None:
    """Charges and states have the same order. Peeks and refunds are not hits."""

    @ratelimit(group="outer", key="ip", rate="9/m")
    @ratelimit(group="inner", key="ip", rate="5/m")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    request = rf.get("/")
    view(request)
    limiter = RateLimiter("mail", "5/h")
    limiter.hit("ada")
    limiter.peek("ada")
    limiter.refund("ada")
    (planned, decision, seconds, exempt, state), (others, *_, no_state) = decisions
    assert [charge.name for charge in planned] == ["outer", "inner"]
    assert [charge.charge.limit.name for charge in planned] == [
        limit.name for limit in decision.limits
    ]
    assert decision.allowed
    assert 0 < seconds < 60
    assert list(exempt) == []
    assert state is request_state(request)
    assert [charge.name for charge in others] == ["mail"]
    assert no_state is None


def test_a_call_that_waits_for_a_slot_is_reported_once_to_hooks(decisions: list[Any]) -> None:
    """The call tries several times. The reported duration is that of the last decision."""
    exports = RateLimiter("exports", "1", algorithm="concurrency")
    with exports.slot():
        slot = exports.slot(timeout=0.2)
        with pytest.raises(Exception, match="exports"), slot:
            pass
    (_, first, *_), (_, refused, seconds, *_) = decisions
    assert (first.allowed, refused.allowed) == (True, False)
    assert seconds > 0
