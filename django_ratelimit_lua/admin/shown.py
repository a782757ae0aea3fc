"""What a form has shown of a row: nobody undoes what others have changed meanwhile.

The values that were shown are sent along, signed. What the operator has changed is told by them; and so is what others
have changed since, which is an error that says what it was.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.core import signing
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

SALT = "django_ratelimit_lua.shown"


class Hidden(forms.CharField):
    """A text that the page sends back and nobody types."""

    def __init__(self) -> None:
        super().__init__(required=False, widget=forms.HiddenInput)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class ShownForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form of a row that may be changed by others while it is open.

    - `was`: what was shown of the row, by field; empty for a new one, and where nothing was sent of it;
    - `now`: what the row is;
    - `meanwhile`: the fields that others have changed since.
    """

    shown = Hidden()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.was: dict[str, Any] = {}
        self.now: dict[str, Any] = {}
        self.meanwhile: list[str] = []
        if self.instance.pk is None:
            return
        columns = self._meta.model._meta.concrete_fields
        self.now = {field.name: getattr(self.instance, field.attname) for field in columns if field.name in self.fields}
        if self.is_bound:
            try:
                self.was = signing.loads(self.data.get(self.add_prefix("shown"), ""), salt=self._salt())
            except signing.BadSignature:
                return
            self.was = {name: value for name, value in self.was.items() if name in self.now}
            self.initial.update(self.was)
            self.meanwhile = [name for name in self.was if not _same(self.was[name], self.now[name])]
        else:
            self.initial["shown"] = self._signed()

    def _update_errors(self, errors: ValidationError) -> None:
        """Of a field that is wrong already, what the row says is not said too: it has not seen what was entered."""
        by_field = errors.update_error_dict({})
        news = {name: found for name, found in by_field.items() if name == NON_FIELD_ERRORS or name not in self.errors}
        if news:
            super()._update_errors(ValidationError(news))  # type: ignore[misc]

    def _salt(self) -> str:
        return f"{SALT}.{self._meta.model._meta.model_name}.{self.instance.pk}"

    def _signed(self) -> str:
        return signing.dumps(self.now, salt=self._salt(), compress=True)

    def is_touched(self, name: str) -> bool:
        """Whether whoever sends the form has changed a field in it, or has left something there that is wrong."""
        return name not in self.cleaned_data or not _same(self.cleaned_data[name], self.was[name])

    def show_again(self) -> None:
        """Show the row as it is now, with what was typed."""
        data: Any = self.data.copy()  # type: ignore[attr-defined]
        data[self.add_prefix("shown")] = self._signed()
        for name in self.meanwhile:
            if not self.is_touched(name):
                value = self.fields[name].prepare_value(self.now[name])
                data.pop(self.add_prefix(name), None)
                if isinstance(value, list):
                    data.setlist(self.add_prefix(name), value)
                elif value is not None and value is not False:
                    data[self.add_prefix(name)] = str(value)
        self.data = data

    def in_words(self, name: str, value: Any) -> str:
        """A value as the form shows it."""
        value = self.fields[name].prepare_value(value)
        names = dict(self._meta.model._meta.get_field(name).flatchoices)
        if isinstance(value, bool):
            return str(_("yes") if value else _("no"))
        if isinstance(value, list):
            return ", ".join(map(str, value)) or "—"
        return str(names.get(value) or value) if value not in (None, "") else "—"

    def refuse_if_changed(self) -> None:
        """Add an error where others have changed the row, and show it as it is now."""
        if self.meanwhile:
            self.add_error(None, self.changed_by_others())
            self.show_again()

    def changed_by_others(self) -> ValidationError:
        """What others have changed, field by field, old and new."""
        lines = [
            _("%(field)s: %(old)s → %(new)s") % {
                "field": capfirst(str(self._meta.model._meta.get_field(name).verbose_name)),
                "old": self.in_words(name, self.was[name]), "new": self.in_words(name, self.now[name]),
            }
            for name in self.meanwhile
        ]  # fmt: skip
        own = [name for name in self.meanwhile if self.is_touched(name)]
        kept = [str(self.fields[name].label) for name in own]
        words: list[Any] = [_("This was changed meanwhile, and nothing is saved yet."), *lines]
        if kept:
            words.append(
                _("What you have entered still stands here: %(fields)s. Saved again, it replaces that.")
                % {"fields": ", ".join(kept)}
            )
        else:
            words.append(_("The form shows it with what you have changed. Save again if both fit together."))
        return ValidationError(words)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one.replace("\r\n", "\n") == other.replace("\r\n", "\n")  # As browsers send lines.
    if isinstance(one, list) and isinstance(other, list):
        return sorted(map(str, one)) == sorted(map(str, other))
    return bool(one == other)
