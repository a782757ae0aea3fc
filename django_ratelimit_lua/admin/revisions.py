"""Forms that do not overwrite a change of another user that was made while they were open."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from ..models import RateLimitChange
from .history import difference_of

Values = dict[str, Any]
"""The values of a form, by field."""


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
        """Note the stored version, if it is newer than the one that the form has shown."""
        given = super().clean() or {}
        sent = self.data.get(self.add_prefix("revision"))
        if self.instance.pk is not None and sent not in (None, str(self.instance.revision)):
            self.stored = self.instance.spec
        return given

    def check_row(self) -> None:
        """Add errors of the whole row, in addition to those of the model."""

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        self.check_row()
        if self.stored is not None and not self.errors:
            row = self.instance
            lines = difference_of(row.CHANGE_KIND, self.stored, row.spec)
            if lines:
                self.add_error(None, ValidationError([_latest_author(row), *lines]))

    def _update_errors(self, errors: ValidationError) -> None:
        """Add the first error of the model for each field that has no error of the form."""
        by_field = errors.update_error_dict({})
        news = {name: found[:1] for name, found in by_field.items() if name not in self.errors}
        if news:
            super()._update_errors(ValidationError(news))  # type: ignore[misc]


def _latest_author(row: Any) -> str:
    """Return a sentence about the change that was made while a form was open."""
    changes = RateLimitChange.objects.filter(kind=row.CHANGE_KIND, object_id=row.pk)
    by = changes.values_list("by", flat=True).first()
    text = _(
        "%(user)s changed this while you were editing it. Your version has not been saved. Reload "
        "the page to see the stored version. If you save again, yours replaces it, and reverts "
        "that change where they differ:"
    )
    return text % {"user": by or _("Another user")}
