"""How long a request waited before this process began with it, by a header of a trusted proxy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.http import HttpRequest

from ..conf import conf
from ..conf.changes import on_change
from ..process.clock import Clock
from .forwarded import parse_address
from .request_state import request_state

MAX_SECONDS = 60.0
"""Longer waiting times are ignored: the clocks of the hosts probably differ."""


def waiting_time(request: HttpRequest) -> float | None:
    """Return the seconds that a request waited, or None if no trusted proxy reported its start.

    The time is measured once for each request.
    """
    state = request_state(request)
    if not state.is_wait_measured:
        state.is_wait_measured = True
        if conf.REQUEST_START is not None:
            state.waited = _measure(request.META, conf.REQUEST_START)
    return state.waited


def _measure(meta: Mapping[str, Any], key: str) -> float | None:
    start: str | None = meta.get(key)
    if start is None or not is_trusted_peer(meta.get("REMOTE_ADDR")):
        return None
    try:
        seconds = float(start.removeprefix("t="))
    except ValueError:  # For example with the comma of a header that was sent twice.
        return None
    # Seconds (nginx), milliseconds (Heroku) or microseconds (Render, Fly) since 1970.
    if seconds > 1e14:
        seconds /= 1e6
    elif seconds > 1e11:
        seconds /= 1e3
    waited = Clock.time() - seconds
    if not 0.0 <= waited <= MAX_SECONDS:
        return None
    return waited


@lru_cache(maxsize=1024)
def is_trusted_peer(peer: str | None) -> bool:
    """Return whether a peer is in the networks of `RATELIMIT_TRUSTED_PROXIES`.

    False if that setting is a number, which does not identify proxies.
    """
    networks = conf.TRUSTED_PROXIES
    if not isinstance(networks, tuple):
        return False
    if not peer:
        return conf.TRUSTS_SOCKET
    address = parse_address(peer)
    return address is not None and any(
        address.version == network.version and address in network for network in networks
    )


on_change(("RATELIMIT_TRUSTED_PROXIES",), is_trusted_peer.cache_clear)
