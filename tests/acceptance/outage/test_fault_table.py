"""Each fault of the table in the documentation, under load. `make faults` prints the table."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.tools import faults, holders

pytestmark = pytest.mark.faults
AT_ONCE = 3
"""How many faults go on side by side; each takes ten seconds, and half of a processor."""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> dict[str, Future[faults.Outcome]]:
    """Run the faults of the selected tests, and return their outcomes."""
    items = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in items]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: pool.submit(faults.run, name) for name in names if not lacks_clock(name)}


def lacks_clock(name: str) -> bool:
    return "clock" in name and not faults.LIBFAKETIME


@pytest.mark.parametrize("name", faults.FAULTS)
def test_faults_cause_no_500_and_exceed_no_limit(
    name: str, runs: dict[str, Future[faults.Outcome]]
) -> None:
    """No response is a 500. Redis admits more than the limit only if it lost data or its clock was
    set back, and then no more than it lost. Without Redis, the parts of all processes together
    admit no more than the limit. Calls last little longer than the deadline.
    """
    if lacks_clock(name):
        pytest.skip("NO CLOCK TEST: libfaketime (Debian: faketime) is not installed")
    outcome = runs[name].result()
    assert len(outcome.requests) > 500
    assert outcome.failed == 0
    forgotten = dict.fromkeys(("closed", "local"), 0)
    for limit in forgotten if name in faults.LOSES else ():
        forgotten[limit] = outcome.admitted(limit, until=outcome.hurt_at + 0.5)
    assert outcome.over("closed") <= forgotten["closed"]
    alone = outcome.admitted("local", source="fallback")
    assert alone <= faults.LIMIT
    assert outcome.over("local") <= forgotten["local"] + alone
    assert outcome.admitted("closed") > faults.LIMIT // 2
    assert outcome.p99(faults.HURT_AT, faults.HEALED_AT) < (faults.DEADLINE + 0.9) * 1000


@pytest.mark.parametrize("name", holders.FAULTS)
def test_a_slot_limit_is_kept_when_processes_with_slots_fail(name: str) -> None:
    """A lost slot is granted again, and its holder is notified at most once."""
    if lacks_clock(name):
        pytest.skip("NO CLOCK TEST: libfaketime (Debian: faketime) is not installed")
    outcome = holders.run(name)
    assert outcome.held <= holders.SLOTS
    assert outcome.running <= holders.SLOTS + (outcome.lost is not None)
    assert outcome.seconds < holders.SLOT_SECONDS + 5.0
    assert outcome.lost is None or len(outcome.lost) <= 1
    assert outcome.lost in ([""], None)
