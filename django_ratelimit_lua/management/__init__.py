"""The command `manage.py ratelimit` and its verbs.

A verb parses arguments, calls operations and prints their result; optional apps add verbs. This
room imports `operations` and lower rooms. It does not know the pages of the admin.
"""

__all__ = ["arguments", "verbs"]
