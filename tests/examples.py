"""How many examples a test draws: a share of what `.ci/run` draws, so that `make test` is short.

`RATELIMIT_TEST_EXAMPLES=1` in front of pytest draws all of them, 50 draws fifty times as many.
"""

from __future__ import annotations

import os

SHARE = float(os.environ.get("RATELIMIT_TEST_EXAMPLES", "0.3"))


def examples(count: int, at_least: int = 5) -> int:
    """Return the number of examples to draw for a test that draws `count` in `.ci/run`."""
    return max(at_least, round(count * SHARE))
