"""Verbs of `manage.py ratelimit`."""
