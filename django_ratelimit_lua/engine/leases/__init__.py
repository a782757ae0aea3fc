"""Limits of hot keys, decided in this process as far as may be: from units taken ahead (a lease), or by its own part
of the limit (a split)."""

from .deciding import decide_here, has_local_limits, may_have_more
from .pools import leases

__all__ = ["decide_here", "has_local_limits", "leases", "may_have_more"]
