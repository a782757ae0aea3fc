"""Overrides as rows: for one subject, another limit, an exemption or a block."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..identity import Identity, digest, is_digest, key_id, secrets_by_id
from ..identity.address import network_words, parse_network
from ..identity.keys import FIELD_FORMS, field_identity, registered_keys, split_field
from ..limits.limit import Limit
from ..limits.rate import LimitError, Rate
from ..rules.errors import RuleError
from ..rules.overrides import (
    DIGEST,
    EVERY_RULE,
    USER,
    Entry,
    Override,
    network_identity,
    network_kind,
)
from ..rules.rule import Rule
from ..rules.ruleset import settings_rules
from ..views.call_sites import discover_call_sites, known_call_sites
from .audit import AuditedModel, AuditedQuerySet, Spec
from .change import RateLimitChange
from .rule import RateLimitRule

T = TypeVar("T")

ONE_SUBJECT = _(
    "Name one subject: a user, an address or network, a field and its value, or the digest of a "
    "client. Make one "
    "override for each."
)
NEEDS_RULE = _("Another limit is for one rule: enter its name.")
MAX_DIGEST_DAYS = 30
"""Maximum days of an override about a digest, because its client is unknown."""
FIRST_YEAR = 1972
LAST_YEAR = 9600
"""Leap years, so that every day can be moved into them."""


class OverrideQuerySet(AuditedQuerySet["RateLimitOverride"]):
    """A queryset of overrides that can be filtered by their times."""

    def lasting(self) -> OverrideQuerySet:
        """Return the overrides that have not ended."""
        return self.filter(models.Q(ends=None) | models.Q(ends__gt=timezone.now()))

    def active(self) -> OverrideQuerySet:
        """Return the overrides that are in force now."""
        return self.lasting().filter(models.Q(starts=None) | models.Q(starts__lte=timezone.now()))


class RateLimitOverride(AuditedModel):
    """Another limit, an exemption or a block for one subject.

    Exactly one of `user`, `network`, `field` and `client_digest` is filled in. `set_value` takes
    the value of a field.
    """

    CHANGE_KIND = RateLimitChange.Kind.OVERRIDE
    PREPARED = ("kind", "subject", "network", "digested_by", "starts", "ends")

    class Effects(models.TextChoices):
        """The effect on the subject."""

        LIMIT = "limit", _("another limit")
        EXEMPT = "exempt", _("exempt: no limit")
        BLOCK = "block", _("block: every request is refused")

    rule = models.CharField(
        _("rule"),
        max_length=200,
        blank=True,
        default=EVERY_RULE,
        help_text=_("The name of a rule or of a limit in the code. Empty: all of them."),
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.CASCADE,
        related_name="+",
        null=True,
        blank=True,
        verbose_name=_("user"),
    )
    network = models.CharField(
        _("address or network"),
        max_length=49,
        blank=True,
        help_text=_("For example 203.0.113.9 or 2001:db8::/48."),
    )
    field = models.CharField(
        _("field"),
        max_length=200,
        blank=True,
        help_text=_(
            "The field or key that identifies the client: header:X-API-Key, post:username, or a "
            "key of this site such "
            "as tenant. Only the digest of its value is stored."
        ),
    )
    label = models.CharField(
        _("label"),
        max_length=200,
        blank=True,
        help_text=_("A label for this client, because the value is not stored."),
    )
    client_digest = models.CharField(
        _("digest of a client"),
        max_length=32,
        blank=True,
        default="",
        help_text=_(
            "For a client with a hidden name: 32 hexadecimal digits. Such an override ends within "
            "30 days."
        ),
    )
    kind = models.CharField(_("kind"), max_length=200, editable=False)
    subject = models.CharField(_("digest"), max_length=32, editable=False, db_index=True)
    digested_by = models.CharField(
        _("id of the key of the digest"), max_length=8, default=key_id, editable=False
    )
    effect = models.CharField(
        _("effect"), max_length=6, choices=Effects.choices, default=Effects.LIMIT
    )
    rate = models.CharField(
        _("rate"),
        max_length=50,
        blank=True,
        help_text=_("The other limit, for example 100/m."),
    )
    burst = models.BigIntegerField(
        _("burst"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(Rate.MAX_UNITS)],
        help_text=_("Only for token buckets. Empty: the burst of the rule."),
    )
    starts = models.DateTimeField(_("starts"), null=True, blank=True, help_text=_("Empty: now."))
    ends = models.DateTimeField(_("ends"), null=True, blank=True, help_text=_("Empty: never."))
    forbids = models.BooleanField(
        _("answer 403"),
        default=False,
        help_text=_(
            "Blocks: “403 Forbidden” without a time to come back, instead of “429 Too Many "
            "Requests”."
        ),
    )
    message = models.CharField(
        _("message"),
        max_length=300,
        blank=True,
        default="",
        help_text=_("Blocks: the text for blocked clients."),
    )
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    created_by = models.CharField(_("created by"), max_length=254, blank=True, editable=False)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    objects = OverrideQuerySet.as_manager()

    class Meta:
        """Options of the model."""

        verbose_name = _("override")
        verbose_name_plural = _("overrides")
        ordering = ("-created_at", "-pk")
        permissions = (("block_identity", "May block, unblock, exempt and reset clients"),)
        indexes = (
            models.Index(fields=("kind", "rule"), name="ratelimit_override_kinds"),
            models.Index(fields=("ends",), name="ratelimit_override_ends"),
        )

    def __str__(self) -> str:
        return self.client()[:300]

    def client(self) -> str:
        """Return the subject in words, without secrets."""
        if self.user_id is not None:
            user: object = self.user_id
            with suppress(ObjectDoesNotExist):  # The user may be deleted in this transaction.
                user = self.user
            return _("user %(user)s") % {"user": user}
        if self.client_digest:
            client = _("client %(digest)s") % {"digest": self.client_digest[:12]}
            if self.label:
                client = f"{client} ({self.label})"
            return client
        label = self.label or _("without a label")
        return self.network or f"{self.field} ({label})"

    def set_value(self, value: str) -> None:
        """Set the digest of the field's value, normalized as in requests.

        It is empty if the value is empty or the field is invalid; `clean` reports which.
        """
        self.subject = ""
        self.kind = self.field
        self.digested_by = key_id()
        if split_field(self.field) is not None:
            identity = field_identity(self.field, value)
            if identity[-1] is not None:
                self.subject = digest(identity).decode()

    def has_one_subject(self) -> bool:
        """Return whether exactly one of the fields that define the subject is filled in."""
        values = (self.user_id, self.network, self.field, self.client_digest)
        return len([value for value in values if value not in (None, "")]) == 1

    def prepare(self) -> None:
        """Set the kind and the digest from the subject, and limit the times to a valid range.

        Raises `ValueError` unless there is exactly one subject, and a rule for another limit.
        """
        if not self.has_one_subject():
            raise ValueError(str(ONE_SUBJECT))
        if self.effect == self.Effects.LIMIT and not self.rule:
            raise ValueError(str(NEEDS_RULE))
        self.starts = clamp_moment(self.starts)
        self.ends = clamp_moment(self.ends)
        if self.network:
            self.network = network_words(parse_network(self.network))
        kind = self._subject_kind()
        digests = self._computed_digests()
        if digests:
            self.subject = digests[0]
            self.digested_by = key_id()
        elif self.kind != kind:  # The digest is of a value of another field.
            self.subject = ""
        self.kind = kind

    def _subject_kind(self) -> str:
        """Return the kind of the subject: `DIGEST`, a field, the size of a network, or `USER`."""
        if self.client_digest:
            return DIGEST
        if self.field:
            return self.field
        if self.network:
            network = parse_network(self.network)
            return network_kind(network.version, network.prefixlen)
        return USER

    def _computed_digests(self) -> list[str]:
        """Return the digests of the subject with all known keys, that of the current key first.

        An override for the value of a field has none: the value is not stored.
        """
        if self.client_digest:
            return [self.client_digest]
        if self.field:
            return []
        identity = user_identity(self.user_id)
        if self.network:
            identity = network_identity(parse_network(self.network))
        return [digest(identity, secret).decode() for secret in secrets_by_id().values()]

    def digests(self) -> list[str]:
        """Return the digests of the subject with all known keys.

        For the value of a field, there is one, with the key of its digest.
        """
        return self._computed_digests() or [self.subject]

    @classmethod
    def load_related(cls, rows: Sequence[Self], using: str) -> None:
        """Load the users that the rows refer to."""
        users = get_user_model()._base_manager.using(using)
        models.prefetch_related_objects(rows, models.Prefetch("user", users))

    def override(self) -> Override:
        """Return the override in the form that `rules` uses."""
        return Override.parse(published_entry(vars(self)), self.kind, self.subject.encode())

    @property
    def spec(self) -> Spec:
        """Return the override as the history records it. `load_related` loads what it needs."""
        values = {
            "rule": self.rule,
            "client": self.client(),
            "subject": ",".join(self.digests()),
            "effect": self.effect,
            "rate": self.effect == self.Effects.LIMIT and self.rate,
            "burst": self.burst,
            "starts": self.starts and self.starts.isoformat(),
            "ends": self.ends and self.ends.isoformat(),
            "forbids": self.forbids,
            "message": self.message,
            "reason": self.reason,
        }
        return {field: value for field, value in values.items() if value}

    def is_active(self) -> bool:
        """Return whether the override is in force now."""
        now = timezone.now()
        if self.starts is not None and now < self.starts:
            return False
        return self.ends is None or now < self.ends

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Check all but the rule, and save the row. Raises `ValidationError`.

        See also `AuditedModel.save`.
        """
        self.clean_fields(exclude=("user", "kind", "subject"))
        problems = self._own_problems()
        if problems:
            raise ValidationError(problems)
        super().save(*args, **kwargs)

    def clean(self) -> None:
        """Check the row and its rule. Raises `ValidationError`, which names the field."""
        problems = self._own_problems()
        for field in ("starts", "ends"):
            moment = getattr(self, field)
            if moment != clamp_moment(moment):
                text = _("Enter a year from %(first)d to %(last)d, or leave it empty.")
                problems[field] = text % {"first": FIRST_YEAR, "last": LAST_YEAR}
        problems |= self._rule_problems()
        if self.effect == self.Effects.LIMIT and not problems.keys() & {"rule", "rate"}:
            problems |= self._own_rule_problems()
        if problems:
            raise ValidationError(problems)

    def _own_problems(self) -> dict[str, object]:
        """Return what is wrong whatever the rules are, by field.

        Raises `ValidationError` unless there is exactly one subject.
        """
        if not self.has_one_subject():
            raise ValidationError(ONE_SUBJECT)
        problems = self._subject_problems()
        if self.effect == self.Effects.LIMIT:
            problems |= self._rate_problems()
        if not problems and self.starts and self.ends and self.starts >= self.ends:
            problems["ends"] = _("The end is before the start.")
        if self.effect != self.Effects.BLOCK:
            for name in ("forbids", "message"):
                if getattr(self, name):
                    problems[name] = _(
                        "This is for blocks. Choose the effect “block”, or leave it empty."
                    )
        return problems

    def _subject_problems(self) -> dict[str, object]:
        """Return what is wrong with the subject, by field."""
        problems: dict[str, object] = {}
        if self.network:
            try:
                parse_network(self.network)
            except ValueError:
                problems["network"] = _(
                    "Enter an address or network, for example 203.0.113.9 or 203.0.113.0/24."
                )
        if self.field and split_field(self.field) is None:
            text = _("Enter one of %(kinds)s, for example header:X-API-Key.")
            kinds = [*FIELD_FORMS, *registered_keys()]
            problems["field"] = text % {"kinds": ", ".join(kinds)}
        elif self.field and not (self.kind == self.field and self.subject):
            problems["field"] = _("The value is missing.")
        if self.client_digest and not is_digest(self.client_digest):
            problems["client_digest"] = _(
                "Enter 32 hexadecimal digits, as the page of the client shows them."
            )
        latest = timezone.now() + datetime.timedelta(days=MAX_DIGEST_DAYS)
        if self.client_digest and (self.ends is None or self.ends > latest):
            text = _("An override about a digest needs an end, at most %(days)d days from now.")
            problems["ends"] = text % {"days": MAX_DIGEST_DAYS}
        return problems

    def _rate_problems(self) -> dict[str, object]:
        """Return what is wrong with another limit, by field."""
        problems: dict[str, object] = {}
        if not self.rule:
            problems["rule"] = NEEDS_RULE
        if not self.rate:
            problems["rate"] = _("Enter the other limit.")
            return problems
        try:
            Rate.parse(self.rate)
        except LimitError as error:
            problems["rate"] = RuleError.of("rate", error).localized()
        return problems

    def _rule_problems(self) -> dict[str, object]:
        """Return why there is no rule to override, by field.

        An override that is stored may keep the name of a rule that was deleted since.
        """
        if not self.rule or RateLimitOverride.objects.filter(pk=self.pk, rule=self.rule).exists():
            return {}
        discover_call_sites()
        names = set(RateLimitRule.objects.values_list("name", flat=True))
        names.update(rule.name for rule in settings_rules())
        if self.rule in names or known_call_sites.may_contain(self.rule):
            return {}
        text = _("No rule and no limit in the code has this name. Names are: %(names)s.")
        known = sorted(names.union(known_call_sites.names()))
        return {"rule": text % {"names": ", ".join(known)[:1000] or "—"}}

    def _own_rule_problems(self) -> dict[str, object]:
        """Return why the numbers do not fit the override's own rule, by field."""
        try:
            return self.limit_problems(self._compiled_rule())
        except RuleError as error:
            return {"rule": error.localized()}

    def _compiled_rule(self) -> Rule | None:
        """Return the rule of that name; None: it is a limit in the code. Raises `RuleError`."""
        row = RateLimitRule.objects.filter(name=self.rule).first()
        if row is not None:
            return row.compiled()
        return next((rule for rule in settings_rules() if rule.name == self.rule), None)

    def limit_problems(self, rule: Rule | None) -> dict[str, object]:
        """Return why the override's numbers do not fit a rule, by field; empty if they fit.

        Without a rule, they have to fit a limit of the call sites of that name that this process
        knows. Numbers that do not fit are not applied.
        """
        problems: dict[str, object] = {}
        for limits in self._alternative_limits(rule):
            try:
                rate = Rate.parse(self.rate)
                for limit in limits:
                    limit.at_rate(rate, self.burst, "override")
            except LimitError as error:
                field = "burst" if error.field == "burst" else "rate"
                problems = {field: RuleError.of(field, error).localized()}
            else:
                return {}
        return problems

    def _alternative_limits(self, rule: Rule | None) -> list[Sequence[Limit]]:
        """Return lists of limits, of which the numbers have to fit one list.

        There is one list with the constant limits of a rule. Without a rule, each limit in the code
        of that name has a list of its own.
        """
        if rule is None:
            sites = known_call_sites.get(self.rule)
            return [[limit] for site in sites for limit in site.limits] or [()]
        if rule.template is None:
            return [()]
        return [rule.template.limits("rule")]


PUBLISHED = ("id", "rule", "effect", "starts", "ends", "rate", "burst", "forbids", "message")
"""The fields of an override that its entry in the snapshot contains."""


def published_entry(row: Mapping[str, Any]) -> Entry:
    """Return an override, of which the fields `PUBLISHED` are given, as `Override.parse` reads it.

    Empty values at the end are left out.
    """
    options: dict[str, object] = {}
    if row["effect"] == RateLimitOverride.Effects.LIMIT:
        options = {name: row[name] for name in ("rate", "burst")}
    elif row["effect"] == RateLimitOverride.Effects.BLOCK:
        options = {name: row[name] for name in ("forbids", "message")}
    options = {name: value for name, value in options.items() if value}
    times = [row[name] and microseconds(row[name]) for name in ("starts", "ends")]
    entry = [row["id"], row["rule"], row["effect"], *times, options]
    while not entry[-1]:
        del entry[-1]
    return entry


def user_identity(user_id: object) -> Identity:
    """Return the identity of the user with a primary key."""
    return (USER, str(user_id))


def clamp_moment(moment: T) -> T:
    """Return a moment that every time zone can represent: with a year in the bounds."""
    if isinstance(moment, datetime.datetime):
        return moment.replace(year=min(max(moment.year, FIRST_YEAR), LAST_YEAR))
    return moment


def microseconds(moment: datetime.datetime) -> int:
    """Return the microseconds since 1970.

    A moment without a time zone, as with `USE_TZ = False`, is in the zone of the process, which
    Django sets.
    """
    return round(moment.timestamp() * 1_000_000)
