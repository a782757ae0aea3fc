"""Rates, limits, calls and decisions: arithmetic and words, without Django and without Redis."""

__all__ = ["algorithms", "call", "decision", "limit", "program", "rate", "values"]
