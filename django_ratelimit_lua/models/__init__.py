"""The models: rules, tiers, overrides, breakers, clients of the gateway, and what was changed."""

from .breaker import RateLimitBreaker
from .change import RateLimitChange, RateLimitRevision
from .client import RateLimitClient
from .override import RateLimitOverride
from .rule import RateLimitRule
from .tier import RateLimitTier

__all__ = [
    "RateLimitBreaker",
    "RateLimitChange",
    "RateLimitClient",
    "RateLimitOverride",
    "RateLimitRevision",
    "RateLimitRule",
    "RateLimitTier",
]
