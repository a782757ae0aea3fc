"""Snapshots of other versions, and invalid data in Redis, make no request fail and lift
no limit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.extension import Extension, extensions
from django_ratelimit_lua.limits.call import Call, Charge, StaleRules
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.rate import SECOND
from django_ratelimit_lua.models import (
    RateLimitOverride,
    RateLimitRule,
    RateLimitTier,
)
from django_ratelimit_lua.publishing import triggers
from django_ratelimit_lua.publishing.publish import publish, snapshot_of
from django_ratelimit_lua.rules import provider, snapshot
from django_ratelimit_lua.rules.freshness import freshness
from django_ratelimit_lua.rules.overrides import override_cache
from django_ratelimit_lua.store import get_store
from tests.acceptance.test_rules import another_process, rule
from tests.clusters import until
from tests.examples import examples
from tests.worker import Worker, migrated

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
        self.direct, self.key = direct, f"{prefix}{{rules}}"
        self._edits = 0
        self.revision = ""

    def snapshot(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.direct.hget(self.key, "rules"))
        self.revision = found["revision"]
        return found

    def put(self, text: bytes | str) -> None:
        """Store a text as the snapshot of a new revision."""
        self._edits += 1
        number = int(self.direct.hget(self.key, "revision").partition(b"-")[0]) + 1
        revision = f"{number}-{self._edits:016x}"
        try:
            snapshot = json.loads(text)
            if snapshot["revision"] == self.revision:  # Else it is wrong on purpose.
                text = json.dumps({**snapshot, "revision": revision})
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        self.direct.hset(self.key, mapping={"revision": revision, "rules": text})
        freshness.expire()  # As where it is heard of: who goes by no rule for a path asks nobody.

    def put_rule(self, called: str, /, **words: Any) -> None:
        """Change fields of a rule, and remove those that are None."""
        snapshot = self.snapshot()
        for one in snapshot["rules"]:
            if one["name"] == called:
                one.update(words)
                for word in [word for word, value in words.items() if value is None]:
                    del one[word]
        self.put(json.dumps(snapshot))


@pytest.fixture
def published(direct: redis.Redis, prefix: str) -> Published:
    return Published(direct, prefix)


def get(address: str, times: int = 1, ip: str = FIRST) -> list[int]:
    return [Client(REMOTE_ADDR=ip).get(address).status_code for _ in range(times)]


@pytest.mark.parametrize(
    "words",
    [
        {"exempt": True, "rate": None, "key": None, "country": "de"},
        {"mode": "off", "country": "de"},
        {"rate": "0/h", "country": "de"},
        {"path": None, "country": "de"},
        {"key": "fingerprint"},
        {"key": None},
        {"rate": "a few"},
        {"path": 5},
        {"name": 5},
        {"country": ["de"]},
        {"mode": "sampled"},
        {"audience": "bots"},
        {"algorithm": "window_2", "windows": 3, "burst": 3},
    ],
    ids=str,
)
def test_a_rule_that_becomes_invalid_keeps_its_last_valid_version(
    words: dict[str, Any], published: Published
) -> None:
    """A process that has loaded the valid version uses it, and another process leaves the rule out.
    The other rules apply.
    """
    rule("odd", path="/odd", limit=3)
    rule("good", path="/good", limit=2)
    provider.reload()
    published.put_rule("odd", **words)
    assert get("/odd", 4) == [200, 200, 200, 429]
    assert get("/good", 3) == [200, 200, 429]
    assert get("/other", 5) == [200] * 5
    another_process()
    assert get("/odd", 2, "203.0.113.2") == [200, 200]
    assert get("/good", 3, "203.0.113.2") == [200, 200, 429]
    assert get("/other", 5, "203.0.113.2") == [200] * 5


@pytest.mark.usefixtures("quiet")  # It counts what Redis is asked.
@pytest.mark.parametrize(
    "text",
    [
        '{"format": 99, "revision": "x", "rule_tree": {}}',
        '{"kinds": {"": "user"}}',
        '{"blocks": [5]}',
        "[]",
        "5",
        '{"rules": [',
        "\x80",
        "[" * 100_000,
    ],
)
def test_an_invalid_snapshot_leaves_the_last_valid_rules_in_force(
    text: str, published: Published, caplog: Any
) -> None:
    """It is logged once, and requests cost the same. A new process reads the database."""
    rule("good", path="/good", limit=2)
    assert get("/good", 1) == [200]
    published.put(text)
    if "format" in text:
        published.direct.hset(published.key, "format", 99)
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
    RateLimitRule.objects.update(limit=1)
    assert get("/good", 2, "203.0.113.3") == [200, 200 if "format" in text else 429]


def test_an_older_version_never_overwrites_a_newer_snapshot(
    published: Published, caplog: Any
) -> None:
    """It saves its edits without retrying, and a newer version publishes them. After a return to
    the older version, one publication takes over.
    """
    rule("good", path="/good", limit=2)
    newer = json.dumps({**published.snapshot(), "format": 99, "rules": {"good": 2}})
    published.put(newer)
    published.direct.hset(published.key, "format", 99)
    before = published.direct.hgetall(published.key)
    RateLimitRule.objects.update(limit=1)
    another_process()
    assert get("/good", 2) == [200, 429]
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    assert published.direct.hgetall(published.key) == before
    assert "newer version" in caplog.text
    publish(rebuild=True, take_over=True)
    assert published.direct.hget(published.key, "format") == b"%d" % snapshot.FORMAT
    assert get("/good", 1, "203.0.113.9") == [429]
    assert get("/good", 2, "203.0.113.8") == [200, 429]


@pytest.mark.parametrize("is_new", [True, False], ids=["has just started", "knows the rules"])
def test_an_edit_by_a_newer_version_applies_when_the_database_replies(
    is_new: bool, published: Published, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply may be late. A reply from before another edit is not used."""
    settings.RATELIMIT_TIMEOUT = 0.5
    rule("good", path="/good", limit=2)
    assert get("/good", 1) == [200]
    answers, read = threading.Event(), triggers.snapshot_of
    reads = []

    def slowly(using: str) -> Any:
        reads.append(read(using))
        assert answers.wait(30)
        return reads[-1]

    def edit(limit: int) -> None:
        RateLimitRule.objects.update(limit=limit)
        published.put('{"format": 99}')
        published.direct.hset(published.key, "format", 99)

    monkeypatch.setattr(triggers, "snapshot_of", slowly)
    edit(0)
    if is_new:
        another_process()
    assert get("/good", 1, "203.0.113.2") == [200]
    until(lambda: len(reads) == 1, "the database is asked")
    edit(1)
    provider.reload()
    gap = provider.in_force()
    answers.set()
    assert triggers.reading.wait(30)
    assert provider.in_force() is gap
    provider._compare_at = 0.0  # Every few seconds.
    provider.current()
    until(lambda: provider.in_force() is not gap, "what the database has holds")
    assert get("/good", 2, "203.0.113.3") == [200, 429]
    assert provider.load(StaleRules(gap.published)) is provider.in_force()


def test_a_late_reply_of_the_database_is_used(
    published: Published, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is used immediately, also by a new process, so a blocked client is admitted no longer than
    until the reply.
    """
    settings.RATELIMIT_TIMEOUT = 0.5
    rule("good", path="/good", limit=2)
    RateLimitOverride.objects.create(network=FIRST, effect="block")
    published.put('{"format": 99}')
    published.direct.hset(published.key, "format", 99)
    answers, read = threading.Event(), triggers.snapshot_of
    monkeypatch.setattr(triggers, "snapshot_of", lambda using: answers.wait(30) and read(using))
    another_process()
    gap = provider.load()
    assert not gap.rules
    answers.set()
    until(lambda: provider.in_force() is not gap, "what the database has holds")
    assert provider.in_force().published == gap.published
    settings.RATELIMIT_TIMEOUT = 10
    assert get("/good", 1) == [429]
    assert get("/good", 3, "203.0.113.2") == [200, 200, 429]


OLDER = (
    "original = publishing._rules ;; "
    "publishing._rules = lambda using: [{**one, 'rate': one['rate'][0]} for one in original(using)]"
)
"""A version that does not know several rates, and publishes the first alone."""
NEWER = (
    "from django_ratelimit_lua.rules import snapshot ;; snapshot.FORMAT = publishing.FORMAT = 99"
)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Worker]]:
    """Run a process of an older version and one of a newer version."""
    databases = {"default": migrated(tmp_path_factory.mktemp("databases") / "site.sqlite3")}
    with Worker("older:", databases) as older, Worker("newer:", databases) as newer:
        older(OLDER)
        newer(NEWER)
        yield older, newer


@pytest.fixture
def older_newer(processes: tuple[Worker, Worker], prefix: str) -> tuple[Worker, Worker]:
    """Return both processes as they have just started, with a rule that the newer one has
    published.
    """
    older, newer = processes
    newer(f"begin({prefix!r}) ;; RateLimitOverride.objects.all().delete()")
    newer("RateLimitRule.objects.all().delete() ;; rule(limit=50, more_rates=['30/m'])")
    older(f"begin({prefix!r}) ;; said.clear() ;; triggers._mended()")
    return older, newer


def test_an_edit_by_an_older_process_is_published_by_a_newer_one(
    older_newer: tuple[Worker, Worker], published: Published
) -> None:
    """A newer process publishes it when it compares the rules, every ten seconds, with all fields
    that the older one does not know. The older process uses the database as far as it knows its
    fields.
    """
    older, newer = older_newer
    rates = newer("ask()")
    assert sorted(rates.values()) == [30, 50]
    assert [*older("ask()").values()] == [50]
    older("block(network='203.0.113.9')")
    revision = older("RateLimitRevision.read('default').text.decode()")
    assert newer("look()") is None
    assert published.snapshot()["revision"] == revision
    assert published.snapshot()["format"] == 99
    assert newer("[ask(), ask('203.0.113.9')]") == [rates, "refused"]
    assert older("ask('203.0.113.9')") == "refused"
    older("look()")
    assert older("[health().problems, triggers.unpublished]") == [[], ""]


def test_an_older_process_reports_that_its_edit_is_not_published(
    older_newer: tuple[Worker, Worker], published: Published, prefix: str
) -> None:
    """Its health check and, once, its log report it, until a process of the newer version compares
    the rules.
    """
    older, newer = older_newer
    newer(f"begin({prefix + 'elsewhere:'!r}) ;; ask()")
    before = published.direct.hgetall(published.key)
    older("ask() ;; edit(40) ;; edit(20) ;; look()")
    assert published.direct.hgetall(published.key) == before
    (problem,) = older("health().problems")
    assert "newer version" in problem
    assert "rules adopt" in problem
    assert older("sum('newer version' in line for line in said)") == 1
    newer(f"begin({prefix!r}) ;; look()")
    assert [*older("look() ;; ask()").values()] == [20]
    assert older("health().problems") == []


@pytest.mark.parametrize("knows_rules", [False, True])
def test_rules_of_an_older_version_are_republished_before_use(
    knows_rules: bool, older_newer: tuple[Worker, Worker], published: Published
) -> None:
    """After Redis was emptied, an older version cannot detect a newer one."""
    older, newer = older_newer
    if knows_rules:
        newer("ask()")
    older("empty_redis() ;; publish() ;; edit(40)")
    assert published.snapshot()["format"] < 99
    assert sorted(newer("ask()").values()) == [30, 40]
    assert published.snapshot()["format"] == 99


def test_a_new_field_raises_the_snapshot_format() -> None:
    """If this test fails, the database or the snapshot has a field that an older version would
    omit. Raise `FORMAT`, so that no older version publishes, and update both values here.
    """
    published = (RateLimitRule, RateLimitTier, RateLimitOverride)
    words = [
        f"{model.__name__}.{field.name}"
        for model in published
        for field in model._meta.concrete_fields
    ]
    words += snapshot_of("default")
    digest_of_words = hashlib.sha256(" ".join(sorted(words)).encode()).hexdigest()[:16]
    assert (snapshot.FORMAT, digest_of_words) == (4, "70053fe4d3beff0d")


class Annex(Extension):
    """An optional app that publishes a number."""

    name = "annex"

    def snapshot(self, using: str) -> Any:
        return RateLimitRule.objects.using(using).count()

    def load(self, part: Any, before: Any, problems: list[str]) -> Any:
        return None if part is None else int(part)


@pytest.fixture
def annex() -> Iterator[Annex]:
    """Install the app."""
    extension = Annex()
    extensions.append(extension)
    yield extension
    extensions.remove(extension)


def test_an_optional_app_keeps_its_last_version_if_new_data_is_unreadable(
    annex: Annex, published: Published, caplog: Any
) -> None:
    """The rules are loaded, and the problem is reported."""
    rule("good", path="/good", limit=2)
    provider.reload()
    published.put(json.dumps({**published.snapshot(), "parts": {"annex": []}}))
    assert get("/good", 3) == [200, 200, 429]
    ruleset = provider.reload()
    assert ruleset.parts["annex"] == 1
    assert "the published data of the app 'annex' cannot be read" in ruleset.problems[0]


def junk() -> st.SearchStrategy[Any]:
    """Generate any JSON value."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=8)
        | st.sampled_from(
            [
                "",
                "/",
                "ip",
                "off",
                "shadow",
                "5/m",
                "everyone",
                "user",
                "header:X-Key",
                "ip4/32",
                0,
                -1,
                2**53,
                10**400,
            ]
        )
    )
    return st.recursive(
        leaves,
        lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=6), of, max_size=3),
    )


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every value in a JSON value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(way for key, one in inner for way in places(one, (*at, key)))]


@st.composite
def mutations(draw: st.DrawFn, text: bytes) -> tuple[bytes, bool]:
    """Generate a snapshot with removed, added or changed values, or a truncated one, and whether
    the good rule is unchanged.
    """
    value = json.loads(text)
    good = (
        next((one for one in value["rules"] if one["name"] == "good"), None)
        if isinstance(value, dict)
        else None
    )
    good = json.dumps(good)
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.sampled_from(
                [text[: draw(st.integers(0, len(text) - 1))], text + b"]", b"\xff" + text]
            )
        ), False
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from([way for way in places(value) if way] or [()]))
        if not way:
            break
        inside = value
        for key in way[:-1]:
            inside = inside[key]
        kind = draw(st.sampled_from(["drop", "add", "retype", "retype"]))
        if kind == "drop":
            del inside[way[-1]]
        elif kind == "add" and isinstance(inside, dict):
            inside[draw(st.text(max_size=8))] = draw(junk())
        else:
            inside[way[-1]] = draw(junk())
    rules = value.get("rules") if isinstance(value, dict) else None
    whole = (
        value.get("format", 1) in range(1, snapshot.FORMAT + 1)
        if isinstance(value, dict)
        else False
    )
    holds = whole and isinstance(rules, list) and any(json.dumps(one) == good for one in rules)
    names = (
        [one.get("name") for one in rules or () if isinstance(one, dict)]
        if isinstance(rules, list)
        else []
    )
    alone = sum(name == "good" for name in names) == 1
    exempts = any(
        isinstance(one, dict) and (one.get("exempt") is True or one.get("mode") == "off")
        for one in (rules if isinstance(rules, list) else ())
    )
    return json.dumps(value).encode(), holds and alone and not exempts if isinstance(
        rules, list
    ) else False


def ask(address: str, ip: str) -> int:
    """Return the status of a request, and raise every exception."""
    return Client(REMOTE_ADDR=ip, headers={"x-key": "k"}).get(address).status_code


def test_a_damaged_snapshot_makes_no_request_fail(published: Published) -> None:
    """Snapshots are changed at random, with removed, added and changed values at any depth,
    truncated or without valid JSON.
    """
    logging.getLogger("django_ratelimit_lua").setLevel(logging.CRITICAL)
    one = rule("good", path="/good", limit=1)
    rule("search", path="", limit=500, algorithm="token_bucket", burst=600)
    rule(
        "other",
        path="/o*r",
        order=3,
        audience="anonymous",
        algorithm="leaky_bucket",
        max_wait=0,
        message="wait",
    )
    RateLimitTier.objects.create(rule=one, group="staff", limit=70, unit="h")
    RateLimitOverride.objects.create(
        rule=one, network="203.0.113.0/24", effect="limit", limit=1, unit="h"
    )
    RateLimitOverride.objects.create(network="198.51.100.9", effect="block")
    key = RateLimitOverride(
        field="header:X-Key", limit=1000, unit="h", rule=RateLimitRule.objects.get(name="search")
    )
    key.set_value("k")
    key.save()
    text = json.dumps(published.snapshot()).encode()
    addresses = iter(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(2**20))

    @given(mutations(text), st.booleans())
    @hypothesis_settings(
        max_examples=examples(150),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def holds(mutated: tuple[bytes, bool], is_new: bool) -> None:
        written, good = mutated
        if is_new:
            another_process()
        published.put(written)
        ip = next(addresses)
        answers = [ask(address, ip) for address in ("/good", "/good", "/search", "/other", "/odd")]
        assert set(answers) <= {200, 429}
        if good:
            assert answers[:2] == [200, 429]

    try:
        holds()
    finally:
        logging.getLogger("django_ratelimit_lua").setLevel(logging.NOTSET)


def test_a_damaged_override_record_makes_no_request_fail(published: Published) -> None:
    """Records of overrides are changed at random, and requests of other clients are admitted."""
    logging.getLogger("django_ratelimit_lua").setLevel(logging.CRITICAL)
    rule("good", path="/good", limit=1000)
    RateLimitOverride.objects.create(network=FIRST, effect="block")
    RateLimitOverride.objects.create(network="203.0.113.2", effect="limit", limit=3, burst=3)
    fields = {
        name: value
        for name, value in published.direct.hgetall(published.key).items()
        if len(name) == 32
    }
    numbers = iter(range(2**20))

    @given(st.sampled_from(sorted(fields)), st.data())
    @hypothesis_settings(
        max_examples=examples(150),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def holds(field: bytes, data: st.DataObject) -> None:
        declared = json.loads(fields[field][16:])
        way = data.draw(st.sampled_from(places(declared)))
        new = data.draw(junk())
        if not way:
            declared = new
        else:
            inside = declared
            for key in way[:-1]:
                inside = inside[key]
            inside[way[-1]] = new
        written = json.dumps(declared).encode()
        if data.draw(st.integers(0, 9)) == 0:
            written = written[: data.draw(st.integers(0, len(written)))]
        published.direct.hset(published.key, field, b"%016x" % next(numbers) + written)
        answers = {ip: ask("/good", ip) for ip in (FIRST, "203.0.113.2", "203.0.113.3")}
        assert set(answers.values()) <= {200, 429}
        assert answers["203.0.113.3"] == 200

    try:
        holds()
    finally:
        logging.getLogger("django_ratelimit_lua").setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ({"effect": "slow"}, 429),
        ({"effect": "exempt", "country": "de"}, 429),
        ({"country": "de"}, 429),
        ({"starts": "today"}, 429),
    ],
    ids=str,
)
def test_a_block_with_unknown_fields_stays_a_block(
    words: Any, status: int, published: Published
) -> None:
    """A newer version has changed the override, or an operator has edited it. A process keeps the
    known block, and a new process keeps it if it can be read.
    """
    rule("good", path="/good", limit=1000)
    RateLimitOverride.objects.create(network=FIRST, effect="block")
    assert get("/good") == [429]
    field = next(name for name in published.direct.hkeys(published.key) if len(name) == 32)
    declared = json.loads(published.direct.hget(published.key, field)[16:])
    published.direct.hset(
        published.key, field, b"f" * 16 + json.dumps([{**declared[0], **words}]).encode()
    )
    assert get("/good") == [status]
    override_cache.__init__()  # type: ignore[misc]
    assert get("/good") == [429 if words == {"country": "de"} else 200]


@pytest.mark.parametrize(
    "algorithm", ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]
)
def test_a_limit_decides_whatever_bytes_its_state_has(
    algorithm: str, direct: redis.Redis, prefix: str
) -> None:
    """Any bytes, or a key of another type, that are not a state of the algorithm are replaced."""
    limiter = RateLimiter(
        "odd",
        "5/h",
        algorithm=algorithm,
        **({"max_wait": 0} if algorithm == "leaky_bucket" else {}),
    )
    limiter.hit("ada")
    key = next(key for key in direct.keys(f"{prefix}*") if b"odd" in key)
    kinds = st.sampled_from(["string", "hash", "list", "set", "zset"])

    numbers = (
        st.floats()
        | st.integers(0, 10).map(float)
        | st.integers(-(10**9), 10**9).map(lambda us: now + us)
    )
    now = float(time.time_ns() // 1000)
    doubles = st.lists(numbers, max_size=12).map(
        lambda numbers: struct.pack(f"<{len(numbers)}d", *numbers)
    )
    short = struct.pack(
        "<6d", now, now + 10**9, 2.0, 1.0, 1.0, 0.0
    )  # As of another rate, and without its hits.

    @example("string", short)
    @given(kinds, st.binary(max_size=200) | doubles)
    @hypothesis_settings(
        max_examples=examples(40),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def holds(kind: str, found: bytes) -> None:
        direct.delete(key)
        if kind == "string":
            direct.set(key, found)
        elif kind == "hash":
            direct.hset(key, "a", found)
        elif kind == "list":
            direct.rpush(key, found)
        elif kind == "set":
            direct.sadd(key, found)
        else:
            direct.zadd(key, {found: 5})
        assert limiter.hit("ada").source == "redis"

    holds()


@pytest.mark.parametrize(
    ("algorithm", "form"),
    [
        ("token_bucket", "tb2 a361a98518239bfe"),
        ("leaky_bucket", "lb2 8ca4fe10a7853191"),
        ("fixed_window", "fw 516cb93340b9c176"),
        ("sliding_window", "sw 0cfde0684a0106d1"),
        ("sliding_log", "sl 20134605a61b17c2"),
    ],
)
def test_a_new_state_format_has_a_new_key(
    algorithm: str, form: str, direct: redis.Redis, prefix: str
) -> None:
    """Earlier versions write the state under this key while versions change. If this test fails,
    the algorithm needs another `suffix`. Otherwise each version would ignore the state of the
    other, and no client would be refused.
    """
    asked = Call(
        [Charge(Limit("form", "40/h", algorithm=algorithm), b"0" * 32)], prefix=prefix.encode()
    )
    first = 1_700_000_000_000_000
    moments = [
        get_store().decide(asked._replace(now=first + turn * SECOND)).limits[0].counted_at
        for turn in range(20)
    ]
    last = first + 20 * SECOND
    get_store().decide(asked._replace(operation="refund", now=last, hit_at=moments[-2]))
    (key,) = asked.keys()
    is_log = direct.type(key) == b"zset"
    state = b"%r" % direct.zrange(key, 0, -1, withscores=True) if is_log else direct.get(key) or b""
    assert form == f"{key.decode().rpartition(':')[2]} {hashlib.sha256(state).hexdigest()[:16]}"
