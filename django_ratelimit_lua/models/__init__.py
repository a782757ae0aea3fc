"""The models: rules, tiers, overrides, clients of the gateway, and what was changed."""

from .change import RateLimitChange, RateLimitRevision
from .client import RateLimitClient
from .override import RateLimitOverride
from .rule import RateLimitRule
from .tier import RateLimitTier

__all__ = [
    "RateLimitChange",
    "RateLimitClient",
    "RateLimitOverride",
    "RateLimitRevision",
    "RateLimitRule",
    "RateLimitTier",
]
