"""The verbs `grpc` and `proxy` of `manage.py ratelimit`."""
