"""The verb `stats` of `manage.py ratelimit`."""
