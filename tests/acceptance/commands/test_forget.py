"""`ratelimit forget` erases an identity from Redis, the database and other processes."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.core.serializers import serialize

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.management.verbs import clients
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride
from django_ratelimit_lua.models.audit import acting
from django_ratelimit_lua.store import get_store
from tests.acceptance.commands.test_reset_and_block import said
from tests.acceptance.store import test_cluster
from tests.support.clusters import Cluster
from tests.support.processes import Worker, migrated

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
    monkeypatch.setattr(clients, "IN_FLIGHT_SECONDS", 0.0)


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
    """Data under earlier secrets is erased too, and data of other identities stays."""
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
        time.sleep(1.5)  # Until bans and statistics are written.
        words = (*digests, ADDRESS + '"', f"{ADDRESS}'", f"at {ADDRESS}")
        assert len(traces(direct, prefix, *words)) > 8
        text = said("forget", "--ip", ADDRESS)
        time.sleep(0.5)  # The slot is renewed meanwhile.
        assert traces(direct, prefix, *words, f"{ADDRESS}\\") == []
    found = erased(text)
    assert found["overrides"] == 1
    assert found["counts and bans"] >= 5
    assert found["entries of the history"] >= 2
    assert "not erased: log files" in text
    theirs = digest(("ip", OTHER)).decode()
    assert f"{{{theirs}}}:counted" in in_redis(direct, prefix)
    assert RateLimitOverride.objects.get().network == OTHER
    assert RateLimitChange.objects.filter(name=OTHER).exists()
    assert RateLimiter("banning", "1/h", ban_after=2, ban_for="1d").hit(IP).allowed


def test_users_values_and_any_digest_are_forgotten(
    soon: None, direct: redis.Redis, prefix: str
) -> None:
    """The digest of a combined key is given as such. Overrides are deleted by user or by value."""
    ada = User.objects.create(username="ada")
    user, field = ("user", str(ada.pk)), ("post", "username", "ada")
    combined = (field, IP)
    for identity in (user, field, combined, IP):
        RateLimiter("counted", "1/h").hit(identity)
    said("block", "--user", "ada")
    said("block", "--field", "username=ada")
    left = [user, field, combined, IP]
    for arguments in (
        ("--user", "ada"),
        ("--field", "username= Ada"),
        ("--digest", digest(combined).decode()),
    ):
        said("forget", *arguments)
        del left[0]
        stored = in_redis(direct, prefix)
        kept = [
            identity
            for identity in (user, field, combined, IP)
            if digest(identity).decode() in stored
        ]
        assert kept == left
    assert not RateLimitOverride.objects.exists()
    assert not RateLimitChange.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "name exactly one subject"),
        (("--ip", "203.0.113.0/24"), "is a network; name one address"),
        (("--digest", "a" * 32, "--ip", ADDRESS), "name exactly one subject"),
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
        while not process("is_listening()") and time.monotonic() < deadline:
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
