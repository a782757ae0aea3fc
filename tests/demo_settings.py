"""The settings of the demo, for tests that run beside others: there Redis may take its time."""

from example_project.settings import *  # noqa: F403

RATELIMIT_TIMEOUT = 5
