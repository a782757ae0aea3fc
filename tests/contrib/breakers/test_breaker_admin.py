"""Operators force breakers in the admin, and metrics contain the states."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.urls import path

from django_ratelimit_lua.contrib.breakers import CircuitBreaker, CircuitOpen
from django_ratelimit_lua.contrib.breakers.apps import BreakersExtension
from django_ratelimit_lua.contrib.breakers.models import RateLimitBreaker
from django_ratelimit_lua.contrib.breakers.shared_state import register_name
from django_ratelimit_lua.models import RateLimitChange
from django_ratelimit_lua.store import Deadline
from tests.acceptance.rules.test_push import until
from tests.support.redis_server import CLOSED, caches
from tests.support.users import ADMIN_MIDDLEWARE, staff

pytestmark = pytest.mark.django_db(transaction=True)
HERE = "/admin/ratelimit_breakers/ratelimitbreaker/"
urlpatterns = [path("admin/", admin.site.urls)]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    """A site with an admin."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ADMIN_MIDDLEWARE


def is_allowed(breaker: CircuitBreaker) -> bool:
    try:
        with breaker.call():
            return True
    except CircuitOpen as error:
        return error.retry_after is not None


@pytest.fixture
def payments() -> CircuitBreaker:
    """A breaker that is in use and registered."""
    breaker = CircuitBreaker("payments", failures=1, open_for="30s")
    assert is_allowed(breaker)
    assert register_name("payments", Deadline(5.0))
    return breaker


def test_an_operator_forces_a_breaker(payments: CircuitBreaker) -> None:
    """Its own state is kept, and applies again when it is automatic."""
    operator = staff("view_ratelimitbreaker", "change_ratelimitbreaker", name="operator")
    assert "closed" in operator.get(HERE).content.decode()
    page = operator.post(HERE, {"name": "payments", "forced": "open"}, follow=True)
    assert "Breaker “payments”: open" in page.content.decode()
    until(lambda: not is_allowed(payments))
    assert (payments.forced, payments.state) == ("open", "closed")
    assert repr(payments) == "<CircuitBreaker 'payments': open>"
    operator.post(HERE, {"name": "payments", "forced": "closed"})
    until(lambda: is_allowed(payments))
    for _ in range(3):
        with pytest.raises(OSError, match="no route"), payments.call():
            raise OSError("no route")
    assert (payments.forced, payments.state) == ("closed", "open")
    operator.post(HERE, {"name": "payments", "forced": ""})
    until(lambda: payments.forced == "")
    with pytest.raises(CircuitOpen):
        payments.call().__enter__()
    changes = RateLimitChange.objects.order_by("pk")
    assert {change.by for change in changes} == {"operator"}
    assert [change.after["forced"] for change in changes] == ["open", "closed", "automatic"]
    assert LogEntry.objects.count() == 3


def test_only_permitted_users_view_and_force_breakers(payments: CircuitBreaker) -> None:
    """A user that may only view gets no buttons. Other states and names are refused."""
    viewer = staff("view_ratelimitbreaker", name="viewer")
    assert "Force open" not in viewer.get(HERE).content.decode()
    assert viewer.post(HERE, {"name": "payments", "forced": "open"}).status_code == 403
    assert staff(name="stranger").get(HERE).status_code == 403
    operator = staff("change_ratelimitbreaker", name="operator")
    assert "Force open" in operator.get(HERE).content.decode()
    for wrong in ({"name": "payments", "forced": "ajar"}, {"name": "payments"}, {"forced": "open"}):
        assert operator.post(HERE, wrong).status_code == 400
    assert operator.post(HERE, {"name": "\0", "forced": "open"}).status_code == 400
    assert operator.get(f"{HERE}add/").status_code == 403
    assert not RateLimitBreaker.objects.exists()


def test_the_form_of_a_row_does_not_rename_it() -> None:
    """Another name would be another breaker."""
    row = RateLimitBreaker.objects.create(name="payments", forced="open")
    operator = staff("change_ratelimitbreaker", name="operator")
    operator.post(f"{HERE}{row.pk}/change/", {"name": "mail", "forced": "closed"})
    row.refresh_from_db()
    assert (row.name, row.forced) == ("payments", "closed")


def test_the_page_works_without_redis(settings: Any) -> None:
    """It lists the forced breakers with a warning, so that they can be released."""
    RateLimitBreaker.objects.create(name="payments", forced="open")
    settings.CACHES = caches(CLOSED)
    page = staff("change_ratelimitbreaker").get(HERE).content.decode()
    assert "Redis does not answer" in page
    assert "payments" in page


def test_metrics_contain_the_own_and_the_forced_state(payments: CircuitBreaker) -> None:
    """The value is 1 for the state, and 0 for the others."""

    def scraped(name: str) -> list[float]:
        metrics = {metric.name: metric.read() for metric in BreakersExtension().metrics()}
        return [value for labels, value in sorted(metrics[name].items()) if "payments" in labels]

    assert (scraped("breaker_state"), scraped("breaker_forced")) == ([1, 0, 0], [0, 0])
    with pytest.raises(OSError, match="no route"), payments.call():
        raise OSError("no route")
    RateLimitBreaker.objects.create(name="payments", forced="closed")
    assert (scraped("breaker_state"), scraped("breaker_forced")) == ([0, 0, 1], [1, 0])
