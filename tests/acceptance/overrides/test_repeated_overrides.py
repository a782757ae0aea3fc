"""An override that is submitted repeatedly is added once, and ending it ends every equal one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client

from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.subjects import Subject, add_override
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import OVERRIDES, page_text
from tests.acceptance.admin.test_admin_clients import of, press
from tests.acceptance.commands.test_reset_and_block import said

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
ADDRESS = "203.0.113.9"
FORM = {"effect": "block", "network": ADDRESS, "duration": "3600"}


def test_a_form_sent_twice_adds_one_override(operator: Client) -> None:
    """The page reports that the override is already present, and no addition."""
    page, again = (
        operator.post(f"{OVERRIDES}add/", FORM, follow=True).content.decode() for _ in range(2)
    )
    assert "was added successfully" in page
    assert f"Already present, so not added again: {ADDRESS}." in again
    assert "was added successfully" not in again
    for model in (RateLimitOverride, LogEntry, RateLimitChange):
        assert model.objects.count() == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"network": "203.0.113.10"},
        {"effect": "exempt"},
        {"effect": "limit", "rate": "5/m", "rule": "site"},
        {"forbids": "on"},
        {"duration": "86400"},
        {"duration": ""},
        {"message": "Call us."},
        {"rule": "site"},
        {"network": "", "field": "post:username", "value": "ada"},
        {"starts_0": "2099-01-01", "starts_1": "00:00"},
    ],
)
def test_different_overrides_are_added(fields: dict[str, str], operator: Client) -> None:
    """They differ in their subject, their effect or their duration."""
    RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="1/h")
    operator.post(f"{OVERRIDES}add/", FORM)
    operator.post(f"{OVERRIDES}add/", {**FORM, **fields})
    assert RateLimitOverride.objects.count() == 2


def test_concurrent_equal_requests_add_one_override() -> None:
    """Each request gets the same override."""

    def block(_number: int) -> Any:
        try:
            return add_override(Subject(address=ADDRESS).override("block", 3600)).pk
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(block, range(8)))) == 1
    assert RateLimitOverride.objects.count() == 1


def test_a_repeated_button_or_command_adds_one_override(operator: Client) -> None:
    """The page and the command report that the override is already present."""
    client = of("ip", ADDRESS)
    for action in ("exempt", "block"):
        for _time in range(2):
            page = page_text(press(operator, client, action, duration="3600"))
            assert "for 1 hour" in page
        assert "The same override is already present, so none was added." in page
    assert RateLimitOverride.objects.count() == 2
    assert "203.0.113.10 is blocked until" in said("block", "--ip", "203.0.113.10")
    number = RateLimitOverride.objects.get(network="203.0.113.10").pk
    assert said("block", "--ip", "203.0.113.10").endswith(
        f": override {number}, which existed already\n"
    )
