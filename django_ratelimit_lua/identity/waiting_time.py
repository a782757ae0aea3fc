"""How long a request waited before this process began with it, by a header of a trusted proxy."""

from __future__ import annotations

from django.http import HttpRequest

from ..conf import conf
from ..process import Clock
from .address import is_trusted_peer
from .request_state import request_state

MAX_SECONDS = 60.0
"""Longer waiting times are ignored: the clocks of the hosts probably differ."""


def waiting_time(request: HttpRequest) -> float | None:
    """Return the seconds that a request waited, or None if no trusted proxy reported its start.

    The time is measured once for each request.
    """
    state = request_state(request)
    if not state.is_wait_measured and conf.REQUEST_START is not None:
        state.is_wait_measured = True
        start: str | None = request.META.get(conf.REQUEST_START)
        if start is not None and is_trusted_peer(request.META.get("REMOTE_ADDR")):
            waited = Clock.time() - _parse_start(start)
            if 0.0 <= waited <= MAX_SECONDS:
                state.waited = waited
    return state.waited


def _parse_start(text: str) -> float:
    """Return the seconds since 1970 of a time in seconds, milliseconds or microseconds.

    The result is 0.0 for other text, for example with the comma of a header that was sent twice.

    >>> _parse_start("t=1800000000.5"), _parse_start("1800000000500"), _parse_start("soon")
    (1800000000.5, 1800000000.5, 0.0)
    """
    try:
        seconds = float(text.removeprefix("t="))
    except ValueError:
        return 0.0
    for _unit in ("ms", "µs"):
        if seconds > 1e11:
            seconds /= 1000.0
    return seconds
