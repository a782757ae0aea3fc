"""The form of an override, and its effect on each limit that it concerns."""

from __future__ import annotations

import datetime
from contextlib import suppress
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..identity import digest, secrets_by_id
from ..identity.address import client_address, covers, parse_address
from ..limits.limit import Limit
from ..limits.rate import LimitError, Rate
from ..models import RateLimitOverride
from ..operations.confirmations import override_confirmations
from ..operations.explain import add_tier
from ..operations.known_limits import known_limits, place_words, rule_names
from ..rules.overrides import EVERY_RULE
from .forms import AskingForm, Values
from .preview import limit_words

DURATIONS = {
    "3600": gettext_lazy("for 1 hour"),
    "86400": gettext_lazy("for 1 day"),
    "604800": gettext_lazy("for 1 week"),
    "2592000": gettext_lazy("for 30 days"),
}
"""Durations of overrides, in seconds."""


class OverrideForm(AskingForm):
    """The form of an override. The value of a field is converted to a digest at once."""

    value = forms.CharField(
        label=gettext_lazy("Value"),
        required=False,
        strip=False,
        widget=forms.PasswordInput({"autocomplete": "off", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "The value of the field, for example the API key itself. Only its digest is stored."
        ),
    )
    rule = forms.ChoiceField(
        label=gettext_lazy("Rule"),
        required=False,
        choices=lambda: [
            ("", _("all rules")),
            *((name, place_words(name)) for name in rule_names()),
        ],
        help_text=gettext_lazy("A rule, or a limit in the code. Another limit is for one of them."),
    )
    duration = forms.ChoiceField(
        label=gettext_lazy("Duration"),
        required=False,
        choices=[("", gettext_lazy("until the end time below, or for good")), *DURATIONS.items()],
    )

    class Meta:
        """The model and its fields."""

        model = RateLimitOverride
        fields = "__all__"

    request: HttpRequest
    """The request of the page, which the subclass for it sets."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.rule and "rule" in self.fields:  # Its rule may have been deleted.
            choices: Any = self.fields["rule"]
            choices.choices = dict([*choices.choices, (self.instance.rule, self.instance.rule)])
        for name in {"starts", "ends"} & self.fields.keys():
            field = self.fields[name]
            for part, label in zip(field.widget.widgets, (_("date"), _("time")), strict=True):
                part.attrs["aria-label"] = f"{field.label}: {label}"

    def clean(self) -> Values:
        """Check the override. Raises `ValidationError` if it would block the operator."""
        values = super().clean()
        if values.get("value"):
            self.instance.field = values.get("field") or ""
            if not self.instance.field:
                self.add_error(
                    "field", _("Enter the field that has this value, for example header:X-API-Key.")
                )
            self.instance.set_value(values["value"])
        self._set_end(values)
        if values.get("effect") == "block":
            self._refuse_own(values)
            warnings = override_confirmations(values.get("network", ""), own_proxy(self.request))
            self.ask_to_confirm([("network", warning) for warning in warnings])
        return values

    def _set_end(self, values: Values) -> None:
        """Set the end of the override by its duration, and check it."""
        if values.get("duration") and values.get("ends") and "ends" in self.changed_data:
            self.add_error("duration", _("Choose either a duration or an end time."))
        elif values.get("duration"):
            start = values.get("starts") or timezone.now()
            with suppress(OverflowError):  # The model reports the end of the calendar.
                values["ends"] = start + datetime.timedelta(seconds=int(values["duration"]))
        ends = values.get("ends")
        if ends and self.instance.pk is None and ends <= timezone.now():
            self.add_error("ends", _("The end is in the past."))

    def _update_errors(self, errors: ValidationError) -> None:
        # Without a valid subject, the model would report that it is missing.
        if not self.errors.keys() & {"user", "network", "field", "client_digest"}:
            super()._update_errors(errors)

    def _refuse_own(self, values: Values) -> None:
        """Add an error if the block would lock out the operator."""
        address = str(client_address(self.request).address or "")
        if covers(values.get("network", ""), address):
            self.add_error(
                "network", _("This includes your own address: you would lock yourself out.")
            )
        is_own_user = values.get("user") == self.request.user
        is_own_digest = values.get("client_digest") in own_digests(self.request)
        for name, is_own in (("user", is_own_user), ("client_digest", is_own_digest)):
            if is_own:
                self.add_error(
                    name, _("This includes your own account: you would lock yourself out.")
                )


def own_proxy(request: HttpRequest) -> str | None:
    """Return the address of the proxy that forwarded the request; None if no header names one."""
    peer = parse_address(request.META.get("REMOTE_ADDR") or "")
    if peer is None or not {"HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED"} & request.META.keys():
        return None
    return str(peer)


def own_digests(request: HttpRequest) -> set[str]:
    """Return the digests of the operator, for limits by user, by address and by both.

    Digests with an earlier secret are included, because overrides about them apply as well.
    """
    user = ("user", str(request.user.pk))
    network = ("ip", client_address(request).network)
    identities = (user, network, (user, network), (network, user))
    secrets = secrets_by_id().values()
    return {digest(identity, secret).decode() for identity in identities for secret in secrets}


def override_effects(
    rule: str, effect: str, rate: str, burst: int | None
) -> list[tuple[str, str, str]]:
    """Return each limit that an override concerns: its name, its words without and with it.

    Args:
        rule: The name of the rule or of the limit in the code; empty: all of them.
        effect: The effect of the override: "limit", "exempt" or "block".
        rate: The rate of another limit.
        burst: Its burst; None: that of the rule.

    Raises:
        LimitError: The rate is invalid.
    """
    parsed = Rate.parse(rate) if effect == "limit" else None
    effects = []
    for limit in known_limits():
        if rule not in (EVERY_RULE, limit.place):
            continue
        if parsed is not None:
            after = _limit_words_at_rate(limit.limit, parsed, burst)
        elif effect == "exempt":
            after = _("no limit")
        else:
            after = _("every request is refused")
        before = add_tier(limit.reading, limit.limit)
        effects.append((place_words(limit.place), before, after))
    return list(dict.fromkeys(effects))


def _limit_words_at_rate(limit: Limit, rate: Rate, burst: int | None) -> str:
    """Return a limit at the rate of an override in words. Only buckets have a burst."""
    has_burst = "burst" in limit.kind.options
    try:
        return limit_words([limit.at_rate(rate, burst if has_burst else None, "override")])
    except LimitError as error:
        return _("unchanged, because the override does not fit: %s") % error
