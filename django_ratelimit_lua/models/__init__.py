"""The models: rules, tiers, overrides, clients of the gateway, what was changed, and what was counted."""

from .change import RateLimitChange, RateLimitRevision
from .client import RateLimitClient
from .hour import RateLimitHour
from .override import RateLimitOverride
from .rule import RateLimitRule
from .tier import RateLimitTier

__all__ = [
    "RateLimitChange",
    "RateLimitClient",
    "RateLimitHour",
    "RateLimitOverride",
    "RateLimitRevision",
    "RateLimitRule",
    "RateLimitTier",
]
