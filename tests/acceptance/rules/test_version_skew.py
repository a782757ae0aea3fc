"""Snapshots of other versions, and invalid data in Redis, make no request fail and lift
no limit.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRevision, RateLimitRule
from django_ratelimit_lua.publishing import publish, triggers
from django_ratelimit_lua.rules import provider, snapshot
from django_ratelimit_lua.rules.status import freshness
from tests.acceptance.rules.test_rules import another_process, rule
from tests.support.processes import until

pytestmark = pytest.mark.django_db(transaction=True)
FIRST = "203.0.113.1"


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@ratelimit("search", "ip", "100/h")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        ",".join(f"{state.name}={state.limit}" for state in request.ratelimit.limits)
    )


urlpatterns = [path("search", search), path("good", ok), path("other", ok), path("odd", ok)]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ]
    settings.RATELIMIT_DENY_CACHE_SECONDS = 0


class Published:
    """The published rules, which tests change as another version would."""

    def __init__(self, direct: redis.Redis, prefix: str) -> None:
        self.direct, self.key = direct, f"{prefix}{{rules}}:1"
        self._edits = 0

    def put(self, **fields: Any) -> None:
        """Store fields under a new revision, with other tags."""
        self._edits += 1
        number = int(self.direct.hget(self.key, "revision").partition(b"-")[0]) + 1
        revision = f"{number}-{self._edits:08x}-{self._edits:08x}"
        self.direct.hset(self.key, mapping={**fields, "revision": revision})
        freshness.expire()  # As if a change was received.


@pytest.fixture
def published(direct: redis.Redis, prefix: str) -> Published:
    return Published(direct, prefix)


def get(address: str, times: int = 1, ip: str = FIRST) -> list[int]:
    return [Client(REMOTE_ADDR=ip).get(address).status_code for _ in range(times)]


@pytest.mark.usefixtures("quiet")  # It counts what Redis is asked.
@pytest.mark.parametrize(
    "fields",
    [
        {"format": 99, "rules": '{"rule_tree": {}}'},
        {"overrides:0": '{"blocks": [5]}', "sections": "01234567" * snapshot.SECTIONS},
        {"rules": '{"rules": ['},
    ],
)
def test_an_invalid_snapshot_leaves_the_last_valid_rules_in_force(
    fields: dict[str, Any], published: Published, caplog: Any
) -> None:
    """It is logged once, and requests cost the same. A new process reads the database."""
    rule("good", path="/good", rate="2/h")
    assert get("/good", 1) == [200]
    published.put(**fields)
    assert get("/good", 2) == [200, 429]
    published.direct.config_resetstat()
    assert get("/good", 10) == [429] * 10
    statistics = published.direct.info("commandstats")
    assert statistics["cmdstat_evalsha"]["calls"] == 10
    assert not {"cmdstat_hget", "cmdstat_hmget"} & {
        name for name in statistics if statistics[name]["calls"] > 10
    }
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 1
    another_process()
    assert get("/good", 3, "203.0.113.2") == [200, 200, 429]
    RateLimitRule.objects.update(rate="1/h")
    assert get("/good", 2, "203.0.113.3") == [200, 200 if "format" in fields else 429]


@pytest.mark.parametrize(
    "fields",
    [
        {"revision": "abc"},
        {"format": "abc"},
        {"format": b"\xff"},
        {"keys": b"\xff"},
        {"overrides:1": ""},
    ],
)
def test_damaged_data_is_published_again(fields: dict[str, Any], published: Published) -> None:
    """A block that is made afterwards acts on the next request, and `publish` works."""
    rule("good", path="/good", rate="2/h")
    assert get("/good", 1) == [200]
    published.direct.hset(published.key, mapping=fields)
    RateLimitOverride.objects.create(network="203.0.113.0/24", effect="block")
    assert get("/good", 1) == [429]
    published.direct.hset(published.key, mapping=fields)
    call_command("ratelimit", "publish", stdout=StringIO())
    another_process()
    assert get("/good", 1) == [429]


def test_a_change_of_an_override_sends_and_loads_one_section(published: Published) -> None:
    """The other sections and the rules stay as they are, in Redis and in the process."""
    rule("good", path="/good", rate="2/h")
    networks = [f"198.51.100.{number}" for number in range(snapshot.SECTIONS)]
    RateLimitOverride.objects.bulk_create(
        RateLimitOverride(network=network, effect="block") for network in networks
    )
    before, known = published.direct.hgetall(published.key), provider.reload_ruleset().snapshot
    block = RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    section = snapshot.section_number(block.pk)
    after, loaded = published.direct.hgetall(published.key), provider.reload_ruleset().snapshot
    changed = {field.decode() for field in after if after[field] != before.get(field)}
    assert changed == {"revision", "sections", f"overrides:{section}"}
    assert loaded.rules is known.rules
    pairs = zip(loaded.overrides, known.overrides, strict=True)
    assert [number for number, (one, other) in enumerate(pairs) if one is not other] == [section]
    assert get("/good", 1, "203.0.113.9") == get("/good", 1, networks[0]) == [429]


def test_an_invalid_revision_is_published_again(published: Published) -> None:
    """The next call reports it, and restores the rules of the database."""
    rule("good", path="/good", rate="2/h")
    assert get("/good", 1) == [200]
    published.direct.hset(published.key, "revision", "soon")
    assert get("/good", 2) == [200, 429]
    assert RateLimitRevision.read("default").text == published.direct.hget(
        published.key, "revision"
    )


@pytest.mark.parametrize("options", [[], ["--take-over"]])
def test_a_key_of_another_type_is_not_replaced(options: list[str], published: Published) -> None:
    """The error names the key, and what to do."""
    rule("good", path="/good", rate="2/h")
    published.direct.delete(published.key)
    published.direct.set(published.key, "other")
    with pytest.raises(CommandError, match=f"{re.escape(published.key)}.*Delete it in Redis"):
        call_command("ratelimit", "publish", *options)
    assert published.direct.get(published.key) == b"other"


def test_an_older_version_never_overwrites_a_newer_snapshot(
    published: Published, caplog: Any
) -> None:
    """It saves its edits without retrying, and a newer version publishes them."""
    rule("good", path="/good", rate="2/h")
    published.put(format=99, rules=json.dumps({"rules": {"good": 2}}))
    before = published.direct.hgetall(published.key)
    RateLimitRule.objects.update(rate="1/h")
    another_process()
    assert get("/good", 2) == [200, 429]
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    assert published.direct.hgetall(published.key) == before
    assert "newer version" in caplog.text
    publish(rebuild=True, take_over=True)
    assert published.direct.hget(published.key, "format") == b"%d" % snapshot.FORMAT
    assert get("/good", 1, "203.0.113.9") == [429]
    assert get("/good", 2, "203.0.113.8") == [200, 429]


def test_a_late_reply_of_the_database_is_used(
    published: Published, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process uses it immediately, so a blocked client is refused again."""
    settings.RATELIMIT_TIMEOUT = 0.05
    rule("good", path="/good", rate="2/h")
    RateLimitOverride.objects.create(network=FIRST, effect="block")
    published.put(format=99)
    answers, read = threading.Event(), triggers.snapshot_of
    monkeypatch.setattr(triggers, "snapshot_of", lambda using: answers.wait(30) and read(using))
    another_process()
    gap = provider.load_ruleset()
    assert not gap.rules
    answers.set()
    until(lambda: provider.loaded_ruleset() is not gap, "what the database has holds")
    assert provider.loaded_ruleset().published == gap.published
    settings.RATELIMIT_TIMEOUT = 10
    assert get("/good", 1) == [429]
    assert get("/good", 3, "203.0.113.2") == [200, 200, 429]


def test_a_new_field_raises_the_snapshot_format() -> None:
    """If this test fails, the database or the snapshot has a field that an older version would
    omit. Raise `FORMAT`, so that no older version publishes, and update both values here.
    """
    published = (RateLimitRule, RateLimitOverride)
    words = [
        f"{model.__name__}.{field.name}"
        for model in published
        for field in model._meta.concrete_fields
    ]
    words += [*snapshot.RULES_MEMBERS, *snapshot.SECTION_MEMBERS]
    digest_of_words = hashlib.sha256(" ".join(sorted(words)).encode()).hexdigest()[:16]
    assert (snapshot.FORMAT, digest_of_words) == (1, "659df4788d7810a5")
