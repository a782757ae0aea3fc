"""The models: rules, tiers, overrides, and what was changed."""

from .change import RateLimitChange, RateLimitRevision
from .override import RateLimitOverride
from .rule import RateLimitRule
from .tier import RateLimitTier

__all__ = [
    "RateLimitChange",
    "RateLimitOverride",
    "RateLimitRevision",
    "RateLimitRule",
    "RateLimitTier",
    "audit",
    "override",
    "rate_fields",
]
