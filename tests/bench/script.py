"""The cost of a decision for the server: the time of its script."""

from __future__ import annotations

from typing import Any

from django_ratelimit_lua.engine import heartbeat
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.engine.heartbeat import Heartbeat
from django_ratelimit_lua.limits.algorithms import BY_RATE
from django_ratelimit_lua.limits.call import Charge, Revision
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.store import FLUSH_SECONDS, commands, get_store
from tests.bench.measure import BARE, DIRECT, encode, limiter, script_time


def server_cost() -> None:
    """Print the script time of a hit of 1, 3 and 8 limits of each algorithm.

    The cases are one identity, 250 identities in turn, and a comparison of the rules' revision.
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
                    encode(
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


def heartbeats() -> None:
    """Print the script time of a heartbeat of ten and of a thousand processes."""
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


def bans() -> None:
    """Print the script time of a hit under a limit that bans, for different clients."""
    plain = Limit("plain", "10000000/h")
    look = Limit("look", "10000000/h", ban_after=1000, ban_for="1h")
    out = Limit("out", "10000000/h", ban_after=1000, ban_for="1h")
    known, stranger = b"%032d" % 1, b"%032d" % 2
    refusing = Limit("look", "0/h", ban_after=1000, ban_for="1h")
    for _ in range(10):
        get_store().decide(build_call([Charge(refusing, known)]))
    get_store().decide(build_call([Charge(out, known, 0)], "ban"))
    times = script_time(
        {
            "a plain hit": [encode(build_call([Charge(plain, stranger)]))],
            "a hit, with the look for a ban": [encode(build_call([Charge(look, stranger)]))],
            "the same, after ten offences": [encode(build_call([Charge(look, known)]))],
            "refused by a ban": [encode(build_call([Charge(out, known)]))],
        }
    )
    print("script time, µs")
    for name, taken in times.items():
        print(f"  {name:34}{taken:8.1f}{taken / times['a plain hit']:7.2f}x")
    print("aim: the look at most 3 times a plain hit\n")
