"""The settlement after a view's response, without a server or a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import RequestFactory

from django_ratelimit_lua.engine import DecidedCharge
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.identity.request_state import request_state
from django_ratelimit_lua.limits.call import Call, Charge
from django_ratelimit_lua.limits.decision import Decision, LimitState
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.views.call_sites import compile_call_site
from django_ratelimit_lua.web.settlement import settle

CHARGE = Charge(Limit("here", "5/h"), digest("ada"), 2)
STATE = LimitState("here", True, 5, 2, 3, 0.0, 3600.0, 0.0, counted_at=7)


def charged(token: int | None = 7, **says: Any) -> DecidedCharge:
    """Return the charge of a hit at a call site with these options about outcomes."""
    rule = compile_call_site("here", "ip", "5/h", None, 2, {}, **says)
    return DecidedCharge(CHARGE, "here", rule, state=STATE, token=token)


def settled(
    *charges: DecidedCharge, response: Any = "the response", source: Any = "redis"
) -> list[tuple[str, int]]:
    """Return the operations of the settlement, each with its units."""
    decision = Decision(True, (STATE,) * len(charges), source=source)
    request = RequestFactory().get("/")
    waiting = settle(request, request_state(request), response, decision, charges)
    done: list[tuple[str, int]] = []
    try:
        step = next(waiting)
        while True:
            if isinstance(step, Call):
                assert step.hit_at == (7 if step.operation == "refund" else None)
                done.append((step.operation, step.charges[0].cost))
                step = waiting.send(Decision(True, (STATE,)))
            elif "reset" in str(step.blocking):
                done.append(("forget", step.blocking.args[0].charges[0].cost))  # type: ignore[attr-defined]
                step = waiting.send(None)
            else:
                step = _resumed(waiting, step.blocking)
    except StopIteration:
        return done


def _resumed(waiting: Any, blocking: Callable[[], Any]) -> Any:
    """Resume with the result of a function of the project, or with its exception."""
    try:
        result = blocking()
    except ZeroDivisionError as error:
        return waiting.throw(error)
    return waiting.send(result)


def yes(request: HttpRequest, outcome: Any) -> bool:
    return True


def no(request: HttpRequest, outcome: Any) -> bool:
    return False


async def ano(request: HttpRequest, outcome: Any) -> bool:
    return False


def seven(request: HttpRequest, outcome: Any) -> int:
    return 7


@pytest.mark.parametrize(
    ("says", "done"),
    [
        ({}, []),
        ({"count_if": yes}, []),
        ({"count_if": no}, [("refund", 2)]),
        ({"count_if": ano}, [("refund", 2)]),
        ({"reset_if": yes}, [("forget", 2)]),
        ({"reset_if": no}, []),
        ({"cost_after": seven}, [("charge", 7)]),
        ({"cost_after": seven, "count_if": no}, [("refund", 2), ("charge", 7)]),
        ({"reset_if": yes, "count_if": no, "cost_after": seven}, [("forget", 2)]),
    ],
)
def test_the_options_of_the_call_site_apply(
    says: dict[str, Any], done: list[tuple[str, int]]
) -> None:
    """After a reset, nothing is refunded."""
    assert settled(charged(**says)) == done


def fail(request: HttpRequest, outcome: Any) -> bool:
    raise ZeroDivisionError


async def afail(request: HttpRequest, outcome: Any) -> bool:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "says",
    [
        *({option: fail} for option in ("count_if", "reset_if", "cost_after")),
        *({option: afail} for option in ("count_if", "reset_if", "cost_after")),
        *({option: fail, "count_if": no} for option in ("reset_if", "cost_after")),
        *(
            {"cost_after": lambda *_, cost=cost: cost}
            for cost in (-1, 2**53 + 1, 1.5, None, "7", False)
        ),
    ],
)
def test_units_stay_counted_if_a_function_fails(
    says: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one error with the name of the limit. Other limits are settled."""
    assert settled(charged(**says), charged(count_if=no)) == [("refund", 2)]
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("django_ratelimit_lua", "ERROR")
    assert "'here'" in record.getMessage()
    assert record.exc_info
    kind, error, _ = record.exc_info
    assert kind is ZeroDivisionError or "must be a whole number from 0 to" in str(error)


def test_a_call_that_took_no_units_refunds_none() -> None:
    """Without Redis, the functions of the call site are not called."""
    assert settled(charged(token=None, count_if=no)) == []
    every = charged(token=None, count_if=no, cost_after=seven, reset_if=yes)
    assert settled(every, source="fallback") == []


def test_the_outcome_is_the_response_or_the_exception() -> None:
    """The functions get the response, or any exception that stopped the view."""
    seen: list[Any] = []
    error = KeyboardInterrupt()

    def count_if(request: HttpRequest, outcome: Any) -> bool:
        seen.append(outcome)
        return True

    for response in ("the response", error):
        settled(charged(count_if=count_if), response=response)
    assert seen == ["the response", error]
