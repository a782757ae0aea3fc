"""Exact, atomic rate limits for Django, decided by one Lua call in Redis."""

from .decorators import ratelimit
from .exceptions import LimitError, Ratelimited
from .identity.keys import Key
from .limiter import RateLimiter
from .limits.decision import Decision, LimitState
from .limits.limit import Limit
from .limits.rate import Rate
from .rules.exempt import ratelimit_exempt
from .rules.methods import ALL, UNSAFE
from .version import __version__ as __version__

__all__ = [
    "ALL",
    "UNSAFE",
    "Decision",
    "Key",
    "Limit",
    "LimitError",
    "LimitState",
    "Rate",
    "RateLimiter",
    "Ratelimited",
    "ratelimit",
    "ratelimit_exempt",
]
