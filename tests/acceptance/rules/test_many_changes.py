"""Changes of many rows are one revision, and thousands of rules delay no request."""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection
from django.db.migrations import Migration
from django.db.migrations.executor import MigrationExecutor
from django.db.models.deletion import Collector
from django.db.models.signals import post_delete, post_save, pre_delete, pre_save
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ratelimit_lua.limits.call import Revision, StaleRules
from django_ratelimit_lua.management import rules_yaml
from django_ratelimit_lua.models import (
    RateLimitChange,
    RateLimitOverride,
    RateLimitRevision,
    RateLimitRule,
)
from django_ratelimit_lua.models.audit import AuditedModel
from django_ratelimit_lua.rules import provider
from django_ratelimit_lua.rules.ruleset import Ruleset
from django_ratelimit_lua.store import Deadline
from tests.acceptance.admin.test_admin import OVERRIDES
from tests.acceptance.processes.test_forks import child_of, ended
from tests.acceptance.rules.test_rules import another_process, get, rule
from tests.support.users import ADMIN_MIDDLEWARE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.acceptance.rules.test_rules"
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]


def overrides(count: int, **fields: Any) -> list[RateLimitOverride]:
    given = {"effect": "block", **fields}
    return RateLimitOverride.objects.bulk_create(
        RateLimitOverride(network=f"10.0.{number >> 8}.{number & 255}", **given)
        for number in range(count)
    )


def users(count: int) -> list[User]:
    return User.objects.bulk_create(User(username=f"user {number}") for number in range(count))


def select_all(operator: Client, action: str) -> None:
    """Apply an action of the admin to all overrides."""
    chosen = [str(pk) for pk in RateLimitOverride.objects.values_list("pk", flat=True)]
    given = {"action": action, "_selected_action": chosen, "post": "yes", "select_across": "1"}
    urls = "tests.acceptance.admin.test_admin"
    admin = {"ROOT_URLCONF": urls, "MIDDLEWARE": ADMIN_MIDDLEWARE}
    with override_settings(DATA_UPLOAD_MAX_NUMBER_FIELDS=None, **admin):
        operator.post(OVERRIDES, given)


def rules(count: int) -> list[RateLimitRule]:
    return RateLimitRule.objects.bulk_create(
        RateLimitRule(name=f"rule {number}", path=f"/{number}", key="ip", rate="5/m")
        for number in range(count)
    )


def of_a_rule(count: int) -> None:
    overrides(count, rule=rule("of").name)


def of_rules_and_users(count: int) -> None:
    pairs = zip(rules(count), users(count), strict=True)
    RateLimitOverride.objects.bulk_create(
        RateLimitOverride(rule=one.name, user=ada, rate="9/m") for one, ada in pairs
    )


def create_for_all_users() -> None:
    RateLimitOverride.objects.bulk_create(
        RateLimitOverride(user=one, effect="exempt") for one in User.objects.all()
    )


def update_by_hand() -> None:
    rows = list(RateLimitOverride.objects.all())
    for row in rows:
        row.reason, row.rate = "late", f"{row.pk}/h"
    RateLimitOverride.objects.bulk_update(rows, ["reason", "rate"])


Some = Callable[[int], Any]
CASES: dict[str, tuple[Some, Callable[[], Any]]] = {
    "deleting overrides": (overrides, lambda: RateLimitOverride.objects.all().delete()),
    "renaming a rule": (of_a_rule, lambda: RateLimitRule.objects.update(name="another")),
    "deleting rules": (of_rules_and_users, lambda: RateLimitRule.objects.all().delete()),
    "updating overrides": (overrides, lambda: RateLimitOverride.objects.update(effect="exempt")),
    "updating subjects": (overrides, lambda: RateLimitOverride.objects.update(network="::1")),
    "updating rules": (rules, lambda: RateLimitRule.objects.update(rate="6/h")),
    "creating": (users, create_for_all_users),
}


@pytest.mark.parametrize("case", CASES)
def test_changes_of_many_rows_are_one_revision(case: str) -> None:
    """The revision has a history entry for each row."""
    make, change = CASES[case]
    for count in (1, 20):
        for model in (RateLimitOverride, RateLimitRule, User, RateLimitChange):
            model._base_manager.all().delete()
        make(count)
        RateLimitChange.objects.all().delete()
        before = RateLimitRevision.read("default")[0]
        change()
        assert RateLimitRevision.read("default")[0] == before + 1
        assert RateLimitChange.objects.count() >= count
        assert set(RateLimitChange.objects.values_list("revision", flat=True)) == {before + 1}


@pytest.mark.parametrize("count", [1, 40])
def test_changes_that_django_makes_row_by_row_are_one_revision_as_well(
    count: int, operator: Client
) -> None:
    """Examples are `bulk_update`, an import of rules, and actions of the admin."""

    def one(change: Callable[[], Any]) -> None:
        before = RateLimitRevision.read("default")[0]
        RateLimitChange.objects.all().delete()
        change()
        assert RateLimitRevision.read("default")[0] == before + 1
        assert RateLimitChange.objects.count() == count

    overrides(count, effect="limit", rate="1000000/h", rule="site")
    one(update_by_hand)
    one(lambda: select_all(operator, "end_now"))
    assert not RateLimitOverride.objects.active().exists()
    one(lambda: select_all(operator, "delete_selected"))
    assert not RateLimitOverride.objects.exists()
    assert LogEntry.objects.count() == 2 * count
    rules(count)
    text = rules_yaml.export()
    one(lambda: rules_yaml.apply(rules_yaml.plan("[]")))
    one(lambda: rules_yaml.apply(rules_yaml.plan(text)))
    assert RateLimitRule.objects.count() == count


def test_too_many_changes_are_one_history_entry() -> None:
    """A rule with more than a thousand overrides is renamed."""
    of_a_rule(1100)
    assert get(REMOTE_ADDR="10.0.3.7") == [429]
    RateLimitChange.objects.all().delete()
    before = RateLimitRevision.read("default")[0]
    RateLimitRule.objects.update(name="other")
    assert RateLimitRevision.read("default")[0] == before + 1
    assert [change.name for change in RateLimitChange.objects.all()] == ["1101 rows"]
    assert get(REMOTE_ADDR="10.0.3.7") == [429]
    assert {row.rule for row in RateLimitOverride.objects.all()} == {"other"}


def test_a_deletion_has_a_query_for_a_hundred_overrides(operator: Client) -> None:
    """Of a queryset, and of the action of the admin, which also logs each override."""
    cases: list[tuple[Callable[[], Any], int]] = [
        (lambda: RateLimitOverride.objects.all().delete(), 2_000 // 100),
        (lambda: select_all(operator, "delete_selected"), 2_000 // 100 + 2_000 // 142),
    ]
    for delete, most in cases:
        queries = []
        for count in (1_000, 3_000):
            overrides(count)
            with CaptureQueriesContext(connection) as captured:
                delete()
            assert not RateLimitOverride.objects.exists()
            queries.append(len(captured))
        assert queries[1] - queries[0] <= most


def test_the_history_of_a_deletion_has_the_old_values() -> None:
    """It has the stored values, whichever fields were loaded and changed without being saved."""
    tiers = [{"group": "free", "rate": "2/h"}, {"group": "pro", "rate": "3/h"}]
    one = rule("whole", rate="1/h", options={"tiers": tiers})
    rule("other", path="/other")
    RateLimitChange.objects.all().delete()
    one.rate = "77/h"  # Never saved.
    one.delete()
    gone = {
        change.name: change.before for change in RateLimitChange.objects.filter(action="deleted")
    }
    assert gone["whole"]["rate"] == "1/h"
    assert gone["whole"]["tiers"] == tiers
    RateLimitRule.objects.only("pk").delete()
    assert RateLimitChange.objects.first().before["key"] == "ip"


def test_a_failed_deletion_is_recorded_only_when_it_succeeds() -> None:
    """Rows that were not deleted are not recorded."""
    overrides(3)
    RateLimitChange.objects.all().delete()
    chosen = RateLimitOverride.objects.filter(network="10.0.0.1")

    def fail(**kwargs: Any) -> None:
        raise ZeroDivisionError

    pre_delete.connect(fail, sender=RateLimitOverride)
    try:
        with pytest.raises(ZeroDivisionError):
            chosen.delete()
    finally:
        pre_delete.disconnect(fail, sender=RateLimitOverride)
    assert not RateLimitChange.objects.exists()
    chosen.delete()
    assert [change.name for change in RateLimitChange.objects.all()] == ["10.0.0.1"]


def test_other_models_of_the_site_are_not_affected() -> None:
    """Their rows are deleted without being loaded, and their signals have no receiver."""
    soon = timezone.now() + datetime.timedelta(days=1)
    Session.objects.bulk_create(
        Session(session_key=f"{number:040}", session_data="", expire_date=soon)
        for number in range(20_000)
    )
    with CaptureQueriesContext(connection) as captured:
        assert Session.objects.all().delete()[0] == 20_000
    statements = [query["sql"] for query in captured]
    assert statements == ["BEGIN", 'DELETE FROM "django_session"', "COMMIT"]
    assert Collector("default").can_fast_delete(Session.objects.all())
    assert Collector("default").can_fast_delete(RateLimitChange.objects.all())
    for model in apps.get_models():
        for signal in (pre_save, post_save, pre_delete, post_delete):
            assert signal.has_listeners(model) == issubclass(model, AuditedModel), (model, signal)


def test_changes_of_a_migration_without_signals_are_published() -> None:
    """Changes through historical models are published after all migrations."""
    rule("search", path="", rate="50/h")
    historical = (
        MigrationExecutor(connection)
        .loader.project_state()
        .apps.get_model("django_ratelimit_lua", "RateLimitRule")
    )
    historical.objects.update(rate="40/h")  # Which sends no signal.
    emit_post_migrate_signal(0, False, "default", plan=[(Migration("0001", "anything"), False)])
    assert Client().get("/search").content == b"search=40"


def declared(count: int, limit: int, edit: int = 0) -> list[dict[str, Any]]:
    """Return rules that differ from those of another edit, and a rule for /ok."""
    same = {"key": "ip", "rate": f"{100 + edit}/m"}
    others = [
        {"id": n, "name": f"rule {n}", "path": f"/app{n}/*/", **same} for n in range(1, count)
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
    """A request waits no longer than leaves time for its decision."""
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
    """Up to a thousand rules are compiled without a thread."""
    rule("first", rate="1/h")
    for count in (provider.MAX_INLINE, provider.MAX_INLINE + 1):
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
    put(direct, prefix, declared(provider.MAX_INLINE + 1, 1000))
    another_process()
    assert get() == [200]
    may_end = threading.Event()
    assert provider._loading.submit(may_end.wait)
    put(direct, prefix, declared(provider.MAX_INLINE + 1, 0))

    def child() -> None:
        assert get() == [429]

    assert ended([child_of(child)]) == [0]
    may_end.set()


def test_a_process_without_threads_compiles_in_the_caller(
    direct: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would use the old rules forever."""
    rule("first", rate="1/h")
    put(direct, prefix, declared(provider.MAX_INLINE + 1, 1000))
    another_process()
    assert get() == [200]
    put(direct, prefix, declared(provider.MAX_INLINE + 1, 0))
    monkeypatch.setattr(provider._loading, "submit", lambda work: None)
    assert get() == [429]


@pytest.mark.parametrize("change", ["_reread_settings", "_forget_published", "reset_rules"])
def test_rules_compiled_under_other_settings_are_not_used(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings change while a thread is loading rules."""
    rule("first", rate="1/h")
    another_process()
    fetch = provider._fetch_snapshot

    def meanwhile(*arguments: Any) -> Any:
        fetched = fetch(*arguments)
        getattr(provider, change)()
        return fetched

    monkeypatch.setattr(provider, "_fetch_snapshot", meanwhile)
    assert "first" in provider.load_ruleset().by_name
    assert provider.loaded_ruleset() is None
