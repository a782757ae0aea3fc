"""A site with an admin, for the tests of its pages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.users import serve_admin


@pytest.fixture(autouse=True)
def admin_site(request: pytest.FixtureRequest, settings: Any, no_others: None) -> None:
    """Serve the URLs of the test's module, or those of `test_admin`."""
    has_urls = hasattr(request.module, "urlpatterns")
    default = "tests.acceptance.admin.test_admin"
    serve_admin(settings, request.module.__name__ if has_urls else default)
