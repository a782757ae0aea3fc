"""Forms that show errors at their fields, and ask to confirm rules with unexpected effects."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.forms.utils import ErrorDict
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ..extension import FIELDS_OF_ANNEXES
from ..models import RateLimitRule
from ..models.rule import METHODS
from ..operations.confirmations import confirmations
from ..rules import RuleError
from ..rules.describe import value_words
from ..rules.options import COLUMNS, option_table
from ..views.call_sites import route_names
from .choices import audience_choices, group_names, hidden_options, key_choices
from .fields import KeyWidget, NamesField, TextField, is_set, option_field, split
from .revisions import RevisionForm, Values


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
    values["path"] = "\n".join(filter(None, [rule.path, values.pop("route")]))
    return {**dict.fromkeys(option_table()), **own_options(rule), **values}


def own_options(rule: RateLimitRule) -> Mapping[str, Any]:
    """Return the options of a rule, which may have been edited by hand."""
    if isinstance(rule.options, Mapping):
        return rule.options
    return {}


def absent_options(rule: RateLimitRule) -> dict[str, Any]:
    """Return the options of a rule that are those of optional apps that are not installed."""
    absent = FIELDS_OF_ANNEXES.keys() - option_table().keys()
    return {name: value for name, value in own_options(rule).items() if name in absent}


class RuleForm(AskingForm):
    """The form of a rule: its columns, and a field for each entry of the table of options.

    The name of a URL pattern is entered as one of the paths.
    """

    is_asking = True
    """Whether it asks for confirmations."""

    method = NamesField(
        label=capfirst(_(COLUMNS["method"])),
        help_text=_("None selected: all methods. GET includes HEAD."),
    )
    audience = NamesField(
        label=capfirst(_(COLUMNS["audience"])),
        help_text=_("None selected: everyone."),
        separator="\n",
        none="everyone",
    )

    class Meta:
        """The model and its fields."""

        model = RateLimitRule
        fields = tuple(name for name in COLUMNS if name != "route")
        field_classes = dict.fromkeys(("path", "description", "message"), TextField)
        widgets = {  # noqa: RUF012 - Django's way
            "path": forms.Textarea(attrs={"rows": 2}),
            "description": forms.Textarea(attrs={"rows": 2}),
            "message": forms.Textarea(attrs={"rows": 2}),
            "key": KeyWidget,
        }

    def __init__(self, *args: Any, initial: Values | None = None, **kwargs: Any) -> None:
        row = kwargs.get("instance") or RateLimitRule()
        values = form_values(row)
        super().__init__(*args, initial={**values, **(initial or {})}, **kwargs)
        self.is_editable = "path" in self.fields  # Otherwise the rule may only be viewed.
        self.fields.update({name: option_field(option) for name, option in option_table().items()})
        if self.is_editable:
            self._set_choices(values)
            return
        self.instance.path = values["path"]
        for name in option_table():  # Django's page reads an attribute.
            setattr(self.instance, name, value_words(name, values[name]))

    @property
    def is_redrawn(self) -> bool:
        """Return whether the page is shown again with other fields, and nothing is saved."""
        return "_redraw" in self.data

    def _set_choices(self, values: Values) -> None:
        fields: dict[str, Any] = self.fields
        for field in ("name", "group"):
            fields[field].widget.attrs["list"] = "ratelimit-names"
        fields["key"].widget.choices = key_choices()
        # Methods that the rule has already stay: WebDAV and other clients use more than these.
        methods = [*METHODS, *split(values["method"])]
        fields["method"].offer((name, name) for name in methods)
        groups = group_names()
        fields["audience"].offer(audience_choices(groups, values["audience"].splitlines()))
        fields["tiers"].offer(groups, values.get("tiers"))

    def mark_hidden(self) -> None:
        """Mark the fields that have no effect, which the style sheet hides."""
        values = {name: self[name].value() for name in self.fields}
        for name in hidden_options(values):
            if name not in self.errors:
                self.fields[name].widget.attrs["data-hidden"] = ""

    def full_clean(self) -> None:
        super().full_clean()
        if self.is_redrawn:
            self._errors = ErrorDict()

    def is_valid(self) -> bool:
        return super().is_valid() and not self.is_redrawn

    def clean_path(self) -> str:
        """Return the paths, and set the route of the rule.

        Raises `ValidationError` for more than one route, and for one that the site does not have.
        """
        lines = split(self.cleaned_data["path"], "\n")
        routes = [line for line in lines if not line.startswith(("/", "*"))]
        if len(routes) > 1:
            raise ValidationError(_("Enter the name of only one URL pattern."))
        route = next(iter(routes), "")
        if route not in ("", self.instance.route, *route_names()):
            text = _(
                "%(text)s is no path, which begins with / or **, and no name of a URL pattern."
            )
            raise ValidationError(text % {"text": route})
        self.instance.route = route
        return "\n".join(line for line in lines if line != route)

    def clean(self) -> Values:
        """Set the options of the rule. Unknown ones, from edits by hand, are removed."""
        given = super().clean()
        if self.is_editable:
            values = {name: given[name] for name in option_table() if is_set(given.get(name))}
            self.instance.options = absent_options(self.instance) | values
        return given

    def _post_clean(self) -> None:
        super()._post_clean()
        if self.errors or not (self.is_editable and self.is_asking):
            return  # No warnings until the form is valid.
        mode = ""
        if self.instance.pk is not None:
            mode = self.initial["mode"]
        self.ask(confirmations(self.instance, mode))

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
                field = {"route": "path"}.get(each.field, each.field)
                if field in reported:
                    continue
                text = each.words()
                if each.tier:
                    tiers.add_error(each.tier, each.field, text)
                self.add_error(field if field in self.fields else None, text)
