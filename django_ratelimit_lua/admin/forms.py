"""Forms that show errors at their fields, and ask to confirm rules with unexpected effects."""

from __future__ import annotations

import copy
import datetime
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from django import forms
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ..extension import FIELDS_OF_ANNEXES
from ..identity import digest, secrets_by_id
from ..identity.address import client_address
from ..identity.forwarded import covers, parse_address, parse_network
from ..limits.options import OPTIONS
from ..models import RateLimitOverride, RateLimitRule
from ..models.rule import METHODS
from ..operations.call_sites import rule_names
from ..operations.confirmations import confirmations, enforcing, notices, override_confirmations
from ..rules import RuleError
from ..rules.describe import value_words
from ..rules.options import COLUMNS, NAMES, options
from .fields import NamesField, TextField, is_set, option_field, split
from .revisions import RevisionForm, Values

GROUP = "group:"
"""The prefix of an audience that is a group."""
AUDIENCES = [(name, _(words)) for name, words in NAMES["audience"].items()]


def group_names() -> list[str]:
    """Return the names of Django's groups."""
    return list(Group.objects.order_by("name").values_list("name", flat=True))


def confirmation_of(texts: Sequence[str]) -> str:
    """Return what a page sends to confirm these texts: no others are confirmed by it."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


class AskingForm(RevisionForm):
    """A form with warnings to confirm.

    The value of its checkbox is a digest of the warnings shown, so that no others are confirmed.
    """

    confirm = forms.BooleanField(
        label=_("Confirm"),
        required=False,
        help_text=_("The warnings above are intended."),
        widget=forms.CheckboxInput(check_test=lambda value: False),
    )
    asks = False
    """Whether it shows warnings to confirm."""

    def ask(self, warnings: Sequence[tuple[str, str]], subject: Sequence[str] = ()) -> None:
        """Add the warnings as errors of their fields, unless they are confirmed.

        Args:
            warnings: Fields and texts.
            subject: Texts for which the confirmation is valid. Default: the texts of the warnings.
        """
        confirmed = confirmation_of(subject or [text for _field, text in warnings])
        if not warnings or self.data.get("confirm") == confirmed:
            return
        self.asks = True
        self.fields["confirm"].widget.attrs["value"] = confirmed
        for field, text in warnings:
            problem = ValidationError([text, _("If this is intended, tick “Confirm” below.")])
            self.add_error(field if field in self.fields else None, problem)


def form_values(rule: RateLimitRule) -> Values:
    """Return the values of the form's fields for a rule."""
    values: Values = {name: getattr(rule, name) for name in COLUMNS}
    names = rule.audience.splitlines()
    values["groups"] = [name.removeprefix(GROUP) for name in names if name.startswith(GROUP)]
    if values["groups"]:
        values["audience"] = "groups"
    return {**dict.fromkeys(options()), **own_options(rule), **values}


def own_options(rule: RateLimitRule) -> Mapping[str, Any]:
    """Return the options of a rule, which may have been edited by hand."""
    if isinstance(rule.options, Mapping):
        return rule.options
    return {}


def absent_options(rule: RateLimitRule) -> dict[str, Any]:
    """Return the options of a rule that are those of optional apps that are not installed."""
    absent = FIELDS_OF_ANNEXES.keys() - options().keys()
    return {name: value for name, value in own_options(rule).items() if name in absent}


class RuleForm(AskingForm):
    """The form of a rule: its columns, and a field for each entry of the table of options.

    An effect on all clients has to be confirmed.
    """

    is_asking = True
    """Whether it asks for confirmations."""
    notices: Sequence[str] = ()
    """What to show once the rule is saved."""
    dropped: Sequence[str] = ()
    """The notice of unknown options that are removed."""

    method = NamesField(
        label=capfirst(_(COLUMNS["method"])),
        required=False,
        help_text=_("None selected: all methods. GET includes HEAD."),
    )
    audience = forms.ChoiceField(
        label=capfirst(_(COLUMNS["audience"])),
        choices=[*AUDIENCES, ("groups", _("members of the groups below"))],
    )
    groups = forms.MultipleChoiceField(
        label=_("Groups"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("For the audience “members of the groups below”."),
    )

    class Meta:
        """The model and its fields."""

        model = RateLimitRule
        fields = tuple(COLUMNS)
        field_classes = dict.fromkeys(("path", "description", "message"), TextField)
        widgets = {  # noqa: RUF012 - Django's way
            "path": forms.Textarea(attrs={"rows": 3}),
            "description": forms.Textarea(attrs={"rows": 2}),
            "message": forms.Textarea(attrs={"rows": 2}),
        }

    def __init__(self, *args: Any, initial: Values | None = None, **kwargs: Any) -> None:
        row = kwargs.get("instance") or RateLimitRule()
        values = form_values(row)
        super().__init__(*args, initial={**values, **(initial or {})}, **kwargs)
        self.is_editable = "path" in self.fields  # Otherwise the rule may only be viewed.
        self.fields.update({name: option_field(option) for name, option in options().items()})
        if self.is_editable:
            self._set_choices(values)
            return
        for name in ("groups", *options()):  # Django's page reads an attribute.
            setattr(self.instance, name, value_words(name, values[name]))

    def _set_choices(self, values: Values) -> None:
        fields: dict[str, Any] = self.fields
        for field in ("name", "group"):
            fields[field].widget.attrs["list"] = "ratelimit-names"
        fields["route"].widget.attrs["list"] = "ratelimit-routes"
        if self.instance.pk is None:
            fields["name"].widget.attrs["data-focus"] = "first"
        # Methods that the rule has already stay: WebDAV and other clients use more than these.
        fields["method"].offer([*METHODS, *split(values["method"])])
        groups = group_names()
        names = dict.fromkeys([*groups, *values["groups"]])
        fields["groups"].choices = [(name, name) for name in names]
        fields["tiers"].offer(groups, values.get("tiers"))

    def clean(self) -> Values:
        """Set the options of the rule, and convert values to those of the columns."""
        given = super().clean()
        if not self.is_editable:
            return given
        if given.get("audience") == "groups":
            given["audience"] = "\n".join(f"{GROUP}{name}" for name in given.get("groups", ()))
            if not given["audience"]:
                del given["audience"]
                self.add_error("groups", _("Select at least one group."))
        table = options()
        row = self.instance
        kept = absent_options(row)
        dropped = own_options(row).keys() - table.keys() - kept.keys()
        if dropped:
            text = _("Unknown options were removed: %s.")
            self.dropped = [text % ", ".join(sorted(dropped))]
        row.options = kept | {name: given[name] for name in table if is_set(given.get(name))}
        return given

    def _post_clean(self) -> None:
        super()._post_clean()
        if self.errors or not (self.is_editable and self.is_asking):
            return  # No warnings until the form is valid.
        rule = self.instance  # As it would be saved.
        found = confirmations(rule)
        subject = [text for _field, text in found]
        if rule.pk is not None and self.initial.get("mode") != rule.mode == "enforce":
            found += enforcing(rule)
            subject.append(rule.reading())  # Its words have numbers that grow.
        self.ask(found, subject)
        before = RateLimitRule.objects.filter(pk=rule.pk).first()
        self.notices = [*self.dropped, *notices(rule, before)]

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
                if each.field in reported:
                    continue
                text = each.words()
                if each.tier:
                    tiers.add_error(each.tier, each.field, text)
                self.add_error(each.field if each.field in self.fields else None, text)


class RowForm(RevisionForm):
    """The fields of a rule that can be edited in the list.

    Their labels contain the name of the rule, for screen readers.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        for field in (bound.field for bound in self.visible_fields()):
            field.help_text = ""
            field.widget.attrs["aria-label"] = f"{field.label}: {self.instance}"

    def check_row(self) -> None:
        """Check the changed fields, without the others."""
        try:
            self.instance.check_apart({*self.changed_data} - {*self.errors})
        except RuleError as error:
            for each in error.each:
                self.add_error(each.field, each.words())


CONFIRMED = "enforce_confirmed"
"""The answer to the question whether rules are to be enforced: the versions that were shown."""


def versions_of(rules: Sequence[RateLimitRule]) -> str:
    """Return the current revisions of these rules, to be confirmed."""
    return " ".join(sorted(f"{rule.pk}-{rule.revision}" for rule in rules))


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
        if "burst" in self.fields:
            burst = option_field(OPTIONS["burst"])
            burst.help_text = _("Only for token buckets. Empty: the burst of the rule.")
            self.fields["burst"] = burst
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


UNITS = {"s": _("second"), "m": _("minute"), "h": _("hour"), "d": _("day")}


class PreviewForm(RuleForm):
    """An unsaved rule, and the requests to simulate in its preview."""

    is_asking = False

    preview_burst = forms.IntegerField(
        label=_("Requests at once"), min_value=0, max_value=100_000, required=False
    )
    preview_flow = forms.IntegerField(
        label=_("then, steadily"), min_value=0, max_value=1_000_000, required=False
    )
    preview_unit = forms.ChoiceField(label=_("per"), choices=list(UNITS.items()), required=False)
