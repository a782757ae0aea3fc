"""Rules from settings, admin and call sites: their vocabulary, matching, and those in force.

It compiles declarations once per revision and finds the rules for a request. It imports identity
and store. It does not know models or the admin: the rules reach it as the published snapshot.
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
