"""Forms that show errors at their fields, and ask to confirm rules with unexpected effects."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django import forms
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ..extension import rule_fields
from ..identity import digest, secrets_by_id
from ..identity.address import client_address
from ..identity.forwarded import covers, parse_address, parse_network
from ..identity.keys import registered_keys
from ..limits.algorithms import ALGORITHMS
from ..limits.rate import LimitError
from ..models import RateLimitOverride, RateLimitRule, RateLimitTier
from ..models.rate_fields import problem_text, written
from ..models.rule import METHODS
from ..operations.call_sites import rule_names
from ..operations.confirmations import confirmations, enforcing, notices, override_confirmations
from .versioned import Values, VersionedForm, fingerprint


def group_names() -> list[str]:
    """Return the names of Django's groups."""
    return list(Group.objects.order_by("name").values_list("name", flat=True))


class RatesField(forms.CharField):
    """A field for further rates, one per line."""

    widget = forms.Textarea(attrs={"rows": 2, "cols": 20})

    def prepare_value(self, value: object) -> object:
        """Return lines for a list, and any other value unchanged.

        Other values were sent by a browser, or were edited by hand.
        """
        if isinstance(value, list):
            return "\n".join(map(str, value))
        return value

    def to_python(self, value: object) -> Any:
        """Return a list of rates in the notation of rules.

        Raises `ValidationError`, which names the line.
        """
        lines = map(str.strip, (super().to_python(value) or "").splitlines())
        try:
            return [written(line) for line in lines if line]
        except LimitError as error:
            raise ValidationError(problem_text(error)) from None


SENTENCE = {"period": _("requests per"), "unit": _("unit of time")}
"""Labels in a row that reads as a sentence: Limit [100] requests per [1] [minutes]."""


def _further() -> RatesField:
    field = RateLimitRule._meta.get_field("more_rates")
    label = capfirst(field.verbose_name)
    return RatesField(label=label, help_text=field.help_text, required=False)


class AskingForm(VersionedForm):
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
        confirmed = fingerprint(subject or [text for _field, text in warnings])
        if not warnings or self.data.get("confirm") == confirmed:
            return
        self.asks = True
        self.fields["confirm"].widget.attrs["value"] = confirmed
        for field, text in warnings:
            problem = ValidationError([text, _("If this is intended, tick “Confirm” below.")])
            self.add_error(field if field in self.fields else None, problem)


class RuleForm(AskingForm):
    """The form of a rule. An effect on all clients has to be confirmed."""

    is_asking = True
    """Whether it asks for confirmations."""
    more_columns = ("extra",)
    has_tiers = False
    """Whether its tiers are edited in the same form."""
    notices: Sequence[str] = ()
    """What to show once the rule is saved."""
    """Unsaved values in the fields of an existing rule, in place of its own."""

    more_rates = _further()
    methods = forms.MultipleChoiceField(
        label=_("Methods"),
        required=False,
        choices=dict.fromkeys(METHODS),
        widget=forms.CheckboxSelectMultiple,
        help_text=_("None selected: all methods. GET includes HEAD."),
    )
    algorithm = forms.ChoiceField(
        label=_("Algorithm"),
        required=False,
        choices=lambda: [
            ("", "---------"),
            *((name, _(kind.label)) for name, kind in ALGORITHMS.items()),
        ],
        help_text=_("Empty: as in the settings."),
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
        fields = "__all__"
        labels = SENTENCE
        widgets = {  # noqa: RUF012 - Django's way
            "path": forms.Textarea(attrs={"rows": 3}),
            "description": forms.Textarea(attrs={"rows": 2}),
            "message": forms.Textarea(attrs={"rows": 2}),
        }

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.is_editable = "path" in self.fields  # Otherwise the rule may only be viewed.
        for word, added in rule_fields().items():
            value = self.instance.annexed().get(word)
            self.initial.setdefault(word, value)
            self.fields[word] = added.form_field()
            self.fields[word].label = capfirst(added.label)
            if not self.is_editable:  # Django's page reads an attribute.
                text = (value and added.describe(value)) or value or "—"
                setattr(self.instance, word, text)
        self.instance.to_check = "without tiers" if self.has_tiers else "all"
        if self.is_editable:
            self._set_choices()

    def _set_choices(self) -> None:
        for field in ("name", "group"):
            self.fields[field].widget.attrs["list"] = "ratelimit-names"
        self.fields["route"].widget.attrs["list"] = "ratelimit-routes"
        if self.instance.pk is None:
            self.fields["name"].widget.attrs["data-focus"] = "first"
        # Methods that the rule has already stay: WebDAV and other clients use more than these.
        for field, names in (("groups", group_names()), ("methods", METHODS)):
            own = getattr(self.instance, field)
            added = []
            if isinstance(own, list):  # Otherwise it was edited by hand.
                added = [name for name in own if isinstance(name, str)]
            choices = [(name, name) for name in dict.fromkeys([*names, *added])]
            self.fields[field].choices = choices  # type: ignore[attr-defined]

    def clean(self) -> Values:
        """Check the fields together, and convert a browser's line breaks.

        Raises `ValidationError` for contradictions.
        """
        given = super().clean()
        if not self.is_editable:
            return given
        for name in {"description", "message"} & given.keys():
            given[name] = given[name].replace("\r\n", "\n")
        if given.get("audience") == "groups" and not given.get("groups"):
            self.add_error("groups", _("Select at least one group."))
        return given

    def _post_clean(self) -> None:
        for word in self.cleaned_data.keys() & rule_fields().keys():
            self.instance.annex(word, self.cleaned_data[word])
        super()._post_clean()  # type: ignore[misc]
        if self.errors or not (self.is_editable and self.is_asking):
            return  # No warnings until the form is valid.
        rule = self.instance  # As it would be saved.
        found = confirmations(rule)
        subject = [text for _field, text in found]
        if rule.pk is not None and self.initial.get("mode") != rule.mode == "enforce":
            found += enforcing(rule)
            subject.append(rule.reading())  # Its words have numbers that grow.
        self.ask(found, subject)
        self.notices = notices(rule, RateLimitRule.objects.filter(pk=rule.pk).first())


class RowForm(VersionedForm):
    """The fields of a rule that can be edited in the list.

    Their labels contain the name of the rule, for screen readers.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        for field in (bound.field for bound in self.visible_fields()):
            field.help_text = ""
            field.widget.attrs["aria-label"] = f"{field.label}: {self.instance}"

    def _post_clean(self) -> None:
        # A rule that is broken already does not lock the others.
        self.instance.to_check = "nothing"
        super()._post_clean()  # type: ignore[misc]


CONFIRMED = "enforce_confirmed"
"""The answer to the question whether rules are to be enforced: the versions that were shown."""


def versions_of(rules: Sequence[RateLimitRule]) -> str:
    """Return a digest of the current versions of these rules, to be confirmed."""
    return fingerprint([rule.declared() for rule in sorted(rules, key=lambda rule: rule.pk)])


class TierFormSet(forms.BaseInlineFormSet):  # type: ignore[type-arg]
    """The tiers of a rule, which must fit the rule in the form, not the saved one."""

    def _construct_form(self, i: int, **kwargs: object) -> Any:
        form = super()._construct_form(i, **kwargs)  # type: ignore[misc]
        form.instance.rule = self.instance
        return form

    def clean(self) -> None:
        """Add an error for tiers that were deleted in the meantime, which Django would not show."""
        super().clean()
        gone = [form.cleaned_data.get("group", "") for form in self.forms if "id" in form.errors]
        if gone:
            problem = _(
                "Tiers were deleted while you were editing: %(groups)s. Reload the rule, and add "
                "them again if "
                "necessary."
            )
            raise ValidationError(problem % {"groups": ", ".join(gone)})


class TierForm(VersionedForm):
    """A tier of a rule."""

    more_rates = _further()

    class Meta:
        """The model and its fields."""

        model = RateLimitTier
        fields = ("group", "limit", "period", "unit", "more_rates", "burst")
        labels = SENTENCE

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.groups = [*group_names(), self.instance.group]
        if registered_keys():
            self.fields["group"].help_text = _(
                "The name of a group, or a key of this site and a value: plan:pro."
            )
        else:
            names = dict.fromkeys(["", *self.groups])
            choices = [(name, name or "—") for name in names]
            self.fields["group"] = forms.ChoiceField(label=_("Django group"), choices=choices)

    def clean_group(self) -> str:
        """Return the name of a group, or KEY:VALUE, which the model validates.

        Raises `ValidationError` if there is no such group.
        """
        name: str = self.cleaned_data["group"]
        if ":" not in name and name not in self.groups:
            raise ValidationError(_("There is no such group."))
        return name


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
        labels = SENTENCE
        help_texts = {  # noqa: RUF012 - Django's way
            "burst": _("Only for token buckets. Empty: the burst of the rule.")
        }

    more_columns = ("subject",)  # A value is kept as that.
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
