"""Overrides as rows: for one subject, or for several things together, other numbers, an exemption or a block."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..identity import Identity, digest, key_id, secrets_by_id
from ..identity.forwarded import parse_network
from ..identity.keys import FIELD_KINDS, field_identity, split_field
from ..limits.decision import PLAIN_BLOCK, Block
from ..limits.rate import LimitError, Rate
from ..rules.describe import field_words, together
from ..rules.overrides import (
    AND,
    MOST_FIELDS,
    USER,
    Effect,
    Override,
    combined_identity,
    combined_kind,
    exact_kind,
    network_identity,
    network_kind,
    split_fields,
)
from ..rules.rule import RuleError
from .audit import AuditedModel, AuditedQuerySet, Change, Declared, Deletion
from .change import RateLimitChange
from .rate_fields import RateFields, problem_text
from .rule import RateLimitRule

NO_FIELD = _("Enter one of %(kinds)s, a colon and a name, for example header:X-API-Key.")
FIRST_YEAR, LAST_YEAR = 1972, 9600
"""Leap years, so that every day can be moved into them."""


class OverrideQuerySet(AuditedQuerySet["RateLimitOverride"]):
    """Overrides, and which of them are in force."""

    def lasting(self) -> OverrideQuerySet:
        """Those that have not ended."""
        return self.filter(models.Q(ends=None) | models.Q(ends__gt=timezone.now()))

    def between(self, start: datetime.datetime, end: datetime.datetime) -> OverrideQuerySet:
        """Those that were in force at some time from one moment on, before another."""
        began, lasted = models.Q(starts=None) | models.Q(starts__lt=end), models.Q(ends=None) | models.Q(ends__gt=start)
        return self.filter(began & lasted, created_at__lt=end)

    def active(self) -> OverrideQuerySet:
        """Those in force now."""
        return self.lasting().filter(models.Q(starts=None) | models.Q(starts__lte=timezone.now()))


class RateLimitOverride(RateFields, AuditedModel):
    """What is said of one user, of one address or network, or of who sends one value; or of who is all of these at
    once, as far as they are filled in.

    `field` may list several, at most three: `"header:X-Tenant, post:username"`; `set_value` takes a value for each, by
    its field.
    """

    CHANGE_KIND = RateLimitChange.Kind.OVERRIDE

    class Effects(models.TextChoices):
        """What it does."""

        LIMIT = "limit", _("another limit")
        EXEMPT = "exempt", _("exempt: no limit")
        BLOCK = "block", _("block: every request is refused")

    rule = models.ForeignKey(
        RateLimitRule, models.CASCADE, related_name="overrides", null=True, blank=True, verbose_name=_("rule"),
        help_text=_("Empty: all rules."),
    )  # fmt: skip
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", null=True, blank=True, verbose_name=_("user")
    )
    network = models.CharField(
        _("address or network"), max_length=49, blank=True, help_text=_("For example 203.0.113.9 or 2001:db8::/48.")
    )
    field = models.CharField(
        _("field"), max_length=200, blank=True,
        help_text=_(
            "The field that identifies the client: header:X-API-Key, post:username. Only the digest of its value is "
            "stored."
        ),
    )  # fmt: skip
    label = models.CharField(
        _("label"), max_length=200, blank=True, help_text=_("A name for this client, because the value is not stored.")
    )
    value_digests = models.CharField(
        _("digests of the values"), max_length=200, blank=True, default="", db_default="", editable=False
    )
    kind = models.CharField(_("kind"), max_length=250, editable=False)
    subject = models.CharField(_("digest"), max_length=32, editable=False, db_index=True)
    digested_by = models.CharField(_("id of the key of the digest"), max_length=8, default=key_id, editable=False)
    effect = models.CharField(_("effect"), max_length=6, choices=Effects.choices, default=Effects.LIMIT)
    starts = models.DateTimeField(_("starts"), null=True, blank=True, help_text=_("Empty: now."))
    ends = models.DateTimeField(_("ends"), null=True, blank=True, help_text=_("Empty: never."))
    forbids = models.BooleanField(
        _("answer 403"), default=False, db_default=False,
        help_text=_("Blocks: “403 Forbidden” without a time to come back, instead of “429 Too Many Requests”."),
    )  # fmt: skip
    message = models.CharField(
        _("message"),
        max_length=300,
        blank=True,
        default="",
        db_default="",
        help_text=_("Blocks: the text for who is blocked."),
    )
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    created_by = models.CharField(_("created by"), max_length=254, blank=True, editable=False)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    objects = OverrideQuerySet.as_manager()

    class Meta:
        verbose_name = _("override")
        verbose_name_plural = _("overrides")
        ordering = ("-created_at", "-pk")
        permissions = (("block_identity", "May block and unblock, exempt and reset identities"),)
        indexes = (
            models.Index(fields=("kind", "rule"), name="ratelimit_override_kinds"),
            models.Index(fields=("ends",), name="ratelimit_override_ends"),
        )

    def __str__(self) -> str:
        return self.whom()[:300]

    def whom(self) -> str:
        """Whom it is about, in words; nothing secret."""
        fields, label = split_fields(self.field), self.label or _("without a label")
        if self.user_id is None and len(fields) + bool(self.network) < 2:
            return self.network or f"{self.field} ({label})"
        user: Any = self.user_id
        if user is not None:
            with suppress(ObjectDoesNotExist):  # It may be on its way out.
                user = self.user
        values = f"{_(' and ').join(map(field_words, fields))} ({label})" if fields else ""
        return together(user, self.network, values)

    def set_value(self, value: str | Mapping[str, str]) -> None:
        """Keep the digest of the field's value, in the one spelling that requests are compared in. Of several fields,
        those of their values: `{"header:X-Tenant": "acme", "post:username": "alice"}`.

        There is none where nothing is left of a value, or a field is none; `clean` says which. Raises `ValueError`
        where it is not said of which field a value is, or of one that is not in `field`.
        """
        fields = split_fields(self.field)
        if isinstance(value, str):
            if len(fields) > 1:
                raise ValueError(f"Of which field is this the value? Use a mapping with {', '.join(fields)}")
            value = dict.fromkeys(fields, value)
        if odd := sorted(set(value) - set(fields)):
            raise ValueError(f"{', '.join(odd)}: no field of this override, which has {self.field or 'none'}")
        self.value_digests = ",".join(value_digest(field, value.get(field, "")) for field in fields)
        self.digested_by = key_id()

    def digests_by_field(self) -> dict[str, str]:
        """The digests that are kept of the fields' values; empty of one whose value is missing."""
        fields = split_fields(self.field)
        # A version before this one kept a single one, as the subject.
        kept = self.value_digests or (self.subject if self.kind == self.field else "")
        return dict(itertools.zip_longest(fields, kept.split(",")[: len(fields)], fillvalue=""))

    def prepare(self) -> bool:
        """The kind and the digest follow from whom it is about; times are such that every time zone can show them."""
        before = self.prepared()
        self.starts, self.ends = within(self.starts), within(self.ends)
        by_field = self.digests_by_field()
        fields = sorted(by_field)
        self.field = ", ".join(fields)
        self.value_digests = ",".join(by_field[field] for field in fields)
        kinds = [*([] if self.user_id is None else [USER]), *fields]
        if self.network:
            network = parse_network(self.network)
            single = network.prefixlen == network.max_prefixlen
            self.network = str(network.network_address) if single else str(network)
            kinds.append(network_kind(network.version, network.prefixlen))
        self.kind = combined_kind(kinds)
        identity = self.identity()
        if not fields:
            self.subject, self.digested_by = "" if identity is None else digest(identity).decode(), key_id()
        elif not all(by_field.values()):
            self.subject = ""
        elif len(kinds) == 1:
            self.subject = self.value_digests
        elif self.digested_by in (secrets := secrets_by_id()):  # Else nobody can make another.
            self.subject = digest(identity, secrets[self.digested_by]).decode()
        return before != self.prepared()

    def prepared(self) -> Declared:
        """The fields that `prepare` fills in."""
        return {
            "kind": self.kind, "subject": self.subject, "network": self.network, "field": self.field,
            "value_digests": self.value_digests, "digested_by": self.digested_by,
            "starts": self.starts, "ends": self.ends,
        }  # fmt: skip

    def identity(self) -> Identity:
        """Whom it is about; of the values of fields beside others, only their digests are known. None where only a
        digest is kept, of the value of one field alone."""
        parts: list[Identity] = [] if self.user_id is None else [(USER, str(self.user_id))]
        if self.network:
            network = parse_network(self.network)
            parts.append(network_identity(network.network_address, network_kind(network.version, network.prefixlen)))
        values = [value.encode() for _field, value in sorted(self.digests_by_field().items())]
        return combined_identity([*parts, *values]) if parts or len(values) > 1 else None

    def digests(self) -> list[str]:
        """The digests of whom it is about: by every key that is known, so that who has the earlier key finds them too.
        With the value of a field, only by the one that it was digested with."""
        identity = self.identity()
        if self.field or identity is None:
            return [self.subject]
        return [digest(identity, secret).decode() for secret in secrets_by_id().values()]

    @classmethod
    def complete(cls, rows: Sequence[Any], using: str) -> None:
        """Read the rules and users that they are about."""
        users = get_user_model()._base_manager.using(using)
        rules = RateLimitRule._base_manager.using(using)
        models.prefetch_related_objects(rows, models.Prefetch("rule", rules), models.Prefetch("user", users))

    @classmethod
    def deleted(cls, rows: Sequence[Any], deletion: Deletion, using: str) -> list[Change]:
        """Overrides, also those that went with their rule."""
        rules = deletion.rows(RateLimitRule)
        for row in rows:
            if row.rule_id in rules:
                row.rule = rules[row.rule_id]
        return super().deleted(rows, deletion, using)

    def override(self) -> Override:
        """As the rules' room knows it."""
        effect: Effect = self.effect  # type: ignore[assignment]
        rate = Rate.parse(self.rate) if effect == "limit" and self.rate else None
        return Override(
            self.pk, self.rule_id, effect, rate, self.burst if rate else None, _us(self.starts), _us(self.ends),
            Block(self.forbids, self.message) if effect == "block" else PLAIN_BLOCK, exact_kind(self.kind),
        )  # fmt: skip

    def declared(self) -> Declared:
        """The override in words that history can keep."""
        values = {
            "rule": self._rule_name(),
            "whom": self.whom(),
            "subject": ",".join(self.digests()),
            "effect": self.effect,
            "rate": self.rate if self.effect == self.Effects.LIMIT else None,
            "burst": self.burst,
            "starts": None if self.starts is None else self.starts.isoformat(),
            "ends": None if self.ends is None else self.ends.isoformat(),
            "forbids": self.forbids or None,
            "message": self.message,
            "reason": self.reason,
        }
        return {field: value for field, value in values.items() if value not in (None, "")}

    def _rule_name(self) -> str | None:
        if self.rule_id is not None and not self._meta.get_field("rule").is_cached(self):  # type: ignore[union-attr]
            self.rule = RateLimitRule.objects.using(self._state.db).get(pk=self.rule_id)
        return None if self.rule is None else self.rule.name

    def is_active(self) -> bool:
        """Whether it is in force now."""
        now = timezone.now()
        return (self.starts is None or self.starts <= now) and (self.ends is None or now < self.ends)

    def clean(self) -> None:
        """Raises `ValidationError` that names the field."""
        if self.user_id is None and not self.network and not self.field:
            raise ValidationError(_("Fill in at least one: a user, an address or network, or a field and its value."))
        problems: dict[str, Any] = {}
        if self.network:
            try:
                parse_network(self.network)
            except ValueError:
                problems["network"] = _("Enter an address or network, for example 203.0.113.9 or 203.0.113.0/24.")
        if self.field and (problem := self._problem_of_fields()):
            problems["field"] = problem
        if self.effect == self.Effects.LIMIT:
            problems |= self.misfits()
        for field in ("starts", "ends"):
            moment = getattr(self, field)
            if moment != within(moment):
                problems[field] = _("Enter a year from %(first)d to %(last)d, or leave it empty.") % {
                    "first": FIRST_YEAR,
                    "last": LAST_YEAR,
                }
        if not problems and self.starts is not None and self.ends is not None and self.starts >= self.ends:
            problems["ends"] = _("The end is before the start.")
        if self.effect != self.Effects.BLOCK:
            for name in ("forbids", "message"):
                if getattr(self, name):
                    problems[name] = _("This is for blocks. Choose the effect “block”, or leave it empty.")
        if problems:
            raise ValidationError(problems)

    def _problem_of_fields(self) -> Any:
        """What is wrong with the fields, or their values; empty: nothing."""
        fields, by_field = split_fields(self.field), self.digests_by_field()
        wrong = [field for field in fields if split_field(field) is None]
        if wrong:
            return NO_FIELD % {"kinds": ", ".join(FIELD_KINDS)}
        if len(by_field) < len(fields):
            twice = next(field for field in fields if fields.count(field) > 1)
            return _("%(field)s is there twice: a request has one value in it.") % {"field": twice}
        if len(fields) > MOST_FIELDS:
            return _("At most %(number)d fields can be combined.") % {"number": MOST_FIELDS}
        is_combined = len(fields) > 1 or self.user_id is not None or self.network
        if is_combined and (odd := [field for field in fields if AND in field or "," in field]):
            text = _("“%(field)s”: a field with a comma or “ & ” in its name can only stand alone.")
            return text % {"field": odd[0]}
        missing = [field for field, value in by_field.items() if not value]
        if missing and len(fields) > 1:
            return _("The value of %(field)s is missing.") % {"field": missing[0]}
        return _("The value is missing.") if missing else ""

    def misfits(self) -> dict[str, Any]:
        """Why its numbers do not fit its rule, by field; empty where they do. What does not fit is skipped."""
        if self.rate is None:
            return {"limit": _("Enter the other limit.")}
        try:
            rate = Rate.parse(self.rate)
            template = self.rule.compiled([]).template if self.rule is not None else None
            for own in template.rates if template is not None else ():
                if template is not None and isinstance(own, Rate):
                    template.limit("rule", own).at(rate, self.burst)
        except LimitError as error:
            return {"burst" if error.field == "burst" else "limit": problem_text(error)}
        except RuleError as error:
            return {"rule": problem_text(error.problem)}
        return {}


def value_digest(field: str, value: str) -> str:
    """The digest of a field's value; empty where nothing is left of it, or the field is none."""
    identity = field_identity(field, value) if split_field(field) is not None else (None,)
    return "" if identity[-1] is None else digest(identity).decode()


def within(moment: Any) -> Any:
    """A moment that can be shown in every time zone: at the ends of Python's calendar, it may be past them in some."""
    if not isinstance(moment, datetime.datetime) or FIRST_YEAR <= moment.year <= LAST_YEAR:
        return moment
    return moment.replace(year=FIRST_YEAR if moment.year < FIRST_YEAR else LAST_YEAR)


def microseconds(moment: datetime.datetime) -> int:
    """Since 1970. Without a zone, as moments are where `USE_TZ` is off, it is the process's, which Django sets."""
    return round(moment.timestamp() * 1_000_000)


def _us(moment: Any) -> int | None:
    return None if moment is None else microseconds(moment)
