"""Forms that refuse to overwrite a row that was changed while the form was open."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.utils.translation import gettext_lazy as _


class Hidden(forms.CharField):
    """A text that the page sends back and the operator does not edit."""

    def __init__(self) -> None:
        super().__init__(required=False, widget=forms.HiddenInput)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class VersionedForm(forms.ModelForm):  # type: ignore[type-arg]
    """A model form that sends the version of the row that it shows.

    The version is a digest of the values of the form's fields. A form without one, as a script
    sends it, is saved.
    """

    version = Hidden()
    more_columns: Collection[str] = ()
    """Columns that follow from what is entered, and are no fields of the form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        columns = self._meta.model._meta.concrete_fields
        self.columns = [
            field.name for field in columns if field.name in {*self.fields, *self.more_columns}
        ]
        self._current = "" if self.instance.pk is None else self._digest()
        self.initial["version"] = self._current

    def _digest(self) -> str:
        model = self._meta.model._meta
        values = [getattr(self.instance, model.get_field(name).attname) for name in self.columns]
        text = json.dumps(values, cls=DjangoJSONEncoder)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def refuse_if_outdated(self) -> None:
        """Add an error if the row was changed after the form was rendered."""
        sent = self.data.get(self.add_prefix("version"), "")
        if self._current and sent and sent != self._current:
            problem = _(
                "Another user changed this while you were editing it, so your changes were not "
                "saved. Reload the page "
                "to see the current values, then make your changes again."
            )
            self.add_error(None, problem)

    def _update_errors(self, errors: ValidationError) -> None:
        """Omit the model's errors of a field that has an error of the form already."""
        by_field = errors.update_error_dict({})
        news = {
            name: found
            for name, found in by_field.items()
            if name == NON_FIELD_ERRORS or name not in self.errors
        }
        if news:
            super()._update_errors(ValidationError(news))  # type: ignore[misc]
