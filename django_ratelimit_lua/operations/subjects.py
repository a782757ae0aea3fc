"""Whom an override can be about, of what a request is described by; and the blocks that are about them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from django.conf import settings
from django.db import router, transaction
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _

from ..conf import conf
from ..identity.address import client_address
from ..identity.forwarded import parse_network
from ..identity.keys import read_fields, split_field
from ..identity.session import session_key
from ..models import RateLimitOverride, RateLimitRevision, RateLimitRule
from ..models.audit import current_actor, one_change
from ..rules.describe import field_words, together
from ..rules.overrides import EFFECTS, MOST_FIELDS, USER, Effect, kind_parts, network_kind
from .described import Fields
from .surprises import override_surprises

MOST_SHOWN = 50
"""Overrides about a network that are told of: the largest first."""


class NetworkOverride(NamedTuple):
    """An override about a network, and which part of that it is about: "all", a "larger" network, or a "part".
    `blocks_all`: every address of the network is blocked by it, but where something more particular is said."""

    part: Literal["larger", "all", "part"]
    override: RateLimitOverride
    blocks_all: bool = False


class Subject(NamedTuple):
    """Whom an override can be about: a user, an address or network, or what is in fields, as keys name them; all of
    them together, as far as they are there."""

    user: Any = None
    address: str = ""
    fields: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        values = _(" and ").join(f"{field_words(field)} = {value}" for field, value in self.fields)
        if self.address and self.user is None and not values:
            return self.address
        return together(self.user, self.address, values)

    def override(
        self,
        effect: Effect,
        seconds: int | None,
        *,
        rule: RateLimitRule | None = None,
        reason: str = "",
        label: str = "",
    ) -> RateLimitOverride:
        """An override about them that is not saved yet: for so many seconds from now (None: for good), for a rule or
        for all. `label`: a name for who sends a value, which is not kept. Raises `ValidationError`."""
        override = self._about()
        override.label = label
        override.effect, override.rule, override.reason, override.created_by = effect, rule, reason, current_actor()
        override.ends = None if seconds is None else timezone.now() + datetime.timedelta(seconds=seconds)
        override.full_clean(exclude=["subject", "kind"])
        return override

    def surprises(self, effect: Effect, peer: str | None = None) -> list[str]:
        """What has to be confirmed before an override about them is saved, as `override_surprises` has it."""
        networks = [self.address] if self.address else []
        given = {"effect": effect, "user": self.user, "field": self.fields, "networks": networks}
        return [str(problem) for _field, problem in override_surprises(given, peer)]

    def blocks(self) -> list[RateLimitOverride]:
        """The blocks that are about exactly them and have not ended, those that have not begun among them."""
        about = self._about()
        about.full_clean(exclude=["subject", "kind", "limit"])
        about.prepare()
        blocks = RateLimitOverride.objects.lasting().filter(effect=RateLimitOverride.Effects.BLOCK, kind=about.kind)
        return list(blocks.filter(subject=about.subject).select_related("rule", "user"))

    def wider_blocks(self) -> list[RateLimitOverride]:
        """The blocks in force that are about others as well: about a larger network, or about some of what these are
        together."""
        own = self._about()
        own.prepare()
        blocks = RateLimitOverride.objects.active().filter(effect=RateLimitOverride.Effects.BLOCK)
        kinds = blocks.exclude(kind=own.kind).order_by().values_list("kind", flat=True).distinct()
        found = {kind: subject for kind in kinds if (subject := self._as_kind(kind))}
        meant = blocks.filter(kind__in=found, subject__in=found.values()).select_related("rule", "user")
        return [block for block in meant if found[block.kind] == block.subject]

    def _as_kind(self, kind: str) -> str:
        """The digest of as much of them as such a kind is about; empty where they are not all of that."""
        fields, about = dict(self.fields), RateLimitOverride()
        parts = kind_parts(kind)
        if USER in parts:
            about.user = self.user
        own = parse_network(self.address) if self.address else None
        for size in range(own.prefixlen + 1 if own is not None else 0):
            if own is not None and network_kind(own.version, size) in parts:
                about.network = f"{own.network_address}/{size}"
        held = [part for part in parts if part in fields]
        about.field = ", ".join(held)
        about.set_value({field: fields[field] for field in held})
        about.prepare()
        return about.subject if about.kind == kind else ""

    def network_overrides(self) -> list[NetworkOverride]:
        """The overrides in force about a network of several addresses: about all of it, about larger ones that it is
        in, and about parts of it."""
        own = parse_network(self.address)
        kind = f"ip{own.version}/"
        overrides = RateLimitOverride.objects.active().filter(kind__startswith=kind).order_by("pk")
        near: list[tuple[int, int]] = []
        for pk, of, text in overrides.values_list("pk", "kind", "network"):
            if of.removeprefix(kind).isdigit():
                with suppress(ValueError):  # Somebody wrote to a row by hand.
                    other = parse_network(text)
                    if own.overlaps(other):
                        near.append((other.prefixlen - own.prefixlen, pk))
        rows = RateLimitOverride.objects.select_related("rule").in_bulk([pk for _bits, pk in sorted(near)[:MOST_SHOWN]])
        found = [(bits, rows[pk]) for bits, pk in sorted(near) if pk in rows]
        whole = [(bits, -EFFECTS.index(one.effect), one.pk) for bits, one in found if bits <= 0 and one.rule_id is None]
        strongest = max(whole, default=(0, -1, 0))
        return [
            NetworkOverride(
                "all" if bits == 0 else "part" if bits > 0 else "larger", one,
                strongest[1] == -EFFECTS.index("block") and strongest[2] == one.pk,
            )
            for bits, one in found
        ]  # fmt: skip

    def _about(self) -> RateLimitOverride:
        about = RateLimitOverride(effect="block", user=self.user, network=self.address)
        about.field = ", ".join(field for field, _value in self.fields)
        about.set_value(dict(self.fields))
        return about


def subjects(user: Any, address: str | None, fields: Fields) -> dict[str, Subject]:
    """Whom overrides can be about, where a request is described so, each by itself: by "user", "address" or the field
    as keys name it."""
    named = {"user": Subject(user)} if user else {}
    if address:
        named["address"] = Subject(address=address)
    return named | {field: Subject(fields=((field, value),)) for field, value in fields if value}


def counted_subject(key: str, request: HttpRequest, address: str) -> Subject | None:
    """Whom a limit counts that is keyed so, for a request that comes from an address or network, as an override can be
    about them; None where it cannot: where something is not there, or not known, or a function says whom it counts.

    Paths and routes are left out: an override is about who asks, and not what for.
    """
    user, network, fields = None, "", dict[str, str]()
    for part in key.split("+"):
        if part in ("path", "route"):
            continue
        if part in ("user", "user_or_ip") and request.user.is_authenticated:
            user = request.user
        elif part == "session" and session_key(request) is not None:
            name = settings.SESSION_COOKIE_NAME
            fields[f"cookie:{name}"] = request.COOKIES[name]
        elif part in ("ip", "user_or_ip", "session"):
            network = _counted_network(request, address)
            if not network:
                return None
        elif split_field(part) is not None:
            found = read_fields(part, request)
            if len(found) != 1:
                return None
            fields[part] = str(found[0][-1])
        else:
            return None
    subject = Subject(user, network, tuple(fields.items()))
    return None if subject == Subject() or len(fields) > MOST_FIELDS else subject


def _counted_network(request: HttpRequest, address: str) -> str:
    """The network that is counted for an address, or what is larger of what was entered; empty where none was."""
    own = client_address(request).address
    if not address or own is None:
        return ""
    size = min(parse_network(address).prefixlen, conf.IPV4_MASK if own.version == 4 else conf.IPV6_MASK)
    return str(own) if size == own.max_prefixlen else str(parse_network(f"{own}/{size}"))


def add(overrides: Sequence[RateLimitOverride]) -> list[RateLimitOverride]:
    """Save overrides, each unless one that says the same has not ended: one change. Returns for each the one that is
    there now: itself, or that other.

    Who adds any waits for who is adding some, so that of two who send the same at once, one adds it.
    """
    using = router.db_for_write(RateLimitOverride)
    with one_change(using):
        RateLimitRevision.lock(using)
        for override in overrides:
            override.prepare()
        about = {digest for override in overrides for digest in override.digests()}
        # Locked, so that it is read as it is now, and not as it was where this transaction began.
        there = list(RateLimitOverride.objects.lasting().filter(subject__in=about).order_by("pk").select_for_update())
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
    """Whether two overrides do the same for the same, for as long, give or take a minute. Reasons may differ."""

    def said(override: RateLimitOverride) -> Any:
        what = [override.kind, override.rule_id, override.effect]
        if override.effect == RateLimitOverride.Effects.LIMIT:
            return [*what, override.rate, override.burst]
        return [*what, override.forbids, override.message]

    now = timezone.now()
    starts = [max(override.starts or now, now) for override in (one, other)]
    is_same_time = _near(*starts) and _near(one.ends, other.ends)
    return other.subject in one.digests() and said(one) == said(other) and is_same_time


def _near(one: datetime.datetime | None, other: datetime.datetime | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= datetime.timedelta(minutes=1)


def end(overrides: Sequence[RateLimitOverride]) -> list[RateLimitOverride]:
    """End overrides now, and with each those in force that have the same effect on the same subject by the same rule:
    else it would go on. One change; returns all that have ended."""
    with transaction.atomic(RateLimitOverride.objects.db):
        ending = {override.pk: override for override in overrides}
        for override in overrides:
            alike = RateLimitOverride.objects.active().filter(subject__in=override.digests(), kind=override.kind)
            for other in alike.filter(effect=override.effect, rule=override.rule_id):
                ending.setdefault(other.pk, other)
        RateLimitOverride.objects.filter(pk__in=ending).update(ends=timezone.now())
    return list(ending.values())
