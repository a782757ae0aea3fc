"""Rules from settings and admin: how they are written, matched, compiled, and kept in force.

This room compiles specs once per revision and finds the rules for a request. It imports `identity`,
`store` and the ground. It does not know views, models or the admin: it reads the rules of the admin
from the published snapshot.
"""

from .compiler import compile
from .errors import RuleError

__all__ = [
    "RuleError",
    "compile",
    "conditions",
    "describe",
    "errors",
    "options",
    "overrides",
    "provider",
    "rule",
    "ruleset",
    "status",
    "template",
]
