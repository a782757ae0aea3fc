"""The models: rules, tiers, overrides, breakers, and what was changed."""

from .breaker import RateLimitBreaker
from .change import RateLimitChange, RateLimitRevision
from .override import RateLimitOverride
from .rule import RateLimitRule
from .tier import RateLimitTier

__all__ = [
    "RateLimitBreaker",
    "RateLimitChange",
    "RateLimitOverride",
    "RateLimitRevision",
    "RateLimitRule",
    "RateLimitTier",
]
