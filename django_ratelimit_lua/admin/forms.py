"""The form of a rule. It shows errors at their fields, and asks to confirm unexpected effects."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.forms.utils import ErrorDict
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..conf import conf
from ..extension import FIELDS_OF_ANNEXES
from ..identity.keys import BUILT_IN, registered_keys
from ..limits.algorithms import ALGORITHMS, find
from ..models import RateLimitChange, RateLimitRule
from ..models.rule import METHODS, is_set, split_text
from ..operations.confirmations import confirmations
from ..rules import RuleError
from ..rules.describe import value_words
from ..rules.options import COLUMNS, NAMES, option_table
from ..views.call_sites import discover_call_sites, known_call_sites, route_names
from .fields import OTHER, KeyWidget, NamesField, TextField, option_field
from .history import describe_versions

Values = dict[str, Any]
"""The values of a form, by field."""
GROUP = "group:"
"""The prefix of an audience that is a group."""
MAX_NAMES = 1000
"""Maximum number of names on a page. More would make it slow, and are not read."""


class RevisionForm(forms.ModelForm):  # type: ignore[type-arg]
    """A model form. Its page sends the revision of the row that it shows.

    If the row has another revision by then, the form shows how its version differs from the stored
    one. The page sends the newer revision the next time, and the form is saved. A form without a
    revision, as a script sends it, is saved.
    """

    stored: Values | None = None
    """The version of another user, if it was saved since the form was opened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""

    def clean(self) -> Values:
        """Set `stored` if the stored version is newer than the one that the form has shown."""
        values = super().clean() or {}
        revision = self.data.get(self.add_prefix("revision"))
        if self.instance.pk is not None and revision not in (None, str(self.instance.revision)):
            self.stored = self.instance.spec
        return values

    def check_row(self) -> None:
        """Add errors of the whole row, in addition to those of the model."""

    def _post_clean(self) -> None:
        """Add the errors of the row. Without any, add how it differs from a newer version."""
        super()._post_clean()  # type: ignore[misc]
        self.check_row()
        if self.stored is not None and not self.errors:
            row = self.instance
            lines = describe_versions(row.CHANGE_KIND, self.stored, row.spec)
            if lines:
                self.add_error(None, ValidationError([_conflict_words(row), *lines]))

    def _update_errors(self, errors: ValidationError) -> None:
        """Add the first error of the model for each field that has no error of the form."""
        by_field = errors.update_error_dict({})
        new = {name: texts[:1] for name, texts in by_field.items() if name not in self.errors}
        if new:
            super()._update_errors(ValidationError(new))  # type: ignore[misc]


def _conflict_words(row: Any) -> str:
    """Return the error for a change by another user that was made while a form was open."""
    changes = RateLimitChange.objects.filter(kind=row.CHANGE_KIND, object_id=row.pk)
    by = changes.values_list("by", flat=True).first()
    text = _(
        "%(user)s changed this while you were editing it. Your version has not been saved. Reload "
        "the page to see the stored version. If you save again, yours replaces it, and reverts "
        "that change where they differ:"
    )
    return text % {"user": by or _("Another user")}


def key_choices() -> list[tuple[str, str]]:
    """Return the keys to choose from, each with its label."""
    keys = [*BUILT_IN.values(), *registered_keys().values()]
    return [
        ("", "---------"),
        *((key.name, capfirst(str(key.label))) for key in keys),
        (OTHER, _("Other")),
    ]


def audience_choices(groups: list[str], stored: list[str]) -> list[tuple[str, str]]:
    """Return the audiences to choose from: those of logins, groups, and stored ones."""
    labels = {name: capfirst(_(words)) for name, words in NAMES["audience"].items()}
    for name in (*(f"{GROUP}{group}" for group in groups), *stored):
        labels.setdefault(name, _("Group %(name)s") % {"name": name.removeprefix(GROUP)})
    labels.pop("everyone", None)
    return list(labels.items())


def code_names() -> list[str]:
    """Return the names of limits in the code, at most `MAX_NAMES`."""
    discover_call_sites()
    return known_call_sites.names()[:MAX_NAMES]


def option_conditions() -> dict[str, dict[str, Any]]:
    """Return when the form shows an option: its algorithms, what it excludes, and what it needs.

    An option that always has an effect has no entry. Of two options that need each other, the first
    is always shown.
    """
    table = option_table()
    conditions = {}
    earlier: set[str] = set()
    for name, option in table.items():
        algorithms = [kind.name for kind in ALGORITHMS.values() if name in kind.options]
        needs = option.needs if option.needs in earlier else ""
        if algorithms or option.excludes or needs:
            conditions[name] = {
                "algorithms": algorithms,
                "excludes": list(option.excludes),
                "needs": needs,
            }
        earlier.add(name)
    return conditions


def default_algorithm() -> str:
    """Return the algorithm of rules that name none."""
    return find(conf.ALGORITHM).name


def hidden_options(values: Mapping[str, Any]) -> list[str]:
    """Return the options without a value that would have no effect, by the values of the form.

    An option has none under another algorithm, together with an option that it excludes, and
    without the option that it needs.
    """
    given = {name for name, value in values.items() if is_set(value)}
    algorithm = values.get("algorithm") or default_algorithm()
    hidden = []
    for name, condition in option_conditions().items():
        is_of_another = condition["algorithms"] and algorithm not in condition["algorithms"]
        is_excluded = not given.isdisjoint(condition["excludes"])
        lacks_other = condition["needs"] and condition["needs"] not in given
        if name not in given and (is_of_another or is_excluded or lacks_other):
            hidden.append(name)
    return hidden


def confirmation_digest(texts: Sequence[str]) -> str:
    """Return what a page sends to confirm these texts: no others are confirmed by it."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


class AskingForm(RevisionForm):
    """A form with warnings to confirm.

    The value of its checkbox is a digest of the warnings shown, so that no others are confirmed.
    """

    confirm = forms.BooleanField(
        label=gettext_lazy("Confirm"),
        required=False,
        help_text=gettext_lazy("The warnings above are intended."),
        widget=forms.CheckboxInput(check_test=lambda value: False),
    )
    asks = False
    """Whether it shows warnings to confirm."""

    def ask_to_confirm(self, warnings: Sequence[tuple[str, str]]) -> None:
        """Add warnings, each with its field, as errors, unless exactly these are confirmed."""
        confirmed = confirmation_digest([text for _field, text in warnings])
        if not warnings or self.data.get("confirm") == confirmed:
            return
        self.asks = True
        self.fields["confirm"].widget.attrs["value"] = confirmed
        for field, text in warnings:
            problem = ValidationError([text, _("If this is intended, tick “Confirm” below.")])
            self.add_error(field if field in self.fields else None, problem)


def form_values(rule: RateLimitRule) -> Values:
    """Return the values of the form's fields for a rule.

    `path` has the paths and the route, one per line. An option that was not set is None.
    """
    values: Values = dict.fromkeys(option_table())
    values.update(stored_options(rule))
    # Columns replace options with their names, which only edits by hand have stored.
    values.update({name: getattr(rule, name) for name in COLUMNS if name != "route"})
    values["path"] = "\n".join(text for text in (rule.path, rule.route) if text)
    return values


def stored_options(rule: RateLimitRule) -> Mapping[str, Any]:
    """Return the options of a rule, which may have been edited by hand."""
    if isinstance(rule.options, Mapping):
        return rule.options
    return {}


def absent_options(rule: RateLimitRule) -> dict[str, Any]:
    """Return the options of a rule that are those of optional apps that are not installed."""
    absent = FIELDS_OF_ANNEXES.keys() - option_table().keys()
    return {name: value for name, value in stored_options(rule).items() if name in absent}


class RuleForm(AskingForm):
    """The form of a rule: its columns, and a field for each entry of the table of options.

    The name of a URL pattern is entered as one of the paths.
    """

    is_asking = True
    """Whether it asks for confirmations."""

    method = NamesField(
        label=capfirst(gettext_lazy(COLUMNS["method"])),
        help_text=gettext_lazy("None selected: all methods. GET includes HEAD."),
    )
    audience = NamesField(
        label=capfirst(gettext_lazy(COLUMNS["audience"])),
        help_text=gettext_lazy("None selected: everyone."),
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
        """Add the fields of options, with the values of the rule; `initial` replaces some."""
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
        """Set the choices of the fields, including those that the rule has already."""
        fields: dict[str, Any] = self.fields
        for field in ("name", "group"):
            fields[field].widget.attrs["list"] = "ratelimit-names"
        fields["key"].widget.choices = key_choices()
        # WebDAV and other clients use more methods than these.
        methods = [*METHODS, *split_text(values["method"], ",")]
        fields["method"].set_names((name, name) for name in methods)
        groups = list(Group.objects.order_by("name").values_list("name", flat=True))
        fields["audience"].set_names(audience_choices(groups, values["audience"].splitlines()))
        fields["tiers"].set_groups(groups, values.get("tiers"))

    def mark_hidden_fields(self) -> None:
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
        lines = split_text(self.cleaned_data["path"], "\n")
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
        values = super().clean()
        if self.is_editable:
            options = {name: values[name] for name in option_table() if is_set(values.get(name))}
            self.instance.options = absent_options(self.instance) | options
        return values

    def _post_clean(self) -> None:
        """Add the warnings to confirm, if the form is valid."""
        super()._post_clean()
        if self.errors or not self.is_editable or not self.is_asking:
            return
        mode = self.initial["mode"] if self.instance.pk is not None else ""
        self.ask_to_confirm(confirmations(self.instance, mode))

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
                text = each.localized()
                if each.tier:
                    tiers.add_error(each.tier, each.field, text)
                self.add_error(field if field in self.fields else None, text)
