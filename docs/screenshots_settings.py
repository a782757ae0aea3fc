"""Settings of the demo for `docs/screenshots.py`: requests name their clients, as proxies do."""

from example_project.settings import *  # noqa: F403

RATELIMIT_TRUSTED_PROXIES = ["127.0.0.1/32"]
RATELIMIT_TIMEOUT = 5
