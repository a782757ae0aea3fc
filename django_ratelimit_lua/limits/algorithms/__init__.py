"""The algorithms by name. Each is one `.py` and one `.lua` file of that name.

To add one, see `docs/design/extending.rst`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..rate import LimitError
from .algorithm import Algorithm
from .concurrency import Concurrency
from .fixed_window import FixedWindow
from .leaky_bucket import LeakyBucket
from .sliding_log import SlidingLog
from .sliding_window import SlidingWindow
from .token_bucket import TokenBucket

ALGORITHMS: Mapping[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        TokenBucket(),
        LeakyBucket(),
        FixedWindow(),
        SlidingWindow(),
        SlidingLog(),
        Concurrency(),
    )
}
BY_RATE = tuple([name for name, algorithm in ALGORITHMS.items() if not algorithm.holds])
"""The algorithms for units per period."""
OF_SLOTS = next(name for name, algorithm in ALGORITHMS.items() if algorithm.holds)
"""The algorithm for a number of slots."""
SYNONYMS = {"gcra": "token_bucket"}


def find(name: str) -> Algorithm:
    """Return the algorithm of that name. Raises `LimitError`, which lists the known names.

    >>> find("gcra").name
    'token_bucket'
    """
    try:
        return ALGORITHMS[SYNONYMS.get(name, name)]
    except (KeyError, TypeError):
        names = ", ".join([*ALGORITHMS, *SYNONYMS])
        raise LimitError(
            f"Unknown algorithm {name!r}; choose one of: {names}", "algorithm"
        ) from None
