"""The subjects of overrides, and the overrides of each."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import router, transaction
from django.utils import timezone

from ..identity import Identity, digest, secrets_by_id
from ..identity.address import network_words, parse_network
from ..identity.keys import field_identity
from ..models import RateLimitOverride, RateLimitRevision
from ..models.audit import current_actor, one_change
from ..rules.describe import field_words
from ..rules.overrides import EVERY_RULE, Effect

_EFFECT = attrgetter("kind", "rule", "effect", "rate", "burst", "forbids", "message")


class Subject(NamedTuple):
    """The subject of an override.

    It is a user, an address or network, the value of a field, or the digest of a client.
    """

    user: User | None = None
    address: str = ""
    field: str = ""
    value: str = ""
    digest: str = ""

    def __str__(self) -> str:
        if self.field:
            return f"{field_words(self.field)} = {self.value}"
        return self.new_override().client()

    def digests(self) -> list[str]:
        """Return the digests of this client under each secret, the current one first."""
        if self.digest:
            return [self.digest]
        identity: Identity = ("ip", self.address)
        if self.field:
            identity = field_identity(self.field, self.value)
        elif self.user is not None:
            identity = ("user", str(self.user.pk))
        return [digest(identity, secret).decode() for secret in secrets_by_id().values()]

    def make_override(
        self,
        effect: Effect,
        seconds: int | None,
        *,
        rule: str = EVERY_RULE,
        reason: str = "",
        label: str = "",
    ) -> RateLimitOverride:
        """Return a valid override about the subject, which is not saved.

        Args:
            effect: Its effect.
            seconds: How long it lasts; None: for good.
            rule: The name of the rule or limit in the code that it is for.
            reason: The reason for it.
            label: A text for a client without a stored name.

        Raises:
            ValidationError: It is not valid.
        """
        override = self.new_override(
            effect=effect, rule=rule, reason=reason, label=label, created_by=current_actor()
        )
        if seconds is not None:
            override.ends = timezone.now() + datetime.timedelta(seconds=seconds)
        override.full_clean(exclude=["subject", "kind"])
        return override

    def find_blocks(self) -> list[RateLimitOverride]:
        """Return the blocks of exactly this subject that have not ended, including future ones."""
        # With an end, because a digest is not valid without one.
        block = self.new_override(effect="block", ends=timezone.now())
        block.full_clean(exclude=["subject", "kind"])
        block.prepare()
        # A value may have been entered under an earlier secret.
        digests = [*block.digests(), *self.digests()]
        blocks = RateLimitOverride.objects.lasting().filter(
            effect="block", kind=block.kind, subject__in=digests
        )
        return list(blocks.select_related("user"))

    def find_wider_blocks(self) -> list[RateLimitOverride]:
        """Return the blocks in force on larger networks that contain an address or network."""
        if not self.address:
            return []
        network = network_words(parse_network(self.address))
        return [
            override
            for override in network_overrides(self.address)
            if override.effect == "block" and override.network != network
        ]

    def new_override(self, **values: Any) -> RateLimitOverride:
        """Return an override about the subject with these values, unchecked and not saved."""
        override = RateLimitOverride(
            user=self.user,
            network=self.address,
            field=self.field,
            client_digest=self.digest,
            **values,
        )
        if self.field:
            override.set_value(self.value)
        return override


def network_overrides(text: str) -> list[RateLimitOverride]:
    """Return the overrides in force on a network (or an address), and on those that contain it."""
    network = parse_network(text)
    lengths = range(network.prefixlen + 1)
    texts = [network_words(network.supernet(new_prefix=length)) for length in lengths]
    return list(RateLimitOverride.objects.active().filter(network__in=texts))


def add_override(override: RateLimitOverride) -> RateLimitOverride:
    """Save an override, unless an equal one has not ended. Return the one that exists now.

    Concurrent callers wait for each other, so that only one of them adds an override.
    """
    using = router.db_for_write(RateLimitOverride)
    with one_change(using):
        RateLimitRevision.lock(using)
        override.prepare()
        lasting = RateLimitOverride.objects.lasting().filter(subject__in=override.digests())
        # Locked, so that the current rows are read, and not those of the start of this transaction.
        for other in lasting.order_by("pk").select_for_update():
            if _are_equal(override, other):
                return other
        override.save()
    return override


def _are_equal(override: RateLimitOverride, other: RateLimitOverride) -> bool:
    """Return whether two overrides of a subject have the same effect at the same time.

    Times may differ by a minute, and reasons too.
    """
    now = timezone.now()
    return (
        _EFFECT(override) == _EFFECT(other)
        and _are_near(max(override.starts or now, now), max(other.starts or now, now))
        and _are_near(override.ends, other.ends)
    )


def _are_near(moment: datetime.datetime | None, other: datetime.datetime | None) -> bool:
    """Return whether two moments differ by a minute at most. None is never."""
    if moment is None or other is None:
        return moment is other
    return abs(moment - other) <= datetime.timedelta(minutes=1)


def end_overrides(overrides: Sequence[RateLimitOverride]) -> list[RateLimitOverride]:
    """End overrides now, in one change.

    Other overrides with the same effect on the same subject under the same rule end as well,
    because otherwise the effect would continue.

    Returns:
        All overrides that have ended.
    """
    with transaction.atomic(RateLimitOverride.objects.db):
        ending = {override.pk: override for override in overrides}
        for override in overrides:
            alike = RateLimitOverride.objects.active().filter(
                subject__in=override.digests(),
                kind=override.kind,
                effect=override.effect,
                rule=override.rule,
            )
            ending = alike.in_bulk() | ending
        RateLimitOverride.objects.filter(pk__in=ending).update(ends=timezone.now())
    return list(ending.values())


def find_user(name: str) -> User | None:
    """Return the user of that name or primary key; None if no user has it."""
    model = get_user_model()
    for field in (model.USERNAME_FIELD, "pk"):
        # Not every text can be a primary key, or is accepted by every database.
        with suppress(ValueError, OverflowError, TypeError, ValidationError):
            user = model._default_manager.filter(**{field: name}).first()
            if user is not None:
                return user
    return None
