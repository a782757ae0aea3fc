"""Erase everything that is stored about one identity, in Redis and in the database.

An identity is stored as a digest under each secret that was in force. Its name is stored in
overrides, in the history, and in Redis as details of bans.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import permutations, product
from typing import Any

from django.apps import apps
from django.db import transaction
from django.db.models import Q, QuerySet

from ..conf import conf
from ..engine.bans import ban_list
from ..engine.decide import build_call, forgetting
from ..engine.run import run
from ..extension import extensions
from ..identity import Identity, digest, secrets_by_id
from ..identity.address import address_as
from ..identity.forwarded import parse_network
from ..identity.keys import EXACT, INT, field_identity, registered_keys, split_prefix
from ..identity.text import NO_NUMBER, normalised, number_spelling
from ..limits.call import Charge
from ..limits.limit import Limit
from ..models import RateLimitChange, RateLimitOverride, RateLimitRule
from ..models.audit import acting, current_actor
from ..publishing.publish import primary
from ..store import FLUSH_SECONDS, get_store
from .history_names import record_change
from .subjects import Subject

ERASED = "(erased)"
MIN_LETTERS = 3
"""Texts are not searched for shorter values, which are parts of too many others."""
IN_FLIGHT_SECONDS = 1.5 * FLUSH_SECONDS
"""After this time, every process has received the push, and has written what it was writing."""
_KINDS = (RateLimitChange.Kind.OVERRIDE, RateLimitChange.Kind.IDENTITY)
"""Kinds of entries of the history to erase in. Others can be restored, so they are kept."""
_NAMING = ("client", "subject", "label", "reason", "message", "who", "why", "digests")
"""The texts about the identity in a change of an override or ban."""


@dataclass(slots=True)
class Forgotten:
    """The number of erased items by kind; `kept` lists items that could not be erased."""

    erased: Counter[str] = field(default_factory=Counter)
    kept: list[str] = field(default_factory=list)


class ForgottenIdentity:
    """An identity to forget.

    It is one subject, or a combination of several that limits count together.

    - `digests`: the digests that limits count;
    - `published`: these digests, and the digests under which overrides are published;
    - `subject`: the one subject; empty for a combination.
    """

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self.subject = Subject()
        if len(subjects) == 1:
            self.subject = subjects[0]
        secrets = list(secrets_by_id().values())
        found = {subject.digest.encode() for subject in subjects if subject.digest}
        for parts in product(*map(_identities, subjects)):
            identities: list[Identity] = [*permutations(parts)]
            if len(parts) == 1:
                identities = [*parts]
            found.update(digest(each, secret) for each in identities for secret in secrets)
        self.digests = sorted(found)
        self.published = {each.decode() for each in self.digests}
        if self.subject.address:
            self.published.update(RateLimitOverride(network=self.subject.address).digests())
        patterns = sorted(self.published)
        for name in sorted(_values(self.subject), key=len, reverse=True):
            if len(name) >= MIN_LETTERS:
                patterns.append(rf"(?<!\w){re.escape(name)}(?!\w)")
        self._pattern = re.compile("|".join(patterns), re.IGNORECASE)

    def overrides(self) -> QuerySet[RateLimitOverride]:
        """Return the overrides about this identity, including those that have ended."""
        is_about = Q(subject__in=self.published) | Q(client_digest__in=self.published)
        if self.subject.user is not None:
            is_about |= Q(user=self.subject.user)
        return RateLimitOverride.objects.filter(is_about)

    def erase(self, value: object) -> Any:
        """Return a text, list or object without the digests and names of this identity."""
        if isinstance(value, str):
            return self._pattern.sub(ERASED, value)
        if isinstance(value, dict):
            return {
                key: self.erase(item) for key, item in value.items() if key not in self.published
            }
        if isinstance(value, list):
            return [self.erase(item) for item in value]
        return value

    def is_in(self, *values: object) -> bool:
        """Return whether any of these contains a digest or a name of this identity."""
        return any(self.erase(value) != value for value in values)


def _identities(subject: Subject) -> list[Identity]:
    if subject.user is not None:
        return [("user", str(subject.user.pk)), *_throttled(str(subject.user.pk))]
    if subject.address:
        addresses = (address_as(subject.address, "").network, subject.address)
        return [each for text in addresses for each in (("ip", text), *_throttled(str(text)))]
    if not subject.field:
        return []
    fields = {subject.field}
    if subject.field not in registered_keys():
        _prefix, field = split_prefix(subject.field)
        kind, _colon, name = field.partition(":")
        kinds = {kind}
        if kind in ("post", "json"):
            kinds.add("data")
        prefixes = ["", EXACT]
        if number_spelling(subject.value) != NO_NUMBER:
            prefixes.append(INT)
        fields = {f"{prefix}{each}:{name}" for each in kinds for prefix in prefixes}
    return [field_identity(each, subject.value) for each in fields]


def _throttled(ident: str) -> list[Identity]:
    """Return the identities by which DRF's throttle classes count a client, one per scope."""
    if find_spec("rest_framework") is None:
        return []
    from rest_framework.settings import api_settings
    from rest_framework.throttling import SimpleRateThrottle

    scopes = {"user", "anon", *(api_settings.DEFAULT_THROTTLE_RATES or ())}
    return [
        SimpleRateThrottle.cache_format % {"scope": scope, "ident": ident}
        for scope in sorted(scopes)
    ]


def _values(subject: Subject) -> list[str]:
    if subject.user is not None:
        return [str(subject.user)]
    if subject.address:
        return [subject.address]
    return [subject.value, normalised(subject.value)]


def single_address(text: str) -> str:
    """Return an address in its canonical form.

    Raises:
        ValueError: It is a network, which is many clients.
    """
    network = parse_network(text)
    if network.prefixlen != network.max_prefixlen:
        raise ValueError(f"{text!r} is a network; name one address")
    return str(network.network_address)


def forget(identity: ForgottenIdentity, *, with_overrides: bool) -> Forgotten:
    """Erase everything about an identity.

    The user in `acting` is recorded, without the identity.

    Raises:
        StoreError: Redis is unavailable. Then not everything is erased.
    """
    forgotten = Forgotten()
    # The history names them to the publisher, so they are erased from it after they are published
    # as deleted.
    of_overrides = set(identity.overrides().values_list("pk", flat=True))
    if with_overrides and of_overrides:
        identity.overrides().delete()
        forgotten.erased["overrides"] = len(of_overrides)
    _erase_in_redis(identity, forgotten.erased)
    time.sleep(IN_FLIGHT_SECONDS)
    _erase_in_redis(identity, forgotten.erased)
    _erase_in_database(identity, of_overrides, forgotten.erased)
    forgotten.kept = [
        f"{what}: {number} ({how})" for what, number, how in _kept(identity) if number
    ]
    return forgotten


def _erase_in_redis(identity: ForgottenIdentity, erased: Counter[str]) -> None:
    store = get_store(background=True)
    prefix = conf.CACHE_PREFIX
    charges = [Charge(Limit("forgotten", "1/s"), each) for each in identity.digests]
    # All processes drop refusals, leases and bans.
    run(forgetting(build_call(charges, "peek"), strict=True))
    tags = [b"{%b}:" % each for each in identity.digests]
    keys = sorted({key for tag in tags for key in store.find_keys(prefix + tag)})
    store.delete_keys(keys)
    gone = [key for key in ban_list.read() if any(tag in key for tag in tags)]
    if gone:
        ban_list.remove(gone)
    bans = sum(key.endswith(b":ban") for key in keys)
    details = sum(b":ban:" in key for key in keys)
    counts = len(keys) - bans - details
    erased.update({"bans": bans, "details of bans": details, "counts": counts})
    for extension in extensions:
        erased.update(extension.forget(identity.digests))


def _erase_in_database(
    identity: ForgottenIdentity, of_overrides: set[int], erased: Counter[str]
) -> None:
    using = primary()
    with transaction.atomic(using):
        changes = RateLimitChange.objects.using(using)
        for change in changes.filter(kind__in=_KINDS).iterator():
            if _erase_in_change(identity, change):
                erased["history entries"] += 1
                if change.kind == RateLimitChange.Kind.OVERRIDE and change.object_id is not None:
                    of_overrides.add(change.object_id)
        if identity.subject.user is not None:
            name = str(identity.subject.user)
            overrides = RateLimitOverride._base_manager.using(using).filter(created_by=name)
            erased["names of authors"] += changes.filter(by=name).update(by=ERASED)
            erased["names of authors"] += overrides.update(created_by=ERASED)
        erased["entries of the admin's log"] += _erase_in_admin_log(identity, of_overrides)
        with acting(identity.erase(current_actor())):
            record_change(RateLimitChange.Action.ENDED, [ERASED], {})


def _kept(identity: ForgottenIdentity) -> Iterator[tuple[str, int, str]]:
    """Yield what mentions the identity but is not erased: its kind, its number and the remedy."""
    own = identity.overrides().values("pk")
    yield "overrides about the identity", own.count(), "--overrides deletes them"
    rules = [rule.name for rule in RateLimitRule.objects.all() if identity.is_in(rule.spec)]
    yield "rules that mention the identity", len(rules), f"edit them: {', '.join(rules)}"
    changes = RateLimitChange.objects.using(primary()).exclude(kind__in=_KINDS).iterator()
    number = sum(identity.is_in(change.name, change.before, change.after) for change in changes)
    how = "delete them with `manage.py ratelimit history prune`"
    yield "earlier versions of rules that mention the identity", number, how
    number = sum(
        identity.is_in(each.label, each.reason, each.message)
        for each in RateLimitOverride.objects.exclude(pk__in=own)
    )
    how = "edit their labels, reasons and messages"
    yield "other overrides that mention the identity", number, how


def _erase_in_change(identity: ForgottenIdentity, change: RateLimitChange) -> bool:
    """Erase an identity in one entry of the history. Return whether the entry contained it."""
    if not identity.is_in(change.name, change.before, change.after):
        return False
    is_override = change.kind == RateLimitChange.Kind.OVERRIDE
    change.name = identity.erase(change.name)
    for side in ("before", "after"):
        value = getattr(change, side)
        declared = value or {}
        digests = {*declared.get("subject", "").split(","), *declared.get("digests", ())} - {""}
        common = digests & identity.published
        if common and (is_override or common == digests):
            value = {name: declared[name] for name in declared if name not in _NAMING}
            if is_override:
                value["client"] = change.name = ERASED
        setattr(change, side, identity.erase(value))
    change.save(update_fields=["name", "before", "after"])
    return True


def _erase_in_admin_log(identity: ForgottenIdentity, of_overrides: set[int]) -> int:
    if not apps.is_installed("django.contrib.admin"):
        return 0
    from django.contrib.admin.models import LogEntry

    number = 0
    named = {str(pk) for pk in of_overrides}
    of_model = {
        "content_type__app_label": RateLimitOverride._meta.app_label,
        "content_type__model": RateLimitOverride._meta.model_name,
    }
    for entry in LogEntry.objects.filter(**of_model).iterator():
        if entry.object_id in named or identity.is_in(entry.object_repr):
            entry.object_repr = ERASED
            entry.save(update_fields=["object_repr"])
            number += 1
    return number
