"""Subjects that an override can be about, of what a request is described by.

And the blocks that are about them.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from django.db import router, transaction
from django.utils import timezone

from ..identity import Identity, digest, secrets_by_id
from ..identity.forwarded import parse_network
from ..identity.keys import field_identity
from ..models import RateLimitOverride, RateLimitRevision, RateLimitRule
from ..models.audit import current_actor, one_change
from ..rules.describe import field_words
from ..rules.overrides import EFFECTS, Effect
from .confirmations import override_confirmations
from .request_builder import Fields

_EFFECT = attrgetter("kind", "rule_id", "effect", "rate", "burst", "forbids", "message")
MAX_SHOWN = 50
"""Maximum number of reported overrides about a network: the largest first."""


class NetworkOverride(NamedTuple):
    """An override about a network, and which part of it: "all", a "larger" network, or a "part".

    `blocks_all`: it blocks every address of the network, except those with a more specific
    override.
    """

    part: Literal["larger", "all", "part"]
    override: RateLimitOverride
    blocks_all: bool = False


class Subject(NamedTuple):
    """What an override can be about: a user, an address or network, the value of a field, or the
    digest of a client.

    `label`: a name for a client of which only the digest is known.
    """

    user: Any = None
    address: str = ""
    field: str = ""
    value: str = ""
    digest: str = ""
    label: str = ""

    def __str__(self) -> str:
        return f"{field_words(self.field)} = {self.value}" if self.field else self._about().client()

    def client(self) -> str:
        """The digest of the client that a limit counts by this subject alone."""
        identity: Identity = ("ip", self.address)
        if self.field:
            identity = field_identity(self.field, self.value)
        elif self.user is not None:
            identity = ("user", str(self.user.pk))
        return self.digest or digest(identity).decode()

    def override(
        self,
        effect: Effect,
        seconds: int | None,
        *,
        rule: RateLimitRule | None = None,
        reason: str = "",
        label: str = "",
    ) -> RateLimitOverride:
        """An unsaved override about the subject: for this number of seconds (None: for good), for a
        rule or for all.

        `label`: a text for a client without a stored name. Raises `ValidationError`.
        """
        override = self._about()
        override.label = label or self.label
        override.effect, override.rule, override.reason, override.created_by = (
            effect,
            rule,
            reason,
            current_actor(),
        )
        override.ends = (
            None if seconds is None else timezone.now() + datetime.timedelta(seconds=seconds)
        )
        override.full_clean(exclude=["subject", "kind"])
        return override

    def confirmations(self, effect: Effect, peer: str | None = None) -> list[str]:
        """What has to be confirmed before an override about them is saved, as
        `override_confirmations` has it.
        """
        given = {"effect": effect, "networks": [self.address] if self.address else []}
        return [str(problem) for _field, problem in override_confirmations(given, peer)]

    def blocks(self) -> list[RateLimitOverride]:
        """The blocks that are about exactly them and have not ended, those that have not begun
        among them.
        """
        about = self._about()
        about.ends = timezone.now()  # A digest is not valid without an end.
        about.full_clean(exclude=["subject", "kind"])
        about.prepare()
        digests = about.digests()
        if self.field:  # Which may have been entered under an earlier key.
            identity = field_identity(self.field, self.value)
            digests = [digest(identity, secret).decode() for secret in secrets_by_id().values()]
        blocks = RateLimitOverride.objects.lasting().filter(
            effect=RateLimitOverride.Effects.BLOCK, kind=about.kind
        )
        return list(blocks.filter(subject__in=digests).select_related("rule", "user"))

    def wider_blocks(self) -> list[RateLimitOverride]:
        """The blocks in force of larger networks that an address or network is in."""
        found = self.network_overrides() if self.address else []
        return [
            one.override for one in found if one.part == "larger" and one.override.effect == "block"
        ]

    def network_overrides(self) -> list[NetworkOverride]:
        """The overrides in force about all of a network, about larger ones that it is in, and about
        parts of it.
        """
        own = parse_network(self.address)
        overrides = (
            RateLimitOverride.objects.active()
            .filter(kind__startswith=f"ip{own.version}/")
            .order_by("pk")
        )
        near: list[tuple[int, int]] = []
        for pk, text in overrides.values_list("pk", "network"):
            with suppress(ValueError):  # A row was edited by hand.
                other = parse_network(text)
                if own.overlaps(other):
                    near.append((other.prefixlen - own.prefixlen, pk))
        rows = RateLimitOverride.objects.select_related("rule").in_bulk(
            [pk for _bits, pk in sorted(near)[:MAX_SHOWN]]
        )
        found = [(bits, rows[pk]) for bits, pk in sorted(near) if pk in rows]
        whole = [
            (bits, -EFFECTS.index(one.effect), one.pk)
            for bits, one in found
            if bits <= 0 and one.rule_id is None
        ]
        strongest = max(whole, default=(0, -1, 0))
        return [
            NetworkOverride(
                "all" if bits == 0 else "part" if bits > 0 else "larger",
                one,
                strongest[1] == -EFFECTS.index("block") and strongest[2] == one.pk,
            )
            for bits, one in found
        ]

    def _about(self) -> RateLimitOverride:
        about = RateLimitOverride(
            effect="block",
            user=self.user,
            network=self.address,
            field=self.field,
            client_digest=self.digest,
            label=self.label,
        )
        if self.field:
            about.set_value(self.value)
        return about


def subjects(user: Any, address: str | None, fields: Fields) -> dict[str, Subject]:
    """The subjects of a request that is described so: by "user", "address" or the field as keys
    name it.
    """
    named = {"user": Subject(user)} if user else {}
    if address:
        named["address"] = Subject(address=address)
    return named | {field: Subject(field=field, value=value) for field, value in fields if value}


def add(overrides: Sequence[RateLimitOverride]) -> list[RateLimitOverride]:
    """Save overrides in one change, except those with an equal one that has not ended.

    Return the existing one for each: itself, or that other.

    Concurrent callers wait for each other, so that only one of them adds an override.
    """
    using = router.db_for_write(RateLimitOverride)
    with one_change(using):
        RateLimitRevision.lock(using)
        for override in overrides:
            override.prepare()
        about = {digest for override in overrides for digest in override.digests()}
        # Locked, so that the current row is read, and not that of the start of this transaction.
        there = list(
            RateLimitOverride.objects.lasting()
            .filter(subject__in=about)
            .order_by("pk")
            .select_for_update()
        )
        result = []
        for override in overrides:
            same = next((other for other in there if _say_the_same(override, other)), None)
            result.append(same or override)
        new = [override for override in result if override.pk is None]
        for override in new[:1]:
            override.save()  # Its key is known then, in every database.
        RateLimitOverride.objects.bulk_create(new[1:])
    return result


def _say_the_same(one: RateLimitOverride, other: RateLimitOverride) -> bool:
    """Whether two overrides do the same for the same, for as long, give or take a minute.

    Reasons may differ.
    """
    now = timezone.now()
    starts = [max(override.starts or now, now) for override in (one, other)]
    is_same_time = _near(*starts) and _near(one.ends, other.ends)
    return other.subject in one.digests() and _EFFECT(one) == _EFFECT(other) and is_same_time


def _near(one: datetime.datetime | None, other: datetime.datetime | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= datetime.timedelta(minutes=1)


def end(overrides: Sequence[RateLimitOverride]) -> list[RateLimitOverride]:
    """End overrides now, and with each those in force that have the same effect on the same subject
    by the same rule: else it would go on.

    One change; returns all that have ended.
    """
    with transaction.atomic(RateLimitOverride.objects.db):
        ending = {override.pk: override for override in overrides}
        for override in overrides:
            alike = RateLimitOverride.objects.active().filter(
                subject__in=override.digests(), kind=override.kind
            )
            for other in alike.filter(effect=override.effect, rule=override.rule_id):
                ending.setdefault(other.pk, other)
        RateLimitOverride.objects.filter(pk__in=ending).update(ends=timezone.now())
    return list(ending.values())
