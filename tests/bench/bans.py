"""What a ban's look costs the server, beside a plain hit."""

from __future__ import annotations

from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.store import get_store
from tests.bench.measure import script_time
from tests.bench.script import asked


def bans() -> None:
    """Script time of a hit of a limit that bans: of who has never offended, of who has, and of who
    is banned.
    """
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
            "a plain hit": [asked(build_call([Charge(plain, stranger)]))],
            "a hit, with the look for a ban": [asked(build_call([Charge(look, stranger)]))],
            "the same, after ten offences": [asked(build_call([Charge(look, known)]))],
            "refused by a ban": [asked(build_call([Charge(out, known)]))],
        }
    )
    print("script time, µs")
    for name, taken in times.items():
        print(f"  {name:34}{taken:8.1f}{taken / times['a plain hit']:7.2f}x")
    print("aim: the look at most 3 times a plain hit\n")
