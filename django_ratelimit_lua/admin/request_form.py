"""The inspector's form: a request, in all that a limit can count by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, QueryDict
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ..identity.forwarded import parse_network
from ..identity.keys import registered_keys
from ..limits.rate import LimitError
from ..models.rule import METHODS
from ..operations.reference import BadReferenceError, OpenedReference, open_reference
from ..operations.request_builder import SENT_KINDS, Fields, build_request, find_user
from ..operations.subjects import NetworkOverride, Subject, subjects


@dataclass(frozen=True, slots=True)
class RequestDescription:
    """A described request. `own_address`: its address if none is given."""

    path: str
    method: str
    host: str
    address: str
    own_address: str | None
    user: Any
    fields: Fields

    def request(self, *, logged_in: bool = True) -> HttpRequest:
        """The request, or the same without a signed-in user.

        Raises `LimitError` for an impossible request.
        """
        return build_request(
            self.path,
            self.method,
            self.address or self.own_address,
            self.user if logged_in else None,
            host=self.host or None,
            fields=self.fields,
        )

    @property
    def subjects(self) -> dict[str, Subject]:
        """Whom overrides can be about, each by itself."""
        return subjects(self.user, self.address, self.fields)

    @property
    def network_size(self) -> int:
        """How many addresses are meant, of which the first one is looked at."""
        return int(parse_network(self.address).num_addresses) if self.address else 1

    def network_overrides(self) -> list[NetworkOverride]:
        """The overrides about a network, if the form names one."""
        return self.subjects["address"].network_overrides() if self.network_size > 1 else []


class Lines(forms.CharField):
    """Names and values, each pair on a line of its own."""

    def __init__(self, label: Any, mark: str, help_text: Any) -> None:
        self.mark = mark
        widget = forms.Textarea(attrs={"rows": 2, "autocomplete": "off", "spellcheck": "false"})
        super().__init__(label=label, required=False, help_text=help_text, widget=widget)

    def pairs(self, text: str) -> list[tuple[str, str]]:
        """Raises `ValidationError` that names the line."""
        found = []
        for number, line in enumerate(text.splitlines(), start=1):
            name, mark, value = line.partition(self.mark)
            if line.strip() and not (mark and name.strip()):
                raise ValidationError(
                    _("Line %(number)d: enter %(right)s.")
                    % {"number": number, "right": f"NAME{self.mark} VALUE"}
                )
            if line.strip():
                found.append((name.strip(), value.strip()))
        return found


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
    )
    method = forms.ChoiceField(
        label=_("Method"),
        required=False,
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
    """What few requests need."""

    def __init__(
        self,
        data: QueryDict | None,
        own_address: str | None = None,
        initial: QueryDict | None = None,
    ) -> None:
        super().__init__(
            None if data is None else _folded(data),
            label_suffix="",
            initial={} if initial is None else initial.dict(),
        )
        self.own_address = own_address
        self.description: RequestDescription | None = None
        if not registered_keys():
            del self.fields["keys"]

    def clean_method(self) -> str:
        """The method; GET by default."""
        return str(self.cleaned_data["method"] or "GET")

    def clean_path(self) -> str:
        """Raises `ValidationError` for an invalid path."""
        path: str = self.cleaned_data["path"]
        if not path.startswith("/"):
            raise ValidationError(_("A path begins with /."))
        return path

    def clean_address(self) -> str:
        """Raises `ValidationError` if it is neither an address nor a network."""
        address: str = self.cleaned_data["address"].strip()
        try:
            return address and str(
                parse_network(address) if "/" in address else parse_network(address).network_address
            )
        except ValueError:
            raise ValidationError(
                _("Enter an address or network, for example 203.0.113.9 or 203.0.113.0/24.")
            ) from None

    def clean(self) -> dict[str, Any]:
        """Keeps the request as `asked`. Raises `ValidationError` for what no request can be."""
        given: dict[str, Any] = super().clean() or {}
        fields: list[tuple[str, str]] = []
        for kind, field in self.fields.items():
            if isinstance(field, Lines):
                try:
                    pairs = field.pairs(given.get(kind, ""))
                except ValidationError as error:
                    self.add_error(kind, error)
                else:
                    fields += [
                        (name if kind == "keys" else f"{kind}:{name}", value)
                        for name, value in pairs
                    ]
        user = find_user(given["user"]) if given.get("user") else None
        if given.get("user") and user is None:
            self.add_error("user", _("No user has this name or primary key."))
        if not self.errors:
            description = RequestDescription(
                given["path"],
                given["method"],
                given["host"],
                given["address"],
                self.own_address,
                user,
                fields,
            )
            try:
                description.request()
            except LimitError as error:
                raise ValidationError(str(error)) from error
            self.description = description
        return given

    @property
    def query(self) -> str:
        """What was entered, for a link."""
        return urlencode([(name, self.data[name]) for name in self.fields if self.data.get(name)])

    @property
    def has_more(self) -> bool:
        """Whether something was entered that few requests need."""
        return any(self.data.get(name) or name in self.errors for name in self.MORE)

    def basic(self) -> list[Any]:
        """The fields that most requests need."""
        return [field for field in self if field.name not in self.MORE]

    def more(self) -> list[Any]:
        """The fields that few requests need."""
        return [field for field in self if field.name in self.MORE]


def _folded(data: QueryDict) -> dict[str, str]:
    """The fields of the form, with what was entered for a single one: `post:username` is a line of
    `post`.
    """
    folded = {name: str(data[name]) for name in RequestForm.base_fields if name in data}
    if data.get("as"):  # The button of another method.
        folded["method"] = str(data["as"])
    for name, value in data.items():
        kind, colon, field = name.partition(":")
        if colon and field and value and kind in SENT_KINDS:
            kind = "post" if kind == "data" else kind
            line = f"{field}: {value}" if kind == "header" else f"{field}={value}"
            folded[kind] = "\n".join(filter(None, (folded.get(kind, "").strip(), line)))
        elif name in registered_keys() and value:
            folded["keys"] = "\n".join(
                filter(None, (folded.get("keys", "").strip(), f"{name}={value}"))
            )
    return folded
