"""Public names of annexes have docstrings, and their examples run."""

from __future__ import annotations

from tests.unit.test_public import (  # noqa: F401
    test_doctests_pass,
    test_public_names_can_be_imported,
    test_public_names_have_docstrings,
)
