"""Every fault of the table in the documentation, under load: `make faults` prints it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests import faults, holders

pytestmark = pytest.mark.faults
ROUNDING = 3 * faults.PROCESSES + 10
"""Shares are rounded up, and what Redis said last is a moment old."""
AT_ONCE = 3
"""How many faults go on side by side; each takes ten seconds, and half of a processor."""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> dict[str, Future[faults.Outcome]]:
    """Those of the tests that are run, over by now: the first test waits for all of them."""
    names = [
        item.callspec.params["name"] for item in request.session.items if item.path == request.path
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: pool.submit(faults.run, name) for name in names if not lacks_clock(name)}


def lacks_clock(name: str) -> bool:
    return "clock" in name and not faults.LIBFAKETIME


@pytest.mark.parametrize("name", faults.FAULTS)
def test_faults_cause_no_500_and_exceed_no_limit(
    name: str, runs: dict[str, Future[faults.Outcome]]
) -> None:
    """Never a 500; nothing beyond the limit unless the server forgot it, and then no more than it
    forgot; nobody waits much longer than the deadline.
    """
    if lacks_clock(name):
        pytest.skip("NO CLOCK TEST: libfaketime (Debian: faketime) is not installed")
    outcome = runs[name].result()
    assert len(outcome.requests) > 500
    assert outcome.failed == 0
    forgotten = dict.fromkeys(("closed", "local"), 0)
    if name in faults.LOSES:
        forgotten = {
            limit: outcome.admitted(limit, until=outcome.hurt_at + 0.5) for limit in forgotten
        }
    assert outcome.over("closed") <= forgotten["closed"]
    assert outcome.over("local") <= forgotten["local"] + ROUNDING
    assert outcome.admitted("closed") > faults.LIMIT // 2
    assert outcome.p99(faults.HURT_AT, faults.HEALED_AT) < (faults.DEADLINE + 0.4) * 1000


@pytest.mark.parametrize("name", holders.FAULTS)
def test_a_slot_limit_is_kept_when_processes_with_slots_fail(name: str) -> None:
    """Never more than there are, and no more run than those and one that lives and was hurt; the
    next one gets its slot when the time of the lost one is over, and whoever lives and has lost one
    is told, once.
    """
    if lacks_clock(name):
        pytest.skip("NO CLOCK TEST: libfaketime (Debian: faketime) is not installed")
    outcome = holders.run(name)
    assert outcome.most <= holders.SLOTS
    assert outcome.running <= holders.SLOTS + (outcome.told is not None)
    assert outcome.seconds < holders.SLOT_SECONDS + 5.0
    assert outcome.told is None or len(outcome.told) <= 1
    assert outcome.told in ([""], None)
