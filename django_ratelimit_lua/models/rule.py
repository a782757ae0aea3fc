"""Rules as rows: one field for each field of `RATELIMIT_RULES`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Self

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..extension import FIELDS_OF_ANNEXES, PLACES, rule_fields
from ..limits.options import OPTIONS
from ..rules.describe import reading
from ..rules.rule import AUDIENCES, FIELDS, MODES, Rule, RuleError, compile_rule
from .audit import BATCH, AuditedModel, AuditedQuerySet, Declared
from .change import RateLimitChange
from .rate_fields import RatesFields, column, named, problem_text

_DEFAULTS = {"mode": "enforce", "order": 0, "audience": "everyone"}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class RuleQuerySet(AuditedQuerySet["RateLimitRule"]):
    """A queryset of rules."""

    def keys_by_name(self, names: Iterable[str]) -> dict[str, int]:
        """Return the primary keys of the rules with these names, by name."""
        return dict(self.filter(name__in=names).values_list("name", "pk"))

    def all_declared(self) -> Iterator[tuple[RateLimitRule, Declared]]:
        """Yield all rules, each with its declaration, in two queries.

        For thousands of rules, a prefetch takes longer than the two queries, and a list of all rows
        takes much memory.
        """
        tiers: dict[int, list[Any]] = {}
        stored: Any = self.model.tiers.rel.related_model._base_manager
        for tier in stored.using(self.db):
            tiers.setdefault(tier.rule_id, []).append(tier)
        for rule in self.all().iterator(chunk_size=BATCH):
            yield rule, rule.declared(tiers.get(rule.pk, ()))


class RateLimitRule(RatesFields, AuditedModel):
    """A limit and when it applies."""

    CHANGE_KIND = RateLimitChange.Kind.RULE

    name = models.CharField(
        _("name"),
        max_length=200,
        unique=True,
        help_text=_(
            "The name of the count: a new name starts a new count. A rule with the name of a "
            "decorator's group, a DRF"
            " scope or a RateLimiter replaces the limit in the code."
        ),
    )
    description = models.TextField(
        _("description"), blank=True, help_text=_("For colleagues: why this rule exists.")
    )
    mode = models.CharField(
        max_length=8, default="enforce", choices=named(MODES), **column("mode", blank=False)
    )
    order = models.IntegerField(
        _("order"),
        default=0,
        help_text=_("Rules are listed and applied in this order, smallest first."),
    )
    exempt = models.BooleanField(
        _("exempt"),
        default=False,
        help_text=_("No rule applies to requests of these paths or this route."),
    )
    path = models.TextField(
        _("paths"),
        blank=True,
        help_text=_(
            "One per line: a prefix such as /api/, or a pattern. In patterns, * is any text "
            "without a slash, and ** "
            "is any text. A single / is every request. Empty: only where a limit in the code has "
            "the name of this "
            "rule."
        ),
    )
    route = models.CharField(
        _("route"),
        max_length=300,
        blank=True,
        help_text=_("The name of a URL pattern, for example shop:detail."),
    )
    group = models.CharField(
        _("call site"),
        max_length=200,
        blank=True,
        help_text=_(
            "The group of a decorator or the scope of a throttle. This rule then applies in "
            "addition to the limits in"
            " the code."
        ),
    )
    methods = models.JSONField(
        _("methods"),
        default=list,
        blank=True,
        help_text=_("None selected: all methods. GET includes HEAD."),
    )
    audience = models.CharField(
        _("audience"), max_length=16, default="everyone", choices=named((*AUDIENCES, "groups"))
    )
    groups = models.JSONField(
        _("groups"), default=list, blank=True, help_text=_("Names of Django's groups.")
    )
    key = models.CharField(
        _("count by"),
        max_length=300,
        blank=True,
        help_text=_(
            "The key: all, ip, user, user_or_ip, session, path, route, header:NAME, cookie:NAME, "
            "get:NAME, post:NAME, json:NAME, data:NAME or kwarg:NAME. Join several with +. With "
            "exact: in front, a value is compared letter by letter, with int: as a whole number. "
            "Empty: the key of the call site with this name."
        ),
    )
    cost = models.BigIntegerField(
        _("cost"),
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text=_("Units per request. Empty: 1, or the cost at the call site."),
    )
    algorithm = models.CharField(max_length=50, **column("algorithm"))
    queue = models.BigIntegerField(null=True, **column("queue"))
    segments = models.PositiveIntegerField(null=True, **column("segments"))
    max_wait = models.FloatField(null=True, **column("max_wait"))
    align = models.CharField(max_length=8, **column("align"))
    time_zone = models.CharField(max_length=64, **column("time_zone"))
    count_denied = models.BooleanField(default=False, **column("count_denied", blank=False))
    on_store_error = models.CharField(max_length=8, **column("on_store_error"))
    lease = models.BigIntegerField(null=True, **column("lease"))
    split = models.BooleanField(default=False, **column("split", blank=False))
    ban_after = models.PositiveIntegerField(null=True, **column("ban_after"))
    ban_window = models.CharField(max_length=16, default="", db_default="", **column("ban_window"))
    ban_for = models.CharField(max_length=100, default="", db_default="", **column("ban_for"))
    message = models.CharField(
        _("message"), max_length=300, blank=True, help_text=_("The text for refused clients.")
    )

    extra = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField()), editable=False
    )
    """The values of the fields that optional apps add, by app. Those of apps that are not
    installed are kept.
    """

    to_check: Literal["all", "without tiers", "nothing"] = "all"
    """The tiers that `clean` checks. A form with tiers checks them itself, as they are about to be
    saved.
    """

    objects = RuleQuerySet.as_manager()

    class Meta:
        """Options of the model."""

        verbose_name = _("rule")
        verbose_name_plural = _("rules")
        ordering = ("order", "name")
        permissions = (("view_identities", "May see the names of clients"),)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def complete(cls, rows: Sequence[Self], using: str) -> None:
        tiers = cls.tiers.rel.related_model._base_manager.using(using)
        models.prefetch_related_objects(
            [row for row in rows if row.pk], models.Prefetch("tiers", tiers)
        )

    def switch(self, mode: str) -> None:
        """Save only the mode: the other fields may be invalid if the row was edited by hand."""
        self.mode = mode
        self.save(update_fields=["mode"])

    def reading(self) -> str:
        """Return the rule in one sentence."""
        return reading(self.declared())

    def declared(self, tiers: Iterable[Any] | None = None) -> Declared:
        """Return the rule as `RATELIMIT_RULES` would declare it, without defaults.

        Args:
            tiers: Its stored tiers, if they were read already.
        """
        audience: str | list[str] = self.audience
        if audience == "groups":
            audience = self.groups
            if isinstance(self.groups, list):
                audience = [f"group:{name}" for name in self.groups]
        paths = [line.strip() for line in self.path.splitlines() if line.strip()]
        annexed = self.annexed()
        values = {option: getattr(self, option) for option in OPTIONS}
        values |= {
            "name": self.name,
            "description": self.description,
            "order": self.order,
            "exempt": self.exempt,
            "path": _single(paths),
            "route": self.route,
            "group": self.group,
            "method": self.methods,
            "audience": audience,
            "key": _single([part.strip() for part in self.key.split("+")]),
            "rate": self.rate,
            "cost": self.cost,
            "message": self.message,
            **annexed,
        }
        if not (paths or self.route or self.group) and annexed.keys().isdisjoint(PLACES):
            values["group"] = self.name
        if self.exempt:
            values["rate"] = None
        if self.pk:
            if tiers is None:
                tiers = self.tiers.all()
            # Databases sort text each in their own way.
            ordered = sorted(tiers, key=lambda tier: tier.group)
            values["tiers"] = [tier.declared() for tier in ordered]
        given = {
            field: value
            for field, value in values.items()
            if value not in ("", []) and value is not False and value != _DEFAULTS.get(field)
        }
        return self.ordered(given)

    def annexed(self) -> Declared:
        """Return the values of the fields that optional apps add, by name."""
        values = {word: self._part(annex).get(word) for word, annex in FIELDS_OF_ANNEXES.items()}
        return {word: value for word, value in values.items() if value}

    def annex(self, word: str, value: object) -> None:
        """Set the value of a field that an optional app adds."""
        annex = FIELDS_OF_ANNEXES[word]
        self.extra = {**_mapping(self.extra), annex: {**self._part(annex), word: value}}

    def _part(self, annex: str) -> Declared:
        return _mapping(_mapping(self.extra).get(annex))

    @staticmethod
    def ordered(given: Declared) -> Declared:
        """Return a declaration with its fields in the usual order."""
        return {field: given[field] for field in (*FIELDS, *FIELDS_OF_ANNEXES) if field in given}

    def compiled(self, tiers: Sequence[Declared] | None = None) -> Rule:
        """Return the compiled rule, with its own tiers or with these. Raises `RuleError`."""
        given = {**self.declared(), "id": self.pk or 0}
        if tiers is not None:
            given["tiers"] = tiers
        return compile_rule(given, plain=True, where="Rules of the admin")

    def clean(self) -> None:
        """Check the row. Raises `ValidationError`, which names the field."""
        if self.to_check == "nothing":
            return
        for field in ("methods", "groups"):
            names = getattr(self, field)
            is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
            if not is_list or len(set(names)) < len(names):
                raise ValidationError({field: _("Enter a list of names.")})
        if any(name != name.upper() for name in self.methods):
            raise ValidationError({"methods": _("Enter a list of names.")})
        try:
            row = copy.copy(self)
            row.name = self.name or "?"  # Already reported. The rest is checked nevertheless.
            row.compiled([] if self.to_check == "without tiers" else None)
        except RuleError as error:
            problems: dict[str, list[str]] = {}
            for each in error.each:
                field = self._form_field(each.field)
                text = problem_text(each.problem)
                if each.tier:
                    text = _("Tier %(group)s: %(problem)s") % {"group": each.tier, "problem": text}
                problems.setdefault(field, []).append(text)
            raise ValidationError(problems) from None

    def _form_field(self, word: str) -> str:
        """Return the field of the form for a field of a rule's declaration."""
        field = {"method": "methods", "rate": self.rate_field()}.get(word, word)
        if field in {*rule_fields(), *(column.name for column in self._meta.concrete_fields)}:
            return field
        return NON_FIELD_ERRORS

    def values(self) -> Declared:
        """Return the values of the rule's fields, by name, with those that optional apps add."""
        return {
            field.name: getattr(self, field.attname) for field in self._meta.concrete_fields
        } | self.annexed()


def _single(values: list[str]) -> str | list[str]:
    """Return the only value of a list, or the list if it has several."""
    if len(values) == 1:
        return values[0]
    return values


def _mapping(value: object) -> Declared:
    """Return a JSON value if it is a mapping, and an empty one otherwise."""
    if isinstance(value, dict):
        return value
    return {}
