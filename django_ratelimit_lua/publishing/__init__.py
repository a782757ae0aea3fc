"""Publishes the rules of the database to Redis after a commit.

It compares and sets the revision, so that no older rules replace newer ones. It imports `models`,
`engine`, `rules` and `store`. It does not know requests or the admin.
"""

from .publisher import publish

__all__ = ["publish", "publisher"]
