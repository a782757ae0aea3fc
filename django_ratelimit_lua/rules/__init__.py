"""Rules from settings, admin and call sites: their vocabulary, matching, and those in force.

This package compiles declarations once per revision and finds the rules for a request. It imports
`identity` and `store`. It does not know models or the admin: it reads the rules from the published
snapshot.
"""

from .errors import RuleError
from .rule import compile

__all__ = [
    "RuleError",
    "callsite",
    "compile",
    "describe",
    "errors",
    "exempt",
    "fallbacks",
    "methods",
    "options",
    "overrides",
    "paths",
    "places",
    "problems",
    "provider",
    "rule",
    "ruleset",
    "stacks",
    "template",
]
