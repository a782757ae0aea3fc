"""Limits of hot keys, decided in this process as far as may be: from units taken ahead (a lease), or by its own part
of the limit (a split)."""

from .decide import Steps, decide, held, is_for, may_have_more
from .leases import Held, leases

__all__ = ["Held", "Steps", "decide", "held", "is_for", "leases", "may_have_more"]
