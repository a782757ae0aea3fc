"""The models: rules, tiers, overrides, what was changed, and what was counted."""

from .change import RateLimitChange, RateLimitRevision
from .hour import RateLimitHour
from .override import RateLimitOverride
from .rule import RateLimitRule
from .tier import RateLimitTier

__all__ = [
    "RateLimitChange",
    "RateLimitHour",
    "RateLimitOverride",
    "RateLimitRevision",
    "RateLimitRule",
    "RateLimitTier",
]
