"""The statistics on pages while Redis does not answer."""

from __future__ import annotations

import time

import pytest
from django.test import Client

from django_ratelimit_lua.testing.server import Server
from tests.acceptance.admin.test_admin_outage import APP, hanging, server  # noqa: F401 - fixtures

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    "page", ["overview/", "ratelimitrule/", "ratelimitrule/limit/?name=search"]
)
def test_a_page_takes_a_second_at_most(page: str, operator: Client, hanging: Server) -> None:  # noqa: F811
    """It opens without the statistics, and says once that Redis does not answer."""
    began = time.monotonic()
    response = operator.get(f"{APP}/{page}")
    assert time.monotonic() - began < 1.0
    assert response.status_code == 200
    text = response.content.decode()
    assert text.count("Redis does not answer (") == 1
    assert "ratelimit-tiles" not in text
