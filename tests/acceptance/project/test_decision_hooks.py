"""`Extension.on_decision`: the arguments that an optional app gets for each decision."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.engine import decide, holding
from django_ratelimit_lua.identity.request_state import request_state


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
