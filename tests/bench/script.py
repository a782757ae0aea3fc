"""What a decision costs the server: the time of its script."""

from __future__ import annotations

from typing import Any

from django_ratelimit_lua.engine import heartbeat
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.engine.heartbeat import Heartbeat
from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.call import Call, Charge, Revision
from django_ratelimit_lua.limits.program import program_for
from django_ratelimit_lua.store import FLUSH_SECONDS, commands
from tests.bench.measure import BARE, DIRECT, limiter, script_time


def asked(call: Call) -> bytes:
    """Return the command that decides a call. The server knows its script."""
    command = commands.decision_command(call)
    assert command.program is not None
    DIRECT.script_load(command.program.source)
    return command.data


def server_cost() -> None:
    """Script time of a hit of 1, 3 and 8 limits of each algorithm: for one identity alone, for 250
    in turn, and where the rules' revision is compared.
    """
    batches = {
        "bare": [commands.encode(b"EVALSHA", DIRECT.script_load(BARE).encode(), b"1", b"bench")]
    }
    revision = Revision.of(7, "01234567", "89abcdef")
    DIRECT.hset("benchrules", "revision", revision.text)
    rules = {"revision": revision, "fence": b"benchrules"}
    ways: dict[str, tuple[int, dict[str, Any]]] = {
        "one": (1, {}),
        "one, rules": (1, rules),
        "250": (250, {}),
        "250, rules": (250, rules),
    }
    for algorithm in BY_RATE:
        for count in (1, 3, 8):
            most = 90_000 if algorithm == "sliding_log" else 10**7
            rates = [f"{most + number}/h" for number in range(count)]
            for way, (identities, options) in ways.items():
                limits = limiter(f"{way} {count}", rates, algorithm).limits
                batches[f"{algorithm} {count} {way}"] = [
                    asked(
                        build_call([Charge(limit, b"%032d" % who) for limit in limits])._replace(
                            **options
                        )
                    )
                    for who in range(identities)
                ]
    times = script_time(batches)
    print(f"script time, µs and times a bare INCR script ({times['bare']:.2f} µs)")
    print(f"{'':29}{'1 limit':>17}{'3 limits':>17}{'8 limits':>17}")
    for algorithm in BY_RATE:
        for way in ways:
            columns = [times[f"{algorithm} {count} {way}"] for count in (1, 3, 8)]
            print(
                f"{algorithm + ', ' + way:29}"
                + "".join(f"{t:9.1f}{t / times['bare']:7.1f}x" for t in columns)
            )
    print("aim: 1 limit at most 6x, 3 at most 15x; 1 sliding log at most 9x\n")


def with_time(call: Call, now: int) -> list[Any]:
    """Return the words of the command that decides a call at a time."""
    call = call._replace(now=now)
    source = program_for(call.algorithms).source
    return ["EVAL", source, len(call.keys()), *call.keys(), *call.args()]


def heartbeats() -> None:
    """Script time of a heartbeat of ten processes and of a thousand, which beat once a second."""
    heartbeat.LIFETIME = 3600  # One process sends all of them, which takes longer than usual.
    processes, taken = [Heartbeat() for _ in range(1000)], []
    for count in (10, 1000):
        for process in processes[:count] * 2:  # With the second one, each knows all processes.
            process.beat()
        DIRECT.config_resetstat()
        for number in range(500):
            processes[number % count].beat()
        taken.append(DIRECT.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])
    share = taken[1] * 1000 / FLUSH_SECONDS / 1e6
    print(
        f"a heartbeat of 10 processes: {taken[0]:.1f} µs of script time; of 1,000: {taken[1]:.1f} "
        "µs,",
        end=" ",
    )
    print(f"{share:.1%} of a core in all\naim: at most twice as much, and 5 %\n")
