"""Rules from settings, admin and call sites: their vocabulary, matching, and those in force.

This package compiles declarations once per revision and finds the rules for a request. It imports
`identity` and `store`. It does not know models or the admin: it reads the rules from the published
snapshot.
"""

__all__ = [
    "callsite",
    "describe",
    "exempt",
    "fallbacks",
    "methods",
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
