"""Entries of the history about identities: bans and resets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..identity.names import Part
from ..models import RateLimitChange, RateLimitRevision
from ..models.audit import current_actor
from ..models.rule import rules_database

MAX_NAMED = 10
"""Maximum number of names if bans are lifted together."""


def record_change(
    action: RateLimitChange.Action, names: Iterable[str], after: Mapping[str, object]
) -> None:
    """Record an action on identities under limits of these names in the history.

    The user in `acting` is recorded.
    """
    RateLimitChange.objects.create(
        revision=RateLimitRevision.read(rules_database()).revision,
        by=current_actor(),
        kind=RateLimitChange.Kind.IDENTITY,
        action=action,
        name=", ".join(dict.fromkeys(names))[:300],
        after=after,
    )


def history_names(names: Mapping[str, Sequence[Part]]) -> dict[str, object]:
    """Return the identities for a history entry.

    The entry contains their digests, and the names of the first ones, as
    `RATELIMIT_SHOW_IDENTITIES` allows.

    >>> history_names({"9d4e": [("ip", "203.0.113.0/24")], "07ab": []})
    {'digests': ['07ab', '9d4e'], 'who': {'9d4e': [['ip', '203.0.113.0/24']]}}
    """
    digests = sorted(names)
    who = {digest: [*map(list, names[digest])] for digest in digests[:MAX_NAMED] if names[digest]}
    return {"digests": digests, "who": who}
