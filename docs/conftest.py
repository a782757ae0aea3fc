"""Runs the Python blocks of these pages."""

from sybil import Sybil
from sybil.parsers.rest import PythonCodeBlockParser

from tests.conftest import pytest_ignore_collect  # noqa: F401

pytest_collect_file = Sybil(parsers=[PythonCodeBlockParser()], patterns=["*.rst"]).pytest()
