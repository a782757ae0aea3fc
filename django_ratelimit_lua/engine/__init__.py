"""Decides a call: deny cache, leases, Redis, fallback.

And keeps slots, bans and other background work.

It turns a plan into an outcome, and loads newer rules if those of the plan were stale. It imports
rules, identity and store. It does not know what a request is for: faces give it a planner.
"""

__all__ = ["bans", "decide", "listener", "run", "slots", "waiting"]
