"""Rules of the admin: every way of changing them is true on the next request, of every process."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import threading
from typing import Any

import pytest
import redis
from django.contrib.auth.models import AnonymousUser, Group, User
from django.core.management import call_command
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils import timezone

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.management import rules_yaml
from django_ratelimit_lua.models import (
    RateLimitChange,
    RateLimitOverride,
    RateLimitRevision,
    RateLimitRule,
)
from django_ratelimit_lua.publishing import parts, triggers
from django_ratelimit_lua.publishing.publisher import publish
from django_ratelimit_lua.rules import RuleError, provider
from django_ratelimit_lua.rules.status import problems
from django_ratelimit_lua.signals import limit_exceeded
from django_ratelimit_lua.store import get_store
from tests.support.limits import add_tier

pytestmark = pytest.mark.django_db(transaction=True)


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        str(request.ratelimit.revision if hasattr(request, "ratelimit") else "none")
    )


@ratelimit("search", "ip", "100/m")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        ",".join(f"{state.name}={state.limit}" for state in request.ratelimit.limits)
    )


@ratelimit("upload", ("ip", "get:who"), "100/m", method="POST")
@ratelimit("upload", "ip", "200/m")
def upload(request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        ",".join(f"{state.name}={state.limit}" for state in request.ratelimit.limits)
    )


urlpatterns = [
    path("ok", ok, name="ok"),
    path("search", search),
    path("upload", upload),
    path("other", ok),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]


def rule(name: str = "site", **fields: Any) -> RateLimitRule:
    given = {"path": "/", "key": "ip", "rate": "2/h", **fields}
    return RateLimitRule.objects.create(name=name, **given)


def get(address: str = "/ok", times: int = 1, **meta: Any) -> list[int]:
    return [Client(**meta).get(address).status_code for _ in range(times)]


def as_user(user: Any, view: Any = search, address: str = "/search") -> HttpResponse:
    request = RequestFactory().get(address)
    request.user = user
    return view(request)


def another_process() -> None:
    """Forget what this process knows, as one that has just started."""
    provider._ruleset = provider._snapshot = None


def stale_process(function: Any) -> Any:
    """Run a function with the rules that are known now, as in a process that missed a change."""
    known = provider.load_ruleset()
    function()
    provider._ruleset = known
    return known


@pytest.mark.usefixtures("quiet")  # It has not received the change.
def test_a_new_rule_applies_to_the_next_request() -> None:
    """It applies in a process that has loaded the old rules."""
    assert get(times=3) == [200, 200, 200]
    known = stale_process(rule)
    assert known.revision.number == 0
    assert get(times=3) == [200, 200, 429]


@pytest.mark.usefixtures("quiet")  # It has not received the change.
def test_fixtures_are_published_as_changes(tmp_path: Any, direct: redis.Redis, prefix: str) -> None:
    """Rules loaded by `loaddata` apply. Our migrations can be reversed and applied again."""
    rule("search", path="", rate="50/h")
    fixture = tmp_path / "rules.json"
    call_command("dumpdata", "django_ratelimit_lua.ratelimitrule", output=str(fixture))
    RateLimitRule.objects.all().delete()
    stale_process(lambda: call_command("loaddata", str(fixture), verbosity=0))
    assert Client().get("/search").content == b"search=50"
    call_command("migrate", "django_ratelimit_lua", "zero", verbosity=0)
    call_command("migrate", "django_ratelimit_lua", verbosity=0)
    rule("search", path="", rate="40/h")
    assert Client().get("/search").content == b"search=40"


def test_a_change_is_published_whatever_other_on_commit_callbacks_do() -> None:
    """Django runs no callback after one that raises."""
    saved = rule(rate="100/h")
    assert get() == [200]

    def fail() -> None:
        raise RuntimeError("another app's")

    @transaction.atomic
    def edit() -> None:
        transaction.on_commit(fail)
        RateLimitRule.objects.filter(pk=saved.pk).update(rate="0/h")
        assert get() == [200]

    @transaction.atomic
    def edit_after_a_savepoint() -> None:
        transaction.on_commit(fail)
        with contextlib.suppress(KeyError), transaction.atomic():
            RateLimitRule.objects.filter(pk=saved.pk).update(rate="200/h")
            raise KeyError
        RateLimitRule.objects.filter(pk=saved.pk).update(rate="300/h")

    with pytest.raises(RuntimeError, match="another app's"):
        edit()
    assert get() == [429]
    with pytest.raises(RuntimeError, match="another app's"):
        edit_after_a_savepoint()
    assert get() == [200]


@pytest.mark.usefixtures("quiet")  # It counts what Redis is asked.
def test_a_transaction_is_published_once(direct: redis.Redis) -> None:
    """The number of changes in the transaction does not matter."""
    rule("search", path="")
    direct.config_resetstat()
    with transaction.atomic():
        for number in range(10):
            rule(f"rule {number}")
    assert direct.info("commandstats")["cmdstat_eval"]["calls"] == 1
    assert RateLimitRevision.read("default")[0] == 11


def test_an_older_publication_never_wins(
    direct: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process reads the database again if another one has published meanwhile."""
    one = rule("search", path="", rate="50/h")

    def slow(using: str, row: Any) -> parts.Part:
        part = parts.read_rules(using, row)
        if row.revision == 2:
            monkeypatch.undo()
            RateLimitRule.objects.filter(pk=one.pk).update(rate="10/h")
            publish()
        return part

    monkeypatch.setattr("django_ratelimit_lua.publishing.publisher.read_rules", slow)
    one.rate = "40/h"
    one.save()
    assert direct.hget(f"{prefix}{{rules}}:1", "revision").startswith(b"3-")
    assert Client().get("/search").content == b"search=10"


@pytest.mark.parametrize("known", [True, False], ids=["knows the rules", "has just started"])
def test_an_emptied_redis_is_restored_by_the_next_request(
    known: bool, direct: redis.Redis, prefix: str, settings: Any
) -> None:
    """The rules and the overrides are published from the database."""
    settings.RATELIMIT_DENY_CACHE_SECONDS = 0  # Which would remember that the second was refused.
    rule(rate="1/h")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="exempt")
    assert get(times=2) == [200, 429]
    direct.delete(*direct.keys(f"{prefix}*"))
    if not known:
        another_process()
    assert get(times=2) == [200, 429]
    assert get(times=2, REMOTE_ADDR="203.0.113.9") == [200, 200]


def test_rules_stay_in_force_without_the_database(
    direct: redis.Redis, prefix: str, monkeypatch: Any, caplog: Any, settings: Any
) -> None:
    """They are read from Redis and from memory, even if Redis is emptied."""
    settings.RATELIMIT_RULES = [{"name": "other", "path": "/other", "key": "ip", "rate": "1/h"}]
    rule(rate="2/h")
    assert get() == [200]

    def away(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("the database is away")

    from django_ratelimit_lua.publishing import triggers as module

    monkeypatch.setattr(module, "publish", away)
    monkeypatch.setattr(module, "_warned", False)
    another_process()
    assert get() == [200]
    for _ in range(3):
        direct.delete(f"{prefix}{{rules}}:1")
        assert get() == [429]
    assert [record.message for record in caplog.records if "cannot be read" in record.message] == [
        "The rules in the database cannot be read or published: the database is away"
    ]
    # Both away at start: the rules of the settings.
    direct.delete(f"{prefix}{{rules}}:1")
    another_process()
    assert get("/other", 2) == [200, 429]


def test_an_unpublished_change_is_published_as_soon_as_possible(
    settings: Any, caplog: Any, monkeypatch: Any, prefix: str
) -> None:
    """A row can be saved while Redis is unavailable."""
    from django_ratelimit_lua.publishing import triggers as module

    working = settings.CACHES
    rule("search", path="", rate="50/h")
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.05)
    nowhere = {"default": {**working["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    settings.CACHES = nowhere
    RateLimitRule.objects.update(rate="40/h")
    assert "saved, but not published yet" in caplog.text
    settings.CACHES = working
    for _ in range(200):
        if Client().get("/search").content == b"search=40":
            return
        threading.Event().wait(0.05)
    pytest.fail("the change was never published")


def test_unreadable_rows_and_parts_are_skipped_and_logged(
    caplog: Any, direct: redis.Redis, prefix: str
) -> None:
    """Everything else applies."""
    rule("broken", rate="1/h")
    rule("whole", path="/other", rate="1/h")
    RateLimitOverride.objects.create(network="203.0.113.1", effect="exempt")
    RateLimitOverride.objects.create(network="203.0.113.2", rule="whole", rate="5/m")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_ratelimit_lua_ratelimitrule SET options = '5' WHERE name = 'broken'"
        )
        cursor.execute(
            "UPDATE django_ratelimit_lua_ratelimitoverride SET kind = 'os.system', network = '', "
            "field = 'os.system' WHERE effect = 'exempt'"
        )
        cursor.execute(
            "UPDATE django_ratelimit_lua_ratelimitoverride SET rate = '5/y' WHERE effect = 'limit'"
        )
    call_command("ratelimit", "publish", verbosity=0)
    assert get("/other", 2) == [200, 429]
    assert get("/other", REMOTE_ADDR="203.0.113.2") == [200]
    for problem in (
        "rule 'broken'",
        "Skipped: the override of row",
        "'os.system' match no request: the key is not registered",
    ):
        assert problem in caplog.text
    assert any("the override of row" in problem for problem in problems.collect())
    key = f"{prefix}{{rules}}:1"
    RateLimitOverride.objects.create(network="203.0.113.3", effect="exempt")
    for field in direct.hkeys(key):
        if field == b"sections" or field.startswith(b"overrides:"):
            direct.hset(key, field, '0123456789abcdef[5, {"effect": "nonsense"')
    another_process()  # This one may have read the sections already.
    assert get("/other", REMOTE_ADDR="203.0.113.3") == [200]
    assert "The rules in Redis cannot be read" in caplog.text


def test_changes_by_raw_sql_are_published_by_a_command() -> None:
    """The documentation names this exception."""
    rule("search", path="", rate="50/h")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_ratelimit_lua_ratelimitrule SET rate = '20/h'")
    assert Client().get("/search").content == b"search=50"
    call_command("ratelimit", "publish", verbosity=0)
    assert Client().get("/search").content == b"search=20"


def test_a_rule_of_the_admin_never_runs_code_that_it_names() -> None:
    """Users who may edit rules may not call code that can be imported."""
    with pytest.raises(RuleError):
        rule(key="os.system", rate="0/h")
    row = RateLimitRule(name="site", path="/", key="os.system", rate="0/h")
    RateLimitRule.objects.bulk_create([row])
    assert get() == [200]


@pytest.mark.parametrize(
    "place", [{}, {"group": "search"}, {"path": "/"}], ids=["bare", "by group", "whole site"]
)
@pytest.mark.parametrize("source", ["settings", "a file"])
def test_a_rule_has_the_same_meaning_wherever_it_is_declared(
    source: str, place: dict[str, str], settings: Any
) -> None:
    """A rule without a place applies to the call site of its name. The path / is the whole site."""
    given = {"name": "search", "key": "ip", "rate": "2/h", **place}
    if source == "settings":
        settings.RATELIMIT_RULES = [given]
    else:
        rules_yaml.apply(rules_yaml.plan(json.dumps([given])))
    assert get("/search", 3) == [200, 200, 429]
    assert get("/other", 1) == ([429] if "path" in place else [200])


def take_from_view(algorithm: str, rates: Any, key: Any = "ip") -> Any:
    """What takes so many units at a decorator, and returns the decision."""

    @ratelimit(
        "exports",
        key,
        rates,
        algorithm=algorithm,
        block=False,
        cost=lambda _, request: int(request.GET["n"]),
    )
    def exports(request: HttpRequest) -> Any:
        return request.ratelimit

    return lambda units: exports(RequestFactory().get("/", {"n": units}))


def take_from_limiter(algorithm: str, rates: Any, key: Any = "ip") -> Any:
    """The same at a `RateLimiter`."""
    limiter = RateLimiter("exports", rates, algorithm=algorithm)
    return lambda units: limiter.hit("ada", units)


KEPT = pytest.mark.parametrize("taking", [take_from_view, take_from_limiter])


@KEPT
@pytest.mark.parametrize(
    "algorithm", ["sliding_window", "token_bucket", "fixed_window", "sliding_log"]
)
def test_a_rule_that_replaces_a_call_site_continues_its_count(algorithm: str, taking: Any) -> None:
    """A lower limit gives no units to a client that has used them up."""
    take = taking(algorithm, "500/h")
    assert take(450).allowed
    one = rule("exports", path="", key="", rate="300/h")
    assert not take(1).allowed
    one.rate = "600/h"
    one.save()
    assert take(40).remaining == 110
    one.delete()
    assert [take(units).allowed for units in (11, 10, 1)] == [False, True, False]


@KEPT
def test_a_rule_continues_only_counts_of_the_same_period(taking: Any) -> None:
    """A rate of another period has its own count."""
    take = taking("sliding_window", ["20/m", "500/h"])
    assert take(15).allowed
    one = rule("exports", path="", key="", rate="300/h, 18/m, 1000/d")
    found = [(state.limit, state.remaining) for state in take(2).limits]
    assert found == [(300, 283), (18, 1), (1000, 998)]
    RateLimitRule.objects.update(rate="12/d")
    assert take(10).remaining == 0
    one.delete()
    assert [(state.limit, state.remaining) for state in take(1).limits] == [(20, 2), (500, 482)]


@pytest.mark.usefixtures("quiet")  # It has not received the change.
def test_a_rule_with_the_name_of_a_limiter_replaces_its_rate() -> None:
    """It also applies outside of views, for example to a Celery task."""
    mail = RateLimiter("mail", "100/h")
    assert mail.peek("ada").limits[0].limit == 100
    stale_process(lambda: rule("mail", path="", key="", rate="3/h"))
    assert [mail.hit("ada").allowed for _ in range(4)] == [True, True, True, False]

    async def hit() -> Any:
        return await mail.ahit("ada")

    stale_process(lambda: RateLimitRule.objects.update(rate="4/h"))
    assert asyncio.run(hit()).allowed
    RateLimitRule.objects.update(mode="off")
    assert mail.hit("ada").limits == ()
    RateLimitRule.objects.update(mode="enforce")
    mail.reset("ada")
    assert mail.peek("ada").remaining == 4
    assert mail.hit("ada").revision == RateLimitRevision.read("default")[0]


def test_tiers_set_other_limits_for_groups_the_most_favourable_first() -> None:
    """Users without a tier have the limit of the rule. Each tier has a count of its own."""
    one = rule("search", path="", rate="1/h")
    add_tier(one, "free", "2/h")
    add_tier(one, "pro", "5/h")
    ada, bob, eve = (User.objects.create(username=name) for name in ("ada", "bob", "eve"))
    free, pro = Group.objects.create(name="free"), Group.objects.create(name="pro")
    ada.groups.add(free, pro)
    bob.groups.add(free)
    answers = [as_user(User.objects.get(pk=user.pk)).content for user in (ada, bob, eve)]
    assert answers == [b"search=5", b"search=2", b"search=1"]
    assert as_user(AnonymousUser()).status_code == 429
    one.options["tiers"][1]["rate"] = "1000/h"
    one.save()
    assert as_user(User.objects.get(pk=ada.pk)).content == b"search=1000"
    assert [change.after["tiers"] for change in RateLimitChange.objects.order_by("pk")[1:3]] == [
        [{"group": "free", "rate": "2/h"}],
        [{"group": "free", "rate": "2/h"}, {"group": "pro", "rate": "5/h"}],
    ]


def test_overrides_by_address_apply() -> None:
    """They are another limit, an exemption and a block. A smaller network precedes a larger one."""
    one = rule(rate="1/h")
    other = "198.51.100.7"
    RateLimitOverride.objects.create(rule=one.name, network="203.0.113.0/24", rate="3/h")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="exempt")
    RateLimitOverride.objects.create(network="203.0.113.10", effect="block")
    RateLimitOverride.objects.create(network="2001:db8::/32", effect="block")
    assert get(times=2, REMOTE_ADDR=other) == [200, 429]
    assert get(times=4, REMOTE_ADDR="203.0.113.1") == [200, 200, 200, 429]
    assert get(times=4, REMOTE_ADDR="203.0.113.9") == [200] * 4
    assert get(times=1, REMOTE_ADDR="2001:db8:1::1") == [429]
    blocked = Client(REMOTE_ADDR="203.0.113.10").get("/ok")
    assert (blocked.status_code, "Retry-After" in blocked.headers) == (429, False)
    assert blocked.content.startswith(b"Too many requests. You are blocked.\n")
    as_json = Client(REMOTE_ADDR="203.0.113.10").get("/ok", headers={"Accept": "application/json"})
    assert as_json.json()["detail"] == "You are blocked."


def test_an_override_applies_to_the_next_request_and_ends_by_itself() -> None:
    """It is added, changed, ended and deleted. Refusals have `Retry-After` until its end."""
    rule(rate="100/h")
    soon = timezone.now() + datetime.timedelta(seconds=3600)
    assert get() == [200]
    block = RateLimitOverride.objects.create(network="127.0.0.1", effect="block", ends=soon)
    blocked = Client().get("/ok")
    assert blocked.status_code == 429
    assert 3590 <= int(blocked.headers["Retry-After"]) <= 3600
    block.ends = timezone.now() - datetime.timedelta(seconds=1)
    block.save()
    assert get() == [200]
    block.ends = None
    block.starts = timezone.now() + datetime.timedelta(seconds=60)
    block.save()
    assert get() == [200]
    RateLimitOverride.objects.update(starts=None)
    assert get() == [429]
    RateLimitOverride.objects.update(network="203.0.113.77")
    assert get() == [200]
    assert get(REMOTE_ADDR="203.0.113.77") == [429]
    RateLimitOverride.objects.all().delete()
    assert get(REMOTE_ADDR="203.0.113.77") == [200]


def test_overrides_by_user_and_by_header_combine(direct: redis.Redis, prefix: str) -> None:
    """Only a digest of the value of the header is stored."""
    one = rule("search", path="", rate="1/h")
    ada, bob = (User.objects.create(username=name) for name in ("ada", "bob"))
    RateLimitOverride.objects.create(rule=one.name, user=ada, effect="exempt")
    key = RateLimitOverride(rule="search", field="header:X-API-Key", label="Bob's", rate="1000/h")
    key.set_value("very-secret")
    key.save()
    assert as_user(bob).content == b"search=1"
    assert [as_user(ada).content for _ in range(3)] == [b""] * 3
    assert as_user(bob).status_code == 429
    assert Client(headers={"x-api-key": "very-secret"}).get("/search").content == b"search=1000"
    assert Client(headers={"x-api-key": "another"}).get("/search").status_code == 429
    kept = str(direct.hgetall(f"{prefix}{{rules}}:1")) + str(
        list(RateLimitOverride.objects.values())
    )
    assert "very-secret" not in kept + str(list(RateLimitChange.objects.values()))
    ada.delete()
    assert RateLimitOverride.objects.count() == 1


@pytest.mark.parametrize(
    ("network", "kept"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("::ffff:cb00:7109", "203.0.113.9"),
        ("::ffff:203.0.113.9/128", "203.0.113.9"),
        ("::ffff:203.0.113.77/120", "203.0.113.0/24"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
    ],
)
def test_an_address_matches_in_every_spelling(network: str, kept: str, settings: Any) -> None:
    """An IPv4-mapped address is the IPv4 client: in overrides, as peer, and behind proxies."""
    rule(rate="1000/h")
    block = RateLimitOverride(network=network, effect="block")
    block.full_clean(exclude=["subject", "kind"])
    block.save()
    assert block.network == kept
    for client in ("203.0.113.9", "::ffff:203.0.113.9", "[::ffff:203.0.113.9]:4711"):
        assert get(REMOTE_ADDR=client) == [429]
    assert get(REMOTE_ADDR="2001:db8::1") == [200]
    settings.RATELIMIT_TRUSTED_PROXIES = ["::ffff:10.0.0.0/104"]
    assert get(REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR="2001:db8::1") == [200]
    for proxy in ("10.0.0.1", "::ffff:10.0.0.1"):
        assert get(REMOTE_ADDR=proxy, HTTP_X_FORWARDED_FOR="::ffff:203.0.113.9") == [429]


@pytest.mark.usefixtures("quiet")  # It counts what Redis is asked.
def test_a_request_with_overrides_makes_one_call(direct: redis.Redis) -> None:
    """A process finds overrides in memory."""
    rule(rate="1000/h")
    RateLimitOverride.objects.create(network="203.0.113.9", rule="site", rate="500/m")
    for address in ("203.0.113.9", "203.0.113.10"):
        get(REMOTE_ADDR=address)
        direct.config_resetstat()
        get(times=5, REMOTE_ADDR=address)
        statistics = direct.info("commandstats")
        assert statistics["cmdstat_evalsha"]["calls"] == 5
        assert statistics["cmdstat_hget"]["calls"] == 5, "the revision, in the script"
        assert not {"cmdstat_hgetall", "cmdstat_mget"} & set(statistics)


def test_shadow_rules_never_refuse(settings: Any) -> None:
    """A signal reports the requests that the rule would have refused."""
    one = rule(rate="1/h", mode="shadow")
    sent: list[dict[str, Any]] = []

    def receive(**kwargs: Any) -> None:
        sent.append(kwargs)

    limit_exceeded.connect(receive)
    try:
        assert get(times=3) == [200, 200, 200]
    finally:
        limit_exceeded.disconnect(receive)
    assert [(signal["rule"], signal["mode"], len(signal["identity"])) for signal in sent] == [
        ("site", "shadow", 32)
    ] * 2
    RateLimitRule.objects.filter(pk=one.pk).update(mode="enforce")
    assert get() == [429]


def test_a_process_that_lost_the_lock_publishes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Only one process compares the published rules with the database."""
    caplog.set_level(logging.INFO, "django_ratelimit_lua")
    rule()
    provider.load_ruleset()
    triggers._compare_and_publish()
    caplog.clear()
    triggers._warn("%s", OSError("the database is away"))
    triggers.unpublished = "the database is away"
    triggers._compare_and_publish()
    assert triggers.unpublished
    assert "published again" not in caplog.text
    get_store().execute(b"DEL", triggers._lock_key())
    triggers._compare_and_publish()
    assert not triggers.unpublished
    assert "published again" in caplog.text


def test_publishing_in_a_transaction_waits_for_no_request() -> None:
    """It does not wait for another publication that waits for the database."""
    rule()
    may_end = threading.Event()
    assert triggers.restoring.submit(lambda: may_end.wait(60))
    try:
        with transaction.atomic():
            assert publish() == provider.reload_ruleset().revision.number
    finally:
        may_end.set()
