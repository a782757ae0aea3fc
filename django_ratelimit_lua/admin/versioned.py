"""Forms that refuse to overwrite a row that was changed while the form was open."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.core.validators import MaxValueValidator, MinValueValidator
from django.utils.translation import gettext_lazy as _

Values = dict[str, Any]
"""The values of a form, by field."""


def fingerprint(values: object) -> str:
    """Return a digest of values: a form sends it back to prove which values it showed."""
    text = json.dumps(values, cls=DjangoJSONEncoder, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Hidden(forms.CharField):
    """A hidden text that the page sends back and the operator does not edit."""

    def __init__(self) -> None:
        super().__init__(required=False, widget=forms.HiddenInput)

    def has_changed(self, initial: object, data: object) -> bool:
        return False


class VersionedForm(forms.ModelForm):  # type: ignore[type-arg]
    """A model form that sends the version of the row that it shows.

    The version is a digest of the values of the form's fields. A form without a version, as a
    script sends it, is saved.
    """

    version = Hidden()
    more_columns: Collection[str] = ()
    """Columns that are computed from the entered values, and are not fields of the form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        model = self._meta.model._meta
        names = {*self.fields, *self.more_columns}
        self.columns = [field.name for field in model.concrete_fields if field.name in names]
        self.initial["version"] = "" if self.instance.pk is None else self._digest()
        for name in self.columns:
            field = self.fields.get(name)
            if isinstance(field, forms.IntegerField):
                _set_bounds(field, model.get_field(name).validators)

    def _digest(self) -> str:
        model = self._meta.model._meta
        values = [getattr(self.instance, model.get_field(name).attname) for name in self.columns]
        return fingerprint(values)

    def clean(self) -> Values:
        """Add an error if the row was changed after the form was rendered."""
        given = super().clean() or {}
        sent = self.data.get(self.add_prefix("version"))
        if sent and self.initial["version"] not in ("", sent):
            problem = _(
                "Another user changed this while you were editing it, so your changes were not "
                "saved. Reload the page "
                "to see the current values, then make your changes again."
            )
            self.add_error(None, problem)
        return given

    def _update_errors(self, errors: ValidationError) -> None:
        """Add the first error of the model for each field that has no error of the form."""
        by_field = errors.update_error_dict({})
        news = {name: found[:1] for name, found in by_field.items() if name not in self.errors}
        if news:
            super()._update_errors(ValidationError(news))  # type: ignore[misc]


def _set_bounds(field: forms.IntegerField, validators: Iterable[object]) -> None:
    """Set the bounds in the HTML to those of the model, instead of those of the column's type."""
    for validator in validators:
        if isinstance(validator, MinValueValidator):
            field.widget.attrs["min"] = validator.limit_value
        elif isinstance(validator, MaxValueValidator):
            field.widget.attrs["max"] = validator.limit_value
