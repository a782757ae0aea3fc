"""Thousands of rules: an edit compiles only the changed rule, and no request waits longer than its
timeout.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
import redis
from django.test import Client

from django_ratelimit_lua.limits.call import Revision, StaleRules
from django_ratelimit_lua.rules import provider
from django_ratelimit_lua.rules.ruleset import Ruleset
from django_ratelimit_lua.store import Deadline
from tests.acceptance.processes.test_forks import child_of, ended
from tests.acceptance.rules.test_rules import another_process, get, rule

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.acceptance.rules.test_rules"
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]


def declared(count: int, limit: int, edit: int = 0) -> list[dict[str, Any]]:
    """Return rules that differ from those of another edit, and a rule for /ok."""
    others = [
        {
            "id": n,
            "name": f"rule {n}",
            "path": f"/app{n}/*/",
            "key": "ip",
            "rate": f"{100 + edit}/m",
        }
        for n in range(1, count)
    ]
    return [*others, {"id": count, "name": "met", "path": "/ok", "key": "ip", "rate": f"{limit}/h"}]


def put(direct: redis.Redis, prefix: str, rules: list[dict[str, Any]]) -> Revision:
    """Publish rules without the database, and return the revision."""
    key = f"{prefix}{{rules}}:1"
    number, _rules, overrides = direct.hget(key, "revision").decode().split("-")
    tag = f"{int(number) + 1:08x}"
    revision = Revision.of(int(number) + 1, tag, overrides)
    part = json.dumps({"tag": tag, "rules": rules})
    direct.hset(key, mapping={"revision": revision.text, "rules": part})
    return revision


def test_the_old_rules_stay_until_all_new_ones_are_compiled(
    direct: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request waits no longer than leaves time for its decision. The new rules apply when a
    thread has compiled them.
    """
    rule("first", rate="1/h")
    put(direct, prefix, declared(6000, 1000))
    another_process()
    assert get() == [200]
    known = provider.get_ruleset()
    assert known is not None
    new = put(direct, prefix, declared(6000, 0, edit=1))
    may_end, reads = threading.Event(), Ruleset.__init__

    def read(*args: Any, **kwargs: Any) -> None:
        # However late a busy machine lets this test go on, the thread is still at it.
        assert threading.current_thread().name != "ratelimit-job" or may_end.wait(30)
        reads(*args, **kwargs)

    monkeypatch.setattr(Ruleset, "__init__", read)
    began = time.monotonic()
    found = provider.load_ruleset(StaleRules(new), Deadline(0.04))
    waited = time.monotonic() - began
    assert found is known
    assert waited < 0.5
    assert [thread.name for thread in threading.enumerate()].count("ratelimit-job") == 1
    may_end.set()
    for _ in range(600):
        if provider._ruleset is not known:
            break
        time.sleep(0.05)
    assert get() == [429]
    assert provider.load_ruleset().revision == new


def test_up_to_a_thousand_rules_apply_on_the_next_request(direct: redis.Redis, prefix: str) -> None:
    """Up to a thousand rules are compiled without a thread. More rules apply immediately as well,
    if they are compiled in time.
    """
    rule("first", rate="1/h")
    for count in (provider.MANY, provider.MANY + 1):
        put(direct, prefix, declared(count, 1000))
        another_process()
        assert get() == [200]
        put(direct, prefix, declared(count, 0, edit=1))
        assert get() == [429]
        put(direct, prefix, declared(count, 1000, edit=2))
        assert Client(REMOTE_ADDR="203.0.113.7").get("/ok").status_code == 200


def test_a_process_forked_during_loading_loads_the_rules_itself(
    direct: redis.Redis, prefix: str
) -> None:
    """The loading thread belongs to the parent."""
    rule("first", rate="1/h")
    put(direct, prefix, declared(provider.MANY + 1, 1000))
    another_process()
    assert get() == [200]
    may_end = threading.Event()
    assert provider._loading.submit(may_end.wait)
    put(direct, prefix, declared(provider.MANY + 1, 0))

    def child() -> None:
        assert get() == [429]

    assert ended([child_of(child)]) == [0]
    may_end.set()


def test_a_process_without_threads_compiles_in_the_caller(
    direct: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would use the old rules forever."""
    rule("first", rate="1/h")
    put(direct, prefix, declared(provider.MANY + 1, 1000))
    another_process()
    assert get() == [200]
    put(direct, prefix, declared(provider.MANY + 1, 0))
    monkeypatch.setattr(provider._loading, "submit", lambda work: None)
    assert get() == [429]


@pytest.mark.parametrize("change", ["_reread_settings", "_forget_published", "reset_rules"])
def test_rules_compiled_under_other_settings_are_not_used(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings change while a thread is loading rules."""
    rule("first", rate="1/h")
    another_process()
    fetch = provider._fetch

    def meanwhile(*arguments: Any) -> Any:
        fetched = fetch(*arguments)
        getattr(provider, change)()
        return fetched

    monkeypatch.setattr(provider, "_fetch", meanwhile)
    assert "first" in provider.load_ruleset().by_name
    assert provider.loaded_ruleset() is None
