"""Rates, limits, calls and decisions: arithmetic and words, without Django and without Redis."""
