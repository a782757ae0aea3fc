"""Replays on a cluster."""

from __future__ import annotations

import io

import pytest

from django_ratelimit_lua.contrib.replay import Log, replay
from django_ratelimit_lua.rules.rule import compile_rule
from django_ratelimit_lua.rules.ruleset import Ruleset
from django_ratelimit_lua.store import get_store
from tests.acceptance import test_cluster
from tests.acceptance.test_cluster import sizes
from tests.clusters import Cluster

nodes, cluster = test_cluster.nodes, test_cluster.cluster


@pytest.mark.usefixtures("quiet")  # It counts what is there.
def test_a_replay_on_a_cluster_leaves_nothing_on_any_node(cluster: Cluster) -> None:
    """Each line is decided by the master of its hash slot, and the counts are deleted there."""
    before = sizes(cluster)
    log = Log(
        "log",
        file=io.BytesIO(
            "\n".join(
                f'192.0.2.{number % 20} - - [22/Nov/2026:00:00:{number % 60:02} +0000] "GET / '
                'HTTP/1.1" 200 1'
                for number in range(200)
            ).encode()
        ),
    )
    rule = compile_rule({"name": "r", "path": "/", "key": "ip", "rate": "4/m"})
    tally = replay([log], Ruleset([rule]), get_store(background=True)).tallies["r"]
    assert (tally.lines, tally.refused, len(tally.identities)) == (200, 120, 20)
    assert sizes(cluster) == before
