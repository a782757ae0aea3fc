"""The fixtures of pages and browsers, for annexes as well."""

from tests.acceptance.conftest import *  # noqa: F403
