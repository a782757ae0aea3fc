"""The command `manage.py ratelimit` and its verbs.

Each verb is a module that parses arguments, calls operations and prints the result. It imports
`operations` and lower packages. It does not know the admin. Optional apps add their own verbs.
"""

__all__ = ["arguments", "verbs"]
