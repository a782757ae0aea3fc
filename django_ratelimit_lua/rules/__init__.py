"""Rules: a limit, and when it applies; from the settings and from the admin, by one vocabulary, parser and matcher."""

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
