"""The inspector's form: a request with all values that a limit can count by."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.http import HttpRequest, QueryDict
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ..identity.forwarded import network_words, parse_network
from ..identity.keys import registered_keys
from ..limits.rate import LimitError
from ..models.rule import METHODS
from ..operations.reference import BadReferenceError, OpenedReference, open_reference
from ..operations.request_builder import Fields, build_request, find_user
from ..operations.subjects import NetworkOverride, Subject, subjects
from .revisions import Values


class Lines(forms.CharField):
    """A field for pairs of a name and a value, one per line."""

    def __init__(self, label: Any, mark: str, help_text: Any) -> None:
        self.mark = mark
        widget = forms.Textarea(attrs={"rows": 2, "autocomplete": "off", "spellcheck": "false"})
        super().__init__(label=label, required=False, help_text=help_text, widget=widget)

    def clean(self, value: object) -> list[tuple[str, str]]:
        """Return the pairs. Raises `ValidationError`, which names the line."""
        pairs = []
        for number, line in enumerate(super().clean(value).splitlines(), start=1):
            name, mark, text = line.partition(self.mark)
            if mark and name.strip():
                pairs.append((name.strip(), text.strip()))
            elif line.strip():
                raise ValidationError(
                    _("Line %(number)d: enter %(right)s.")
                    % {"number": number, "right": f"NAME{self.mark} VALUE"}
                )
        return pairs


class ReferenceForm(forms.Form):
    """The reference of a 429. If it is valid, `opened` has its contents."""

    opened: OpenedReference
    reference = forms.CharField(
        label=_("Reference"),
        max_length=100,
        help_text=_("The reference shown in the 429 response."),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )

    def clean_reference(self) -> str:
        text: str = self.cleaned_data["reference"]
        try:
            self.opened = open_reference(text)
        except BadReferenceError as error:
            raise ValidationError(capfirst(str(error))) from None
        return text


class RequestForm(forms.Form):
    """The request to inspect: its client, its path, and its values."""

    path = forms.CharField(
        label=_("Path"),
        initial="/",
        max_length=2000,
        help_text=_("For example /login/ or /api/?q=x."),
        validators=[RegexValidator("^/", _("A path begins with /."))],
    )
    method = forms.TypedChoiceField(
        label=_("Method"),
        required=False,
        empty_value="GET",
        choices=[(name, name) for name in METHODS],
        help_text=_("A login form is sent with POST."),
    )
    address = forms.CharField(
        label=_("Address or network"),
        required=False,
        max_length=49,
        help_text=_("For example 203.0.113.9 or 203.0.113.0/24."),
    )
    user = forms.CharField(
        label=_("Logged-in user"),
        required=False,
        help_text=_("Name or primary key. Empty: no user is logged in, as at a login form."),
    )
    post = Lines(_("Form fields"), "=", _("One on each line, for example username=ada."))
    header = Lines(_("Headers"), ":", _("One on each line, for example X-API-Key: …"))
    cookie = Lines(_("Cookies"), "=", _("One on each line: NAME=VALUE."))
    get = Lines(_("Query"), "=", _("One parameter on each line: NAME=VALUE."))
    json = Lines(_("JSON fields"), "=", _("One on each line, for example user.name=ada."))
    keys = Lines(_("Keys of this site"), "=", _("One on each line, for example tenant=acme."))
    host = forms.CharField(label=_("Host"), required=False, max_length=253)

    MORE = ("header", "cookie", "get", "json", "keys", "host")
    """Fields that few requests need."""

    def __init__(self, data: QueryDict | None, own_address: str, initial: QueryDict) -> None:
        super().__init__(data and _folded(data), label_suffix="", initial=initial.dict())
        self.own_address = own_address
        if not registered_keys():
            del self.fields["keys"]

    def clean_address(self) -> str:
        """Return the address. Raises `ValidationError` if it is no address and no network."""
        text: str = self.cleaned_data["address"].strip()
        if not text:
            return ""
        try:
            return network_words(parse_network(text))
        except ValueError:
            raise ValidationError(
                _("Enter an address or network, for example 203.0.113.9 or 203.0.113.0/24.")
            ) from None

    def clean_user(self) -> User | None:
        """Return the user. Raises `ValidationError` if there is no such user."""
        name = self.cleaned_data["user"]
        user = name and find_user(name)
        if user is None:
            raise ValidationError(_("No user has this name or primary key."))
        return user or None

    def clean(self) -> Values:
        """Check the request. Raises `ValidationError` if it is impossible."""
        given = super().clean() or {}
        if not self.errors:
            try:
                self.build()
            except LimitError as error:
                raise ValidationError(str(error)) from error
        return given

    def sent(self) -> Fields:
        """Return the values that the client sends, as pairs of a key and a value."""
        given = self.cleaned_data
        pairs = [
            (f"{kind}:{name}", value)
            for kind in ("post", "header", "cookie", "get", "json")
            for name, value in given[kind]
        ]
        return [*pairs, *given.get("keys", ())]

    def build(self) -> HttpRequest:
        """Return the described request. Raises `LimitError` if it is impossible."""
        given = self.cleaned_data
        return build_request(
            given["path"],
            given["method"],
            given["address"] or self.own_address or None,
            given["user"],
            host=given["host"] or None,
            fields=self.sent(),
        )

    @property
    def subjects(self) -> dict[str, Subject]:
        """Return the entered values as possible subjects of overrides."""
        return subjects(self.cleaned_data["user"], self.cleaned_data["address"], self.sent())

    @property
    def is_network(self) -> bool:
        """Return whether the form is about a network. Only its first address is inspected."""
        return "/" in self.cleaned_data["address"]

    def network_overrides(self) -> list[NetworkOverride]:
        """Return the overrides about a network, if the form names one."""
        if not self.is_network:
            return []
        return Subject(address=self.cleaned_data["address"]).network_overrides()

    @property
    def query(self) -> str:
        """Return the entered values as the query of a link."""
        return urlencode([(name, self.data[name]) for name in self.fields if self.data.get(name)])

    @property
    def has_more(self) -> bool:
        """Return whether a rarely needed field was entered."""
        return any(self.data.get(name) or name in self.errors for name in self.MORE)


def _folded(data: QueryDict) -> dict[str, str]:
    """Return the form's data, with parameters such as `post:username` as lines of its fields.

    For example, `post:username=ada` becomes the line `username=ada` of the field `post`.
    """
    folded = {name: str(data[name]) for name in RequestForm.base_fields if name in data}
    if data.get("as"):  # The button of another method.
        folded["method"] = str(data["as"])
    for name, value in data.items():
        kind, _colon, field = name.partition(":")
        if name in registered_keys():
            kind = "keys"
            field = name
        elif kind == "data":
            kind = "post"
        lines = RequestForm.base_fields.get(kind)
        if field and value and isinstance(lines, Lines):
            folded[kind] = f"{folded.get(kind, '')}\n{field}{lines.mark}{value}".strip()
    return folded
