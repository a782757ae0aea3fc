"""Runs the Python blocks of these pages.

`tests/contrib/all/test_framework_pages.py` runs the pages of other frameworks, and
`tests/tools/tutorial.py` follows the tutorial.
"""

from sybil import Sybil
from sybil.parsers.rest import PythonCodeBlockParser

from tests.conftest import pytest_ignore_collect  # noqa: F401
from tests.support.celery_stand_in import celery, django_tasks  # noqa: F401

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["*.rst"],
    excludes=["tutorial.rst", "ninja.rst", "channels.rst", "task-queues.rst"],
    fixtures=["celery", "django_tasks"],
).pytest()
