"""The parts of the snapshot, made from the rows of the database; see `rules.snapshot.Snapshot`."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from django.db import DatabaseError, transaction
from django.db.models import F

from ..extension import extensions
from ..identity import digest, is_digest, secrets_by_id
from ..identity.address import parse_network
from ..models import RateLimitHost, RateLimitOverride, RateLimitRule
from ..models.change import RevisionRow
from ..models.override import PUBLISHED, published_entry, user_identity
from ..rules.overrides import (
    EVERY_RULE,
    Entry,
    Override,
    client_key,
    lookup_field,
    network_key,
    network_kind,
    value_key,
)
from ..rules.snapshot import SECTIONS, section_number, split_tags

logger = logging.getLogger("django_ratelimit_lua")
BATCH = 1000
Part = Mapping[str, object]
_SUBJECT = ("user_id", "network", "client_digest", "kind", "subject", "digested_by")


def read_rules(using: str, row: RevisionRow) -> Part:
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


def read_sections(using: str, row: RevisionRow, numbers: Collection[int]) -> dict[int, Part]:
    """Return some sections of the overrides, by number, without overrides that have ended."""
    secrets = secrets_by_id()
    tags = split_tags(row.sections) or [""] * SECTIONS  # No rule or override was ever saved.
    sections = {number: Section(tags[number], list(secrets)) for number in numbers}
    rows = RateLimitOverride.objects.using(using).lasting().order_by("pk")
    if len(sections) < SECTIONS:
        rows = rows.alias(section=F("pk") % SECTIONS).filter(section__in=sections)
    for values in rows.values(*_SUBJECT, *PUBLISHED).iterator(chunk_size=BATCH):
        sections[section_number(values["id"])].add(values, secrets)
    return {number: section.part() for number, section in sections.items()}


class Section:
    """Collects the overrides of a section, see `Snapshot.overrides`."""

    def __init__(self, tag: str, keys: Sequence[str]) -> None:
        self._tag = tag
        self._keys = keys
        self._entries: defaultdict[str, list[Entry]] = defaultdict(list)
        self._fields: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._networks: dict[str, None] = {}
        self._value_keys: dict[str, None] = {}
        self._has_blocks = False
        self._problems: list[str] = []

    def add(self, row: Mapping[str, Any], secrets: Mapping[str, str | bytes]) -> None:
        """Add the override of a row, or the reason why it is invalid: it was edited by hand."""
        try:
            self._add_valid(row, secrets)
        except ValueError as error:
            self._problems.append(f"the override of row {row['id']} is invalid: {error}")

    def _add_valid(self, row: Mapping[str, Any], secrets: Mapping[str, str | bytes]) -> None:
        """Add the override of a row. Raises `ValueError` if it is invalid."""
        entry = published_entry(row)
        Override.parse(entry, row["kind"], b"")
        if not (row["network"] or is_digest(row["client_digest"] or row["subject"])):
            raise ValueError("the digest of its client is missing")
        kind = row["kind"]
        if row["client_digest"]:
            keys = [client_key(row["client_digest"])]
        elif row["network"]:
            kind, key = _network_place(row["network"])
            keys = [key]
            self._networks[kind] = None
        elif row["user_id"] is not None:
            keys = [value_key(kind, subject) for subject in _user_digests(row, secrets)]
        else:
            keys = [value_key(kind, row["subject"])]
            self._value_keys[row["digested_by"]] = None
        for key in keys:
            self._entries[key].append(entry)
        self._fields[row["rule"]][lookup_field(kind)] = None
        if row["effect"] == RateLimitOverride.Effects.BLOCK and row["rule"] == EVERY_RULE:
            self._has_blocks = True

    def part(self) -> Part:
        """Return the section as it is published."""
        return {
            "tag": self._tag,
            "fields": {rule: list(kinds) for rule, kinds in self._fields.items()},
            "blocks": self._has_blocks,
            "keys": self._keys,
            "value_keys": list(self._value_keys),
            "networks": list(self._networks),
            "entries": self._entries,
            "problems": self._problems,
        }


@lru_cache(maxsize=32_768)
def _network_place(text: str) -> tuple[str, str]:
    """Return the kind of a network, and the key under which its overrides are published; cached."""
    network = parse_network(text)
    kind = network_kind(network.version, network.prefixlen)
    prefix = int(network.network_address) >> (network.max_prefixlen - network.prefixlen)
    return kind, network_key(kind, prefix)


def _user_digests(row: Mapping[str, Any], secrets: Mapping[str, str | bytes]) -> Sequence[str]:
    """Return the digests of a user with each key. The row has one of them."""
    if len(secrets) == 1 and row["digested_by"] in secrets:
        return [row["subject"]]
    identity = user_identity(row["user_id"])
    return [digest(identity, secret).decode() for secret in secrets.values()]


def encode_part(part: Part) -> bytes:
    """Return a part as it is published."""
    return json.dumps(part, separators=(",", ":")).encode()
