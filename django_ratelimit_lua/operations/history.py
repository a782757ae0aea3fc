"""Entries of the history about clients: lifted bans and reset counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..identity.names import Part
from ..models import RateLimitChange, RateLimitRevision
from ..models.audit import current_actor
from ..models.rule import rules_database

MAX_NAMED = 10
"""Maximum number of clients that an entry names. It has the digests of all of them."""


def record_action(
    action: RateLimitChange.Action,
    limits: Iterable[str],
    clients: Mapping[str, Sequence[Part]],
    **details: object,
) -> None:
    """Record an action on clients in the history, as done by the user in `acting`.

    The entry has the digests of all clients, and the names of up to `MAX_NAMED`.

    Args:
        action: The action.
        limits: The names of the limits that it concerned.
        clients: The names of the clients, as `RATELIMIT_SHOW_IDENTITIES` allows, by their digests.
        details: Further values for the entry.
    """
    digests = sorted(clients)
    names = {digest: [list(part) for part in clients[digest]] for digest in digests[:MAX_NAMED]}
    named = {digest: parts for digest, parts in names.items() if parts}
    RateLimitChange.objects.create(
        revision=RateLimitRevision.read(rules_database()).revision,
        by=current_actor(),
        kind=RateLimitChange.Kind.IDENTITY,
        action=action,
        name=", ".join(dict.fromkeys(limits))[:300],
        after={"digests": digests, "who": named, **details},
    )
