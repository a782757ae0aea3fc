"""What is public in annexes is explained, and their examples run."""

from __future__ import annotations

from tests.unit.test_docstrings import test_doctests_pass, test_public_names_have_docstrings  # noqa: F401
from tests.unit.test_public import test_public_names_can_be_imported  # noqa: F401
