"""The pages of the admin while Redis does not answer, and the report of its outage."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.rules.provider import reset_rules
from django_ratelimit_lua.store import get_store
from django_ratelimit_lua.testing.server import Server
from tests.acceptance.admin.test_admin import given
from tests.support.users import form_data, serve_admin

pytestmark = pytest.mark.django_db(transaction=True)
APP = "/admin/django_ratelimit_lua"
DIGEST = "5e6e052b7f3af36936fc7f254af1e208"
ASKING = ["overview", "ratelimitrule", "bans", "processes", f"client?digest={DIGEST}"]
"""The pages that ask Redis."""
OTHERS = ["client", "ratelimitoverride", "ratelimitchange"]


@pytest.fixture
def server(settings: Any, no_others: None) -> Iterator[Server]:
    serve_admin(settings, "tests.acceptance.admin.test_admin")
    settings.RATELIMIT_TIMEOUT = 0.1
    with Server(os.environ.get("RATELIMIT_TEST_BINARY")) as server:
        settings.CACHES = {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        }
        reset_rules()
        yield server
        os.kill(server.pid, signal.SIGCONT)
        get_store().close()


@pytest.fixture
def hanging(server: Server, operator: Client) -> Server:
    """Stop the server: it accepts connections, and replies to nothing."""
    RateLimitRule.objects.create(name="search", path="/search", key="ip", rate="5/m")
    for page in ("overview", "ratelimitrule", "client"):  # The first page compiles templates.
        operator.get(f"{APP}/{page}/")
    os.kill(server.pid, signal.SIGSTOP)
    return server


@pytest.mark.alone
@pytest.mark.parametrize("page", [*ASKING, *OTHERS])
def test_a_page_takes_a_second_at_most(page: str, operator: Client, hanging: Server) -> None:
    """All calls of a page share one deadline. The page says once that Redis does not answer."""
    began = time.monotonic()
    response = operator.get(f"{APP}/{page.replace('?', '/?')}", follow=True)
    assert time.monotonic() - began < 1.0
    assert response.status_code == 200
    assert response.content.decode().count("Redis does not answer") == (page in ASKING)


def test_actions_report_that_redis_does_not_answer(operator: Client, hanging: Server) -> None:
    """The plot of a rule cannot be drawn, and no count is reset."""
    form = given(path="/ok", key="ip", rate="60/h")
    page = operator.post(f"{APP}/ratelimitrule/preview/", form).content.decode()
    assert "Redis does not answer" in page
    answer = operator.post(f"{APP}/client/?digest={DIGEST}", {"action": "reset"}, follow=True)
    assert "Nothing was done" in answer.content.decode()


def test_a_save_takes_a_second_at_most(operator: Client, hanging: Server) -> None:
    """The rule is saved, and the page says that it is not published yet."""
    page = f"{APP}/ratelimitrule/{RateLimitRule.objects.get().pk}/change/"
    data = {**form_data(operator.get(page)), "rate": "7/m"}
    began = time.monotonic()
    response = operator.post(page, data)
    assert time.monotonic() - began < 1.0
    assert response.status_code == 302
    assert RateLimitRule.objects.get().rate == "7/m"
    text = operator.get(f"{APP}/overview/").content.decode()
    assert "Saved, but not published yet" in text
    assert text.count("Redis does not answer") == 1
    assert "Redis is available" not in text
    assert "Limits use their policy: closed" in text


def test_the_overview_says_from_when_to_when_redis_was_down(
    operator: Client, hanging: Server, caplog: Any
) -> None:
    """The end of the outage is logged at WARNING, so that a log of warnings shows both."""
    limiter = RateLimiter("mail", "5/m")
    limiter.hit("ada")
    assert (
        "Redis has not decided limits since " in operator.get(f"{APP}/overview/").content.decode()
    )
    os.kill(hanging.pid, signal.SIGCONT)
    deadline = time.monotonic() + 10
    while limiter.hit("ada").source != "redis" or "available again" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    text = operator.get(f"{APP}/overview/").content.decode()
    assert re.search(r"did not decide limits from \d\d:\d\d:\d\d to \d\d:\d\d:\d\d", text)
    (record,) = [each for each in caplog.records if "available again after" in each.getMessage()]
    assert record.levelname == "WARNING"
    assert [each for each in caplog.records if "cannot decide limits" in each.getMessage()]
