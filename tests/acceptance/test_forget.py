"""`ratelimit forget` erases an identity from Redis, the database and other processes."""

from __future__ import annotations

import io
import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.contenttypes.models import ContentType
from django.core.management import CommandError, call_command
from django.core.serializers import serialize
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.admin.history import undone
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.identity.text import NO_NUMBER
from django_ratelimit_lua.models import (
    RateLimitChange,
    RateLimitOverride,
    RateLimitRule,
)
from django_ratelimit_lua.models.audit import acting
from django_ratelimit_lua.operations import forgetting
from django_ratelimit_lua.store import get_store
from django_ratelimit_lua.throttling import AnonRateThrottle, UserRateThrottle
from tests.acceptance import test_cluster
from tests.acceptance.test_reset_and_block import said
from tests.clusters import Cluster
from tests.worker import Worker, migrated

nodes, cluster = test_cluster.nodes, test_cluster.cluster
pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS, OTHER = "203.0.113.9", "203.0.113.10"
IP = ("ip", ADDRESS)


def in_redis(server: redis.Redis, prefix: str) -> str:
    """Return all keys and values under a prefix as text."""
    found = []
    for key in sorted(server.scan_iter(f"{prefix}*")):
        kind = server.type(key)
        if kind == b"string":
            value: Any = server.get(key)
        elif kind == b"hash":
            value = server.hgetall(key)
        elif kind == b"zset":
            value = server.zrange(key, 0, -1)
        elif kind == b"set":
            value = server.smembers(key)
        else:
            value = server.lrange(key, 0, -1)
        found.append(f"{key!r}: {value!r}")
    return "\n".join(found)


def in_database() -> str:
    """Return all rows of the package and of the admin's log as text."""
    models = [
        model for model in apps.get_models() if model.__module__.startswith("django_ratelimit_lua")
    ]
    return serialize(
        "json", itertools.chain(*(model._base_manager.all() for model in [*models, LogEntry]))
    )


def traces(server: redis.Redis, prefix: str, *words: str) -> list[str]:
    """Return the lines that contain one of the words."""
    lines = [
        *in_redis(server, prefix).splitlines(),
        *in_database().replace("}, {", "},\n{").splitlines(),
    ]
    return [line for line in lines if any(word in line for word in words)]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the wait for other processes."""
    monkeypatch.setattr(forgetting, "IN_FLIGHT_SECONDS", 0.0)


def use_everything(identity: Any = IP) -> None:
    """Create counts of several algorithms, a ban with its description, and statistics."""
    RateLimiter("counted", "1/h").hit(identity)
    banning = RateLimiter("banning", "1/h", ban_after=2, ban_for="1d")
    for _ in range(4):
        banning.hit(identity)
    RateLimiter("queue", "9/h", algorithm="leaky_bucket").hit(identity)


def erased(text: str) -> dict[str, int]:
    lines = [
        line.removeprefix("erased: ").rpartition(": ")
        for line in text.splitlines()
        if line.startswith("erased: ")
    ]
    return {kind: int(number.replace(",", "")) for kind, _mark, number in lines}


def test_forgetting_an_address_leaves_no_trace(
    direct: redis.Redis, prefix: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts, slots, bans, overrides, their history and the admin's log are erased, under earlier
    secrets as well. Data of other identities stays.
    """
    monkeypatch.setattr("django_ratelimit_lua.engine.slots.HeldSlots.interval", 0.1)
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"
    settings.RATELIMIT_KEY_SECRET = "earlier"
    RateLimiter("counted", "1/h").hit(IP)
    settings.RATELIMIT_KEY_SECRET = ["now", "earlier"]
    digests = [digest(IP, secret).decode() for secret in ("now", "earlier")]
    use_everything()
    use_everything(("ip", OTHER))
    slot = RateLimiter("held", "5", algorithm="concurrency").slot(IP)
    with slot, acting("ada"):
        said("block", "--ip", ADDRESS, "--reason", f"scraper at {ADDRESS}")
        said("block", "--ip", OTHER)
        pk = RateLimitOverride.objects.get(network=ADDRESS).pk
        operator = User.objects.create(username="operator")
        content_type = ContentType.objects.get_for_model(RateLimitOverride)
        LogEntry.objects.create(
            user=operator,
            content_type=content_type,
            object_id=pk,
            object_repr=ADDRESS,
            action_flag=CHANGE,
        )
        time.sleep(1.5)  # Until bans and statistics are written.
        words = (*digests, ADDRESS + '"', f"{ADDRESS}'", f"at {ADDRESS}")
        assert len(traces(direct, prefix, *words)) > 8
        text = said("forget", "--ip", ADDRESS, "--overrides")
        time.sleep(0.5)  # The slot is renewed meanwhile.
        assert traces(direct, prefix, *words, f"{ADDRESS}\\") == []
    found = erased(text)
    assert (
        found["overrides"],
        found["bans"],
        found["entries of the admin's log"],
    ) == (1, 1, 1)
    assert found["counts"] >= 4
    assert found["history entries"] >= 2
    assert "cannot be erased: log files" in text
    theirs = digest(("ip", OTHER)).decode()
    assert f"{{{theirs}}}:counted" in in_redis(direct, prefix)
    assert RateLimitOverride.objects.get().network == OTHER
    assert RateLimitChange.objects.filter(name=OTHER).exists()
    assert RateLimiter("banning", "1/h", ban_after=2, ban_for="1d").hit(IP).allowed


def test_data_of_throttles_and_expired_bans_is_forgotten(
    soon: None, direct: redis.Redis, prefix: str
) -> None:
    """DRF's throttles count by other texts, and the list of bans may outlive a ban."""
    user = User.objects.create(username="grace")
    factory = APIRequestFactory()
    for cls, who in ((AnonRateThrottle, AnonymousUser()), (UserRateThrottle, user)):
        request = factory.get("/", REMOTE_ADDR=ADDRESS)
        request.user = who
        throttle = type("Often", (cls,), {"rate": "5/h"})()
        assert throttle.allow_request(APIView().initialize_request(request), APIView())
    limiter = RateLimiter("short", "1/h", ban_after=1, ban_for="1h")
    for _ in range(3):
        limiter.hit(IP)
    direct.delete(*direct.scan_iter(f"{prefix}*:ban"))
    assert len([*direct.scan_iter(f"{prefix}{{*}}:*:g")]) == 2
    said("forget", "--ip", ADDRESS)
    said("forget", "--user", "grace")
    assert [*direct.scan_iter(f"{prefix}{{*}}:*:g")] == []
    assert traces(direct, prefix, digest(IP).decode()) == []


def test_forget_deletes_overrides_only_with_its_option(soon: None) -> None:
    """Without a terminal, the command reports the remaining overrides and the option that deletes
    them.
    """
    said("block", "--ip", ADDRESS)
    text = said("forget", "--ip", ADDRESS)
    assert "not erased: overrides about the identity: 1 (--overrides deletes them)" in text
    assert RateLimitOverride.objects.get().network == ADDRESS
    assert said("forget", "--ip", ADDRESS, "--overrides").startswith("erased: overrides: 1\n")
    assert not RateLimitOverride.objects.exists()


def test_a_terminal_asks_about_overrides(soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overrides are deleted only after a yes."""
    said("block", "--ip", ADDRESS)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, is_left in (("", True), ("y", False)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        said("forget", "--ip", ADDRESS)
        assert RateLimitOverride.objects.exists() == is_left


def test_a_user_is_forgotten_as_an_author_as_well(
    soon: None, direct: redis.Redis, prefix: str
) -> None:
    """The name is removed from the history and from overrides. Changes of rules can still be
    undone.
    """
    ada = User.objects.create(username="ada")
    with acting(ada):
        rule = RateLimitRule.objects.create(
            name="login", path="/", key="ip", rate="5/m", description="for ada"
        )
        RateLimitRule.objects.filter(pk=rule.pk).update(rate="6/m")
        block = RateLimitOverride(
            effect="block", network=OTHER, reason="as ada says", created_by="ada"
        )
        block.save()
    said("block", "--user", "ada")
    text = said("forget", "--user", "ada", "--overrides")
    assert "not erased: rules that mention the identity: 1 (edit them: login)" in text
    assert "not erased: earlier versions of rules that mention the identity: 2" in text
    assert "not erased: other overrides that mention the identity: 1" in text
    others = [
        line
        for line in traces(direct, prefix, "ada")
        if "for ada" not in line and "as ada says" not in line
    ]
    assert others == []
    created, changed = RateLimitChange.objects.filter(kind="rule").order_by("pk")
    assert created.by == changed.by == "(erased)"
    restored = undone(changed)
    restored.save()
    assert restored.rate == "5/m"


def test_values_of_fields_and_combinations_are_forgotten(
    soon: None, direct: redis.Redis, prefix: str
) -> None:
    """A value is erased for every kind of key that reads it. Several options together name a
    combined identity.
    """
    field, combined = ("data", "username", "ada"), (("post", "username", "ada"), IP)
    for identity in (field, combined, IP):
        RateLimiter("counted", "1/h").hit(identity)
    said("forget", "--field", "username= Ada")
    left = [
        digest(identity).decode() in in_redis(direct, prefix) for identity in (field, combined, IP)
    ]
    assert left == [False, True, True]
    said("forget", "--ip", ADDRESS, "--field", "username=ada")
    left = [
        digest(identity).decode() in in_redis(direct, prefix) for identity in (field, combined, IP)
    ]
    assert left == [False, False, True]
    said("forget", "--digest", digest(IP).decode())
    assert traces(direct, prefix, digest(IP).decode()) == []


def test_the_counts_of_a_number_are_forgotten(soon: None, direct: redis.Redis, prefix: str) -> None:
    """They are named by any spelling. The shared count of values that are no number stays."""
    number, no_number = ("post", "account", "7"), ("post", "account", NO_NUMBER)
    for identity in (number, no_number):
        RateLimiter("counted", "1/h").hit(identity)
    said("forget", "--field", "account=007")
    said("forget", "--field", "account=seven")
    kept = in_redis(direct, prefix)
    assert digest(number).decode() not in kept
    assert digest(no_number).decode() in kept


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "name the identity, such as --user ada"),
        (("--ip", "203.0.113.0/24"), "is a network; name one address"),
        (("--digest", "a" * 32, "--ip", ADDRESS), "use no other option with it"),
        (("--digest", "7"), "32 hexadecimal digits"),
    ],
)
def test_an_identity_that_cannot_be_forgotten_is_an_error(
    arguments: tuple[str, ...], problem: str
) -> None:
    """The error names valid options."""
    with pytest.raises(CommandError, match=problem):
        call_command("ratelimit", "forget", *arguments)


def forget_what_another_process_knows(
    direct: redis.Redis, prefix: str, tmp_path: Path, *annexes: str
) -> None:
    """Refuse a user in one process, forget the user in another, and search Redis for the user."""
    site = {"default": migrated(tmp_path / "db.sqlite3", *annexes)}
    settings = {"RATELIMIT_DENY_CACHE_SECONDS": 60, "RATELIMIT_SHOW_IDENTITIES": "plain"}
    with (
        Worker(prefix, site, annexes=annexes, **settings) as process,
        Worker(prefix, site, annexes=annexes, **settings) as operator,
    ):
        text = process("digest(('user', '1')).decode()")
        operator("User.objects.create(username='ada').pk")
        assert process("[limiter.hit(('user', '1')).allowed for _ in range(5)][-1]") is False
        deadline = time.monotonic() + 20
        while not process("hears()") and time.monotonic() < deadline:
            time.sleep(0.01)
        while (
            process("limiter.hit(('user', '1')).source") != "deny-cache"
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        time.sleep(1.5)
        assert len(
            [line for line in in_redis(direct, prefix).splitlines() if text in line]
        ) > 2 * len(annexes)
        process("[limiter.hit(('user', '1')).allowed for _ in range(5)]")
        operator(
            "call_command('ratelimit', 'forget', '--user', 'ada', stdout=open(os.devnull, 'w'))"
        )
        time.sleep(1.2)
        assert [line for line in in_redis(direct, prefix).splitlines() if text in line] == []
        process("limiter.hit(('user', '2')).allowed")  # Its lists of clients are written once more.
        time.sleep(1.5)
        assert [line for line in in_redis(direct, prefix).splitlines() if text in line] == []
        assert process("limiter.hit(('user', '1')).allowed") is True


def test_another_process_forgets_a_cached_refusal_within_a_second(
    direct: redis.Redis, prefix: str, tmp_path: Path
) -> None:
    """The other process had cached the refusal."""
    forget_what_another_process_knows(direct, prefix, tmp_path)


def test_forgetting_leaves_no_data_on_any_cluster_node(cluster: Cluster, soon: None) -> None:
    """All masters are searched."""
    use_everything()
    time.sleep(1.5)
    before = get_store().find_keys(b"", b"*" + digest(IP) + b"*")
    assert len(before) >= 5
    said("forget", "--ip", ADDRESS)
    assert get_store().find_keys(b"", b"*" + digest(IP) + b"*") == set()
