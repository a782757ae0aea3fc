"""Forms that show errors at their fields, and ask to confirm rules with unexpected effects."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ..extension import FIELDS_OF_ANNEXES
from ..models import RateLimitRule
from ..models.rule import METHODS
from ..operations.confirmations import confirmations, enforcing, notices
from ..rules import RuleError
from ..rules.describe import value_words
from ..rules.options import COLUMNS, NAMES, options
from .fields import NamesField, TextField, is_set, option_field, split
from .revisions import RevisionForm, Values

GROUP = "group:"
"""The prefix of an audience that is a group."""
AUDIENCES = [(name, _(words)) for name, words in NAMES["audience"].items()]


def group_names() -> list[str]:
    """Return the names of Django's groups."""
    return list(Group.objects.order_by("name").values_list("name", flat=True))


def confirmation_of(texts: Sequence[str]) -> str:
    """Return what a page sends to confirm these texts: no others are confirmed by it."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


class AskingForm(RevisionForm):
    """A form with warnings to confirm.

    The value of its checkbox is a digest of the warnings shown, so that no others are confirmed.
    """

    confirm = forms.BooleanField(
        label=_("Confirm"),
        required=False,
        help_text=_("The warnings above are intended."),
        widget=forms.CheckboxInput(check_test=lambda value: False),
    )
    asks = False
    """Whether it shows warnings to confirm."""

    def ask(self, warnings: Sequence[tuple[str, str]], subject: Sequence[str] = ()) -> None:
        """Add the warnings as errors of their fields, unless they are confirmed.

        Args:
            warnings: Fields and texts.
            subject: Texts for which the confirmation is valid. Default: the texts of the warnings.
        """
        confirmed = confirmation_of(subject or [text for _field, text in warnings])
        if not warnings or self.data.get("confirm") == confirmed:
            return
        self.asks = True
        self.fields["confirm"].widget.attrs["value"] = confirmed
        for field, text in warnings:
            problem = ValidationError([text, _("If this is intended, tick “Confirm” below.")])
            self.add_error(field if field in self.fields else None, problem)


def form_values(rule: RateLimitRule) -> Values:
    """Return the values of the form's fields for a rule."""
    values: Values = {name: getattr(rule, name) for name in COLUMNS}
    names = rule.audience.splitlines()
    values["groups"] = [name.removeprefix(GROUP) for name in names if name.startswith(GROUP)]
    if values["groups"]:
        values["audience"] = "groups"
    return {**dict.fromkeys(options()), **own_options(rule), **values}


def own_options(rule: RateLimitRule) -> Mapping[str, Any]:
    """Return the options of a rule, which may have been edited by hand."""
    if isinstance(rule.options, Mapping):
        return rule.options
    return {}


def absent_options(rule: RateLimitRule) -> dict[str, Any]:
    """Return the options of a rule that are those of optional apps that are not installed."""
    absent = FIELDS_OF_ANNEXES.keys() - options().keys()
    return {name: value for name, value in own_options(rule).items() if name in absent}


class RuleForm(AskingForm):
    """The form of a rule: its columns, and a field for each entry of the table of options.

    An effect on all clients has to be confirmed.
    """

    is_asking = True
    """Whether it asks for confirmations."""
    notices: Sequence[str] = ()
    """What to show once the rule is saved."""
    dropped: Sequence[str] = ()
    """The notice of unknown options that are removed."""

    method = NamesField(
        label=capfirst(_(COLUMNS["method"])),
        required=False,
        help_text=_("None selected: all methods. GET includes HEAD."),
    )
    audience = forms.ChoiceField(
        label=capfirst(_(COLUMNS["audience"])),
        choices=[*AUDIENCES, ("groups", _("members of the groups below"))],
    )
    groups = forms.MultipleChoiceField(
        label=_("Groups"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("For the audience “members of the groups below”."),
    )

    class Meta:
        """The model and its fields."""

        model = RateLimitRule
        fields = tuple(COLUMNS)
        field_classes = dict.fromkeys(("path", "description", "message"), TextField)
        widgets = {  # noqa: RUF012 - Django's way
            "path": forms.Textarea(attrs={"rows": 3}),
            "description": forms.Textarea(attrs={"rows": 2}),
            "message": forms.Textarea(attrs={"rows": 2}),
        }

    def __init__(self, *args: Any, initial: Values | None = None, **kwargs: Any) -> None:
        row = kwargs.get("instance") or RateLimitRule()
        values = form_values(row)
        super().__init__(*args, initial={**values, **(initial or {})}, **kwargs)
        self.is_editable = "path" in self.fields  # Otherwise the rule may only be viewed.
        self.fields.update({name: option_field(option) for name, option in options().items()})
        if self.is_editable:
            self._set_choices(values)
            return
        for name in ("groups", *options()):  # Django's page reads an attribute.
            setattr(self.instance, name, value_words(name, values[name]))

    def _set_choices(self, values: Values) -> None:
        fields: dict[str, Any] = self.fields
        for field in ("name", "group"):
            fields[field].widget.attrs["list"] = "ratelimit-names"
        fields["route"].widget.attrs["list"] = "ratelimit-routes"
        if self.instance.pk is None:
            fields["name"].widget.attrs["data-focus"] = "first"
        # Methods that the rule has already stay: WebDAV and other clients use more than these.
        fields["method"].offer([*METHODS, *split(values["method"])])
        groups = group_names()
        names = dict.fromkeys([*groups, *values["groups"]])
        fields["groups"].choices = [(name, name) for name in names]
        fields["tiers"].offer(groups, values.get("tiers"))

    def clean(self) -> Values:
        """Set the options of the rule, and convert values to those of the columns."""
        given = super().clean()
        if not self.is_editable:
            return given
        if given.get("audience") == "groups":
            given["audience"] = "\n".join(f"{GROUP}{name}" for name in given.get("groups", ()))
            if not given["audience"]:
                del given["audience"]
                self.add_error("groups", _("Select at least one group."))
        table = options()
        row = self.instance
        kept = absent_options(row)
        dropped = own_options(row).keys() - table.keys() - kept.keys()
        if dropped:
            text = _("Unknown options were removed: %s.")
            self.dropped = [text % ", ".join(sorted(dropped))]
        row.options = kept | {name: given[name] for name in table if is_set(given.get(name))}
        return given

    def _post_clean(self) -> None:
        super()._post_clean()
        if self.errors or not (self.is_editable and self.is_asking):
            return  # No warnings until the form is valid.
        rule = self.instance  # As it would be saved.
        found = confirmations(rule)
        subject = [text for _field, text in found]
        if rule.pk is not None and self.initial.get("mode") != rule.mode == "enforce":
            found += enforcing(rule)
            subject.append(rule.reading())  # Its words have numbers that grow.
        self.ask(found, subject)
        before = RateLimitRule.objects.filter(pk=rule.pk).first()
        self.notices = [*self.dropped, *notices(rule, before)]

    def check_row(self) -> None:
        """Compile the rule, and add its errors to fields without an error."""
        if not self.is_editable:
            return
        row = copy.copy(self.instance)
        row.name = row.name or "?"  # Already reported. The rest is checked nevertheless.
        try:
            row.compiled()
        except RuleError as error:
            reported = {*self.errors}
            tiers: Any = self.fields["tiers"]
            for each in error.each:
                if each.field in reported:
                    continue
                text = each.words()
                if each.tier:
                    tiers.add_error(each.tier, each.field, text)
                self.add_error(each.field if each.field in self.fields else None, text)


class RowForm(RevisionForm):
    """The fields of a rule that can be edited in the list.

    Their labels contain the name of the rule, for screen readers.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        for field in (bound.field for bound in self.visible_fields()):
            field.help_text = ""
            field.widget.attrs["aria-label"] = f"{field.label}: {self.instance}"

    def check_row(self) -> None:
        """Check the changed fields, without the others."""
        try:
            self.instance.check_apart({*self.changed_data} - {*self.errors})
        except RuleError as error:
            for each in error.each:
                self.add_error(each.field, each.words())


CONFIRMED = "enforce_confirmed"
"""The answer to the question whether rules are to be enforced: the versions that were shown."""


def versions_of(rules: Sequence[RateLimitRule]) -> str:
    """Return the current revisions of these rules, to be confirmed."""
    return " ".join(sorted(f"{rule.pk}-{rule.revision}" for rule in rules))


UNITS = {"s": _("second"), "m": _("minute"), "h": _("hour"), "d": _("day")}


class PreviewForm(RuleForm):
    """An unsaved rule, and the requests to simulate in its preview."""

    is_asking = False

    preview_burst = forms.IntegerField(
        label=_("Requests at once"), min_value=0, max_value=100_000, required=False
    )
    preview_flow = forms.IntegerField(
        label=_("then, steadily"), min_value=0, max_value=1_000_000, required=False
    )
    preview_unit = forms.ChoiceField(label=_("per"), choices=list(UNITS.items()), required=False)
