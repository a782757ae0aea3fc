"""Random histories of faults in Redis and in databases, after which the rules in force are those of
the database.
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
from tests.support.processes import Worker, copy, migrated
from tests.support.redis_server import url

SITES = {"first": 3}
"""The number of processes of a site."""
_serial = itertools.count()
sites, processes, blocked = st.sampled_from(sorted(SITES)), st.integers(0, 2), st.integers(0, 2)

HEARD_SECONDS = 5.0
"""Changes are pushed within milliseconds; a process that is cut off asks once a second; and the
machine may be busy.
"""


class Histories(RuleBasedStateMachine):
    """Published edits apply to the next request of each process. A change that no process can
    notice, such as a restored database, applies after the comparison that a process makes every few
    seconds.
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
                worker(f"restart({self.prefix!r})")

    def _backup(self, site: str) -> Path:
        return self.databases[site].with_suffix(".backup")

    def _process(self, site: str, process: int) -> Worker:
        workers = self.workers[site]
        return workers[process % len(workers)]

    def _published(self, site: str) -> None:
        self.unseen.discard(site)

    @rule(site=sites, process=processes, limit=st.integers(10**6, 10**6 + 9))
    def edit(self, site: str, process: int, limit: int) -> None:
        """Create or change a rule."""
        self._process(site, process)(f"edit({limit}) or rule(rate='{limit}/h')")
        self._published(site)

    @rule(site=sites, process=processes, who=blocked)
    def block(self, site: str, process: int, who: int) -> None:
        """Block a client."""
        subject = "key='secret'" if who == 2 else f"network='203.0.113.{who}'"
        self._process(site, process)(f"block({subject})")
        self._published(site)

    @rule(site=sites, process=processes)
    def unblock(self, site: str, process: int) -> None:
        """Remove the last block."""
        if self._process(site, process)(
            "[one.delete() for one in RateLimitOverride.objects.order_by('-pk')[:1]]"
        ):
            self._published(site)

    @rule(site=sites, process=processes)
    def roll_back(self, site: str, process: int) -> None:
        """Roll back a transaction during which Redis is emptied and rules are read."""
        self._process(site, process)("in_a_transaction(5, commits=False)")
        self._published(site)

    @rule(site=sites, process=processes, limit=st.integers(10**6, 10**6 + 9))
    def die_before_publishing(self, site: str, process: int, limit: int) -> None:
        """Kill a process between the commit and the publication."""
        self._process(site, process)(f"die_after('edit({limit}) or rule(rate=\"{limit}/h\")')")
        self.unseen.add(site)

    @rule()
    def empty_redis(self) -> None:
        """Empty Redis, like a restart without persistence."""
        self.direct.delete(*self.direct.keys(f"{self.prefix}*"), "nothing")

    @rule(site=sites, process=processes, at=st.integers(1, 8))
    def empty_redis_meanwhile(self, site: str, process: int, at: int) -> None:
        """Empty Redis while everything is published again."""
        self._process(site, process)(f"publish_with({at})")
        self._published(site)

    @rule()
    def back_redis_up(self) -> None:
        """Store a dump of Redis, or let its replica fall behind."""
        self.kept = {
            key: self.direct.dump(key) for key in self.direct.keys(f"{self.prefix}{{rules}}*")
        }

    @rule()
    def restore_redis(self) -> None:
        """Restore the dump of Redis, or promote the replica."""
        self.empty_redis()
        for key, value in self.kept.items():
            self.direct.restore(key, 0, value)
        self.unseen |= set(SITES)

    @rule(site=sites)
    def back_database_up(self, site: str) -> None:
        """Make a backup of the database, or let its replica fall behind."""
        copy(self.databases[site], self._backup(site))

    @rule(site=sites)
    def restore_database(self, site: str) -> None:
        """Restore the backup or promote the replica while the processes run."""
        copy(self._backup(site), self.databases[site])
        self.unseen.add(site)

    @rule(site=sites, process=processes)
    def restart(self, site: str, process: int) -> None:
        """Start a process, and send it a request."""
        worker = self._process(site, process)
        worker("restart()")
        worker("ask()")
        self._published(site)

    @rule(site=sites, process=processes)
    def ask(self, site: str, process: int) -> None:
        """Send a request."""
        self._process(site, process)("ask()")

    @rule(site=sites)
    def look(self, site: str) -> None:
        """Let some seconds pass, so that this process compares the rules."""
        self.direct.delete(*self.direct.keys(f"{self.prefix}*:looked"), "nothing")
        self.workers[site][0]("check_published()")
        self._published(site)

    @invariant()
    def what_the_database_has_holds(self) -> None:
        """Rules in force match the database in every process, unless a change is unnoticed."""
        for site, workers in self.workers.items():
            if site not in self.unseen:
                due, until = workers[0]("expected_answers()"), time.monotonic() + HEARD_SECONDS
                while (met := [worker("ask_all()") for worker in workers]) != [due] * len(workers):
                    assert time.monotonic() < until, (site, met, due)

    def teardown(self) -> None:
        """Compare the rules once more, and check all processes."""
        if hasattr(self, "unseen"):
            for site in SITES:
                self.look(site)
            self.what_the_database_has_holds()
            self.direct.close()


@pytest.fixture
def histories(tmp_path: Path) -> Any:
    """Yield the state machine, with processes for all of its histories."""
    migrated(tmp_path / "empty.sqlite3")
    empty, databases, workers = {}, {}, {}
    for site, count in SITES.items():
        empty[site] = copy(tmp_path / "empty.sqlite3", tmp_path / f"{site}.empty")
        with Worker("histories:", {"default": empty[site]}) as worker:
            worker("call_command('ratelimit', 'publish', '--new-id', stdout=open(os.devnull, 'w'))")
        databases[site] = tmp_path / f"{site}.sqlite3"
        workers[site] = [Worker("histories:", {"default": databases[site]}) for _ in range(count)]
    yield type(
        "Histories", (Histories,), {"empty": empty, "databases": databases, "workers": workers}
    )
    for started in workers.values():
        for worker in started:
            worker.__exit__()


def test_rules_in_force_match_the_database_after_any_history(histories: Any) -> None:
    """Histories have edits, rollbacks, kills, and emptied or restored servers."""
    run_state_machine_as_test(
        histories,
        settings=settings(
            max_examples=examples(15),
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
