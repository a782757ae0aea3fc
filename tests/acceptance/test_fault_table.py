"""Every fault of the table in the documentation, under load: `make faults` prints it."""

from __future__ import annotations

import pytest

from tests import faults

pytestmark = [pytest.mark.faults, pytest.mark.alone]
ROUNDING = 3 * faults.PROCESSES + 10
"""Shares are rounded up, and what Redis said last is a moment old."""


@pytest.mark.parametrize("name", faults.FAULTS)
def test_requests_are_answered_and_limits_hold(name: str) -> None:
    """Never a 500; nothing beyond the limit unless the server forgot it, and then no more than it forgot; nobody waits
    much longer than the deadline."""
    if "clock" in name and not faults.LIBFAKETIME:
        pytest.skip("NO CLOCK TEST: libfaketime (Debian: faketime) is not installed")
    outcome = faults.run(name)
    assert len(outcome.requests) > 500
    assert outcome.failed == 0
    forgotten = dict.fromkeys(("closed", "local"), 0)
    if name in faults.LOSES:
        forgotten = {limit: outcome.admitted(limit, until=faults.HURT_AT + 0.5) for limit in forgotten}
    assert outcome.over("closed") <= forgotten["closed"]
    assert outcome.over("local") <= forgotten["local"] + ROUNDING
    assert outcome.admitted("closed") > faults.LIMIT // 2
    assert outcome.p99(faults.HURT_AT, faults.HEALED_AT) < (faults.DEADLINE + 0.4) * 1000
