"""`python -m tests.program sliding_window token_bucket`: the Lua program in a straight line for these algorithms."""

from __future__ import annotations

import sys

from django_ratelimit_lua.limits.program import GENERAL, straight

if __name__ == "__main__":
    print((straight(tuple(sys.argv[1:])) if sys.argv[1:] else GENERAL).source.decode())
