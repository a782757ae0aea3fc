"""`manage.py` commands."""

__all__ = ["arguments", "verbs"]
