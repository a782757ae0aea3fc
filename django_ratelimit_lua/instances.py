"""How many processes decide limits together, so that each knows its share when Redis cannot be asked."""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import suppress

from . import lua
from .conf import conf
from .store import get_store

SCRIPT = lua.source("instances").encode()
BEAT_SECONDS = 5.0
LIFETIME = 15
"""Seconds after which a process that is not heard of is no more."""


class Instances:
    """Says every few seconds that this process is alive, in a thread of its own, and keeps how many are."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew, as a child process must after a fork."""
        self.count = 1
        self._name = uuid.uuid4().hex.encode()
        self._started = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start saying so, unless that has begun."""
        if self._started:
            return
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._beat, name="ratelimit-instances", daemon=True).start()

    def beat(self) -> int:
        """Say so once; returns how many there are. Raises `StoreError`."""
        key = conf.CACHE_PREFIX + b"{rules}:instances"
        reply = get_store(patient=True).ask(b"EVAL", SCRIPT, b"1", key, self._name, b"%d" % LIFETIME)
        self.count = max(1, int(reply))
        return self.count

    def _beat(self) -> None:
        while True:
            with suppress(Exception):  # It is as many as were last known.
                self.beat()
            time.sleep(BEAT_SECONDS)


instances = Instances()
if hasattr(os, "register_at_fork"):  # Not on Windows, which does not fork.
    os.register_at_fork(after_in_child=instances.forget)
