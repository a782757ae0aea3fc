"""Signals of breakers."""

from threading import Lock

from django.dispatch import Signal

from ...process.forks import renew_after_fork

circuit_opened = Signal()
"""A breaker has opened, and its resource is not called any more.

Sent once, by the process that made the change, with `breaker` (its name), `calls`, `failures`,
`slow` (the numbers that led to it), `reason` ("failure_ratio", "failures", "slow_ratio", or "probe"
if a probe failed), `seconds` (until the next probe) and `shared`: False if Redis is unavailable,
and this process has judged by its own outcomes.
"""

circuit_half_open = Signal()
"""A breaker lets probes through, to test whether the resource works again.

Sent once, like `circuit_opened`.
"""

circuit_closed = Signal()
"""A breaker lets all calls through again.

Sent once, like `circuit_opened`, with the number of successful probes as `calls`.
"""


@renew_after_fork
def _renew() -> None:
    for signal in (circuit_opened, circuit_half_open, circuit_closed):
        signal.lock = Lock()  # Django takes it whenever it sends.
