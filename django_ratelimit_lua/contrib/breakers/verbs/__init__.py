"""The verb `breakers` of `manage.py ratelimit`."""
