"""Rates, limits, calls and decisions, and the algorithms with their Lua.

It describes what is limited and what the result of a decision is. It imports only the ground floor.
It does not know Django, Redis, requests or rules.
"""

__all__ = ["algorithms", "call", "decision", "limit", "program", "rate", "values"]
