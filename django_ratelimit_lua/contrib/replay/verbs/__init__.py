"""The verb `replay` of `manage.py ratelimit`."""
