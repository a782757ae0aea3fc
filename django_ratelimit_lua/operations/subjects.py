"""Whom an override can be about, of what a request is described by; and the blocks that are about them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from ..identity import digest
from ..identity.forwarded import parse_network
from ..models import RateLimitOverride, RateLimitRule
from ..models.audit import current_actor
from ..rules.overrides import Effect, network_identity
from .described import Fields


class Subject(NamedTuple):
    """Whom an override can be about.

    `kind`: "user", "address", or a field as keys name it; `value`: the user, the address or network, or what is in the
    field.
    """

    kind: str
    value: Any

    def __str__(self) -> str:
        if self.kind == "user":
            return str(_("user %s") % self.value)
        return str(self.value) if self.kind == "address" else f"{field_words(self.kind)} = {self.value}"

    def override(
        self, effect: Effect, seconds: int | None, *, rule: RateLimitRule | None = None, reason: str = ""
    ) -> RateLimitOverride:
        """An override about them that is not saved yet: for so many seconds from now (None: for good), for a rule or
        for all. Raises `ValidationError`."""
        override = self._about()
        override.effect, override.rule, override.reason, override.created_by = effect, rule, reason, current_actor()
        override.ends = None if seconds is None else timezone.now() + datetime.timedelta(seconds=seconds)
        override.full_clean(exclude=["subject", "kind"])
        return override

    def blocks(self) -> list[RateLimitOverride]:
        """The blocks that are about exactly them and have not ended, those that have not begun among them."""
        about = self._about()
        about.full_clean(exclude=["subject", "kind", "limit"])
        about.prepare()
        blocks = RateLimitOverride.objects.lasting().filter(effect=RateLimitOverride.Effects.BLOCK, kind=about.kind)
        return list(blocks.filter(subject=about.subject).select_related("rule", "user"))

    def blocked_networks(self) -> list[RateLimitOverride]:
        """The blocks in force of larger networks that an address is in."""
        if self.kind != "address":
            return []
        own = parse_network(self.value)
        blocks = RateLimitOverride.objects.active().filter(effect=RateLimitOverride.Effects.BLOCK)
        kinds = blocks.filter(kind__startswith=f"ip{own.version}/").order_by().values_list("kind", flat=True).distinct()
        larger = [kind for kind in kinds if int(kind.partition("/")[2]) < own.prefixlen]
        digests = [digest(network_identity(own.network_address, kind)).decode() for kind in larger]
        return list(blocks.filter(kind__in=larger, subject__in=digests).select_related("rule"))

    def _about(self) -> RateLimitOverride:
        if self.kind == "user":
            return RateLimitOverride(effect="block", user=self.value)
        if self.kind == "address":
            return RateLimitOverride(effect="block", network=self.value)
        override = RateLimitOverride(effect="block", field=self.kind)
        override.set_value(self.value)
        return override


def subjects(user: Any, address: str | None, fields: Fields) -> list[Subject]:
    """Whom overrides can be about, where a request is described so."""
    named = [("user", user), ("address", address), *fields]
    return [Subject(kind, value) for kind, value in named if value]


def field_words(field: str) -> str:
    """A field as people say it.

    >>> field_words("post:username")
    'form field username'
    """
    kind, _colon, name = field.partition(":")
    words = {
        "header": _("header %s"),
        "cookie": _("cookie %s"),
        "get": _("query parameter %s"),
        "post": _("form field %s"),
        "json": _("JSON field %s"),
        "data": _("form or JSON field %s"),
    }
    return words.get(kind, f"{kind}:%s") % name


def end(overrides: Sequence[RateLimitOverride]) -> None:
    """End overrides now: one change."""
    with transaction.atomic(RateLimitOverride.objects.db):
        RateLimitOverride.objects.filter(pk__in=[override.pk for override in overrides]).update(ends=timezone.now())
