"""The parts of the snapshot, made from the rows of the database; see `rules.snapshot.Snapshot`."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from django.db import DatabaseError, transaction

from ..extension import extensions
from ..identity import digest, secrets_by_id
from ..identity.forwarded import parse_network
from ..models import RateLimitHost, RateLimitOverride, RateLimitRule
from ..models.change import OVERRIDES, RULES, Risen
from ..models.override import PUBLISHED, entry, user_identity
from ..rules.overrides import (
    EVERY_RULE,
    Entry,
    field_of,
    network_kind,
    network_prefix,
    value_key,
)

logger = logging.getLogger("django_ratelimit_lua")
BATCH = 1000
Part = Mapping[str, object]
_SUBJECT = ("user_id", "network", "client_digest", "kind", "subject", "digested_by")


def read_rules(using: str, row: Risen) -> Part:
    """Return the part of the rules, with the weights of hosts and the parts of optional apps."""
    rows = RateLimitRule.objects.using(using).iterator(chunk_size=BATCH)
    rules = [{**row.spec, "id": row.pk} for row in rows]
    weights = dict(RateLimitHost.objects.using(using).values_list("name", "weight"))
    parts = _parts_of_annexes(using)
    return {"tag": row.rules, "rules": rules, "weights": weights, "parts": parts}


def _parts_of_annexes(using: str) -> dict[str, object]:
    """Return the parts of the optional apps of this process, by name.

    Rules are published even if an optional app is not migrated.
    """
    parts = {}
    for extension in extensions:
        try:
            with transaction.atomic(using):
                part = extension.snapshot(using)
        except DatabaseError as error:
            text = "Skipped: the data of the app %r cannot be read from the database: %s"
            logger.error(text, extension.name, error)
        else:
            if part is not None:
                parts[extension.name] = part
    return parts


def read_overrides(using: str, row: Risen) -> Part:
    """Return the part of the overrides, except those that have ended."""
    fields: defaultdict[str, dict[str, None]] = defaultdict(dict)
    digests: defaultdict[str, list[Entry]] = defaultdict(list)
    clients: defaultdict[str, list[Entry]] = defaultdict(list)
    networks: defaultdict[str, defaultdict[str, list[Entry]]] = defaultdict(
        lambda: defaultdict(list)
    )
    value_keys: dict[str, None] = {}
    has_blocks = False
    secrets = secrets_by_id()
    rows = RateLimitOverride.objects.using(using).lasting().order_by("pk")
    for each in rows.values(*_SUBJECT, *PUBLISHED).iterator(chunk_size=BATCH):
        published = entry(each)
        kind = each["kind"]
        if each["client_digest"]:
            clients[each["client_digest"]].append(published)
        elif each["network"]:
            try:
                kind, prefix = _place(each["network"])
            except ValueError as error:  # The row was edited by hand.
                text = "Skipped: the override of row %d is invalid: %s"
                logger.error(text, each["id"], error)
                continue
            networks[kind][prefix].append(published)
        elif each["user_id"] is not None:
            for subject in _user_digests(each, secrets):
                digests[subject].append(published)
        else:
            value_keys[each["digested_by"]] = None
            digests[value_key(kind, each["subject"])].append(published)
        fields[each["rule"]][field_of(kind)] = None
        is_block = each["effect"] == RateLimitOverride.Effects.BLOCK
        has_blocks = has_blocks or (is_block and each["rule"] == EVERY_RULE)
    return {
        "tag": row.overrides,
        "fields": {rule: list(kinds) for rule, kinds in fields.items()},
        "blocks": has_blocks,
        "keys": list(secrets),
        "value_keys": list(value_keys),
        "digests": digests,
        "clients": clients,
        "networks": networks,
    }


@lru_cache(maxsize=32_768)
def _place(text: str) -> tuple[str, str]:
    """Return the kind and the prefix of a network."""
    network = parse_network(text)
    return network_kind(network.version, network.prefixlen), network_prefix(network)


def _user_digests(row: Mapping[str, Any], secrets: Mapping[str, str | bytes]) -> Sequence[str]:
    """Return the digests of a user with each key. The row has one of them."""
    if len(secrets) == 1 and row["digested_by"] in secrets:
        return [row["subject"]]
    identity = user_identity(row["user_id"])
    return [digest(identity, secret).decode() for secret in secrets.values()]


READERS = {RULES: read_rules, OVERRIDES: read_overrides}
"""The functions that read the parts, in the order of their tags in a revision."""


def written(part: Part) -> bytes:
    """Return a part as it is published."""
    return json.dumps(part, separators=(",", ":")).encode()
