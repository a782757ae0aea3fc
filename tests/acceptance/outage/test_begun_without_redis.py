"""A process that starts while Redis is unavailable reads the rules of the database."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from django_ratelimit_lua.models import RateLimitOverride, RateLimitRevision, RateLimitRule
from django_ratelimit_lua.publishing import publish, triggers
from django_ratelimit_lua.rules import provider
from tests.acceptance.rules.test_rules import get, rule
from tests.support.redis_server import CLOSED, caches

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.acceptance.rules.test_rules"
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]


@pytest.fixture
def begin(settings: Any) -> Callable[[], None]:
    """Return a function that simulates a start without Redis."""
    return lambda: setattr(settings, "CACHES", caches(CLOSED))


def said(*arguments: str) -> str:
    output = io.StringIO()
    call_command("ratelimit", *arguments, stdout=output, stderr=output)
    return output.getvalue()


@pytest.mark.parametrize("policy", ["closed", "local", "open"])
def test_rules_and_overrides_of_the_database_apply_without_redis(policy: str, begin: Any) -> None:
    """Each rule follows its policy. Blocks and exemptions apply under every policy."""
    rule(options={"on_store_error": policy})
    RateLimitOverride.objects.create(network="203.0.113.0/24", effect="block")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="exempt")
    begin()
    allowed = {"closed": [429] * 3, "local": [200, 200, 429], "open": [200] * 3}[policy]
    assert get(times=3) == allowed
    assert get(REMOTE_ADDR="203.0.113.1") == [429]
    assert get(times=3, REMOTE_ADDR="203.0.113.9") == [200] * 3


def test_commands_report_that_redis_is_unavailable(begin: Any) -> None:
    """The commands show the rules of the database and the settings."""
    rule()
    assert "Redis" not in said("rules", "list") + said("rules", "explain", "--path", "/ok")
    begin()
    text = said("rules", "list")
    assert "Redis is unavailable: these are the rules of the database and the settings" in text
    assert "1 rule; revision 1" in text
    assert "Redis is unavailable" in said("rules", "explain", "--path", "/ok")


def test_a_thread_waits_for_a_slow_database(begin: Any, settings: Any, monkeypatch: Any) -> None:
    """Until it responds, requests are limited by the settings."""
    settings.RATELIMIT_TIMEOUT = 0.05
    rule(rate="0/h")
    answers, asked = threading.Event(), triggers.snapshot_of

    def slowly(using: str) -> Any:
        assert answers.wait(30)
        return asked(using)

    monkeypatch.setattr(triggers, "snapshot_of", slowly)
    begin()
    assert get() == [200]
    answers.set()
    for _ in range(200):
        if get() == [429]:
            return
        threading.Event().wait(0.02)
    pytest.fail("the rules of the database never came")


def test_an_unavailable_database_is_tried_again(begin: Any, monkeypatch: Any) -> None:
    """It is tried again every few seconds while there are requests."""
    rule(rate="0/h")

    def away(using: str) -> Any:
        raise OSError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(triggers, "snapshot_of", away)
        begin()
        assert get() == [200]
        assert "the settings only" in said("rules", "list")
    for _ in range(200):
        provider._compare_at = 0.0
        if get() == [429]:
            return
        threading.Event().wait(0.02)
    pytest.fail("the database was never asked again")


def test_published_rules_and_overrides_apply_when_redis_is_back(begin: Any, settings: Any) -> None:
    """This includes rules that were edited and a block that was removed in the meantime."""
    working = settings.CACHES
    saved = rule(rate="1/h")
    RateLimitOverride.objects.create(network="203.0.113.1", effect="block")
    begin()
    assert get(REMOTE_ADDR="203.0.113.1") == [429]
    ruleset = provider.get_ruleset()
    assert ruleset is not None
    begun = ruleset.revision
    RateLimitOverride.objects.all().delete()
    RateLimitRule.objects.filter(pk=saved.pk).update(rate="2/h")
    settings.CACHES = working
    provider._ruleset = ruleset
    publish()  # As the process that saved does.
    assert get(times=3, REMOTE_ADDR="203.0.113.1") == [200, 200, 429]
    assert provider.get_ruleset().revision != begun  # type: ignore[union-attr]
    assert Client().get("/ok").status_code == 200


def test_commands_report_saved_rules_that_are_not_published(begin: Any, tmp_path: Path) -> None:
    """The command reports the change as saved, and as not published."""
    rule()
    file = tmp_path / "rules.yaml"
    file.write_text(said("rules", "export").replace("2/h", "3/h"))
    texts = said("rules", "mode", "site", "shadow")
    texts += said("rules", "mode", "site", "enforce", "--confirm")
    assert "not published" not in texts
    begin()
    for command in (("mode", "site", "off", "--confirm"), ("import", str(file))):
        text = said("rules", *command)
        assert "Saved, but not published yet: " in text, command
    assert "1 rule changed" in text
    assert RateLimitRule.objects.get().rate == "3/h"
    before = RateLimitRevision.read("default").database
    text = said("publish", "--new-id")
    assert RateLimitRevision.read("default").database != before
    assert f"the database now has the id {RateLimitRevision.read('default').database}" in text
    assert "Saved, but not published yet: " in text
