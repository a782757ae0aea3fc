"""Form fields for the options of rules, built from their table, and for lists of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..limits.options import OPTIONS, Option
from ..limits.values import Choice, Lines, Number, Whole, flag
from ..models.rule import split_text
from ..rules.options import check_tier_list

OTHER = "other"
"""The choice of another key in a list of keys."""


def option_field(option: Option) -> forms.Field:
    """Return a form field for an option, by the type of its check."""
    words: dict[str, Any] = {
        "label": capfirst(_(option.label)),
        "help_text": _(option.help),
        "required": False,
    }
    check = option.check
    if check is check_tier_list:
        return TiersField(**words)
    if check is flag:
        # A text was written by hand, and is not true.
        checkbox = forms.CheckboxInput(check_test=lambda value: value is True)
        return forms.BooleanField(widget=checkbox, **words)
    if option.names or isinstance(check, Choice):
        names = option.names or {name: name for name in check.values}  # type: ignore[attr-defined]
        choices = [("", "---------"), *((name, _(label)) for name, label in names.items())]
        return forms.ChoiceField(choices=choices, **words)
    if isinstance(check, Whole):
        return forms.IntegerField(min_value=check.minimum, max_value=check.maximum, **words)
    if isinstance(check, Number):
        return forms.FloatField(min_value=check.minimum, max_value=check.maximum, **words)
    if isinstance(check, Lines):
        return LinesField(**words)
    return forms.CharField(**words)


class TextField(forms.CharField):
    """A text with the line breaks of Unix, whatever a browser sends."""

    def to_python(self, value: object) -> Any:
        return str(super().to_python(value)).replace("\r\n", "\n")


class LinesField(forms.CharField):
    """A list of texts, one per line. An empty text is written as two quotation marks."""

    EMPTY = '""'
    widget = forms.Textarea(attrs={"rows": 3})

    def prepare_value(self, value: object) -> object:
        if isinstance(value, list):
            return "\n".join(str(line) or self.EMPTY for line in value)
        return value

    def to_python(self, value: object) -> Any:
        lines = map(str.strip, (super().to_python(value) or "").splitlines())
        return ["" if line == self.EMPTY else line for line in lines if line]

    def has_changed(self, initial: object, data: object) -> bool:
        return super().has_changed(initial or [], data)


class NamesField(forms.MultipleChoiceField):
    """Names that are stored as one text.

    Args:
        separator: What separates them.
        none: The text if no name is selected.
    """

    widget = forms.CheckboxSelectMultiple

    def __init__(self, *args: Any, separator: str = ", ", none: str = "", **kwargs: Any) -> None:
        super().__init__(*args, required=False, **kwargs)
        self.separator = separator
        self.none = none

    def set_names(self, names: Iterable[tuple[str, str]]) -> None:
        """Set the names to choose from, each with its label."""
        self.choices = list(dict(names).items())

    def prepare_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return split_text(value, self.separator)
        return value

    def to_python(self, value: Any) -> Any:
        return [name for name in super().to_python(value) if name != self.none]

    def clean(self, value: object) -> Any:
        return self.separator.join(super().clean(value)) or self.none

    def has_changed(self, initial: object, data: Any) -> bool:
        old_names = self.to_python(self.prepare_value(initial))
        new_names = self.to_python(self.prepare_value(data))
        return super().has_changed(old_names, new_names)


class KeyWidget(forms.Select):
    """A list of keys. The last choice is another key, which is entered as text."""

    template_name = "admin/django_ratelimit_lua/key.html"

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        """Return the context, with the text of a key that is not in the list."""
        if not value or value in dict(self.choices):
            return {**super().get_context(name, value, attrs), "other": ""}
        return {**super().get_context(name, OTHER, attrs), "other": value}

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        """Return the key that was chosen, or entered as text."""
        value = super().value_from_datadict(data, files, name)
        if value == OTHER:
            return data.get(f"{name}_other", "")
        return value


class TierForm(forms.Form):
    """A tier of a rule, as a row. An empty row is no tier."""

    group = forms.CharField(
        label=gettext_lazy("Group"), widget=forms.TextInput({"list": "ratelimit-groups"})
    )
    rate = forms.CharField(
        label=gettext_lazy("Rate"), widget=forms.TextInput({"placeholder": "1000/m"})
    )

    def __init__(self, *args: Any, groups: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = groups
        self.fields["burst"] = option_field(OPTIONS["burst"])

    def clean_group(self) -> str:
        """Return the name of a group, or KEY:VALUE, which `compile` checks.

        Raises `ValidationError` if there is no such group.
        """
        name: str = self.cleaned_data["group"]
        if ":" not in name and name not in self.groups:
            raise ValidationError(_("There is no such group."))
        return name

    def to_tier(self) -> dict[str, object]:
        """Return the tier in the notation of rules."""
        values = self.cleaned_data
        rates = split_text(values["rate"], ",")
        rate = rates[0] if len(rates) == 1 else rates
        tier: dict[str, object] = {"group": values["group"], "rate": rate}
        if values["burst"] is not None:
            tier["burst"] = values["burst"]
        return tier


class TiersWidget(forms.Widget):
    """The rows of tiers, which are forms themselves."""

    use_fieldset = True
    groups: Sequence[str] = ()
    """The names of groups that a tier may have."""
    formset: Any = None
    """The rows that were sent."""

    def make_formset(self, data: Any = None, name: str = "tiers", **kwargs: Any) -> Any:
        """Return a formset of tiers, with an empty row at the end."""
        formset_class = forms.formset_factory(TierForm, extra=1)
        form_kwargs = {"groups": self.groups, "empty_permitted": True, "label_suffix": ""}
        return formset_class(data, prefix=name, form_kwargs=form_kwargs, **kwargs)

    def value_from_datadict(self, data: Any, files: object, name: str) -> Any:
        """Return the formset of the rows that were sent. It is made at the first call."""
        if self.formset is None:
            self.formset = self.make_formset(data, name)
        return self.formset

    def render(self, name: str, value: Any, *args: object, **kwargs: object) -> SafeString:
        """Render the rows that were sent, or else those of the stored tiers."""
        formset = self.formset
        if formset is None:
            initial = [_initial_row(tier) for tier in _valid_tiers(value)]
            formset = self.make_formset(name=name, initial=initial)
        context = {"rows": formset, "groups": self.groups}
        return render_to_string("admin/django_ratelimit_lua/tiers.html", context)


def _valid_tiers(value: object) -> list[Mapping[str, Any]]:
    """Return the tiers of a rule, without those that were broken by hand: they are no mappings."""
    if not isinstance(value, (list, tuple)):
        return []
    return [tier for tier in value if isinstance(tier, Mapping)]


def _initial_row(tier: Mapping[str, Any]) -> dict[str, object]:
    """Return the initial values of the row for a tier."""
    rate = tier.get("rate")
    if isinstance(rate, (list, tuple)):
        rate = ", ".join(map(str, rate))
    return {**tier, "rate": rate}


class TiersField(forms.Field):
    """The tiers of a rule, as a list in the notation of rules."""

    widget = TiersWidget

    def set_groups(self, groups: Sequence[str], tiers: object) -> None:
        """Set the names of groups that a tier may have, besides those of these tiers."""
        stored = [str(tier.get("group")) for tier in _valid_tiers(tiers)]
        self.widget.groups = list(dict.fromkeys([*groups, *stored]))

    def clean(self, value: Any) -> list[dict[str, object]]:
        """Return the tiers of the formset, without empty rows."""
        if not value.is_valid():
            raise ValidationError(_("Correct the marked tiers."))
        return [row.to_tier() for row in value if row.has_changed()]

    def has_changed(self, initial: object, data: Any) -> bool:
        return not data.is_valid() or self.clean(data) != (initial or [])

    def add_error(self, group: str, field: str, text: str) -> None:
        """Show an error in the row of a group."""
        for row in self.widget.formset:
            if row.cleaned_data.get("group") == group:
                row.add_error(field if field in row.fields else "rate", text)
