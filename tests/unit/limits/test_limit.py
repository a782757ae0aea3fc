"""A limit: a rate, an algorithm and its options."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.rate import LimitError


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"algorithm": "sliding_window", "lease": 10}, "sliding_window has no option lease"),
        ({"algorithm": "sliding_log", "lease": 10}, "sliding_log has no option lease"),
        ({"algorithm": "leaky_bucket", "lease": 10}, "leaky_bucket has no option lease"),
        ({"algorithm": "fixed_window", "lease": 0}, "lease is 0"),
        ({"algorithm": "fixed_window", "lease": True}, "lease is True"),
        ({"algorithm": "token_bucket", "lease": 10, "max_wait": 1}, "lease and max_wait"),
        (
            {"algorithm": "fixed_window", "lease": 10, "count_denied": True},
            "lease and count_denied",
        ),
        ({"algorithm": "token_bucket", "lease": 10, "burst": 1}, "burst of at least 2"),
        ({"algorithm": "token_bucket", "lease": 10, "split": True}, "contradict"),
        ({"split": True}, "no option split; it is for token_bucket, fixed_window"),
        ({"algorithm": "fixed_window", "split": "half"}, "must be true or false"),
        ({"algorithm": "token_bucket", "split": True, "max_wait": 1}, "split and max_wait"),
        ({"algorithm": "fixed_window", "align": "day", "split": True}, "split and align"),
    ],
)
def test_an_unsupported_lease_or_split_is_an_error(options: Any, problem: str) -> None:
    """The error is raised when the limit is created and names the contradicting options."""
    with pytest.raises(LimitError, match=problem):
        Limit("hot", "100/h", **options)
