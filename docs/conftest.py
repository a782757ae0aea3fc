"""Runs the Python blocks of these pages."""

from sybil import Sybil
from sybil.parsers.rest import PythonCodeBlockParser

pytest_collect_file = Sybil(parsers=[PythonCodeBlockParser()], patterns=["*.rst"]).pytest()
