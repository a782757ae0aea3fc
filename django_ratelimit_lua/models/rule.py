"""Rules as rows: columns for what every rule has, and one mapping for its options.

The weights of hosts, by which split limits are divided, are rows too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, router
from django.utils.translation import gettext_lazy as _

from .. import rules
from ..conf.values import MAX_WEIGHT
from ..extension import FIELDS_OF_ANNEXES
from ..limits.algorithms import SYNONYMS
from ..rules.options import COLUMNS, MAX_LENGTHS, NAMES, field_names, has_value
from ..rules.ruleset import settings_rules
from ..rules.snapshot import WHERE
from ..rules.template import as_list
from ..views.call_sites import describe_rule, discover_call_sites, known_call_sites
from .audit import AuditedModel, AuditedQuerySet, Spec
from .change import RateLimitChange

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_SEPARATORS = {"rate": ", ", "key": "+", "method": ", ", "path": "\n", "audience": "\n"}
"""What separates the values of columns that may contain several."""
_DEFAULTS = {"mode": "enforce", "order": 0, "audience": "everyone"}
_INDEPENDENT = {"mode", "order", "description"}
"""Columns that are checked without the others if only they are saved."""


class OptionsDecoder(json.JSONDecoder):
    """Decodes options. Numbers that are too long for Python, from edits by hand, become text."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(parse_int=_number, **kwargs)


def _number(digits: str) -> int | str:
    """Return the number, or the digits themselves if they are too many for Python."""
    try:
        return int(digits)
    except ValueError:
        return digits


class RateLimitRule(AuditedModel):
    """A limit and when it applies."""

    CHANGE_KIND = RateLimitChange.Kind.RULE

    name = models.CharField(
        _(COLUMNS["name"]),
        max_length=MAX_LENGTHS["name"],
        unique=True,
        help_text=_(
            "The name of the count: a new name starts a new count. A rule with the name of a "
            "decorator's group, a DRF"
            " scope or a RateLimiter replaces the limit in the code."
        ),
    )
    mode = models.CharField(
        _(COLUMNS["mode"]),
        max_length=8,
        default="enforce",
        choices=[(mode, _(words)) for mode, words in NAMES["mode"].items()],
        help_text=_("Shadow mode counts but does not refuse."),
    )
    order = models.IntegerField(
        _(COLUMNS["order"]),
        default=0,
        help_text=_("Rules are listed and applied in this order, smallest first."),
    )
    description = models.TextField(
        _(COLUMNS["description"]), blank=True, help_text=_("For colleagues: why this rule exists.")
    )
    rate = models.CharField(
        _(COLUMNS["rate"]),
        max_length=MAX_LENGTHS["rate"],
        blank=True,
        help_text=_(
            "For example 100/m, 10/15m or 5000/d; a number alone is for slots. Several, such as "
            "10/s, 500/h: a request must be within all of them."
        ),
    )
    key = models.CharField(
        _(COLUMNS["key"]),
        max_length=MAX_LENGTHS["key"],
        blank=True,
        help_text=_(
            "Other: a field such as header:NAME, cookie:NAME, get:NAME, post:NAME, json:NAME, "
            "data:NAME or kwarg:NAME, or several keys joined with +. With exact: in front, a value "
            "is compared letter by letter, with int: as a whole number. Nothing: the key of the "
            "call site with this name."
        ),
    )
    path = models.TextField(
        _(COLUMNS["path"]),
        blank=True,
        help_text=_(
            "One per line: a prefix such as /api/, or a pattern, in which * is any text without a "
            "slash, and ** is any text. A single / is every request. Also the name of a URL "
            "pattern, such as shop:detail. Empty: only where a limit in the code has the name of "
            "this rule."
        ),
    )
    route = models.CharField(
        _(COLUMNS["route"]),
        max_length=MAX_LENGTHS["route"],
        blank=True,
        help_text=_("The name of a URL pattern, for example shop:detail."),
    )
    group = models.CharField(
        _(COLUMNS["group"]),
        max_length=MAX_LENGTHS["group"],
        blank=True,
        help_text=_(
            "The group of a decorator or the scope of a throttle. This rule then applies in "
            "addition to the limits in the code, or instead of them if it has the same name."
        ),
    )
    method = models.CharField(
        _(COLUMNS["method"]),
        max_length=MAX_LENGTHS["method"],
        blank=True,
        help_text=_("Empty: all methods. GET includes HEAD."),
    )
    audience = models.CharField(
        _(COLUMNS["audience"]),
        max_length=MAX_LENGTHS["audience"],
        default="everyone",
        help_text=_("For members of groups: group:NAME, one per line."),
    )
    message = models.CharField(
        _(COLUMNS["message"]),
        max_length=MAX_LENGTHS["message"],
        blank=True,
        help_text=_("The text for refused clients."),
    )
    options = models.JSONField(_("options"), default=dict, blank=True, decoder=OptionsDecoder)
    """Everything else, by the names of the table in `rules.options`. Options of optional apps that
    are not installed are kept.
    """

    objects = AuditedQuerySet.as_manager()

    class Meta:
        """Options of the model."""

        verbose_name = _("rule")
        verbose_name_plural = _("rules")
        ordering = ("order", "name")
        permissions = (("view_identities", "May see the names of clients"),)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return an unsaved row for a rule in the notation of `RATELIMIT_RULES`."""
        row = cls()
        row.assign(spec)
        return row

    def assign(self, spec: Mapping[str, Any]) -> None:
        """Set the columns and the options to those of a spec, in their stored form.

        The spec is not checked: `save` does that.
        """
        for column in COLUMNS:
            setattr(self, column, _column_value(column, spec.get(column)))
        if self.group == self.name and not (self.path or self.route):
            self.group = ""  # A rule without a path or route replaces the call site of its name.
        self.options = {
            name: value
            for name, value in spec.items()
            if name not in COLUMNS and (is_set(value) or has_value(name, value))
        }
        if "algorithm" in self.options:
            algorithm = self.options["algorithm"]
            self.options["algorithm"] = SYNONYMS.get(algorithm, algorithm)

    @property
    def spec(self) -> Spec:
        """Return the rule in the notation of `RATELIMIT_RULES`, without defaults."""
        values: Spec = {column: self._value_of(column) for column in COLUMNS}
        for column, default in _DEFAULTS.items():
            if values[column] == default:
                del values[column]
        values |= self._named_options()
        ordered = dict.fromkeys((*field_names(), *FIELDS_OF_ANNEXES, *values))
        return {
            field: values[field]
            for field in ordered
            if is_set(values.get(field)) or has_value(field, values.get(field))
        }

    def _value_of(self, column: str) -> Any:
        """Return the value of a column as a spec has it: one value, or a list of several."""
        value = getattr(self, column)
        if column not in _SEPARATORS:
            return value
        parts = split_text(value, _SEPARATORS[column])
        is_single = len(parts) == 1 and not parts[0].startswith("group:")
        if is_single and column != "method":
            return parts[0]
        return parts

    def _named_options(self) -> Spec:
        """Return the options. Values edited by hand may get names, which `compile` refuses."""
        if not isinstance(self.options, dict):
            return {"options": self.options}
        return {
            f"options.{name}" if name in COLUMNS or name == "id" else name: value
            for name, value in self.options.items()
        }

    def compiled(self) -> rules.rule.Rule:
        """Return the compiled rule. Raises `RuleError`."""
        return rules.compile(self.spec, plain=True, where=WHERE, pk=self.pk or 0)

    def describe(self) -> str:
        """Return the rule in one sentence."""
        return describe_rule(self.spec)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Check the rule and save the row. Raises `RuleError`; see also `AuditedModel.save`."""
        changed = kwargs.get("update_fields")
        if changed is None or not _INDEPENDENT.issuperset(changed):
            self.compiled()
        else:
            self.check_columns(changed)
        super().save(*args, **kwargs)

    def check_columns(self, columns: Iterable[str]) -> None:
        """Check only these columns, as those of a rule that is valid. Raises `RuleError`."""
        values = {column: getattr(self, column) for column in columns}
        exemption = {"name": "?", "path": "/", "exempt": True}  # The simplest valid rule.
        rules.compile({**exemption, **values}, plain=True, where=WHERE)

    def set_mode(self, mode: str) -> None:
        """Save only the mode: the other fields may be invalid if the row was edited by hand."""
        self.mode = mode
        self.save(update_fields=["mode"])

    def update_references(self, before: Spec, after: Spec, using: str) -> None:
        """Rename the rule in the overrides that name it, unless the code has the old name too."""
        name = before["name"]
        if name != after["name"] and not _is_in_code(name):
            overrides: Any = self._meta.apps.get_model(self._meta.app_label, "RateLimitOverride")
            overrides.objects.using(using).filter(rule=name).update(rule=after["name"])


def rules_database() -> str:
    """Return the alias of the database that rules are written to, and published from."""
    return router.db_for_write(RateLimitRule)


class RateLimitHost(AuditedModel):
    """The weight of a host. Without a row, the `RATELIMIT_WEIGHT` of its processes applies."""

    CHANGE_KIND = "host"

    name = models.CharField(_("name"), max_length=253, unique=True)
    weight = models.PositiveIntegerField(
        _("weight"), validators=[MinValueValidator(1), MaxValueValidator(MAX_WEIGHT)]
    )

    objects = AuditedQuerySet.as_manager()

    class Meta:
        """Options of the model."""

        verbose_name = _("host")
        verbose_name_plural = _("hosts")
        ordering = ("name",)
        default_permissions = ()

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> Spec:
        return {"name": self.name, "weight": self.weight}


def _is_in_code(name: str) -> bool:
    """Return whether a call site or a rule of the settings has a name."""
    discover_call_sites()
    return name in known_call_sites or name in [rule.name for rule in settings_rules()]


def _column_value(column: str, value: object) -> object:
    """Return the value of a column for the value of a spec, such as one text for a list."""
    if not is_set(value):
        return _DEFAULTS.get(column, "")
    if column not in _SEPARATORS:
        return value
    text = _SEPARATORS[column].join(dict.fromkeys(map(str, as_list(value))))
    return text.upper() if column == "method" else text


def split_text(text: str, separator: str) -> list[str]:
    """Return the different parts of a text between separators, without empty ones."""
    parts = map(str.strip, text.split(separator.strip(" ")))
    return list(dict.fromkeys(filter(None, parts)))


def is_set(value: object) -> bool:
    """Return whether a field has a value: neither empty nor false."""
    return value not in (None, "", [], (), {}) and value is not False
