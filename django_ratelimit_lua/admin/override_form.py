"""The form of an override."""

from __future__ import annotations

import datetime
from contextlib import suppress
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..identity import digest, secrets_by_id
from ..identity.address import client_address
from ..identity.forwarded import covers, parse_address, parse_network
from ..models import RateLimitOverride
from ..operations.call_sites import rule_names
from ..operations.confirmations import override_confirmations
from .forms import AskingForm
from .revisions import Values

DURATIONS = {
    "3600": _("for 1 hour"),
    "86400": _("for 1 day"),
    "604800": _("for 1 week"),
    "2592000": _("for 30 days"),
}
"""Durations of overrides, in seconds."""


class OverrideForm(AskingForm):
    """The form of an override. The value of a field is converted to a digest at once."""

    value = forms.CharField(
        label=_("Value"),
        required=False,
        strip=False,
        widget=forms.PasswordInput({"autocomplete": "off", "spellcheck": "false"}),
        help_text=_(
            "The value of the field, for example the API key itself. Only its digest is stored."
        ),
    )
    rule = forms.ChoiceField(
        label=_("Rule"),
        required=False,
        choices=lambda: [("", _("all rules")), *((name, name) for name in rule_names())],
        help_text=_("A rule, or a limit in the code. Another limit is for one of them."),
    )
    duration = forms.ChoiceField(
        label=_("Duration"),
        required=False,
        choices=[("", _("until the end time below, or for good")), *DURATIONS.items()],
    )

    class Meta:
        """The model and its fields."""

        model = RateLimitOverride
        fields = "__all__"

    request: HttpRequest
    MAX_NETWORKS = 1000

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.networks: list[str] = []
        if "network" in self.fields and self.instance.pk is None:
            self.fields["network"] = forms.CharField(
                label=self.fields["network"].label,
                required=False,
                widget=forms.Textarea(attrs={"rows": 2}),
                help_text=_(
                    "For example 203.0.113.9 or 2001:db8::/48. Several, one per line, become one "
                    "override each."
                ),
            )
        if self.instance.rule and "rule" in self.fields:  # Its rule may have been deleted.
            choices: Any = self.fields["rule"]
            choices.choices = dict([*choices.choices, (self.instance.rule, self.instance.rule)])
        for name in {"starts", "ends"} & self.fields.keys():
            field = self.fields[name]
            for part, label in zip(field.widget.widgets, (_("date"), _("time")), strict=True):
                part.attrs["aria-label"] = f"{field.label}: {label}"

    def clean(self) -> Values:
        """Check the override. Raises `ValidationError` if it would block the operator."""
        given = super().clean()
        if given.get("value"):
            self.instance.field = given.get("field") or ""
            if not self.instance.field:
                self.add_error(
                    "field", _("Enter the field that has this value, for example header:X-API-Key.")
                )
            self.instance.set_value(given["value"])
        if given.get("duration") and given.get("ends") and "ends" in self.changed_data:
            self.add_error("duration", _("Choose either a duration or an end time."))
        elif given.get("duration"):
            start = given.get("starts") or timezone.now()
            with suppress(OverflowError):  # The model reports the end of the calendar.
                given["ends"] = start + datetime.timedelta(seconds=int(given["duration"]))
        if given.get("effect") == "block":
            self._refuse_own(given)
            warnings = override_confirmations(self.networks, own_proxy(self.request))
            self.ask([("network", warning) for warning in warnings])
        return given

    def _update_errors(self, errors: ValidationError) -> None:
        # Without a valid subject, the model would report that it is missing.
        if not self.errors.keys() & {"user", "network", "field", "client_digest"}:
            super()._update_errors(errors)

    def clean_network(self) -> str:
        """Return the first network, and store all of them in `networks`.

        Raises `ValidationError`, which names the invalid ones.
        """
        networks: dict[str, None] = {}
        wrong = []
        for text in self.cleaned_data["network"].replace(",", " ").split():
            try:
                networks[str(parse_network(text))] = None
            except ValueError:
                wrong.append(text)
        if wrong:
            problem = _(
                "Not an address or network: %(texts)s. Enter for example 203.0.113.9 or "
                "203.0.113.0/24."
            )
            raise ValidationError(problem % {"texts": ", ".join(wrong)[:300]})
        if len(networks) > 1 and self.instance.pk is not None:
            raise ValidationError(
                _("An override applies to one network. Add an override for each further network.")
            )
        if len(networks) > self.MAX_NETWORKS:
            raise ValidationError(
                _("Enter at most %(number)d networks at once.") % {"number": self.MAX_NETWORKS}
            )
        self.networks = list(networks)
        return next(iter(networks), "")

    def _refuse_own(self, given: Values) -> None:
        """Add an error if the block would lock out the operator."""
        address = own_address(self.request)
        if any(covers(network, address) for network in self.networks):
            self.add_error(
                "network", _("This includes your own address: you would lock yourself out.")
            )
        own = {"user": [self.request.user], "client_digest": own_digests(self.request)}
        for name, values in own.items():
            if given.get(name) in values:
                self.add_error(
                    name, _("This includes your own account: you would lock yourself out.")
                )


def own_proxy(request: HttpRequest) -> str | None:
    """Return the address of the proxy that forwarded the request, if its headers name one."""
    peer = parse_address(request.META.get("REMOTE_ADDR") or "")
    if peer is None or not {"HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED"} & request.META.keys():
        return None
    return str(peer)


def own_address(request: HttpRequest) -> str:
    """Return the address from which a request comes; empty if it is not known."""
    return str(client_address(request).address or "")


def own_digests(request: HttpRequest) -> set[str]:
    """Return the digests of the operator, for limits by user, by address and by both.

    Digests with an earlier secret are included, because overrides about them apply as well.
    """
    user = ("user", str(request.user.pk))
    network = ("ip", client_address(request).network)
    own = (user, network, (user, network), (network, user))
    return {
        digest(identity, secret).decode() for identity in own for secret in secrets_by_id().values()
    }
