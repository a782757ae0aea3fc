"""Conditions of rules: the user agent and the network of the client."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import lru_cache

from django.http import HttpRequest
from django.utils.translation import gettext_noop as _

from ..conf import conf
from ..identity.address import client_address
from ..identity.networks import networks
from ..limits.rate import LimitError

Condition = Callable[[HttpRequest], bool]
"""Returns whether a request meets the condition."""
MAX_LENGTH = 500
"""Characters of a user agent that are compared."""


def _split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names, and those that a leading `!` negates."""
    wanted = [name for name in names if not name.startswith("!")]
    return wanted, [name[1:] for name in names if name.startswith("!")]


def user_agent_condition(patterns: Sequence[str]) -> Condition:
    """Return the condition that one of the patterns matches, and no negated one.

    The user agent of a request without the header is empty.
    """
    wanted, unwanted = [
        re.compile("|".join(map(translate, each)), re.IGNORECASE) for each in _split(patterns)
    ]

    @lru_cache(maxsize=1024)
    def matches(user_agent: str) -> bool:
        if unwanted.pattern and unwanted.match(user_agent):
            return False
        return wanted.match(user_agent) is not None

    return lambda request: matches(request.META.get("HTTP_USER_AGENT", "")[:MAX_LENGTH])


def network_condition(names: Sequence[str]) -> Condition:
    """Return the condition that the client is in one of the networks, and in no negated one.

    It is not met if one of the networks was never read. Raises `LimitError` for an unknown network.
    """
    wanted, unwanted = _split(names)
    for name in wanted + unwanted:
        if name not in conf.NETWORKS:
            text = _("%(name)r is not a network of RATELIMIT_NETWORKS (%(names)s)")
            raise LimitError(text, name=name, names=", ".join(conf.NETWORKS) or "none")

    def is_met(request: HttpRequest) -> bool:
        of_client = set()
        address = client_address(request).address
        for name in wanted + unwanted:
            network = networks.find(name)
            if network is None:
                return False
            if address is not None and address in network:
                of_client.add(name)
        is_wanted = not wanted or not of_client.isdisjoint(wanted)
        return is_wanted and of_client.isdisjoint(unwanted)

    return is_met
