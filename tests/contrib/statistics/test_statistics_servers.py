"""Statistics on a cluster, with minimal rights, and with greenlets."""

from __future__ import annotations

import pytest
import redis

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.contrib.statistics import reading
from django_ratelimit_lua.contrib.statistics.hours import copy_hours
from django_ratelimit_lua.contrib.statistics.models import RateLimitHour
from django_ratelimit_lua.contrib.statistics.reading import read_shadow_numbers
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.contrib.statistics.report import read_limits
from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance.processes.test_greenlets import run
from tests.acceptance.store import test_cluster, test_topologies
from tests.acceptance.store.test_topologies import assert_nothing_was_missed
from tests.contrib.statistics.counts import last, top, total

nodes, cluster, least = test_cluster.nodes, test_cluster.cluster, test_topologies.least


@pytest.mark.engine
@pytest.mark.django_db(transaction=True)
def test_a_redis_user_with_minimal_rights_can_count(least: redis.Redis, prefix: str) -> None:
    """The documented rights are enough to write and to read the statistics."""
    RateLimitRule.objects.create(name="where", rate="1/h")
    assert [RateLimiter("where", "100/h").hit("someone").allowed for _ in range(2)] == [True, False]
    recorder.flush()
    assert total("where", last(86_400, 3600)).counts["r"] == 1
    RateLimitRule.objects.create(name="shadow", rate="1/h", mode="shadow")
    RateLimiter("shadow", "100/h").hit("someone")
    assert read_shadow_numbers(RateLimitRule.objects.get(name="shadow").spec) == (1, 0, 1, 0)
    RateLimiter("durable", "100/h", durable=True).hit("someone")
    assert not recorder.flush()
    day = last(86_400, 3600)
    assert total("shadow", day).counts.total() == total("durable", day).counts.total() == 1
    assert [row.times for row in top("where")] == [1]
    assert reading.read_totals()["durable"] == {"a": 1, "u": 1, "Sr": 1}
    copy_hours()
    assert RateLimitHour.objects.count() == 1
    assert len(read_limits("day")) >= 3
    assert_nothing_was_missed(least, prefix)


def test_statistics_of_greenlets_are_written(prefix: str) -> None:
    """A greenlet writes them in the background."""
    pytest.importorskip("gevent")
    done = run(
        prefix,
        """
from django_ratelimit_lua.contrib.statistics import reading
RateLimiter("counted", "5/h").hit("ada")
gevent.sleep(3)
print(reading.read_totals()["counted"]["a"])
""",
        annexes=("django_ratelimit_lua.contrib.statistics",),
    )
    assert (done.returncode, done.stdout.split("\n")[0]) == (0, "1"), done.stderr[-3000:]
