"""Exact, atomic rate limits for Django, decided by one Lua call in Redis."""

from .decorators import ratelimit
from .exceptions import LimitError, Ratelimited
from .identity.keys import Key
from .limiter import RateLimiter
from .limits.decision import Decision, LimitState
from .limits.limit import Limit
from .limits.rate import Rate
from .rules.conditions import ALL, UNSAFE
from .views.exempt import ratelimit_exempt
from .web.usage import LimitUsage, ausage, usage, usage_view

__version__ = "1.0.0rc1"
__all__ = [
    "ALL",
    "UNSAFE",
    "Decision",
    "Key",
    "Limit",
    "LimitError",
    "LimitState",
    "LimitUsage",
    "Rate",
    "RateLimiter",
    "Ratelimited",
    "ausage",
    "ratelimit",
    "ratelimit_exempt",
    "usage",
    "usage_view",
]
