"""Rates, limits, calls and decisions, and the algorithms with their Lua code.

This package defines limits and the results of decisions. It imports only from floor 1 of the
package, and does not know Django, Redis, requests or rules.
"""

__all__ = ["algorithms", "call", "decision", "limit", "options", "program", "rate", "values"]
