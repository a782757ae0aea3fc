"""Pytest fixtures, which are available as soon as the package is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from .testing.server import Server


@pytest.fixture
def ratelimit_clock() -> Iterator[Any]:
    """Yield a stopped clock, which `ratelimit_clock.advance(seconds)` moves, with fresh counts.

    See `testing.move_clock`.
    """
    from .testing import move_clock
    from .testing import override_ratelimits as override

    with override(), move_clock() as clock:
        yield clock


@pytest.fixture
def override_ratelimits() -> Iterator[Callable[..., None]]:
    """Yield a function like `testing.override_ratelimits`, in effect until the test ends."""
    from .testing import override_ratelimits as override

    with ExitStack() as stack:

        def start(**arguments: Any) -> None:
            stack.enter_context(override(**arguments))

        yield start


@pytest.fixture(scope="session")
def ratelimit_server() -> Iterator[Server]:
    """Yield a Valkey server for the test session. Its `url` goes into `CACHES`.

    It needs the extra `demo`.
    """
    with Server() as server:
        yield server
