"""What is public in annexes is explained, and their examples run."""

from __future__ import annotations

from tests.unit.test_docstrings import test_examples_run, test_public_things_are_explained  # noqa: F401
from tests.unit.test_public import test_what_is_public_is_there  # noqa: F401
