"""The system checks of the statistics."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.core.checks import run_checks

pytestmark = pytest.mark.usefixtures("no_others")


def found() -> list[tuple[str, str]]:
    """Return the messages with their ids."""
    return [
        (str(message.id).rpartition(".")[2], message.msg) for message in run_checks(tags=["caches"])
    ]


def test_a_missing_metrics_package_is_a_warning(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning does not contain the token."""
    settings.RATELIMIT_METRICS_TOKEN = "a-token-of-the-tests"
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # As where it is not installed.
    assert [identifier for identifier, _ in found()] == ["W017"]
    settings.RATELIMIT_OPENTELEMETRY = True
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert [identifier for identifier, _ in found()] == ["W017", "W017"]
    assert not any("a-token" in message for _, message in found())


@pytest.mark.parametrize("token", ["too-short", "not as a header has it"])
def test_a_metrics_token_must_be_valid_in_a_header(token: str, settings: Any) -> None:
    """A short token or one with spaces is an error."""
    settings.RATELIMIT_METRICS_TOKEN = token
    ((identifier, message),) = found()
    assert identifier == "E001"
    assert "at least 16" in message
