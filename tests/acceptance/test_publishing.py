"""The way of rules from the database to Redis, on bad days: real processes, real files, and what happens to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.worker import Worker, copy, migrated


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that was migrated, and nothing else; each copy is of its own after `ratelimit_rules new-id`."""
    return migrated(tmp_path_factory.mktemp("databases") / "empty.sqlite3")


@pytest.fixture
def started() -> Iterator[Any]:
    """Starts processes that end with the test."""
    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(Worker(*args, **settings))


EDITS = [
    # How a rule or an override is edited, and what the next request meets then.
    ("rule(limit=10)", {"site": 10}),
    ("edit(20)", {"site": 20}),
    ("one = RateLimitRule.objects.get() ;; one.limit = 30 ;; one.save()", {"site": 30}),
    ("one = RateLimitRule.objects.get() ;; one.limit = 40 ;; RateLimitRule.objects.bulk_update([one], ['limit'])",
     {"site": 40}),
    ("RateLimitRule.objects.update_or_create(name='site', defaults={'limit': 50})", {"site": 50}),
    ("given = {'path': '/', 'key': 'ip', 'limit': 500, 'unit': 'h'} ;; "
     "RateLimitRule.objects.get_or_create(name='other', defaults=given)",
     {"site": 50, "other": 500}),
    ("RateLimitTier.objects.create(rule=RateLimitRule.objects.get(name='site'), group='pro', limit=99, unit='h')",
     {"site": 99, "other": 500}),
    ("RateLimitTier.objects.update(limit=98)", {"site": 98, "other": 500}),
    ("RateLimitRule.objects.get(name='site').tiers.update(limit=97)", {"site": 97, "other": 500}),
    ("RateLimitTier.objects.all().delete()", {"site": 50, "other": 500}),
    ("block(user=User.objects.using('default').get()) ;; edit(51)", "refused"),
    ("RateLimitOverride.objects.update(effect='limit', limit=700, unit='h')", {"site": 700, "other": 700}),
    ("one = RateLimitOverride.objects.get() ;; one.rule = RateLimitRule.objects.get(name='other') ;; one.save()",
     {"site": 51, "other": 700}),
    ("RateLimitOverride.objects.filter(rule__name='other').delete()", {"site": 51, "other": 500}),
    ("RateLimitRule.objects.filter(name='other').delete()", {"site": 51}),
    ("text = code.export() ;; code.apply(text.replace('51', '52'))", {"site": 52}),
    ("RateLimitRule.objects.all().delete() ;; code.apply(text)", {"site": 51}),
    ("call_command('ratelimit_rules', 'mode', 'site', 'off', verbosity=0, stdout=open(os.devnull, 'w'))", {}),
    ("call_command('ratelimit_rules', 'mode', 'site', 'enforce', verbosity=0, stdout=open(os.devnull, 'w'))",
     {"site": 51}),
    ("restore(RateLimitChange.objects.filter(name='site', after__rate='40/h').first())", {"site": 40}),
    ("RateLimitRule.objects.bulk_create([RateLimitRule(name='new', path='/', key='ip', limit=300, unit='h')])",
     {"site": 40, "new": 300}),
]  # fmt: skip


def test_every_edit_is_published_where_reads_go_to_a_replica(
    empty: Path, tmp_path: Path, prefix: str, started: Any
) -> None:
    """Whatever a router says, what is published is what the primary has: the replica here never hears of anything."""
    copy(empty, tmp_path / "primary.sqlite3")
    with Worker(prefix, {"default": tmp_path / "primary.sqlite3"}) as before:
        before("User.objects.create(username='ada').groups.add(Group.objects.create(name='pro')) ;; publish()")
    databases = {"default": tmp_path / "primary.sqlite3", "replica": tmp_path / "replica.sqlite3"}
    copy(databases["default"], databases["replica"])
    editor, other = started(prefix, databases), started(prefix, databases)
    for edit, met in EDITS:
        editor(edit)
        assert editor("ask(user='ada')") == met, edit
        assert other("ask(user='ada')") == met, edit
    assert editor("[RateLimitRule.objects.using('replica').count(), said]") == [0, []]
