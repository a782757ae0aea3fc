"""The hosts of live processes and their weights, without a server."""

from __future__ import annotations

from django_ratelimit_lua.engine.heartbeat import Process, group_by_host


def test_the_weight_of_an_operator_replaces_that_of_the_processes() -> None:
    """Without it, the largest weight of the processes of a host applies."""
    processes = [Process("a", 1, 0.0, 5, "1"), Process("a", 2, 0.0, 7, "2")]
    processes.append(Process("b", 1, 0.0, 1, "3"))
    found = [(host.name, host.weight) for host in group_by_host(processes, {})]
    assert found == [("a", 7), ("b", 1)]
    assert [host.weight for host in group_by_host(processes, {"a": 2, "gone": 9})] == [2, 1]
