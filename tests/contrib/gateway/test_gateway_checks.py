"""System checks of the gateway."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks

pytestmark = pytest.mark.usefixtures("no_others")


def found() -> list[tuple[str, str]]:
    return [
        (message.id.removeprefix("django_ratelimit_lua."), message.msg)
        for message in run_checks(tags=["caches"])
    ]


def test_rules_for_envoy_need_grpc_and_no_middleware(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such rules apply to no request of Django's, so a missing middleware is not reported."""
    settings.RATELIMIT_RULES = [
        {"name": "edge", "descriptor": ["generic_key=login"], "rate": "5/m"}
    ]
    assert found() == []
    monkeypatch.setattr("django_ratelimit_lua.contrib.gateway.checks.find_spec", lambda name: None)
    assert found() == [
        ("W017", "These rules are for Envoy's descriptors, but grpcio is not installed: edge.")
    ]
