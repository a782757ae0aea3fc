"""Histories by dice: whatever happens to Redis and to databases, what the database has is what
holds.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.examples import examples
from tests.server import url
from tests.worker import Worker, copy, migrated

SITES = {"first": 3}
"""The number of processes of a site."""
_serial = itertools.count()
sites, processes, blocked = st.sampled_from(sorted(SITES)), st.integers(0, 2), st.integers(0, 2)

HEARD_SECONDS = 5.0
"""Changes are pushed within milliseconds; a process that is cut off asks once a second; and the
machine may be busy.
"""


class Histories(RuleBasedStateMachine):
    """Edits that are published hold for each process's next request at once. What nobody can
    notice, such as a database that was restored without an edit, holds when one process has looked,
    which happens every few seconds.
    """

    workers: dict[str, list[Worker]]
    databases: dict[str, Path]
    empty: dict[str, Path]

    @initialize()
    def begin(self) -> None:
        self.prefix = f"histories{next(_serial)}:"
        self.direct = redis.Redis.from_url(url())
        self.kept: dict[bytes, bytes] = {}
        self.unseen: set[str] = set()
        for site, workers in self.workers.items():
            copy(self.empty[site], self.databases[site])
            copy(self.empty[site], self._backup(site))
            for worker in workers:
                worker(f"begin({self.prefix!r})")

    def _backup(self, site: str) -> Path:
        return self.databases[site].with_suffix(".backup")

    def _process(self, site: str, process: int) -> Worker:
        workers = self.workers[site]
        return workers[process % len(workers)]

    def _published(self, site: str) -> None:
        self.unseen.discard(site)

    @rule(site=sites, process=processes, limit=st.integers(10**6, 10**6 + 9))
    def edit(self, site: str, process: int, limit: int) -> None:
        """A rule is made or changed."""
        self._process(site, process)(f"edit({limit}) or rule(limit={limit})")
        self._published(site)

    @rule(site=sites, process=processes, who=blocked)
    def block(self, site: str, process: int, who: int) -> None:
        """Somebody is blocked."""
        whom = "key='secret'" if who == 2 else f"network='203.0.113.{who}'"
        self._process(site, process)(f"block({whom})")
        self._published(site)

    @rule(site=sites, process=processes)
    def unblock(self, site: str, process: int) -> None:
        """The last block goes."""
        if self._process(site, process)(
            "[one.delete() for one in RateLimitOverride.objects.order_by('-pk')[:1]]"
        ):
            self._published(site)

    @rule(site=sites, process=processes)
    def roll_back(self, site: str, process: int) -> None:
        """Redis is emptied, and rules are published and asked for, in the middle of what is rolled
        back.
        """
        self._process(site, process)("in_a_transaction(5, commits=False)")
        self._published(site)

    @rule(site=sites, process=processes, limit=st.integers(10**6, 10**6 + 9))
    def die_before_publishing(self, site: str, process: int, limit: int) -> None:
        """A process is killed between the commit and the publication."""
        self._process(site, process)(f"die_after('edit({limit}) or rule(limit={limit})')")
        self.unseen.add(site)

    @rule()
    def empty_redis(self) -> None:
        """It was restarted without persistence."""
        self.direct.delete(*self.direct.keys(f"{self.prefix}*"), "nothing")

    @rule(site=sites, process=processes, at=st.integers(1, 8))
    def empty_redis_meanwhile(self, site: str, process: int, at: int) -> None:
        """It is, while everything is published anew."""
        self._process(site, process)(f"publish_with({at})")
        self._published(site)

    @rule()
    def back_redis_up(self) -> None:
        """Its dump is kept, or its replica stops to follow."""
        self.kept = {
            key: self.direct.dump(key) for key in self.direct.keys(f"{self.prefix}{{rules}}*")
        }

    @rule()
    def restore_redis(self) -> None:
        """It comes back as it was, or its replica takes over."""
        self.empty_redis()
        for key, value in self.kept.items():
            self.direct.restore(key, 0, value)
        self.unseen |= set(SITES)

    @rule(site=sites)
    def back_database_up(self, site: str) -> None:
        """A backup is made, or its replica stops to follow."""
        copy(self.databases[site], self._backup(site))

    @rule(site=sites)
    def restore_database(self, site: str) -> None:
        """The backup is restored, or the replica takes over, while the processes go on."""
        copy(self._backup(site), self.databases[site])
        self.unseen.add(site)

    @rule(site=sites, process=processes)
    def restart(self, site: str, process: int) -> None:
        """A process starts, and is asked."""
        worker = self._process(site, process)
        worker("begin()")
        worker("ask()")
        self._published(site)

    @rule(site=sites, process=processes)
    def ask(self, site: str, process: int) -> None:
        """A request, whenever."""
        self._process(site, process)("ask()")

    @rule(site=sites)
    def look(self, site: str) -> None:
        """Some seconds go by, and it is this process's turn to look."""
        self.direct.delete(*self.direct.keys(f"{self.prefix}*:looked"), "nothing")
        self.workers[site][0]("look()")
        self._published(site)

    @invariant()
    def what_the_database_has_holds(self) -> None:
        """For every process, as soon as it has heard of it, unless something went on that nobody
        has seen yet.
        """
        for site, workers in self.workers.items():
            if site not in self.unseen:
                due, until = workers[0]("due()"), time.monotonic() + HEARD_SECONDS
                while (met := [worker("met()") for worker in workers]) != [due] * len(workers):
                    assert time.monotonic() < until, (site, met, due)

    def teardown(self) -> None:
        """When things have quieted down, it is so everywhere."""
        if hasattr(self, "unseen"):
            for site in SITES:
                self.look(site)
            self.what_the_database_has_holds()
            self.direct.close()


@pytest.fixture
def histories(tmp_path: Path) -> Any:
    """The machine, with processes that stay for all of its histories."""
    migrated(tmp_path / "empty.sqlite3")
    empty, databases, workers = {}, {}, {}
    for site, count in SITES.items():
        empty[site] = copy(tmp_path / "empty.sqlite3", tmp_path / f"{site}.empty")
        with Worker("histories:", {"default": empty[site]}) as worker:
            worker("call_command('ratelimit', 'rules', 'new-id', stdout=open(os.devnull, 'w'))")
        databases[site] = tmp_path / f"{site}.sqlite3"
        workers[site] = [Worker("histories:", {"default": databases[site]}) for _ in range(count)]
    yield type(
        "Histories", (Histories,), {"empty": empty, "databases": databases, "workers": workers}
    )
    for started in workers.values():
        for worker in started:
            worker.__exit__()


def test_rules_in_force_match_the_database_after_any_history(histories: Any) -> None:
    """Edits, rollbacks, killed processes, an emptied or restored Redis at any moment, a restored
    database, a replica that takes over.
    """
    run_state_machine_as_test(
        histories,
        settings=settings(
            max_examples=examples(15),
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
