"""The publication of rules from the database to Redis under faults, with real processes
and files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Worker, copy, migrated, until


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a migrated, empty database."""
    return migrated(tmp_path_factory.mktemp("databases") / "empty.sqlite3")


@pytest.fixture(scope="module")
def of_sites(empty: Path) -> dict[str, Path]:
    """Return databases of three sites, with separate ids by `ratelimit publish --new-id`."""
    databases = {
        name: copy(empty, empty.with_name(f"{name}.sqlite3"))
        for name in ("site", "first", "second")
    }
    for name, database in databases.items():
        with Worker(f"{name}:", {"default": database}) as worker:
            worker("call_command('ratelimit', 'publish', '--new-id', stdout=open(os.devnull, 'w'))")
    return databases


@pytest.fixture
def started() -> Iterator[Any]:
    """Yield a function that starts processes, which end with the test."""
    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(Worker(*args, **settings))


EDITS = [
    # How a rule or an override is edited, and what the next request meets then.
    ("rule(rate='10/h')", {"site": 10}),
    ("edit(20)", {"site": 20}),
    ("one = RateLimitRule.objects.get() ;; one.rate = '30/h' ;; one.save()", {"site": 30}),
    (
        "one = RateLimitRule.objects.get() ;; one.rate = '40/h' ;; "
        "RateLimitRule.objects.bulk_update([one], ['rate'])",
        {"site": 40},
    ),
    (
        "RateLimitRule.objects.update_or_create(name='site', defaults={'rate': '50/h'})",
        {"site": 50},
    ),
    (
        "given = {'path': '/', 'key': 'ip', 'rate': '500/h'} ;; "
        "RateLimitRule.objects.get_or_create(name='other', defaults=given)",
        {"site": 50, "other": 500},
    ),
    ("add_tier(RateLimitRule.objects.get(name='site'), 'pro', '99/h')", {"site": 99, "other": 500}),
    ("RateLimitRule.objects.update(options={})", {"site": 50, "other": 500}),
    ("block(user=User.objects.using('default').get()) ;; edit(51)", "refused"),
    (
        "RateLimitOverride.objects.update(effect='limit', rate='700/h', rule='site')",
        {"site": 700, "other": 500},
    ),
    (
        "one = RateLimitOverride.objects.get() ;; one.rule = 'other' ;; one.save()",
        {"site": 51, "other": 700},
    ),
    ("RateLimitOverride.objects.filter(rule='other').delete()", {"site": 51, "other": 500}),
    ("RateLimitRule.objects.filter(name='other').delete()", {"site": 51}),
    (
        "text = rules_yaml.export() ;; rules_yaml.apply(rules_yaml.plan(text.replace('51', '52')))",
        {"site": 52},
    ),
    (
        "restored_rule(RateLimitChange.objects.using('default').filter(name='site', "
        "before__rate='40/h').first()).save()",
        {"site": 40},
    ),
    (
        "RateLimitRule.objects.all().delete() ;; rules_yaml.apply(rules_yaml.plan(text))",
        {"site": 51},
    ),
    (
        "call_command('ratelimit', 'rules', 'mode', 'site', 'off', '--confirm', verbosity=0, "
        "stdout=open(os.devnull, 'w'))",
        {},
    ),
    (
        "call_command('ratelimit', 'rules', 'mode', 'site', 'enforce', confirm=True, "
        "stdout=open(os.devnull, 'w'))",
        {"site": 51},
    ),
    (
        "RateLimitRule.objects.bulk_create([RateLimitRule(name='new', path='/', key='ip', "
        "rate='300/h')])",
        {"site": 51, "new": 300},
    ),
]


def test_every_edit_is_published_when_reads_use_a_replica(
    empty: Path, tmp_path: Path, prefix: str, started: Any
) -> None:
    """The rules of the primary are published, whatever a router returns."""
    copy(empty, tmp_path / "primary.sqlite3")
    with Worker(prefix, {"default": tmp_path / "primary.sqlite3"}) as before:
        before(
            "User.objects.create(username='ada').groups.add(Group.objects.create(name='pro')) ;; "
            "publish()"
        )
    databases = {"default": tmp_path / "primary.sqlite3", "replica": tmp_path / "replica.sqlite3"}
    copy(databases["default"], databases["replica"])
    editor, other = started(prefix, databases), started(prefix, databases)
    for edit, met in EDITS:
        editor(edit)
        assert editor("ask(user='ada')") == met, edit
        assert other("ask(user='ada')") == met, edit
    assert editor("[RateLimitRule.objects.using('replica').count(), log_lines]") == [0, []]


def site(tmp_path: Path, of_sites: dict[str, Path], name: str = "site") -> dict[str, Path]:
    """Return a copy of a site's database for this test."""
    return {"default": copy(of_sites[name], tmp_path / f"{name}.sqlite3")}


MANY = {"site": 1000}


def test_a_prefix_belongs_to_one_database(
    of_sites: dict[str, Path], tmp_path: Path, prefix: str, started: Any
) -> None:
    """A second site neither uses nor replaces the rules of the first, and reloads its own."""
    first, second = site(tmp_path, of_sites, "first"), site(tmp_path, of_sites, "second")
    here, there, too = started(prefix, first), started(prefix, second), started(prefix, second)
    here("rule(rate='1000/h') ;; block(network='203.0.113.1')")
    assert [worker("ask()") for worker in (here, there, too)] == [{"site": 1000}, {}, {}]
    assert [worker("ask('203.0.113.1')") for worker in (here, there)] == ["refused", {}]
    there("rule(rate='2000/h')")
    here("edit(1001)")
    until(lambda: here("ask()") == {"site": 1001}, "the edit holds", 5)
    until(
        lambda: [there("ask()"), too("ask()")] == [{"site": 2000}] * 2,
        "the own rules are loaded again",
        5,
    )
    assert there("ask('203.0.113.1')") == {"site": 2000}
    assert len([line for line in there("log_lines") if "belongs to the database" in line]) == 1
    assert "publish --take-over" in too("health().problems[0]")
    assert "publish --take-over" in there("triggers.unpublished")
    assert here("[log_lines, list(health().problems)]") == [[], []]
    found = (
        "[one.id for one in checks.run_checks(databases=['default'], tags=[checks.Tags.database])]"
    )
    assert [there(found), here(found)] == [["django_ratelimit_lua.E013"], []]
    there("call_command('ratelimit', 'publish', '--take-over', stdout=open(os.devnull, 'w'))")
    there("edit(2001)")
    until(
        lambda: [there("ask()"), too("ask()")] == [{"site": 2001}] * 2,
        "the prefix was taken over",
        5,
    )
    assert there("list(health().problems)") == []
    until(lambda: here("ask()") == {"site": 1001}, "the first site keeps its rules", 5)


def test_a_site_without_its_database_uses_the_published_rules(
    of_sites: dict[str, Path], tmp_path: Path, prefix: str, started: Any
) -> None:
    """Those of another database are replaced as soon as its own is available."""
    first, second = site(tmp_path, of_sites, "first"), site(tmp_path, of_sites, "second")
    started(prefix, first)("rule(rate='1000/h')")
    with Worker(prefix, second) as before:
        before("rule(rate='2000/h')")
    away = tmp_path / "away.sqlite3"
    second["default"].rename(away)
    second["default"].mkdir()  # No database can be opened there.
    late = started(prefix, second, compare_seconds=0.1)
    assert late("ask()") == {"site": 1000}
    second["default"].rmdir()
    away.rename(second["default"])
    until(lambda: late("ask()") == {"site": 2000}, "it has found out")


def test_uncommitted_changes_are_never_published(
    of_sites: dict[str, Path], tmp_path: Path, prefix: str, started: Any, direct: Any
) -> None:
    """Redis is emptied during a transaction that makes decisions."""
    databases = site(tmp_path, of_sites)
    one, other = started(prefix, databases), started(prefix, databases)
    one("rule(rate='1000/h')")
    assert [one("ask()"), other("ask()")] == [MANY, MANY]
    assert one("in_a_transaction(5, commits=False)") == [MANY, MANY]
    assert [one("ask()"), other("ask()")] == [MANY, MANY]
    assert one("in_a_transaction(5, commits=True)") == [MANY, MANY]
    assert [other("ask()"), one("ask()")] == [{"site": 5}, {"site": 5}]
    one("edit(6)")
    assert [other("ask()"), one("ask()")] == [{"site": 6}, {"site": 6}]


def test_published_rules_of_a_lost_history_are_replaced(
    of_sites: dict[str, Path], tmp_path: Path, prefix: str, started: Any
) -> None:
    """A restored backup reaches the published revision number before it is published."""
    databases = site(tmp_path, of_sites)
    one, other = started(prefix, databases), started(prefix, databases)
    one("rule(rate='1000/h')")
    backup = copy(databases["default"], tmp_path / "backup.sqlite3")
    one("block(network='203.0.113.1')")
    assert other("[ask('203.0.113.1'), ask('203.0.113.2')]") == ["refused", MANY]
    copy(backup, databases["default"])
    one("die_after('edit(1001)') ;; die_after('edit(1002)')")
    one("block(network='203.0.113.2')")
    for worker in (one, other):
        assert worker("[ask('203.0.113.1'), ask('203.0.113.2')]") == [{"site": 1002}, "refused"]


ADA = "{'key': 'secret'}, {'user': 'ada'}, {'address': '203.0.113.9'}, {'address': '198.51.100.7'}"
"""Whom the test of rotated keys blocks: the value of a field, a user, an address and a network."""


@pytest.mark.parametrize("setting", ["SECRET_KEY", "RATELIMIT_KEY_SECRET"])
def test_rotating_the_key_lifts_no_block(
    setting: str, of_sites: dict[str, Path], tmp_path: Path, prefix: str, started: Any
) -> None:
    """Old and new processes run together, and either of them edits."""
    databases = site(tmp_path, of_sites)

    def keys(*keys: str) -> dict[str, Any]:
        """Return settings with the first key as the current one and the others accepted."""
        if setting == "SECRET_KEY":
            return {"SECRET_KEY": keys[0], "SECRET_KEY_FALLBACKS": list(keys[1:])}
        return {setting: keys[0] if len(keys) == 1 else list(keys)}

    blocked = f"[ask(**one) for one in ({ADA}, {{'key': 'new'}}, {{}})]"
    refused = ["refused"] * 5 + [MANY]
    old = started(prefix, databases, **keys("old"))
    old("User.objects.create(username='ada') ;; rule(rate='1000/h') ;; block(key='secret')")
    old(
        "block(user=User.objects.get()) ;; block(network='203.0.113.9') ;; "
        "block(network='198.51.100.0/24')"
    )
    assert old(blocked) == ["refused"] * 4 + [MANY] * 2
    new = started(prefix, databases, **keys("new", "old"))
    assert new(blocked) == old(blocked) == ["refused"] * 4 + [MANY] * 2
    new("block(key='new')")
    assert new(blocked) == refused
    assert old(blocked)[:4] == ["refused"] * 4
    for editor in (old, new, old):
        editor("RateLimitOverride.objects.filter(network='203.0.113.9').delete()")
        assert [worker("ask('203.0.113.9')") for worker in (old, new)] == [MANY, MANY]
        editor("block(network='203.0.113.9')")
        assert new(blocked) == refused
        assert old(blocked)[:4] == ["refused"] * 4
    newest = started(prefix, databases, **keys("newest", "new", "old"))
    assert newest(blocked) == refused
    last = started(prefix, databases, **keys("newest", "new"))
    assert last(blocked) == [MANY, *refused[1:]]
    last("RateLimitOverride.objects.filter(network='203.0.113.9').delete()")
    assert last("ask('203.0.113.9')") == MANY


def test_a_block_by_digest_applies_until_its_key_is_removed(
    of_sites: dict[str, Path], tmp_path: Path, prefix: str, started: Any
) -> None:
    """It applies for digests that the old or the new process shows, and whichever of them edits."""
    databases = site(tmp_path, of_sites)
    old = started(prefix, databases, SECRET_KEY="old")
    shown = "digest(('ip', '%s')).decode()"
    asked = "[ask('203.0.113.9'), ask('203.0.113.10')]"
    old("rule(rate='1000/h')")
    old(f"block(client_digest={shown % '203.0.113.9'})")
    assert old(asked) == ["refused", MANY]
    new = started(prefix, databases, SECRET_KEY="new", SECRET_KEY_FALLBACKS=["old"])
    for editor in (new, old):
        assert [worker(asked) for worker in (old, new)] == [["refused", MANY]] * 2
        editor("RateLimitRule.objects.update(description=str(time.time()))")
    new(f"block(client_digest={shown % '203.0.113.10'})")
    assert new(asked) == ["refused", "refused"]
    last = started(prefix, databases, SECRET_KEY="new")
    assert last(asked) == [MANY, "refused"]
