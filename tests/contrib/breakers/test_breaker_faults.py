"""Each fault of the table in the documentation, while breakers are open. `make faults` prints the
table.
"""

from __future__ import annotations

import pytest

from tests.acceptance.test_fault_table import lacks_clock
from tests.contrib.breakers import probers

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("name", probers.FAULTS)
def test_a_breaker_recovers_from_every_fault(name: str) -> None:
    """The breaker closes again, and no call raises another exception than `CircuitOpen`. If no data
    is lost, each change of state is signalled once.
    """
    if lacks_clock(name):
        pytest.skip("NO CLOCK TEST: libfaketime (Debian: faketime) is not installed")
    outcome = probers.run(name)
    assert outcome.wrong == 0
    waits = probers.OPEN_SECONDS + (probers.PROBE_SECONDS if name.startswith("prober") else 0.0)
    assert outcome.first <= outcome.closed < waits + 20.0
    keeps = name in ("nothing", "server's clock - 1 h")
    assert not keeps or outcome.first > probers.OPEN_SECONDS / 2
    if keeps or name == "server's clock + 1 h":
        assert outcome.told == dict.fromkeys(("opened", "half_open", "closed"), 1)
    assert outcome.told["closed"] <= 1
