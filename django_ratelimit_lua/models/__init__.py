"""The models: rules, overrides, weights of hosts, and the history of their changes.

Every change of a row raises the revision and writes the history in the same transaction. This
package imports `rules` and `identity`. It does not know Redis or the admin.
"""

from .audit import Conflict
from .change import RateLimitChange, RateLimitRevision
from .override import RateLimitOverride
from .rule import RateLimitHost, RateLimitRule

__all__ = [
    "Conflict",
    "RateLimitChange",
    "RateLimitHost",
    "RateLimitOverride",
    "RateLimitRevision",
    "RateLimitRule",
    "audit",
    "override",
    "rule",
]
