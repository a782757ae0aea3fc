"""The slots in Redis, and the records of the views of `tests.support.slots_site`."""

from __future__ import annotations

import redis

from tests.support.processes import until


class SlotsInUse:
    """Of a site with such a prefix; `running`: the prefix of what its views note."""

    def __init__(self, direct: redis.Redis, prefix: str, running: str) -> None:
        self._direct, self._prefix, self._running = direct, prefix, running

    @property
    def held(self) -> int:
        """Slots that are held at the moment."""
        seconds, rest = self._direct.time()
        keys = self._direct.scan_iter(f"{self._prefix}*:c", count=10_000)
        return sum(
            self._direct.zcount(key, f"({seconds * 1_000_000 + rest}", "+inf") for key in keys
        )

    def running(self, who: str) -> int:
        """Views and bodies that run at the moment."""
        return int(self._direct.get(f"running:{self._running}{who}") or 0)

    def most(self, who: str) -> int:
        """How many have run at the same time, at most."""
        return max(
            map(int, self._direct.lrange(f"running:{self._running}{who}:seen", 0, -1)), default=0
        )

    def until_free(self, seconds: float = 20) -> None:
        """Wait until none is held any more."""
        until(lambda: self.held == 0, "all slots are released", seconds)
