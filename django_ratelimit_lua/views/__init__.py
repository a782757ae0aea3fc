"""Limits in the code of views: call sites, exemptions, and the result of a refused call.

This room compiles the arguments of decorators, and finds the limits of any view without calling it.
It imports `rules`, `identity` and the ground. It does not know how a call is decided, nor the rules
of the admin.
"""

__all__ = ["call_sites", "exempt", "fallback", "inspection"]
