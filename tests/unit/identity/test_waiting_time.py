"""The waiting time of a request, by a header of a trusted proxy."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import RequestFactory

from django_ratelimit_lua.identity.request_state import waiting_time
from django_ratelimit_lua.process import Clock

NOW = 1_800_000_000.5


@pytest.fixture(autouse=True)
def _site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.RATELIMIT_REQUEST_START = "X-Request-Start"
    settings.RATELIMIT_TRUSTED_PROXIES = ["127.0.0.1/32", "unix"]
    monkeypatch.setattr(Clock, "time", lambda: NOW)


def measured(value: str, peer: str = "127.0.0.1") -> float | None:
    meta = {"HTTP_X_REQUEST_START": value, "REMOTE_ADDR": peer}
    return waiting_time(RequestFactory().get("/", **meta))


@pytest.mark.parametrize(
    "value",
    ["t=1800000000.000", "1800000000", "1800000000000", "t=1800000000000000", "1800000000000000"],
)
def test_seconds_milliseconds_and_microseconds_are_read(value: str) -> None:
    """As nginx, Heroku, Render and Fly write them."""
    assert measured(value) == pytest.approx(0.5)
    assert measured(value, "") == pytest.approx(0.5)


NO_START = ["", "t=", "soon", "t=1800000001.000", "1799999940", "1800000000, 1800000000"]
NO_START += ["1800000000,1800000000", "-1800000000", "18000000000", "nan", "inf", "0"]


@pytest.mark.parametrize("value", NO_START)
def test_any_other_value_is_ignored(value: str) -> None:
    """Also one in the future, of more than a minute ago, or sent twice."""
    assert measured(value) is None


@pytest.mark.parametrize("trusted", [None, 1, 0, ["10.0.0.0/8"]])
def test_only_trusted_networks_are_believed(trusted: object, settings: Any) -> None:
    """Not peers that are no proxy, a number of proxies, or a Unix socket that is not named."""
    settings.RATELIMIT_TRUSTED_PROXIES = trusted
    assert measured("1800000000") is None
    assert measured("1800000000", "") is None


def test_it_is_off_by_default(settings: Any) -> None:
    """Without the setting no header is read."""
    settings.RATELIMIT_REQUEST_START = None
    assert measured("1800000000") is None


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later rules of a request see the time at its beginning."""
    request = RequestFactory().get("/", HTTP_X_REQUEST_START="1800000000")
    assert waiting_time(request) == pytest.approx(0.5)
    monkeypatch.setattr(Clock, "time", lambda: NOW + 5)
    assert waiting_time(request) == pytest.approx(0.5)
