"""The settings of a demo whose reports take a minute, so that a test can do something meanwhile."""

from tests.demo_settings import *  # noqa: F403

ROOT_URLCONF = "tests.long_reports_urls"
RATELIMIT_SLOT_SECONDS = 2
