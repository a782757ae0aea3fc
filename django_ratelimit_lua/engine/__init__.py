"""Decides a call by the deny cache, leases, Redis or the fallback.

It also keeps slots, bans and other background work. It decides the charges of a plan, and loads
newer rules if those of the plan were stale. It imports rules, identity and store. It does not know
the purpose of a request: the caller passes it a planner.
"""

__all__ = ["bans", "decide", "decided_charge", "listener", "run", "slots", "waiting"]
