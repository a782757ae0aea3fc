"""The cost of a slot and of a hit of a rate, for the server and for the caller."""

from __future__ import annotations

import itertools
import threading
import time

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.engine.slots import RENEWALS, HeldSlot, held_slots
from django_ratelimit_lua.limits.algorithms.concurrency import new_slot
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.process.forks import chance
from django_ratelimit_lua.store import get_store
from tests.bench.measure import encode, interleaved, limiter, script_time

MANY, HANDED_OVER = 1000, 40


def slots() -> None:
    """Print the costs of taking, renewing and releasing a slot, and of a hit."""
    rate = limiter("rate", "10000000/h", "sliding_window")
    held = limiter("slots", "100000", "concurrency")
    who = [b"%032d" % number for number in range(250)]
    taken = [build_call([Charge(held.limits[0], one)], slot=new_slot(3600.0)) for one in who]
    refused = build_call(
        [Charge(limiter("full", "1", "concurrency").limits[0], who[0])], slot=new_slot(3600.0)
    )
    get_store().decide(refused)
    times = script_time(
        {
            "a hit of a rate": [encode(build_call([Charge(rate.limits[0], one)])) for one in who],
            "a slot is taken": [encode(call) for call in taken],
            "a slot is released": [encode(call._replace(operation="refund")) for call in taken],
            "a slot is refused": [encode(refused._replace(slot=new_slot(3600.0)))],
        }
    )
    print("script time, µs")
    for name, taken_us in times.items():
        print(f"  {name:20}{taken_us:8.1f}")
    numbers = itertools.count()

    def in_and_out() -> None:
        with held.slot(next(numbers)):
            pass

    walls = interleaved({"hit": lambda: rate.hit("ada"), "slot, in and out": in_and_out})
    for name, (wall, cpu) in walls.items():
        print(f"{name:22}{wall:8.1f} µs, {cpu:6.1f} of them this process's")
    delays = sorted(
        _hand_over(limiter("handed over", "1", "concurrency")) for _ in range(HANDED_OVER)
    )
    print(
        "a released slot is taken by a waiting process after "
        f"{delays[len(delays) // 2] * 1000:.0f} ms,",
        end=" ",
    )
    print(f"at most {delays[-1] * 1000:.0f} ms in {HANDED_OVER}\naim: typically within 250 ms")
    calls = [
        build_call([Charge(held.limits[0], b"%032d" % number)], slot=new_slot(600.0))
        for number in range(MANY)
    ]
    many = [HeldSlot(call.prefix, call.charges[0], call.slot, "", is_local=False) for call in calls]
    for call in calls:
        get_store().decide(call)
    assert held_slots.renew(many) == []
    renewed = interleaved({"renewed": lambda: held_slots.renew(many)}, calls=3)["renewed"]
    share = renewed[1] / 1e6 / held_slots.interval
    print(
        f"{MANY} slots are renewed in {renewed[0] / 1000:.1f} ms, {RENEWALS} times while they "
        "last:",
        end=" ",
    )
    print(
        f"{share:.1%} of a core\naim: taken at most 2 hits, in and out at most 4; renewals at "
        "most 1 % of a core\n"
    )


def _hand_over(one: RateLimiter) -> float:
    """Return the seconds from a release until a waiting thread has the slot."""
    taken: list[float] = []

    def wait() -> None:
        with one.slot("ada", timeout=30):
            taken.append(time.perf_counter())

    with one.slot("ada"):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2 + chance.random() / 10)
    released = time.perf_counter()
    thread.join()
    return taken[0] - released
